"""Records of arrays, and the folds over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.device.records import leaves, mapped, named_leaves, total_bytes

X = TypeVar("X")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Generic[X]):
    codes: X
    scale: X | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Generic[X]):
    tokens: X
    normed: Inner[X]
    absent: Inner[X] | None
    last: X


RECORD = Outer(
    tokens=spec((3,), "i4"),
    normed=Inner(codes=spec((2, 2), "i1")),
    absent=None,
    last=spec((1,), "u8"),
)


def test_arrays_come_in_the_order_of_the_fields_with_their_names() -> None:
    assert [name for name, _ in named_leaves(RECORD, ArraySpec)] == [
        "tokens",
        "normed.codes",
        "last",
    ]
    assert leaves(RECORD, ArraySpec) == [each for _, each in named_leaves(RECORD, ArraySpec)]


def test_a_mapped_record_has_the_same_fields() -> None:
    names: Outer[str] = mapped(RECORD, ArraySpec, lambda name, what: f"{name}: {what.nbytes}")
    assert names == Outer(
        tokens="tokens: 12", normed=Inner(codes="normed.codes: 4"), absent=None, last="last: 8"
    )


def test_bytes_of_all_arrays_are_added_up() -> None:
    assert total_bytes(RECORD) == 24
