"""Weights from the file to the device, in the layout of the kernels.

Rows of a tensor go through a ring of pinned buffers: while one is copied to the device and
repacked there, the next is filled from the file. The processor only copies bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.models.weights import ModelWeights
from rocmforge_hip.driver import Driver
from rocmforge_hip.library import KernelLibrary
from rocmforge_hip.memory import DeviceArray, DeviceBuffer, Memory, PinnedBuffer, spec
from rocmforge_hip.weight_plan import (
    Planned,
    PlannedMatrix,
    PlannedVector,
    convert,
    storages,
)
from rocmforge_hip.weights import Matrix, MatrixPart, Vector, Weight, ceil_div

_RING: Final = 3
_CHUNK_BYTES: Final = 16 << 20
_THREADS: Final = 4
_REPACK_THREADS: Final = 256


@dataclass(frozen=True, slots=True)
class _Stage:
    """One place of the ring: a pinned buffer, a device buffer, and when both are free again."""

    host: PinnedBuffer
    device: DeviceBuffer
    is_free: int  # event


class WeightLoader:
    """Uploads one model. Its ring is given back by `close`; the weights are owned by `memory`."""

    def __init__(self, driver: Driver, library: KernelLibrary, stream: int, memory: Memory) -> None:
        self._driver = driver
        self._library = library
        self._stream = stream
        self._memory = memory
        self._pool = ThreadPoolExecutor(_THREADS, "rocmforge-load")
        self._ring_memory = Memory(driver)
        self._chunk_bytes = _CHUNK_BYTES
        self._ring: list[_Stage] = []
        self._turn = 0

    def load(
        self, plan: ModelWeights[Planned], progress: Callable[[float], None]
    ) -> ModelWeights[Weight]:
        """Everything in the plan, on the device once the stream has passed.

        Args:
            plan: What to load.
            progress: Called with the share of bytes read, 0..1.

        Raises:
            EngineError: The device failed.
            UnsupportedTensor: A vector cannot be dequantised.
        """
        wanted = storages(plan)
        self._make_ring(wanted)
        total = sum(storage.storage.nbytes for storage in wanted)
        done = 0
        matrices: dict[int, Matrix] = {}
        vectors: dict[int, Vector] = {}
        for storage in wanted:
            if isinstance(storage, PlannedMatrix):
                matrices[id(storage)] = self._load_matrix(storage)
            else:
                vectors[id(storage)] = self._load_vector(storage)
            done += storage.storage.nbytes
            progress(done / total)

        def weight(planned: Planned) -> Weight:
            if isinstance(planned, PlannedVector):
                return vectors[id(planned)]
            matrix = matrices[id(planned.matrix)]
            return MatrixPart(matrix, planned.first, planned.width, planned.slot)

        return convert(plan, weight)

    def close(self) -> None:
        """Waits for the last copy and gives the ring back."""
        self._driver.synchronize_stream(self._stream)
        self._pool.shutdown()
        for stage in self._ring:
            self._driver.destroy_event(stage.is_free)
        self._ring.clear()
        for buffer in self._ring_memory.release():
            buffer.free()

    def _make_ring(self, wanted: list[PlannedMatrix | PlannedVector]) -> None:
        largest = max(storage.storage.nbytes for storage in wanted)
        row = max(storage.storage.shape[-1] * storage.storage.dtype.itemsize for storage in wanted)
        self._chunk_bytes = max(min(_CHUNK_BYTES, largest), row)
        for _ in range(_RING):
            self._ring.append(
                _Stage(
                    self._ring_memory.pinned(self._chunk_bytes, "loading weights"),
                    self._ring_memory.device(spec((self._chunk_bytes,), "u1"), "loading weights"),
                    self._driver.create_event(timed=False),
                )
            )

    def _load_matrix(self, plan: PlannedMatrix) -> Matrix:
        buffer = self._memory.device(plan.storage, plan.name)
        if plan.is_padded:
            buffer.fill(0, self._stream)
        matrix = Matrix(buffer.array, plan.format, plan.width, plan.columns, plan.stored_rows)
        repack = self._library.kernel(f"rf_repack_{plan.format.name}")
        for tensor, first_row, placing in plan.parts:
            for start, chunk in self._chunks(tensor.data):
                rows = len(chunk)
                stage = self._start_copy(chunk)
                repack.launch(
                    stage.device.array,
                    matrix.data,
                    rows,
                    matrix.units,
                    matrix.stored_rows,
                    first_row + start,
                    placing,
                    grid=(ceil_div(rows * matrix.units, _REPACK_THREADS), 1, 1),
                    block=_REPACK_THREADS,
                )
                self._driver.record_event(stage.is_free, self._stream)
        return matrix

    def _load_vector(self, plan: PlannedVector) -> Vector:
        buffer = self._memory.device(plan.storage, plan.name)
        values = np.concatenate([tensor.to_float32() for tensor in plan.tensors])
        stage = self._start_copy(values.view(np.uint8), buffer.array)
        self._driver.record_event(stage.is_free, self._stream)
        return Vector(buffer.array)

    def _start_copy(
        self, source: npt.NDArray[np.uint8], target: DeviceArray | None = None
    ) -> _Stage:
        """Starts a copy to the target, or to the device buffer of the ring's next place.

        The caller records the event `is_free` of that place after its last use.
        """
        stage = self._ring[self._turn]
        self._turn = (self._turn + 1) % _RING
        self._driver.synchronize_event(stage.is_free)
        self._fill(stage.host.bytes, source)
        address = (target or stage.device.array).address
        self._driver.copy_to_device(address, stage.host.address, source.nbytes, self._stream)
        return stage

    def _chunks(self, data: npt.NDArray[np.uint8]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Runs of rows that fit the ring, with the number of their first."""
        rows = self._chunk_bytes // data.shape[1]
        for start in range(0, len(data), rows):
            yield start, data[start : start + rows]

    def _fill(self, host: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8]) -> None:
        """Copies with several threads: one cannot keep up with the bus."""
        if source.flags.c_contiguous:
            source = source.reshape(-1)
        target = host[: source.nbytes].reshape(source.shape)
        size = ceil_div(len(source), _THREADS)
        pieces = [slice(at, at + size) for at in range(0, len(source), size)]
        list(self._pool.map(lambda piece: np.copyto(target[piece], source[piece]), pieces))
