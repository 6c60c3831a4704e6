"""The mistakes that an earlier server of this kind was known for, planted one by one.

Each test puts a mistake back and expects that it is seen: by the checking library, by a counter, or
by an assertion. Those of the scheduler are in tests/unit/engine, and that a backend cannot have a
scheduler of its own is in tests/unit/test_architecture.py.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rocmforge_hip
from rocmforge.backend.protocol import LoadOptions
from rocmforge.errors import EngineError
from rocmforge_hip.backend import create
from rocmforge_hip.device.driver import ArgumentBuffer
from rocmforge_hip.device.driver import Driver as HipDriver
from rocmforge_hip.device.memory import ArraySpec, DeviceBuffer, PinnedBuffer, spec
from rocmforge_hip.kernels.rows import rf_softcap
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.model_ops import HipOps
from rocmforge_hip.run.runner import HipRunner
from tests.backend.driving import Chunk, Driver
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import fitting, platform_options, started_platform
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

OPTIONS = replace(SMALL, max_batched_tokens=64, kv_blocks=8)
PLAIN = replace(OPTIONS, graphs="off")  # every step goes through Python
TOKENS = 6
BLOCKS = [1, 2]


@pytest.fixture(scope="module")
def platform(request: pytest.FixtureRequest) -> Iterator[HostPlatform]:
    """The checking library: it is what sees these mistakes."""
    options = platform_options(request)
    if options.platform != "host":
        pytest.skip("planted mistakes would end the process's use of a GPU")
    with started_platform(options, watched=0) as host:
        assert host is not None
        yield host


@pytest.fixture
def host(platform: HostPlatform) -> Iterator[HostPlatform]:
    """The same, without what an earlier test planted."""
    platform.clear()
    yield platform
    platform.clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    return write_model(fitting(by_name("llama")), tmp_path_factory.mktemp("bugs"))


def load(model: Path, options: LoadOptions = OPTIONS) -> HipRunner:
    runner = load_file(create(), model, options)
    assert isinstance(runner, HipRunner)
    return runner


def use(model: Path) -> list[int]:
    """Loads the model, lets it continue a prompt, and gives everything back."""
    with closing(load(model)) as runner:
        return Driver(runner).greedy(PROMPT[:20], BLOCKS, TOKENS)


@pytest.fixture
def expected(host: HostPlatform, model: Path) -> list[int]:
    """What the right code says; nothing is found in it."""
    tokens = use(model)
    assert host.take_finding() == ""
    return tokens


def finding(host: HostPlatform, model: Path) -> str:
    """What the checking library says about one use of the model."""
    with suppress(EngineError):  # the first mistake is the answer to every call from then on
        use(model)
    return host.take_finding()


@pytest.mark.usefixtures("expected")
def test_a_buffer_sized_in_elements_is_seen(
    host: HostPlatform, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elements(self: ArraySpec) -> int:
        return int(np.prod(self.shape))

    monkeypatch.setattr(ArraySpec, "nbytes", property(elements))
    assert "256 bytes at offset 0 of buffer" in finding(host, model)


def test_a_buffer_that_is_freed_while_steps_still_use_it_is_seen(
    host: HostPlatform, model: Path
) -> None:
    with closing(load(model)) as runner:
        driver = Driver(runner)
        driver.run(Chunk(tokens=PROMPT[:20], blocks=BLOCKS))
        runner.driver.free(runner._model.ops.caches[0].keys.address)
        with pytest.raises(EngineError):
            driver.run(Chunk(tokens=PROMPT[:20], blocks=BLOCKS))
    assert "freed buffer" in host.take_finding()


def test_results_that_are_read_before_the_device_is_done_are_wrong(
    host: HostPlatform, model: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(load(model)) as runner:
        monkeypatch.setattr(HipDriver, "synchronize_event", lambda self, event: None)
        monkeypatch.setattr(HipDriver, "elapsed_ns", lambda self, start, stop: 0)
        output = Driver(runner).run(Chunk(tokens=PROMPT[:20], blocks=BLOCKS))
        assert output.token_ids.tolist() != expected[:1]


def test_arguments_may_be_packed_again_before_the_kernel_runs(
    model: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device runs as late as it may here, and every launch of a kernel packs the same bytes."""
    real = HipDriver.launch

    def launch_and_spoil(self: HipDriver, *arguments: Any) -> None:
        real(self, *arguments)
        buffer = arguments[-1]
        assert isinstance(buffer, ArgumentBuffer)
        buffer.data.raw = b"\xff" * len(buffer.data)

    monkeypatch.setattr(HipDriver, "launch", launch_and_spoil)
    assert use(model) == expected


@pytest.mark.usefixtures("expected")
def test_memory_that_nothing_was_written_to_is_seen(
    host: HostPlatform, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HipDriver, "fill", lambda self, *arguments: None)
    assert "nothing has been written there" in finding(host, model)


@pytest.mark.usefixtures("host")
def test_a_buffer_is_freed_once() -> None:
    driver = HipDriver(0)
    buffer = DeviceBuffer(driver, spec((4,), "f4"), "x")
    buffer.free()
    with pytest.raises(AssertionError, match="x is freed twice"):
        buffer.free()


@pytest.mark.usefixtures("host")
def test_memory_that_is_allocated_in_a_forward_pass_is_counted(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HipOps.norm

    def leak(self: HipOps, x: Activation, weight: Any, bias: Any) -> Activation:
        leaked.append(PinnedBuffer(runner.driver, 64, "a temporary"))
        return real(self, x, weight, bias)

    leaked: list[PinnedBuffer] = []
    with closing(load(model, PLAIN)) as runner:
        driver = Driver(runner)
        driver.run(Chunk(tokens=PROMPT[:20], blocks=BLOCKS))
        before = runner.driver.allocations
        monkeypatch.setattr(HipOps, "norm", leak)
        driver.run(Chunk(tokens=PROMPT[:20], blocks=BLOCKS))
        assert runner.driver.allocations == before + len(leaked) > before
        for buffer in leaked:
            buffer.free()


@pytest.mark.usefixtures("host")
def test_kernels_are_loaded_before_the_first_step_and_by_one_thread(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    modules: list[str] = []
    call, load_module = HipDriver._call, HipDriver.load_module

    def noted_call(self: HipDriver, *arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return call(self, *arguments)

    def noted_load(self: HipDriver, image: bytes, name: str) -> int:
        modules.append(name)
        return load_module(self, image, name)

    monkeypatch.setattr(HipDriver, "_call", noted_call)
    monkeypatch.setattr(HipDriver, "load_module", noted_load)
    with closing(load(model)) as runner:
        loaded = len(modules)
        assert len(set(modules)) == loaded > 0
        Driver(runner).greedy(PROMPT[:20], BLOCKS, TOKENS)
        assert len(modules) == loaded
    assert threads == {threading.get_ident()}, "HIP's current device belongs to a thread"


def test_two_sequences_that_append_to_one_block_are_seen(host: HostPlatform, model: Path) -> None:
    with closing(load(model)) as runner:
        chunk = Chunk(tokens=PROMPT[:20], blocks=BLOCKS)
        with pytest.raises(EngineError):
            Driver(runner).run(chunk, chunk)
        assert "rf_rope_store" in host.take_finding()


@pytest.mark.usefixtures("host")
def test_a_round_trip_within_a_layer_is_counted(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HipOps.norm

    def look(self: HipOps, x: Activation, weight: Any, bias: Any) -> Activation:
        assert x.f32 is not None
        runner.driver.copy_to_host(there.address, x.f32.address, 64, runner._device.stream)
        return real(self, x, weight, bias)

    with closing(load(model, PLAIN)) as runner:
        there = PinnedBuffer(runner.driver, 64, "a look at the residual")
        driver = Driver(runner)
        driver.run(Chunk(tokens=PROMPT[:20], blocks=BLOCKS))
        before = runner.driver.copies_to_host
        monkeypatch.setattr(HipOps, "norm", look)
        driver.run(Chunk(tokens=PROMPT[:20], blocks=BLOCKS))
        assert runner.driver.copies_to_host > before + 1
        there.free()


def test_no_structure_of_hip_is_written_by_hand() -> None:
    """Their layouts differ between versions; hip-python has those of its own."""
    root = Path(rocmforge_hip.__file__).parent
    structures = [
        f"{path.name}: {node.name}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base).rpartition(".")[2] in {"Structure", "Union"}
    ]
    assert structures == []


def test_an_error_says_call_code_device_kernel_and_shapes(host: HostPlatform, model: Path) -> None:
    with closing(load(model)) as runner:
        kernel = runner._device.library.kernel("rf_softcap", rf_softcap)
        array = runner._model.inputs
        with pytest.raises(EngineError) as caught:
            kernel.launch((1, 1, 1), 256, 1 << 30, x=array, cap=1.0, count=4)
    message = caught.value.message
    for part in ("hipModuleLaunchKernel", "hipError", "device 0", "rf_softcap", "grid (1, 1, 1)"):
        assert part in message
    host.clear()
