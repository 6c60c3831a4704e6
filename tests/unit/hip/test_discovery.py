"""Choosing among devices, and what an APU's memory is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmforge.backend.protocol import DeviceInfo
from rocmforge.errors import ConfigurationError
from rocmforge_hip.device import discovery
from rocmforge_hip.device.discovery import FoundDevice, choose_device, choose_devices, find_devices
from rocmforge_hip.device.driver import DeviceProperties, HipUnavailable
from rocmforge_hip.device.platform import Platform

GIB = 1 << 30


def properties(index: int, name: str, *, integrated: bool = False) -> DeviceProperties:
    return DeviceProperties(
        index=index,
        name=name,
        target="gfx1100",
        wave_size=32,
        compute_units=96,
        memory_total=24 * GIB,
        is_integrated=integrated,
        pci_id=f"0000:0{index}:00.0",
    )


def found(index: int, name: str) -> FoundDevice:
    info = DeviceInfo(
        index=index, name=name, target="gfx1100", memory_total=24 * GIB, memory_free=23 * GIB
    )
    return FoundDevice(properties(index, name), info)


DEVICES = (
    found(1, "Radeon RX 7900 XTX"),
    found(2, "Radeon RX 7900 XT"),
    found(0, "Radeon 890M"),
)


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (None, 1),
        ("0", 0),
        ("0000:02:00.0", 2),
        ("02:00.0", 2),  # as lspci writes it
        ("Radeon RX 7900 XT", 2),  # a whole name, although it is also a part of another
        ("890m", 0),
    ],
)
def test_a_device_has_an_index_a_pci_id_and_a_name(wanted: str | None, index: int) -> None:
    assert choose_device(DEVICES, wanted).properties.index == index


def test_a_wrong_device_is_answered_with_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"'7' is not a device\. There are: 1 \(Radeon RX"):
        choose_device(DEVICES[:1], "7")


def test_a_name_must_be_of_one_device() -> None:
    with pytest.raises(ConfigurationError, match="'RX 79' stands for several devices"):
        choose_device(DEVICES, "RX 79")


def test_no_device_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="found no device"):
        choose_device((), None)


def test_several_devices_are_listed_with_commas() -> None:
    twins = (found(0, "Radeon RX 7900 XTX"), DEVICES[0], DEVICES[1])
    for wanted, expected in ((None, [0, 1]), ("1, 0", [1, 0]), ("0000:01:00.0,0", [1, 0])):
        chosen = choose_devices(twins, wanted, 2)
        assert [device.properties.index for device in chosen] == expected


@pytest.mark.parametrize(
    "changes",
    [{"name": "Radeon RX 7900 XT"}, {"target": "gfx1101"}, {"memory_total": 20 * GIB}],
    ids=lambda changes: next(iter(changes)),
)
def test_unequal_devices_are_refused_with_what_differs(changes: dict[str, Any]) -> None:
    other = found(2, "Radeon RX 7900 XTX")
    other = replace(other, info=replace(other.info, **changes))
    with pytest.raises(ConfigurationError, match="needs equal devices") as caught:
        choose_devices((DEVICES[0], other), None, 2)
    assert "1: Radeon RX 7900 XTX, gfx1100, 24.0 GiB; 2: " in caught.value.message


@pytest.mark.parametrize(
    ("wanted", "count", "problem"),
    [
        (None, 4, "there are 3"),
        ("1,2,0", 2, "--device names 3"),
        ("1,0000:01:00.0", 2, "names a device twice"),
        ("1,7", 2, "'7' is not a device"),
    ],
)
def test_so_many_devices_as_ranks_are_needed(wanted: str | None, count: int, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        choose_devices(DEVICES, wanted, count)


class FakeDriver:
    """Answers for 8 GiB, 7 of them free."""

    def __init__(self, device: int) -> None:
        self.device = device

    def memory_info(self) -> tuple[int, int]:
        return 7 * GIB, 8 * GIB


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An APU and a graphics card; the folder of PCI devices is empty."""
    devices = (properties(0, "Radeon 890M", integrated=True), properties(1, "Radeon RX 7900 XTX"))
    monkeypatch.setattr(discovery, "list_devices", lambda: devices)
    monkeypatch.setattr(discovery, "Driver", FakeDriver)
    monkeypatch.setattr(discovery, "_PCI_DEVICES", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("listed")
def test_a_card_comes_before_an_apu() -> None:
    assert [each.properties.index for each in find_devices(Platform.ROCM)] == [1, 0]


@pytest.mark.usefixtures("listed")
def test_devices_of_another_platform_are_left_out() -> None:
    assert find_devices(Platform.NVIDIA) == ()


def test_an_apu_may_borrow_memory(listed: Path) -> None:
    folder = listed / "0000:00:00.0"
    folder.mkdir()
    sizes = {"vram_total": 8, "gtt_total": 48, "vram_used": 1, "gtt_used": 2}
    for name, size in sizes.items():
        (folder / f"mem_info_{name}").write_text(f"{size * GIB}\n")
    card, apu = find_devices(Platform.ROCM)
    assert (apu.info.memory_free, apu.info.memory_total) == (53 * GIB, 56 * GIB)
    assert (card.info.memory_free, card.info.memory_total) == (7 * GIB, 8 * GIB)


def test_a_device_that_hip_gives_all_its_memory_keeps_it(listed: Path) -> None:
    folder = listed / "0000:00:00.0"
    folder.mkdir()
    for name in ("vram_total", "gtt_total", "vram_used", "gtt_used"):
        (folder / f"mem_info_{name}").write_text("1048576\n")
    apu = find_devices(Platform.ROCM)[1]
    assert (apu.info.memory_free, apu.info.memory_total) == (7 * GIB, 8 * GIB)


@pytest.mark.usefixtures("listed")
def test_without_those_files_hip_is_believed() -> None:
    apu = find_devices(Platform.ROCM)[1]
    assert (apu.info.memory_free, apu.info.memory_total) == (7 * GIB, 8 * GIB)


def test_a_missing_library_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(platform: Platform) -> None:
        raise HipUnavailable("hipGetDeviceCount", "libamdhip64.so was not found")

    monkeypatch.setattr("rocmforge_hip.backend.find_devices", fail)
    from rocmforge_hip.backend import create

    probe = create().probe()
    assert (probe.devices, probe.reason) == ((), "libamdhip64.so was not found")
