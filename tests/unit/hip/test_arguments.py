"""The declaration and the packing of kernels' arguments; no device is needed."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

from rocmforge_hip.device.arguments import (
    F32,
    I32,
    I64,
    ArgumentPacker,
    FloatForms,
    Forms,
    KernelArgumentError,
    Pointer,
    check_declaration,
    pointers,
    records_of,
)
from tests.support.launches.declarations import swapped

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


def rf_test(*, x: Pointer | None, rows: I32, count: I64, scale: F32) -> None:
    """Fits `ARGUMENTS`."""


def missing(*, x: Pointer, rows: I32, scale: F32) -> None:
    """Lacks the count."""


def extra(*, x: Pointer, bias: Pointer, rows: I32, count: I64, scale: F32) -> None:
    """Has a bias."""


def narrow(*, x: Pointer, rows: I32, count: I32, scale: F32) -> None:
    """Has a count of 32 bits."""


def number(*, x: I64, rows: I32, count: I64, scale: F32) -> None:
    """Has a number for a pointer."""


def integer(*, x: Pointer, rows: I32, count: I64, scale: I32) -> None:
    """Has an integer for a float."""


def test_arguments_lie_where_the_manifest_says() -> None:
    packed = ArgumentPacker("rf_test", ARGUMENTS).pack_in_order((X, 3, 1 << 40, 0.5))
    assert struct.unpack("<Qi4xqf", packed.data.raw[:28]) == (X.address, 3, 1 << 40, 0.5)


def test_the_description_points_at_the_packed_bytes() -> None:
    packed = ArgumentPacker("rf_test", ARGUMENTS).pack_in_order((X, 3, 4, 0.5))
    entries = (ctypes.c_uint64 * 5).from_address(packed.extra_address)
    assert (entries[0], entries[2], entries[4]) == (1, 2, 3)  # pointer, size, end
    assert ctypes.string_at(entries[1], 8) == struct.pack("<Q", X.address)
    assert ctypes.c_size_t.from_address(entries[3]).value == 28


def test_none_is_a_null_pointer_and_numpy_scalars_are_numbers() -> None:
    arguments = (None, np.int32(-1), np.int64(5), np.float32(2))
    packed = ArgumentPacker("rf_test", ARGUMENTS).pack_in_order(arguments)
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
        ArgumentPacker("rf_test", ARGUMENTS).pack_in_order(arguments)
    assert caught.value.call == "rf_test"


def packed_by_name(packer: ArgumentPacker, **arguments: Any) -> tuple[Any, ...]:
    return struct.unpack("<Qi4xqf", packer.pack(arguments).data.raw[:28])


def test_named_arguments_lie_where_the_manifest_says_whatever_their_order() -> None:
    packer = ArgumentPacker("rf_test", ARGUMENTS)
    expected = (X.address, 3, 4, 0.5)
    assert packed_by_name(packer, scale=0.5, rows=3, x=X, count=4) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ...}, "rf_test.*rows is missing"),
        ({"columns": 3}, "rf_test.*does not take columns"),
        ({"columns": 3, "rows": ...}, "rf_test.*rows is missing"),
        ({"bias": X}, "rf_test.*does not take bias"),
        ({"x": 4096}, "x is a pointer, got 4096"),
    ],
)
def test_a_launch_that_names_other_arguments_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    arguments = {"x": X, "rows": 3, "count": 4, "scale": 0.5} | changes
    arguments = {name: value for name, value in arguments.items() if value is not ...}
    packer = ArgumentPacker("rf_test", ARGUMENTS, lacking=("bias",))
    with pytest.raises(KernelArgumentError, match=message):
        packer.pack(arguments)


def test_what_a_variant_lacks_may_be_none() -> None:
    packer = ArgumentPacker("rf_test", ARGUMENTS, lacking=("bias",))
    packed = packed_by_name(packer, bias=None, x=X, rows=3, count=4, scale=0.5)
    assert packed == (X.address, 3, 4, 0.5)


def test_a_declaration_like_the_manifest_is_accepted() -> None:
    assert check_declaration("rf_test", rf_test, ARGUMENTS) == ()


def test_what_only_some_variants_take_has_a_default_and_is_found_lacking() -> None:
    def declared(
        *, x: Pointer, bias: Pointer | None = None, rows: I32, count: I64, scale: F32
    ) -> None:
        """Has one more."""

    assert check_declaration("rf_test", declared, ARGUMENTS) == ("bias",)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (missing, "it takes count, which its declaration missing lacks"),
        (extra, "its declaration extra has bias, which it does not take"),
        (swapped(rf_test, "rows", "count"), "argument 2 is rows, but count in its declaration"),
        (narrow, "count is of type i64, but i32 in its declaration narrow"),
        (number, "x is of type pointer, but i64 in its declaration number"),
        (integer, "scale is of type f32, but i32 in its declaration integer"),
    ],
)
def test_a_declaration_unlike_the_manifest_is_refused(
    declaration: Callable[..., None], message: str
) -> None:
    with pytest.raises(KernelArgumentError, match=message) as caught:
        check_declaration("rf_test", declaration, ARGUMENTS)
    assert caught.value.call == "rf_test"


@dataclass(frozen=True)
class Written:
    """An activation, some of whose forms a kernel writes."""

    f32: Somewhere | None = None
    f16: Somewhere | None = None
    q: Somewhere | None = None
    q_scale: Somewhere | None = None
    q_lo_offset: int = 0


FORMS = [
    {"name": "rows", "type": "i32", "offset": 0},
    {"name": "out_f32", "type": "pointer", "offset": 8},
    {"name": "out_f16", "type": "pointer", "offset": 16},
    {"name": "out_q", "type": "pointer", "offset": 24},
    {"name": "out_q_scale", "type": "pointer", "offset": 32},
    {"name": "out_q_lo_offset", "type": "i32", "offset": 40},
]


def rf_norm(*, rows: I32, out: Forms) -> None:
    """Fits `FORMS`."""


def rf_halves(*, rows: I32, out: FloatForms) -> None:
    """Fits the forms that are no int8."""


def test_a_record_stands_for_the_arguments_that_it_is_made_of() -> None:
    assert check_declaration("rf_norm", rf_norm, FORMS) == ()
    packer = ArgumentPacker("rf_norm", FORMS, records=records_of(rf_norm))
    out = Written(f16=X, q=Somewhere(0x20), q_lo_offset=7)
    packed = packer.pack({"rows": 3, "out": out}).data.raw[:44]
    assert struct.unpack("<i4xQQQQi", packed) == (3, 0, X.address, 0x20, 0, 7)


@dataclass(frozen=True)
class Places:
    """Two places."""

    begins: Somewhere
    ends: Somewhere


PLACES = [
    {"name": "begins", "type": "pointer", "offset": 0},
    {"name": "ends", "type": "pointer", "offset": 8},
    {"name": "count", "type": "i32", "offset": 16},
]


def rf_sum(*, batch: Annotated[Places, pointers("begins", "ends")], count: I32) -> None:
    """Fits `PLACES`."""


def rf_turned(*, batch: Annotated[Places, pointers("ends", "begins")], count: I32) -> None:
    """Has them in another order."""


def test_arguments_of_a_record_may_be_called_like_its_attributes() -> None:
    assert check_declaration("rf_sum", rf_sum, PLACES) == ()
    packer = ArgumentPacker("rf_sum", PLACES, records=records_of(rf_sum))
    batch = Places(Somewhere(0x40), Somewhere(0x80))
    packed = packer.pack({"count": 3, "batch": batch}).data.raw[:20]
    assert struct.unpack("<QQi", packed) == (0x40, 0x80, 3)
    with pytest.raises(KernelArgumentError, match="argument 1 is begins, but ends in"):
        check_declaration("rf_sum", rf_turned, PLACES)


def test_a_record_that_lacks_an_argument_of_the_kernel_is_refused() -> None:
    with pytest.raises(KernelArgumentError, match="it takes out_q, which its"):
        check_declaration("rf_norm", rf_halves, FORMS)
    packer = ArgumentPacker("rf_norm", FORMS, records=records_of(rf_norm))
    with pytest.raises(KernelArgumentError, match="out_f32 is missing"):
        packer.pack({"rows": 3})
