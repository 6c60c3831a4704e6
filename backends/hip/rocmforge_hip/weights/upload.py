"""Weights from the file to the device, in the layout of the kernels.

Several threads read pieces of the file into a ring of pinned buffers (`staging`), straight from the
page cache; this one starts the copy of each piece in one stream, and in another a kernel that
repacks a run of them (`landing`), in the order of the model. So reading, copying and repacking
overlap, and the processor only copies bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from rocmforge.checkpoint.locator import FilePart
from rocmforge.checkpoint.tensor import Derived, Joined, Stack, Tensor
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.checkpoint import Locate
from rocmforge.models.weights import convert
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray, Memory, spec
from rocmforge_hip.kernels.products import rf_repack
from rocmforge_hip.weights.formats import Matrix, MatrixPart, Vector, Weight, ceil_div, round_up
from rocmforge_hip.weights.hosting import HostLoading
from rocmforge_hip.weights.landing import PIECES, Landing
from rocmforge_hip.weights.placement import Planned, PlannedMatrix, PlannedVector, storages
from rocmforge_hip.weights.staging import Bytes, StagingBuffer, StagingPiece, StagingRing

_Group = list[tuple[PlannedVector, int]]
"""Vectors that travel together, each with its first element."""

_CHUNK_BYTES: Final = 9 << 20
_REPACK_THREADS: Final = 256
_VECTOR_ALIGN: Final = 64  # elements
_GAP: Final = 256  # bytes before each matrix
_FLOAT_BYTES: Final = 4
_REPORTS: Final = 100  # at most, of progress


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
        self._landing: Landing | None = None
        self._hosting: HostLoading | None = None
        self._kernels: dict[str, Kernel[...]] = {}
        self._matrices: dict[int, Matrix] = {}  # by the id of their plan, as are the vectors
        self._vectors: dict[int, Vector] = {}

    def load(
        self, plan: ModelWeights[Planned], progress: Callable[[float], None]
    ) -> ModelWeights[Weight]:
        """Loads everything in the plan; it is on the device when this returns.

        Args:
            plan: What to load.
            progress: Called now and then with the share of bytes that are on their way, 0..1; with
                1 once all have arrived.

        Raises:
            EngineError: The device failed.
            ModelLoadError: The file became shorter than it was.
            UnsupportedTensor: A vector cannot be dequantised.
        """
        wanted = storages(plan)
        progress(0.0)
        chunk_bytes, total = _sizes(wanted)
        self._ring = StagingRing(self._driver, chunk_bytes)
        self._landing = Landing(self._driver, self._copies, self._stream, chunk_bytes)
        matrices = [storage for storage in wanted if isinstance(storage, PlannedMatrix)]
        vectors = [storage for storage in wanted if isinstance(storage, PlannedVector)]
        groups = list(_vector_groups(vectors, chunk_bytes))
        hosted = [plan for plan in matrices if plan.seats is not None]
        if hosted:
            self._hosting = HostLoading(self._driver, self._stream, self._memory, hosted)
        addresses = self._allocate(matrices, groups)
        self._ring.start(self._pieces(matrices, groups, chunk_bytes))
        # While the first pieces are read.
        self._arrange(matrices, groups, addresses)
        self._kernels = {
            name: self._library.kernel(f"rf_repack_{name}", rf_repack)
            for name in {plan.format.name for plan in matrices}
        }
        done = next_told = 0
        with closing(self._ring.read()) as stages:
            for piece, stage in stages:
                piece.finish(stage)
                done += piece.nbytes
                if next_told <= done < total:  # a report of each piece would hold up the next
                    progress(done / total)
                    next_told = done + total // _REPORTS
        self._driver.synchronize_stream(self._copies)
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
        """Waits for the last copy and launch, and gives back what only loading needs."""
        self._driver.synchronize_stream(self._copies)
        self._driver.synchronize_stream(self._stream)
        if self._ring is not None:
            self._ring.close()
        if self._landing is not None:
            self._landing.close()
        if self._hosting is not None:
            self._hosting.close()
        self._driver.destroy_stream(self._copies)

    def _pieces(
        self, matrices: list[PlannedMatrix], groups: list[_Group], chunk_bytes: int
    ) -> Iterator[StagingPiece]:
        """Yields all pieces in order, last what Python computes while others are on their way."""
        for planned in matrices:
            pieces = self._matrix_pieces(planned, chunk_bytes)
            if planned.seats is not None and self._hosting is not None:
                matrix = partial(self._matrices.__getitem__, id(planned))
                pieces = self._hosting.then_store(pieces, matrix, planned)
            yield from pieces
        yield from map(self._vectors_piece, groups)

    def _allocate(self, matrices: list[PlannedMatrix], groups: list[_Group]) -> list[int]:
        """Makes room for all weights at once: each allocation holds up several copies.

        A matrix begins behind a gap that nothing is written to, so that the checking platform sees
        a kernel that reads on behind the one before it. So does a group of vectors.

        Returns:
            Where each matrix begins, and then each group. None is there of those that are hosted.
        """
        sizes = [0 if plan.is_hosted else plan.seated.nbytes for plan in matrices]
        sizes += [_length(group) * _FLOAT_BYTES for group in groups]
        starts, end = [], 0
        for nbytes in sizes:
            starts.append(end + _GAP)
            end += _GAP + round_up(nbytes, _GAP)
        base = self._memory.device(spec((end,), "u1"), "weights").array.address if end else 0
        return [base + start for start in starts]

    def _arrange(
        self, matrices: list[PlannedMatrix], groups: list[_Group], addresses: list[int]
    ) -> None:
        """Makes the weights, which are yet to be loaded, of what `_allocate` returned."""
        of_matrices, of_groups = addresses[: len(matrices)], addresses[len(matrices) :]
        for plan, address in zip(matrices, of_matrices, strict=True):
            what, of_host = plan.seated, None
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
        for group, address in zip(groups, of_groups, strict=True):
            for storage, first in group:
                what = storage.storage
                array = DeviceArray(address + first * _FLOAT_BYTES, what.shape, what.dtype)
                self._vectors[id(storage)] = Vector(array)

    def _matrix_pieces(self, plan: PlannedMatrix, chunk_bytes: int) -> Iterator[StagingPiece]:
        """Yields runs of rows that fit the ring, several of which are repacked together."""
        row = plan.format.row_bytes(plan.in_features)
        most = chunk_bytes // row
        for tensor, first_row, placing in plan.parts:
            matrix_rows = tensor.shape[-2] + (0 if plan.num_experts else first_row)
            for stored in _rows_of(tensor):
                count = stored.shape[0]
                place = None if isinstance(stored, Derived) else self._place(stored)
                for start, end in _runs(count, most * PIECES):
                    repack = partial(
                        self._repack, plan, end - start, first_row + start, matrix_rows, placing
                    )
                    for first, last in _runs(end - start, most):
                        nbytes, then = (last - first) * row, repack if last == end - start else None
                        finish = partial(self._land, first * row, nbytes, then)
                        source = _source(stored, place, start + first, start + last, row)
                        yield StagingPiece(source, nbytes, finish)
                first_row += count

    def _place(self, data: Bytes) -> FilePart | None:
        """Returns where bytes lie in a file; None if that is not known."""
        return self._locate(data) if self._locate is not None else None

    def _land(
        self, offset: int, nbytes: int, repack: Callable[[], None] | None, stage: StagingBuffer
    ) -> None:
        """Copies a piece behind those before it; the last is followed by the kernel for all."""
        assert self._landing is not None
        if not offset:
            self._landing.begin()
        self._copy(stage, self._landing.room.address + offset, nbytes)
        if repack is not None:
            self._driver.wait_for_event(self._stream, stage.arrived)
            repack()
            self._landing.end()

    def _repack(
        self, plan: PlannedMatrix, rows: int, first_row: int, matrix_rows: int, placing: int
    ) -> None:
        assert self._landing is not None
        matrix = self._matrices[id(plan)]
        target = matrix.data
        if matrix.hosted is not None and self._hosting is not None:
            target = self._hosting.target(plan)
        self._kernels[matrix.format.name].launch(
            (ceil_div(rows * matrix.quant_blocks, _REPACK_THREADS), 1, 1),
            _REPACK_THREADS,
            blocks=self._landing.room,
            weight=target,
            rows=rows,
            quant_blocks=matrix.quant_blocks,
            stored_rows=matrix.stored_rows,
            first_row=first_row,
            matrix_rows=matrix_rows,
            placing=placing,
        )

    def _vectors_piece(self, group: _Group) -> StagingPiece:
        nbytes = _length(group) * _FLOAT_BYTES

        def read(host: Bytes) -> None:
            values = host.view(np.float32)
            for storage, first in group:
                for tensor in storage.tensors:
                    elements = tensor.to_float32().reshape(-1)
                    values[first : first + elements.size] = elements
                    first += elements.size

        def finish(stage: StagingBuffer) -> None:
            self._copy(stage, self._vectors[id(group[0][0])].data.address, nbytes)

        return StagingPiece(read, nbytes, finish)

    def _copy(self, stage: StagingBuffer, address: int, nbytes: int) -> None:
        self._driver.copy_to_device(address, stage.host_address, nbytes, self._copies)
        self._driver.record_event(stage.arrived, self._copies)


def _vector_groups(wanted: list[PlannedVector], chunk_bytes: int) -> Iterator[_Group]:
    """Yields groups of vectors that fit a place."""
    group: _Group = []
    length = 0
    for storage in wanted:
        size = round_up(storage.storage.shape[0], _VECTOR_ALIGN)
        if group and (length + size) * _FLOAT_BYTES > chunk_bytes:
            yield group
            group, length = [], 0
        group.append((storage, length))
        length += size
    if group:
        yield group


def _length(group: _Group) -> int:
    """Returns how many elements a group has, with what lies between its vectors."""
    last, first = group[-1]
    return first + last.storage.shape[0]


def _sizes(wanted: list[PlannedMatrix | PlannedVector]) -> tuple[int, int]:
    """Returns the bytes of a place in the ring, for whole rows and vectors, and those of all."""
    storage = [each.storage for each in wanted]
    sizes = [what.nbytes for what in storage]
    least = max(what.shape[-1] * what.dtype.itemsize for what in storage)
    return max(min(_CHUNK_BYTES, max(sizes)), least), sum(sizes)


def _rows_of(tensor: Tensor) -> Iterator[Bytes | Derived]:
    """Yields the stored rows of a matrix or of all experts', [rows, bytes], as the file has them.

    Experts that the file keeps apart are never brought together in memory. Matrices whose rows are
    yet to be made of those of the file are yielded as they are.
    """
    if isinstance(tensor, Joined) and tensor.axis == 0 and len(tensor.shape) == 2:
        for part in tensor.parts:
            yield from _rows_of(part)
        return
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


def _source(
    stored: Bytes | Derived, place: FilePart | None, start: int, end: int, row_bytes: int
) -> FilePart | Callable[[Bytes], None]:
    """Returns where rows of a matrix come from: its file, if that is known."""
    if place is not None:
        return FilePart(place.path, place.offset + start * row_bytes)
    source = stored.slice(0, start, end) if isinstance(stored, Derived) else stored[start:end]
    return partial(_copy_data, source)


def _copy_data(source: Bytes | Tensor, target: Bytes) -> None:
    """Fills the target with the bytes of the source. Called by several threads."""
    if isinstance(source, Tensor):
        source = source.data
    np.copyto(target.reshape(source.shape), source)
