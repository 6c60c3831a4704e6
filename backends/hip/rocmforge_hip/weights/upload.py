"""Weights from the file to the device, in the layout of the kernels.

Several threads read pieces of the file into a ring of pinned buffers (`staging`), straight from the
page cache; this one starts the copy of each piece in one stream and the kernel that repacks it
in another, in the order of the model. So reading, copying and repacking overlap, and the processor
only copies bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from rocmforge.checkpoint.locator import FilePart
from rocmforge.checkpoint.tensor import Derived, Stack, Tensor
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.checkpoint import Locate
from rocmforge.models.weights import convert
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray, Memory, spec
from rocmforge_hip.kernels.products import rf_repack
from rocmforge_hip.weights.formats import Matrix, MatrixPart, Vector, Weight, ceil_div, round_up
from rocmforge_hip.weights.hosting import HostLoading
from rocmforge_hip.weights.placement import Planned, PlannedMatrix, PlannedVector, storages
from rocmforge_hip.weights.staging import Bytes, StagingBuffer, StagingPiece, StagingRing

_CHUNK_BYTES: Final = 6 << 20
_REPACK_THREADS: Final = 256
_VECTOR_ALIGN: Final = 64  # elements
_GAP: Final = 256  # bytes before each matrix


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
        self._locate = locate
        self._ring: StagingRing | None = None
        self._hosting: HostLoading | None = None
        self._matrices: dict[int, Matrix] = {}  # by the id of their plan, as are the vectors
        self._vectors: dict[int, Vector] = {}

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
        chunk_bytes = _chunk_bytes(wanted)
        self._ring = StagingRing(self._driver, chunk_bytes)
        matrices = [storage for storage in wanted if isinstance(storage, PlannedMatrix)]
        hosted = [plan for plan in matrices if plan.seats is not None]
        if hosted:
            self._hosting = HostLoading(self._driver, self._stream, self._memory, hosted)
        self._ring.start(self._pieces(wanted, chunk_bytes))
        self._allocate(matrices)
        for name in {plan.format.name for plan in matrices}:
            self._library.kernel(f"rf_repack_{name}", rf_repack)
        total, done = sum(storage.storage.nbytes for storage in wanted), 0
        with closing(self._ring.read()) as stages:
            for piece, stage in stages:
                piece.finish(stage)
                self._driver.record_event(stage.is_free, self._stream)
                done += piece.nbytes
                if done < total:
                    progress(done / total)
        self._driver.synchronize_stream(self._stream)
        progress(1.0)

        def weight(planned: Planned) -> Weight:
            if isinstance(planned, PlannedVector):
                return self._vectors[id(planned)]
            matrix = self._matrices[id(planned.matrix)]
            return MatrixPart(
                matrix, planned.first, planned.out_features, planned.product, planned.role
            )

        return convert(plan, weight)

    def close(self) -> None:
        """Waits for the last copy and gives the ring back."""
        self._driver.synchronize_stream(self._stream)
        if self._ring is not None:
            self._ring.close()
        if self._hosting is not None:
            self._hosting.close()
        self._driver.destroy_stream(self._copies)

    def _pieces(
        self, wanted: list[PlannedMatrix | PlannedVector], chunk_bytes: int
    ) -> Iterator[StagingPiece]:
        """Yields all pieces in order."""
        vectors = [storage for storage in wanted if isinstance(storage, PlannedVector)]
        matrices = [storage for storage in wanted if isinstance(storage, PlannedMatrix)]
        for group in _vector_groups(vectors, chunk_bytes):
            array, piece = self._vectors_piece(group)
            for storage, first in group:
                address = array.address + first * array.dtype.itemsize
                what = storage.storage
                self._vectors[id(storage)] = Vector(DeviceArray(address, what.shape, what.dtype))
            yield piece
        for planned in matrices:
            pieces = self._matrix_pieces(planned, chunk_bytes)
            if planned.seats is not None and self._hosting is not None:
                matrix = partial(self._matrices.__getitem__, id(planned))
                pieces = self._hosting.then_store(pieces, matrix, planned)
            yield from pieces

    def _allocate(self, wanted: list[PlannedMatrix]) -> None:
        """Makes room for all matrices at once: each allocation holds up several copies.

        A matrix begins behind a gap that nothing is written to, so that the checking platform sees
        a kernel that reads on behind the one before it.
        """
        starts, end = [], 0
        for plan in wanted:
            if plan.is_hosted:
                starts.append(0)
                continue
            starts.append(end + _GAP)
            end += _GAP + round_up(plan.seated.nbytes, _GAP)
        base = self._memory.device(spec((end,), "u1"), "weights").array.address if end else 0
        for plan, start in zip(wanted, starts, strict=True):
            what, of_host = plan.seated, None
            address = base + start
            if plan.is_hosted:
                what = plan.storage
                address = self._memory.pinned(
                    what.nbytes, plan.name, is_read_by_kernels=True
                ).address
            elif plan.seats is not None and self._hosting is not None:
                of_host = self._hosting.host(plan)
            elif plan.is_padded:
                self._driver.fill(address, 0, what.nbytes, self._stream)
            self._matrices[id(plan)] = Matrix(
                DeviceArray(address, what.shape, what.dtype),
                plan.format,
                plan.out_features,
                plan.in_features,
                plan.stored_rows,
                plan.num_experts,
                plan.num_shared,
                of_host,
            )

    def _matrix_pieces(self, plan: PlannedMatrix, chunk_bytes: int) -> Iterator[StagingPiece]:
        """Yields runs of rows that fit the ring."""
        for tensor, first_row, placing in plan.parts:
            matrix_rows = tensor.shape[-2] + (0 if plan.num_experts else first_row)
            for stored in _rows_of(tensor):
                count, most = (
                    stored.shape[0],
                    chunk_bytes // plan.format.row_bytes(plan.in_features),
                )
                place = None if isinstance(stored, Derived) else self._place(stored)
                for start, end in _runs(count, most):
                    finish = partial(
                        self._repack, plan, end - start, first_row + start, matrix_rows, placing
                    )
                    if place is not None:
                        row = stored.nbytes // count
                        part = FilePart(place.path, place.offset + start * row)
                        yield StagingPiece(part, (end - start) * row, finish)
                        continue
                    source = (
                        stored.slice(0, start, end)
                        if isinstance(stored, Derived)
                        else stored[start:end]
                    )
                    yield StagingPiece(partial(_copy_data, source), source.nbytes, finish)
                first_row += count

    def _place(self, data: Bytes) -> FilePart | None:
        """Returns where bytes lie in a file; None if that is not known."""
        return self._locate(data) if self._locate is not None else None

    def _repack(
        self,
        plan: PlannedMatrix,
        rows: int,
        first_row: int,
        matrix_rows: int,
        placing: int,
        stage: StagingBuffer,
    ) -> None:
        matrix = self._matrices[id(plan)]
        target = matrix.data
        if matrix.hosted is not None and self._hosting is not None:
            target = self._hosting.target(plan)
        nbytes = rows * matrix.format.row_bytes(matrix.in_features)
        self._copy(stage, stage.device, nbytes)
        self._library.kernel(f"rf_repack_{matrix.format.name}", rf_repack).launch(
            (ceil_div(rows * matrix.quant_blocks, _REPACK_THREADS), 1, 1),
            _REPACK_THREADS,
            blocks=stage.device,
            weight=target,
            rows=rows,
            quant_blocks=matrix.quant_blocks,
            stored_rows=matrix.stored_rows,
            first_row=first_row,
            matrix_rows=matrix_rows,
            placing=placing,
        )

    def _vectors_piece(
        self, group: list[tuple[PlannedVector, int]]
    ) -> tuple[DeviceArray, StagingPiece]:
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
        return target, StagingPiece(read, target.nbytes, finish)

    def _copy(self, stage: StagingBuffer, target: DeviceArray, nbytes: int) -> None:
        self._driver.copy_to_device(target.address, stage.host_address, nbytes, self._copies)
        self._driver.record_event(stage.arrived, self._copies)
        self._driver.wait_for_event(self._stream, stage.arrived)


def _vector_groups(
    wanted: list[PlannedVector], chunk_bytes: int
) -> Iterator[list[tuple[PlannedVector, int]]]:
    """Yields the vectors that travel together, each with its first element."""
    group: list[tuple[PlannedVector, int]] = []
    length = 0
    for storage in wanted:
        size = round_up(storage.storage.shape[0], _VECTOR_ALIGN)
        if group and (length + size) * np.dtype(np.float32).itemsize > chunk_bytes:
            yield group
            group, length = [], 0
        group.append((storage, length))
        length += size
    if group:
        yield group


def _chunk_bytes(wanted: list[PlannedMatrix | PlannedVector]) -> int:
    """Returns the bytes of a place in the ring: whole rows and whole vectors must fit."""
    largest = max(storage.storage.nbytes for storage in wanted)
    least = max(storage.storage.shape[-1] * storage.storage.dtype.itemsize for storage in wanted)
    return max(min(_CHUNK_BYTES, largest), least)


def _rows_of(tensor: Tensor) -> Iterator[Bytes | Derived]:
    """Yields the stored rows of a matrix or of all experts', [rows, bytes], as the file has them.

    Experts that the file keeps apart are never brought together in memory. Matrices whose rows are
    yet to be made of those of the file are yielded as they are.
    """
    for part in tensor.parts if isinstance(tensor, Stack) else (tensor,):
        if isinstance(part, Derived) and len(part.shape) == 2:
            yield part
            continue
        data = part.data
        if data.flags.c_contiguous:
            yield data.reshape(-1, data.shape[-1])
        else:  # gate or up of a file that has both as one: the rows of an expert follow each other
            yield from data if data.ndim == 3 else (data,)


def _runs(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Yields runs of at most so many rows, of about equal length.

    A short one would be copied in less time than it takes to start it.
    """
    parts = ceil_div(count, most)
    ends = [number * count // parts for number in range(parts + 1)]
    yield from pairwise(ends)


def _copy_data(source: Bytes | Tensor, target: Bytes) -> None:
    """Fills the target with the bytes of the source. Called by several threads."""
    if isinstance(source, Tensor):
        source = source.data
    np.copyto(target.reshape(source.shape), source)
