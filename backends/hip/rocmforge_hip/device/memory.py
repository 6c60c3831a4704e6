"""Device and pinned memory with owners.

A `DeviceBuffer` is made from a shape and a dtype and frees its memory once, when it is told to;
it cannot be copied. Everything else refers to memory through `DeviceArray`, which owns nothing.
Byte counts are computed here and nowhere else.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from rocmforge_hip.device.driver import Driver

Shape = tuple[int, ...]

_HUGE_PAGE: Final = 2 << 20
_COPIED_AT_ONCE: Final = 4  # parts: one thread copies a fraction of what memory gives
_COPIED_ALONE: Final = 2 << 20  # bytes that one thread has copied before others begin


class ArraySpec(NamedTuple):
    """Shape and dtype of an array that is to be made."""

    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def spec(shape: Shape, dtype: npt.DTypeLike) -> ArraySpec:
    """Returns the specification of an array of this shape and dtype."""
    return ArraySpec(shape, np.dtype(dtype))


class DeviceArray(NamedTuple):
    """An array in device memory that something else owns.

    A tuple, as each launch makes some: a frozen dataclass takes twice as long to make.
    """

    address: int
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def first(self, *shape: int) -> DeviceArray:
        """Returns the array of this shape at the start of this one's memory."""
        assert math.prod(shape) <= math.prod(self.shape), (shape, self.shape)
        return DeviceArray(self.address, shape, self.dtype)

    def is_within(self, other: DeviceArray) -> bool:
        """Returns whether all of its memory is the other's, too."""
        end, end_of_other = self.address + self.nbytes, other.address + other.nbytes
        return other.address <= self.address and end <= end_of_other

    def rows(self, start: int, stop: int) -> DeviceArray:
        """Returns rows of a matrix."""
        assert 0 <= start < stop <= self.shape[0]
        step = self.nbytes // self.shape[0]
        return DeviceArray(self.address + start * step, (stop - start, *self.shape[1:]), self.dtype)

    def columns(self, start: int, stop: int) -> DeviceArray:
        """Returns columns of a matrix, whose rows stay as far apart: see `Activation.stride`."""
        assert 0 <= start < stop <= self.shape[-1]
        address = self.address + start * self.dtype.itemsize
        return DeviceArray(address, (*self.shape[:-1], stop - start), self.dtype)


class DeviceBuffer:
    """Owns the memory of one array on a device."""

    def __init__(self, driver: Driver, what: ArraySpec, name: str) -> None:
        self._driver = driver
        self.name = name
        address = driver.allocate(max(what.nbytes, 1), f"{name} {what.shape} {what.dtype}")
        self.array = DeviceArray(address, what.shape, what.dtype)
        self._is_freed = False

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.array.nbytes

    def fill(self, byte: int, stream: int) -> None:
        """Sets every byte, in the order of the stream."""
        if self.nbytes:
            self._driver.fill(self.array.address, byte, self.nbytes, stream)

    def free(self) -> None:
        """Gives the memory back. Nothing that uses it may be running."""
        assert not self._is_freed, f"{self.name} is freed twice"
        self._is_freed = True
        self._driver.free(self.array.address)

    def __copy__(self) -> NoReturn:
        raise TypeError("a DeviceBuffer owns its memory and cannot be copied")

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()


class PinnedBuffer:
    """Owns host memory that copies run from and to without the processor; `bytes` is its view.

    Args:
        driver: Of the device.
        nbytes: How much.
        name: What it is for.
        is_read_by_kernels: Whether it is for what kernels read and nobody changes.
    """

    def __init__(
        self, driver: Driver, nbytes: int, name: str, *, is_read_by_kernels: bool = False
    ) -> None:
        self._driver = driver
        allocate = driver.allocate_read_only if is_read_by_kernels else driver.allocate_pinned
        self.address = allocate(nbytes, name)
        memory = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.bytes: npt.NDArray[np.uint8] = np.ctypeslib.as_array(memory)

    def free(self) -> None:
        """Gives the memory back. No copy may be running, and no view may be used any more."""
        self.bytes = np.empty(0, np.uint8)
        self._driver.free_pinned(self.address)


class HugePages:
    """Owns much host memory that copies run from and to without the processor; `bytes` is its view.

    Pinning small pages takes ten times as long as copying them, huge ones a fraction of that. The
    kernel clears pages when they are first touched.

    Args:
        driver: Of the device.
        nbytes: How much.
        name: What it is for.
    """

    def __init__(self, driver: Driver, nbytes: int, name: str) -> None:
        self.name = name
        self._driver = driver
        self._pinned: list[int] = []
        pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages: it takes longer
            pages.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(pages, np.uint8)  # and with the last view the pages are given back
        start = -whole.ctypes.data % _HUGE_PAGE
        self.bytes: npt.NDArray[np.uint8] = whole[start : start + nbytes]
        self.address = self.bytes.ctypes.data

    def pin(self, first: int, nbytes: int) -> None:
        """Makes bytes fit for copies; others may write to them meanwhile.

        Pages that nobody has touched are cleared by one thread, which takes ten times as long.

        Args:
            first: Where they begin: at a page, none of which may be pinned twice.
            nbytes: How many.

        Raises:
            OutOfMemory: So much cannot be pinned.
        """
        self._driver.pin(self.address + first, nbytes, self.name)
        self._pinned.append(self.address + first)

    def free(self) -> None:
        """Gives the memory back. No copy may be running, and no view may be used any more."""
        while self._pinned:
            self._driver.unpin(self._pinned.pop())
        self.bytes = np.empty(0, np.uint8)


Buffer = DeviceBuffer | PinnedBuffer | HugePages


class HostCopies:
    """Copies much memory of the host with several threads, for which the caller waits."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_COPIED_AT_ONCE - 1, "rocmforge-copy")

    def copy(self, target: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
        """Copies an array over one of its shape, `[..., features]`, whose type values take."""
        parts = _COPIED_AT_ONCE if target.nbytes >= _COPIED_ALONE else 1
        axis = int(np.argmax(target.shape[:-1]))
        first, *others = zip(
            np.array_split(target, parts, axis), np.array_split(source, parts, axis), strict=True
        )
        waiting = [self._threads.submit(np.copyto, *each) for each in others]
        np.copyto(*first)
        for each in waiting:
            each.result()

    def close(self) -> None:
        """Ends the threads; no copy may be running."""
        self._threads.shutdown()


class Memory:
    """All buffers of a loaded model, freed together in reverse order."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._buffers: list[Buffer] = []
        self.copies = HostCopies()
        """Copies between these buffers and other memory of the host."""

    def device(self, what: ArraySpec, name: str) -> DeviceBuffer:
        """Returns a new device buffer.

        Raises:
            OutOfMemory: It does not fit.
        """
        buffer = DeviceBuffer(self._driver, what, name)
        self._buffers.append(buffer)
        return buffer

    def pinned(self, nbytes: int, name: str, *, is_read_by_kernels: bool = False) -> PinnedBuffer:
        """Returns a new pinned host buffer.

        Raises:
            OutOfMemory: It does not fit.
        """
        buffer = PinnedBuffer(self._driver, nbytes, name, is_read_by_kernels=is_read_by_kernels)
        self._buffers.append(buffer)
        return buffer

    def huge_pages(self, nbytes: int, name: str) -> HugePages:
        """Returns new host memory, much of it, that is yet to be pinned."""
        buffer = HugePages(self._driver, nbytes, name)
        self._buffers.append(buffer)
        return buffer

    def release(self) -> Iterator[Buffer]:
        """Hands out the buffers, last first; the caller frees them."""
        self.copies.close()
        while self._buffers:
            yield self._buffers.pop()
