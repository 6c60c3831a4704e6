"""Weights from the file to the device, in the layout of the kernels.

Several threads read pieces of the file into a ring of pinned buffers, each straight from the page
cache; this one starts the copy of each piece in one stream and the kernel that repacks it in
another, in the order of the model. So reading, copying, repacking and allocating overlap, and the
processor only copies bytes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import Stack, Tensor
from rocmforge.errors import ModelLoadError
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.checkpoint import Locate
from rocmforge.models.weights import convert
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray, DeviceBuffer, Memory, spec
from rocmforge_hip.kernels.products import rf_repack
from rocmforge_hip.weights.formats import Matrix, MatrixPart, Vector, Weight, ceil_div, round_up
from rocmforge_hip.weights.placement import Planned, PlannedMatrix, PlannedVector, storages

Bytes = npt.NDArray[np.uint8]

READERS: Final = 8
_AHEAD: Final = READERS + 3  # pieces being read; those before them are still being copied
_RING: Final = _AHEAD + 3
_CHUNK_BYTES: Final = 8 << 20
_REPACK_THREADS: Final = 256
_VECTOR_ALIGN: Final = 64  # elements


@dataclass(frozen=True, slots=True)
class _Stage:
    """One place of the ring: pinned memory, a device buffer, and what happened to them."""

    host: Bytes
    host_address: int
    device: DeviceBuffer
    arrived: int  # event: the copy is done
    is_free: int  # event: both may be written again


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes that travel in one copy: who reads them, and what becomes of them on the device."""

    read: Callable[[Bytes], None]
    nbytes: int
    finish: Callable[[_Stage], None]


class WeightLoader:
    """Uploads one model. Its ring is given back by `close`; the weights are owned by `memory`."""

    def __init__(
        self,
        driver: Driver,
        library: KernelLibrary,
        stream: int,
        memory: Memory,
        locate: Locate | None = None,
    ) -> None:
        self._driver = driver
        self._library = library
        self._stream = stream
        self._copies = driver.create_stream()
        self._memory = memory
        self._files = _Files(locate)
        self._pool = ThreadPoolExecutor(READERS, "rocmforge-load")
        self._ring_memory = Memory(driver)
        self._chunk_bytes = _CHUNK_BYTES
        self._ring: list[_Stage] = []

    def load(
        self, plan: ModelWeights[Planned], progress: Callable[[float], None]
    ) -> ModelWeights[Weight]:
        """Loads everything in the plan; it is on the device when this returns.

        Args:
            plan: What to load.
            progress: Called with the share of bytes that are on their way, 0..1; with 1 once all
                have arrived.

        Raises:
            EngineError: The device failed.
            BadGguf: The file became shorter than it was.
            UnsupportedTensor: A vector cannot be dequantised.
        """
        wanted = storages(plan)
        progress(0.0)
        self._chunk_bytes = _chunk_bytes(wanted)
        self._make_ring()
        matrices: dict[int, Matrix] = {}
        vectors: dict[int, Vector] = {}
        total, done = sum(_file_bytes(storage) for storage in wanted), 0
        pieces = self._pieces(wanted, matrices, vectors)
        for piece, stage in self._read_ahead(pieces):
            piece.finish(stage)
            self._driver.record_event(stage.is_free, self._stream)
            done += piece.nbytes
            if done < total:
                progress(done / total)
        self._driver.synchronize_stream(self._stream)
        progress(1.0)

        def weight(planned: Planned) -> Weight:
            if isinstance(planned, PlannedVector):
                return vectors[id(planned)]
            matrix = matrices[id(planned.matrix)]
            return MatrixPart(
                matrix, planned.first, planned.out_features, planned.product, planned.role
            )

        return convert(plan, weight)

    def close(self) -> None:
        """Waits for the last copy and gives the ring back."""
        self._pool.shutdown()
        self._files.close()
        self._driver.synchronize_stream(self._stream)
        for stage in self._ring:
            self._driver.destroy_event(stage.arrived)
            self._driver.destroy_event(stage.is_free)
        self._ring.clear()
        self._driver.destroy_stream(self._copies)
        for buffer in self._ring_memory.release():
            buffer.free()

    def _make_ring(self) -> None:
        nbytes, memory, name = self._chunk_bytes, self._ring_memory, "loading weights"
        host = memory.huge_pages(_RING * nbytes, name, self._pool)
        for start in range(0, _RING * nbytes, nbytes):
            stage = _Stage(
                host.bytes[start : start + nbytes],
                host.address + start,
                memory.device(spec((nbytes,), "u1"), name),
                self._driver.create_event(timed=False),
                self._driver.create_event(timed=False),
            )
            self._ring.append(stage)

    def _place(self, number: int) -> _Stage:
        """Returns the ring's place for the number-th piece, free."""
        stage = self._ring[number % _RING]
        if number >= _RING:
            self._driver.synchronize_event(stage.is_free)
        return stage

    def _pieces(
        self,
        wanted: list[PlannedMatrix | PlannedVector],
        matrices: dict[int, Matrix],
        vectors: dict[int, Vector],
    ) -> Iterator[_Piece]:
        """Yields all pieces in order; what they are for is allocated when they are asked for."""
        for group in self._vector_groups([s for s in wanted if isinstance(s, PlannedVector)]):
            array, piece = self._vectors_piece(group)
            for storage, first in group:
                address = array.address + first * array.dtype.itemsize
                what = storage.storage
                vectors[id(storage)] = Vector(DeviceArray(address, what.shape, what.dtype))
            yield piece
        for planned in wanted:
            if isinstance(planned, PlannedMatrix):
                matrices[id(planned)] = matrix = self._new_matrix(planned)
                yield from self._matrix_pieces(planned, matrix)

    def _read_ahead(self, pieces: Iterator[_Piece]) -> Iterator[tuple[_Piece, _Stage]]:
        """Yields the pieces in order, each in the place of the ring that it was read to."""
        reading: deque[tuple[_Piece, _Stage, Future[None]]] = deque()
        for number, piece in enumerate(pieces):
            if len(reading) == _AHEAD:
                yield _when_read(*reading.popleft())
            stage = self._place(number)
            target = stage.host[: piece.nbytes]
            reading.append((piece, stage, self._pool.submit(piece.read, target)))
        while reading:
            yield _when_read(*reading.popleft())

    def _new_matrix(self, plan: PlannedMatrix) -> Matrix:
        buffer = self._memory.device(plan.storage, plan.name)
        if plan.is_padded:
            buffer.fill(0, self._stream)
        return Matrix(
            buffer.array,
            plan.format,
            plan.out_features,
            plan.in_features,
            plan.stored_rows,
            plan.num_experts,
        )

    def _matrix_pieces(self, plan: PlannedMatrix, matrix: Matrix) -> Iterator[_Piece]:
        """Runs of rows that fit the ring."""
        for tensor, first_row, placing in plan.parts:
            matrix_rows = first_row + tensor.shape[-2]
            for stored in _rows_of(tensor):
                rows = self._chunk_bytes // stored.shape[1]
                for start in range(0, len(stored), rows):
                    source = stored[start : start + rows]
                    finish = partial(
                        self._repack, matrix, len(source), first_row + start, matrix_rows, placing
                    )
                    yield _Piece(partial(self._files.read, source), source.nbytes, finish)
                first_row += len(stored)

    def _repack(
        self,
        matrix: Matrix,
        rows: int,
        first_row: int,
        matrix_rows: int,
        placing: int,
        stage: _Stage,
    ) -> None:
        nbytes = rows * matrix.format.row_bytes(matrix.in_features)
        self._copy(stage, stage.device.array, nbytes)
        self._library.kernel(f"rf_repack_{matrix.format.name}", rf_repack).launch(
            (ceil_div(rows * matrix.quant_blocks, _REPACK_THREADS), 1, 1),
            _REPACK_THREADS,
            blocks=stage.device.array,
            weight=matrix.data,
            rows=rows,
            quant_blocks=matrix.quant_blocks,
            stored_rows=matrix.stored_rows,
            first_row=first_row,
            matrix_rows=matrix_rows,
            placing=placing,
        )

    def _vector_groups(
        self, wanted: list[PlannedVector]
    ) -> Iterator[list[tuple[PlannedVector, int]]]:
        """Yields the vectors that travel together, each with its first element."""
        group: list[tuple[PlannedVector, int]] = []
        length = 0
        for storage in wanted:
            size = round_up(storage.storage.shape[0], _VECTOR_ALIGN)
            if group and (length + size) * np.dtype(np.float32).itemsize > self._chunk_bytes:
                yield group
                group, length = [], 0
            group.append((storage, length))
            length += size
        if group:
            yield group

    def _vectors_piece(self, group: list[tuple[PlannedVector, int]]) -> tuple[DeviceArray, _Piece]:
        last, length = group[-1]
        what = spec((length + last.storage.shape[0],), np.float32)
        target = self._memory.device(what, f"{group[0][0].name} to {last.name}").array

        def read(host: Bytes) -> None:
            values = host.view(np.float32)
            for storage, first in group:
                for tensor in storage.tensors:
                    elements = tensor.to_float32().reshape(-1)
                    values[first : first + elements.size] = elements
                    first += elements.size

        finish = partial(self._copy, target=target, nbytes=target.nbytes)
        return target, _Piece(read, target.nbytes, finish)

    def _copy(self, stage: _Stage, target: DeviceArray, nbytes: int) -> None:
        self._driver.copy_to_device(target.address, stage.host_address, nbytes, self._copies)
        self._driver.record_event(stage.arrived, self._copies)
        self._driver.wait_for_event(self._stream, stage.arrived)


def _chunk_bytes(wanted: list[PlannedMatrix | PlannedVector]) -> int:
    """Returns the bytes of a place in the ring: whole rows and whole vectors must fit."""
    largest = max(storage.storage.nbytes for storage in wanted)
    least = max(storage.storage.shape[-1] * storage.storage.dtype.itemsize for storage in wanted)
    return max(min(_CHUNK_BYTES, largest), least)


def _file_bytes(storage: PlannedMatrix | PlannedVector) -> int:
    if isinstance(storage, PlannedMatrix):
        return sum(tensor.nbytes for tensor, _, _ in storage.parts)
    return storage.storage.nbytes


def _rows_of(tensor: Tensor) -> Iterator[Bytes]:
    """Yields the stored rows of a matrix or of all experts', [rows, bytes], as the file has them.

    Experts that the file keeps apart are never brought together in memory.
    """
    for part in tensor.parts if isinstance(tensor, Stack) else (tensor,):
        data = part.data
        if data.flags.c_contiguous:
            yield data.reshape(-1, data.shape[-1])
        else:  # gate or up of a file that has both as one: the rows of an expert follow each other
            yield from data if data.ndim == 3 else (data,)


def _when_read(piece: _Piece, stage: _Stage, reading: Future[None]) -> tuple[_Piece, _Stage]:
    reading.result()
    return piece, stage


class _Files:
    """Reads bytes of tensors: from their file where that is known, else from the map.

    A map costs a page fault for every few pages, which is several times slower.
    """

    def __init__(self, locate: Locate | None) -> None:
        self._locate = locate
        self._open: dict[Path, int] = {}

    def read(self, source: Bytes, target: Bytes) -> None:
        """Fills the target with the bytes of the source. Called by several threads."""
        place = self._locate(source) if self._locate is not None else None
        if place is None:
            np.copyto(target.reshape(source.shape), source)
            return
        path, offset = place
        read_exactly(self._descriptor(path), target, offset, path)

    def close(self) -> None:
        """Closes the files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _descriptor(self, path: Path) -> int:
        """Opens a file; of two threads that do at once, one closes its descriptor again."""
        if path not in self._open:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if self._open.setdefault(path, opened) != opened:
                os.close(opened)
        return self._open[path]


def read_exactly(descriptor: int, target: Bytes, offset: int, path: Path) -> None:
    """Fills the target from this offset of a file.

    Raises:
        ModelLoadError: The file ends before.
    """
    done = 0
    while done < target.nbytes:
        count = os.preadv(descriptor, [target[done:].data], offset + done)
        if count == 0:
            raise ModelLoadError(f"{path} became shorter while it was read.")
        done += count
