"""A tensor of an opened checkpoint: stored bytes, what they mean, and parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.decode import decode
from rocmforge.checkpoint.formats import FORMATS, WeightFormat
from rocmforge.errors import UnsupportedTensor

_BAND: Final = 64  # rows that are transposed at once: what of them is read together stays cached


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor as its file stores it.

    Attributes:
        name: The name in the file, for messages; parts of a tensor append their range.
        shape: Elements along each axis in NumPy order, the last axis contiguous.
        format: How the elements of each row are stored.
        data: uint8 `[*shape[:-1], bytes per row]`, read-only. It keeps the file mapped.
    """

    name: str
    shape: tuple[int, ...]
    format: WeightFormat
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of the stored data."""
        return self.data.nbytes

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis, sharing memory: its rows may not be adjacent.

        Args:
            axis: From 0, or from -1 backwards.
            start: The first index.
            stop: The one behind the last.

        Raises:
            UnsupportedTensor: The tensor does not have them, or cuts through a block of the last
                axis.
        """
        axes = len(self.shape)
        if not -axes <= axis < axes:
            raise UnsupportedTensor(self.name, f"its shape {self.shape} has no axis {axis}")
        axis %= axes
        is_last = axis == axes - 1
        block = self.format.block_size if is_last else 1
        if not 0 <= start < stop <= self.shape[axis] or start % block or stop % block:
            reason = f"{start}:{stop} of axis {axis} were asked for, but its shape is {self.shape}"
            raise UnsupportedTensor(
                self.name, reason if block == 1 else f"{reason} in blocks of {block}"
            )
        span = slice(start, stop)
        if is_last:
            span = slice(*(place // block * self.format.block_bytes for place in (start, stop)))
        before = "" if axis == 0 else "..., " if is_last else ":, " * axis
        return Tensor(
            name=f"{self.name}[{before}{start}:{stop}]",
            shape=(*self.shape[:axis], stop - start, *self.shape[axis + 1 :]),
            format=self.format,
            data=self.data[(slice(None),) * axis + (span,)],
        )

    def to_float32(self, order: Literal["C", "F"] = "C") -> npt.NDArray[np.float32]:
        """Returns the elements as float32 `[*shape]`, in new memory and little beside it.

        Args:
            order: How a matrix lies in memory: row after row (C) or column after column (F).

        Raises:
            UnsupportedTensor: Nobody here can tell the values of this format.
        """
        try:
            return decode(self.format, self.data, order)
        except NotImplementedError:
            raise UnsupportedTensor(
                self.name, f"the type {self.format.name.upper()} cannot be dequantised"
            ) from None


def float32_tensor(name: str, values: npt.NDArray[np.float32]) -> Tensor:
    """Returns a tensor of values in memory."""
    data = np.ascontiguousarray(values, "<f4").view(np.uint8)
    data.flags.writeable = False
    return Tensor(name, values.shape, FORMATS["f32"], data)


class Stack(Tensor):
    """Tensors of one shape and format as one, along a new first axis: reads none of them.

    So are experts that a file keeps apart. `data` is put together anew each time that it is asked
    for; who wants the bytes of the file takes them from the `parts`.
    """

    __slots__ = ("parts",)

    parts: tuple[Tensor, ...]

    def __init__(self, name: str, parts: Sequence[Tensor]) -> None:
        """Makes the stack.

        Args:
            name: What it is called in messages.
            parts: At least one.

        Raises:
            UnsupportedTensor: Their shapes or formats differ; names the first that does.
        """
        first = parts[0]
        for part in parts:
            if (part.shape, part.format) != (first.shape, first.format):
                raise UnsupportedTensor(
                    part.name,
                    f"it is {part.shape} of {part.format}, but {first.name} is {first.shape} of "
                    f"{first.format}",
                )
        for field, value in (
            ("name", name),
            ("shape", (len(parts), *first.shape)),
            ("format", first.format),
            ("parts", tuple(parts)),
        ):
            object.__setattr__(self, field, value)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored data of all parts, in new memory."""
        return np.stack([part.data for part in self.parts])

    @property
    def nbytes(self) -> int:
        """Bytes of the stored data."""
        return sum(part.nbytes for part in self.parts)

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis; see `Tensor.slice`."""
        axis = axis % len(self.shape) if -len(self.shape) <= axis < len(self.shape) else axis
        if axis == 0 and 0 <= start < stop <= len(self.parts):
            return Stack(f"{self.name}[{start}:{stop}]", self.parts[start:stop])
        if 0 < axis < len(self.shape):
            return Stack(self.name, [part.slice(axis - 1, start, stop) for part in self.parts])
        raise UnsupportedTensor(
            self.name,
            f"{start}:{stop} of axis {axis} were asked for, but its shape is {self.shape}",
        )

    def to_float32(self, order: Literal["C", "F"] = "C") -> npt.NDArray[np.float32]:
        """Returns the elements as float32 `[*shape]`, in new memory."""
        return np.stack([part.to_float32(order) for part in self.parts])


class Derived(Tensor):
    """A tensor whose stored data are made of others' each time that they are asked for."""

    __slots__ = ()

    def _set(self, name: str, shape: tuple[int, ...], format: WeightFormat) -> None:
        for field, value in (("name", name), ("shape", shape), ("format", format)):
            object.__setattr__(self, field, value)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored data."""
        return prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])


class Transposed(Derived):
    """A tensor with its last two axes exchanged: reads nothing until its data are asked for.

    Elements that are stored in blocks become float16, since blocks lie along the last axis.
    """

    __slots__ = ("original",)

    original: Tensor

    def __init__(self, original: Tensor) -> None:
        """Makes it.

        Args:
            original: Of two axes at least.
        """
        *outer, rows, columns = original.shape
        plain = original.format.block_size == 1
        self._set(
            f"{original.name}, transposed",
            (*outer, columns, rows),
            original.format if plain else FORMATS["f16"],
        )
        object.__setattr__(self, "original", original)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored data, in new memory."""
        original, element = self.original, self.format.block_bytes
        if original.format is self.format:
            stored = original.data
        else:
            stored = original.to_float32().astype("<f2").view(np.uint8)
        numbers = stored.view(f"<u{element}")
        found = np.empty(self.shape, numbers.dtype)
        for start in range(0, numbers.shape[-2], _BAND):
            band = slice(start, start + _BAND)
            found[..., band] = numbers[..., band, :].swapaxes(-1, -2)
        return found.view(np.uint8)

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis; see `Tensor.slice`."""
        last = len(self.shape) - 1
        axis = axis % len(self.shape) if -len(self.shape) <= axis < len(self.shape) else axis
        other = {last: last - 1, last - 1: last}.get(axis, axis)
        return Transposed(self.original.slice(other, start, stop))


class PickedRows(Derived):
    """A matrix of some rows of another, in any order: reads nothing until its data are asked for.

    So is a weight whose heads stand between those of others.
    """

    __slots__ = ("original", "rows")

    original: Tensor
    rows: npt.NDArray[np.intp]

    def __init__(self, name: str, original: Tensor, rows: npt.NDArray[np.intp]) -> None:
        """Makes it.

        Args:
            name: What it is called in messages.
            original: A matrix.
            rows: Indices of its rows.
        """
        self._set(name, (len(rows), *original.shape[1:]), original.format)
        object.__setattr__(self, "original", original)
        object.__setattr__(self, "rows", rows)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored data, in new memory."""
        return self.original.data[self.rows]

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis; see `Tensor.slice`."""
        if axis in (0, -2) and 0 <= start < stop <= len(self.rows):
            return PickedRows(f"{self.name}[{start}:{stop}]", self.original, self.rows[start:stop])
        if axis in (1, -1):
            return PickedRows(self.name, self.original.slice(1, start, stop), self.rows)
        raise UnsupportedTensor(
            self.name,
            f"{start}:{stop} of axis {axis} were asked for, but its shape is {self.shape}",
        )


class Joined(Derived):
    """Tensors one after the other along an axis: reads nothing until its data are asked for.

    So is a device's part of a weight that has parts of several kinds, of each of which it has some.
    """

    __slots__ = ("axis", "parts")

    parts: tuple[Tensor, ...]
    axis: int

    def __init__(self, name: str, parts: Sequence[Tensor], axis: int) -> None:
        """Makes it.

        Args:
            name: What it is called in messages.
            parts: At least one; of one format, and of one shape but for the axis. Along the last
                axis each begins and ends with a stored block.
            axis: From 0, or from -1 backwards.
        """
        first = parts[0]
        axis %= len(first.shape)
        count = sum(part.shape[axis] for part in parts)
        self._set(name, (*first.shape[:axis], count, *first.shape[axis + 1 :]), first.format)
        object.__setattr__(self, "parts", tuple(parts))
        object.__setattr__(self, "axis", axis)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored data, in new memory."""
        return np.concatenate([part.data for part in self.parts], self.axis)

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis; see `Tensor.slice`."""
        axes = len(self.shape)
        if not -axes <= axis < axes or not 0 <= start < stop <= self.shape[axis]:
            raise UnsupportedTensor(
                self.name,
                f"{start}:{stop} of axis {axis} were asked for, but its shape is {self.shape}",
            )
        axis %= axes
        if axis != self.axis:
            parts = [part.slice(axis, start, stop) for part in self.parts]
            return Joined(self.name, parts, self.axis)
        found, first = [], 0
        for part in self.parts:
            size = part.shape[axis]
            low, high = max(start - first, 0), min(stop - first, size)
            if low < high:
                found.append(part if high - low == size else part.slice(axis, low, high))
            first += size
        return found[0] if len(found) == 1 else Joined(f"{self.name}[{start}:{stop}]", found, axis)


class MatrixProduct(Derived):
    """Two matrices as one, which does what they do one after the other: computed when it is used.

    Its elements are float32.
    """

    __slots__ = ("first", "second")

    first: Tensor
    second: Tensor

    def __init__(self, first: Tensor, second: Tensor) -> None:
        """Makes it.

        Args:
            first: What an activation is multiplied with first, [inner, in_features].
            second: [out_features, inner].
        """
        name = f"{second.name} @ {first.name}"
        self._set(name, (second.shape[0], first.shape[1]), FORMATS["f32"])
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "second", second)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored data, in new memory."""
        values = self.second.to_float32() @ self.first.to_float32()
        return float32_tensor(self.name, values).data


class ScaledRows(Derived):
    """A matrix or a vector whose rows or elements are multiplied by factors when it is used.

    Its elements are float16, or float32 if they were that before.
    """

    __slots__ = ("factors", "original")

    original: Tensor
    factors: Tensor

    def __init__(self, original: Tensor, factors: Tensor) -> None:
        """Makes it.

        Args:
            original: Of one axis or two.
            factors: [rows].
        """
        plain = original.format.name == "f32"
        name = f"{original.name} * {factors.name}"
        self._set(name, original.shape, FORMATS["f32" if plain else "f16"])
        object.__setattr__(self, "original", original)
        object.__setattr__(self, "factors", factors)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The products, in new memory."""
        factors = self.factors.to_float32()
        if len(self.shape) == 2:
            factors = factors[:, None]
        kind = "<f4" if self.format.name == "f32" else "<f2"
        values = (self.original.to_float32() * factors).astype(kind)
        return np.ascontiguousarray(values).view(np.uint8)

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis; see `Tensor.slice`."""
        factors = self.factors
        if axis in (0, -len(self.shape)):
            factors = factors.slice(0, start, stop)
        return ScaledRows(self.original.slice(axis, start, stop), factors)


class Summed(Derived):
    """The sum of tensors as float32, with other axes: reads nothing until its data are asked for.

    So is a matrix that all pictures of a film are multiplied with, where they are one picture.
    """

    __slots__ = ("parts",)

    parts: tuple[Tensor, ...]

    def __init__(self, name: str, parts: Sequence[Tensor], shape: tuple[int, ...]) -> None:
        """Makes it.

        Args:
            name: What it is called in messages.
            parts: At least one.
            shape: Of the sum.

        Raises:
            UnsupportedTensor: A part has not so many elements.
        """
        for part in parts:
            if prod(part.shape) != prod(shape):
                raise UnsupportedTensor(part.name, f"its shape is {part.shape}, not {shape}")
        self._set(name, shape, FORMATS["f32"])
        object.__setattr__(self, "parts", tuple(parts))

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The sum, in new memory."""
        total = sum(part.to_float32().reshape(self.shape) for part in self.parts)
        return np.ascontiguousarray(total, "<f4").view(np.uint8)

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis, of a sum that is made now."""
        values: npt.NDArray[np.float32] = self.data.view("<f4")
        return float32_tensor(self.name, values).slice(axis, start, stop)
