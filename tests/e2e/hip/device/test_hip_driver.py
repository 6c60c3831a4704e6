"""The HIP driver and kernel library on the platform under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rocmforge.errors import ConfigurationError, OutOfMemory
from rocmforge_hip.device.arguments import KernelArgumentError
from rocmforge_hip.device.discovery import FoundDevice, find_devices
from rocmforge_hip.device.driver import Driver, HipError
from rocmforge_hip.device.graphs import GraphCache
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray, DeviceBuffer, HugePages, PinnedBuffer, spec
from rocmforge_hip.device.platform import select_platform
from rocmforge_hip.kernels.attention import rf_attention_decode
from rocmforge_hip.kernels.rows import rf_softcap, rf_take_rows
from tests.support.launches.declarations import swapped
from tests.support.launches.host_platform import HostPlatform

NOWHERE = DeviceArray(0, (0,), np.dtype("f4"))


@pytest.fixture
def found(host: HostPlatform | None) -> FoundDevice:
    """The first device."""
    return find_devices(select_platform())[0]


@pytest.fixture
def driver(found: FoundDevice) -> Driver:
    """Its driver."""
    return Driver(found.properties.index)


@pytest.fixture
def stream(driver: Driver) -> Iterator[int]:
    """A stream."""
    stream = driver.create_stream()
    yield stream
    driver.destroy_stream(stream)


@pytest.fixture
def library(driver: Driver, stream: int, found: FoundDevice) -> Iterator[KernelLibrary]:
    """Its kernels."""
    library = KernelLibrary(driver, stream, found.properties.target)
    yield library
    library.close()


def test_a_device_says_what_it_is(found: FoundDevice, library: KernelLibrary) -> None:
    assert found.properties.wave_size == library.wave_size
    assert found.properties.compute_units > 0
    assert 0 < found.info.memory_free <= found.info.memory_total


def test_bytes_go_to_the_device_and_back(driver: Driver, stream: int) -> None:
    there = DeviceBuffer(driver, spec((1000,), "u1"), "there")
    source, target = (PinnedBuffer(driver, 1000, name) for name in ("source", "target"))
    source.bytes[:] = [value % 251 for value in range(1000)]
    driver.copy_to_device(there.array.address, source.address, 1000, stream)
    driver.copy_to_host(target.address, there.array.address, 1000, stream)
    driver.synchronize_stream(stream)
    assert target.bytes.tolist() == source.bytes.tolist()
    for buffer in (there, source, target):
        buffer.free()


def test_huge_pages_go_to_the_device(driver: Driver, stream: int) -> None:
    there = DeviceBuffer(driver, spec((5000,), "u1"), "there")
    target = PinnedBuffer(driver, 5000, "target")
    source = HugePages(driver, 5000, "source")
    source.bytes[:] = np.arange(5000) % 251
    for first, nbytes in ((4096, 904), (0, 4096)):
        source.pin(first, nbytes)
        place = there.array.address + first
        driver.copy_to_device(place, source.address + first, nbytes, stream)
    driver.copy_to_host(target.address, there.array.address, 5000, stream)
    driver.synchronize_stream(stream)
    np.testing.assert_array_equal(target.bytes, source.bytes)
    for buffer in (there, source, target):
        buffer.free()


def test_memory_is_pinned_and_given_back_once(driver: Driver) -> None:
    memory = np.zeros(64, np.uint8)
    address = memory.ctypes.data
    driver.pin(address, 64, "a test")
    with pytest.raises(HipError, match=r"hipHostRegister failed: .*AlreadyRegistered.*a test"):
        driver.pin(address, 64, "a test")
    driver.unpin(address)
    with pytest.raises(HipError, match=r"hipHostUnregister failed: .*NotRegistered"):
        driver.unpin(address)


def test_too_much_memory_is_refused_with_a_size(driver: Driver) -> None:
    with pytest.raises(OutOfMemory, match="hipMalloc of 1,125,899,906,842,624 bytes for a cache"):
        driver.allocate(1 << 50, "a cache")


def test_kernels_with_other_constants_are_refused_when_the_backend_loads(
    driver: Driver, stream: int, library: KernelLibrary, tmp_path: Path
) -> None:
    manifest = json.loads((library.folder / "manifest.json").read_text())
    manifest["constants"]["kBlockTokens"] = 16
    (tmp_path / "gfx1100").mkdir()
    (tmp_path / "gfx1100/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigurationError, match="built with kBlockTokens = 16, but 32"):
        KernelLibrary(driver, stream, "gfx1100", tmp_path)


def test_an_unknown_kernel_is_named(library: KernelLibrary) -> None:
    with pytest.raises(KernelArgumentError, match="rf_missing failed: there is no such kernel"):
        library.kernel("rf_missing", rf_softcap)


@pytest.mark.parametrize(
    ("kernel", "declaration", "first", "second"),
    [
        ("rf_take_rows", rf_take_rows, "rows", "out"),
        ("rf_attention_decode_f16_d64_g4", rf_attention_decode, "k_cache", "v_cache"),
        ("rf_attention_decode_f16_d64_g4", rf_attention_decode, "heads", "kv_heads"),
    ],
)
def test_two_arguments_of_one_type_in_each_others_place_are_refused_at_load(
    library: KernelLibrary,
    kernel: str,
    declaration: Callable[..., None],
    first: str,
    second: str,
) -> None:
    library.kernel(kernel, declaration)
    message = f"{kernel} failed: argument [0-9]+ is {first}, but {second} in its declaration"
    with pytest.raises(KernelArgumentError, match=message):
        library.kernel(kernel, swapped(declaration, first, second))


def test_a_launch_that_is_too_large_is_refused_before_hip_sees_it(library: KernelLibrary) -> None:
    kernel = library.kernel("rf_softcap", rf_softcap)
    with pytest.raises(KernelArgumentError, match=r"block 257 is out of bounds \(at most 256"):
        kernel.launch((1, 1, 1), 257, x=NOWHERE, cap=1.0, count=1)
    with pytest.raises(KernelArgumentError, match=r"grid \(0, 1, 1\)"):
        kernel.launch((0, 1, 1), 256, x=NOWHERE, cap=1.0, count=1)


def test_hips_refusal_carries_kernel_and_arguments(
    driver: Driver, library: KernelLibrary, host: HostPlatform | None
) -> None:
    kernel = library.kernel("rf_softcap", rf_softcap)
    there = DeviceBuffer(driver, spec((4,), "f4"), "there")
    with pytest.raises(HipError, match=r"rf_softcap.*grid \(1, 1, 1\).*cap=1.0, count=4") as caught:
        kernel.launch((1, 1, 1), 256, 1 << 30, x=there.array, cap=1.0, count=4)
    assert (caught.value.call, caught.value.device) == ("hipModuleLaunchKernel", driver.device)
    if host:
        host.clear()
    there.free()


def test_a_stream_can_be_waited_for_after_a_recording_that_failed(
    driver: Driver, stream: int
) -> None:
    def fail() -> None:
        raise OutOfMemory("planted")

    graphs = GraphCache(driver, stream)
    with pytest.raises(OutOfMemory, match="planted"):
        graphs.launch("key", fail)
    driver.synchronize_stream(stream)
    graphs.close()


def test_a_graph_does_again_what_was_recorded(
    driver: Driver, stream: int, library: KernelLibrary
) -> None:
    there = DeviceBuffer(driver, spec((64,), "u1"), "there")
    driver.begin_capture(stream)
    there.fill(7, stream)
    graph = driver.end_capture(stream)
    target = PinnedBuffer(driver, 64, "target")
    for _ in range(2):
        there.fill(0, stream)
        driver.launch_graph(graph, stream)
        driver.copy_to_host(target.address, there.array.address, 64, stream)
        driver.synchronize_stream(stream)
        assert set(target.bytes.tolist()) == {7}
    driver.destroy_graph(graph)
    for buffer in (there, target):
        buffer.free()
