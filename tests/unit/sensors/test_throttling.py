"""What the firmware says of throttling, in the versions that say it in one way for all chips."""

from __future__ import annotations

import ctypes
import struct

import pytest

from rocmforge.sensors.throttling import Throttle, decode
from tests.support.files.device_tree import gpu_metrics

VERSIONS = [(1, 3), (2, 2), (2, 3), (2, 4)]
U16, U32, U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64


class MetricsOfCard(ctypes.Structure):
    """gpu_metrics_v1_3 of the kernel's kgd_pp_interface.h, laid out by a C compiler's rules."""

    _fields_ = (
        ("header", U16 * 2),
        ("temperatures_activities_power", U16 * 10),
        ("energy_and_clock_counters", U64 * 2),
        ("average_and_current_clocks", U16 * 14),
        ("throttle_status", U32),
        ("fan_and_link", U16 * 4),
        ("activity_counters", U32 * 2),
        ("temperature_hbm", U16 * 4),
        ("firmware_timestamp", U64),
        ("voltages", U16 * 3),
        ("indep_throttle_status", U64),
    )


class MetricsOfApu(ctypes.Structure):
    """gpu_metrics_v2_2."""

    _fields_ = (
        ("header", U16 * 2),
        ("temperatures_and_activities", U16 * 14),
        ("system_clock_counter", U64),
        ("powers", U16 * 12),
        ("clocks", U16 * 22),
        ("throttle_status", U32),
        ("fan_pwm", U16),
        ("padding", U16 * 3),
        ("indep_throttle_status", U64),
    )


@pytest.mark.parametrize(
    ("layout", "version"), [(MetricsOfCard, (1, 3)), (MetricsOfApu, (2, 2))], ids=["card", "apu"]
)
def test_the_status_is_read_where_the_kernels_structure_has_it(
    layout: type[MetricsOfCard | MetricsOfApu], version: tuple[int, int]
) -> None:
    table = layout(throttle_status=2**32 - 1, indep_throttle_status=1 << 36)
    data = bytearray(bytes(table))
    struct.pack_into("<HBB", data, 0, ctypes.sizeof(layout), *version)
    assert decode(bytes(data)) == frozenset({Throttle.TEMPERATURE})


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (0, Throttle.POWER),  # SMU_THROTTLER_PPT0_BIT
        (7, Throttle.POWER),  # SPPT_APU
        (16, Throttle.CURRENT),  # TDC_GFX
        (23, Throttle.CURRENT),  # APCC
        (32, Throttle.TEMPERATURE),  # TEMP_GPU
        (47, Throttle.TEMPERATURE),  # PROCHOT_GFX
        (56, Throttle.OTHER),  # PPM
        (57, Throttle.OTHER),  # FIT
    ],
)
def test_each_bit_of_the_driver_is_of_one_kind(bit: int, reason: Throttle) -> None:
    data = bytearray(gpu_metrics(()))
    struct.pack_into("<Q", data, 112, 1 << bit)
    assert decode(bytes(data)) == frozenset({reason})


@pytest.mark.parametrize("version", VERSIONS)
def test_several_reasons_at_once_and_none(version: tuple[int, int]) -> None:
    both = frozenset({Throttle.POWER, Throttle.TEMPERATURE})
    assert decode(gpu_metrics(both, version)) == both
    assert decode(gpu_metrics((), version)) == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x78",
        gpu_metrics([Throttle.POWER])[:119],  # cut off
        struct.pack("<HBB", 100, 1, 3) + bytes(116),  # says that it ends before the status
        struct.pack("<HBB", 120, 1, 4) + bytes(116),  # bits that mean what the chip likes
        struct.pack("<HBB", 264, 3, 0) + bytes(260),  # times, no bits
        gpu_metrics(())[:112] + b"\xff" * 8,  # not filled in
    ],
    ids=["empty", "short", "cut", "small", "v1.4", "v3.0", "unfilled"],
)
def test_what_is_not_understood_says_nothing(data: bytes) -> None:
    assert decode(data) is None
