"""Targets, manifests and the packing of arguments; no device is needed."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge_hip.device.library import (
    ArgumentPacker,
    KernelArgumentError,
    NoKernelsForTarget,
    find_target,
)

ARGUMENTS = [
    {"name": "x", "type": "pointer", "offset": 0},
    {"name": "rows", "type": "i32", "offset": 8},
    {"name": "count", "type": "i64", "offset": 16},
    {"name": "scale", "type": "f32", "offset": 24},
]


@dataclass(frozen=True)
class Somewhere:
    """An array as far as the packer is concerned."""

    address: int


X = Somewhere(0x7000_0000_1000)


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    """Kernels for some targets."""
    for name in (
        "gfx1100",
        "gfx11-generic",
        "gfx10-1-generic",
        "gfx942",
        "sm_80",
        "sm_90",
        "host-w32",
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("device", "target"),
    [
        ("gfx1100", "gfx1100"),
        ("gfx1102", "gfx11-generic"),
        ("gfx1153", "gfx11-generic"),
        ("gfx1012", "gfx10-1-generic"),
        ("sm_86", "sm_80"),
        ("sm_120", "sm_90"),
        ("host-w32", "host-w32"),
    ],
)
def test_the_exact_target_comes_before_that_of_the_family(
    device: str, target: str, lib: Path
) -> None:
    assert find_target(device, lib) == target


@pytest.mark.parametrize("device", ["gfx908", "gfx950", "gfx1300", "sm_75", "host-w64"])
def test_a_device_without_kernels_is_named_and_so_are_the_kernels(device: str, lib: Path) -> None:
    with pytest.raises(NoKernelsForTarget, match=f"no kernels for {device}.*gfx1100") as caught:
        find_target(device, lib)
    assert caught.value.target == device
    assert "sm_90" in caught.value.available


def test_arguments_lie_where_the_manifest_says() -> None:
    packed = ArgumentPacker("rf_test", ARGUMENTS).pack((X, 3, 1 << 40, 0.5))
    assert struct.unpack("<Qi4xqf", packed.data.raw[:28]) == (X.address, 3, 1 << 40, 0.5)


def test_the_description_points_at_the_packed_bytes() -> None:
    packed = ArgumentPacker("rf_test", ARGUMENTS).pack((X, 3, 4, 0.5))
    entries = (ctypes.c_uint64 * 5).from_address(packed.extra_address)
    assert (entries[0], entries[2], entries[4]) == (1, 2, 3)  # pointer, size, end
    assert ctypes.string_at(entries[1], 8) == struct.pack("<Q", X.address)
    assert ctypes.c_size_t.from_address(entries[3]).value == 28


def test_none_is_a_null_pointer_and_numpy_scalars_are_numbers() -> None:
    arguments = (None, np.int32(-1), np.int64(5), np.float32(2))
    packed = ArgumentPacker("rf_test", ARGUMENTS).pack(arguments)
    assert struct.unpack("<Qi4xqf", packed.data.raw[:28]) == (0, -1, 5, 2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, 3, 4), r"takes 4 arguments \(x, rows, count, scale\), not 3"),
        ((4096, 3, 4, 0.5), "x is a pointer, got 4096"),
        ((np.zeros(3), 3, 4, 0.5), "x is a pointer, got array"),
        ((X, 3.0, 4, 0.5), "rows=3.0"),
        ((X, 1 << 31, 4, 0.5), "rows=2147483648"),
        ((X, X, 4, 0.5), "rows=Somewhere"),
        ((X, 3, 4, 1), "scale is a f32, got 1"),
        ((X, 3, 4, None), "scale is a f32, got None"),
    ],
    ids=["too_few", "int", "host_array", "float", "too_large", "array", "int_float", "none"],
)
def test_what_does_not_fit_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(KernelArgumentError, match=message) as caught:
        ArgumentPacker("rf_test", ARGUMENTS).pack(arguments)
    assert caught.value.call == "rf_test"
