"""Records of arrays: frozen dataclasses with slots, a field for each array, and folds over them.

`StepArrays[ArraySpec]` says which arrays there are to be, `StepArrays[DeviceArray]` where they lie:
a record is generic in what it holds of each array. A field holds that, another record, or None for
an array that is not needed. The names of the slots are those of the fields, in their order, as no
record inherits from another; `dataclasses.fields` would be slow for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from rocmforge_hip.device.memory import ArraySpec, DeviceArray, Memory

R = TypeVar("R")


def leaves(record: Any, leaf: type[R]) -> list[R]:
    """Returns what a record holds of each array, in the order of the fields.

    Args:
        record: The record.
        leaf: The class of what it holds of an array.
    """
    found: list[R] = []
    for field in record.__slots__:
        value = getattr(record, field)
        if isinstance(value, leaf):
            found.append(value)
        elif value is not None:
            found += leaves(value, leaf)
    return found


def named_leaves(record: Any, leaf: type[R], name: str = "") -> Iterator[tuple[str, R]]:
    """Yields what `leaves` returns, each with the name of its field: "normed.f16".

    Args:
        record: The record.
        leaf: The class of what it holds of an array.
        name: Of the record, with a dot; empty for the outermost.
    """
    for field in record.__slots__:
        value = getattr(record, field)
        if isinstance(value, leaf):
            yield name + field, value
        elif value is not None:
            yield from named_leaves(value, leaf, f"{name}{field}.")


def mapped(record: Any, leaf: type[R], function: Callable[[str, R], object], name: str = "") -> Any:
    """Returns a record of the same class that holds what the function makes of each array.

    Args:
        record: The record.
        leaf: The class of what it holds of an array.
        function: Called with the name of the field, "normed.f16", and what it holds.
        name: Of the record, with a dot; empty for the outermost.
    """
    values: dict[str, object] = {}
    for field in record.__slots__:
        value = getattr(record, field)
        if isinstance(value, leaf):
            value = function(name + field, value)
        elif value is not None:
            value = mapped(value, leaf, function, f"{name}{field}.")
        values[field] = value
    return type(record)(**values)


def total_bytes(record: Any) -> int:
    """Returns the bytes of all arrays that a record of `ArraySpec` describes."""
    return sum(what.nbytes for what in leaves(record, ArraySpec))


def allocate(memory: Memory, record: Any, stream: int) -> Any:
    """Allocates activations: returns the record of `ArraySpec` as one of `DeviceArray`.

    That is done once when a model is loaded, for the largest step there can be. Each array is an
    allocation of its own, so that the host platform's guard pages lie between them. They start as
    zeros: rows that only pad a batch are computed on whatever is there.
    """

    def new(name: str, what: ArraySpec) -> DeviceArray:
        buffer = memory.device(what, f"activation {name}")
        buffer.fill(0, stream)
        return buffer.array

    return mapped(record, ArraySpec, new)
