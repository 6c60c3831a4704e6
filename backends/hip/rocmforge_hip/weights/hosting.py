"""Experts in the host's memory: kernels read them there, and some have a seat on the device too.

The kernels repack a matrix on the device, all experts of a layer together, from where it is copied
to the host and the first experts to their seats. Nothing on the host changes after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rocmforge.models.blocks import ModelWeights
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import DeviceArray, Memory, spec
from rocmforge_hip.weights.formats import HostedExperts, Matrix, MatrixPart, Weight
from rocmforge_hip.weights.placement import PLACE, PlannedMatrix
from rocmforge_hip.weights.staging import StagingBuffer, StagingPiece


@dataclass(frozen=True, slots=True, eq=False)
class HostedLayer:
    """A layer whose experts are hosted: `matrices` are gate and up as one, and down."""

    router: Weight
    matrices: tuple[Matrix, Matrix]
    is_last: bool  # of the model


def hosted_layers(weights: ModelWeights[Weight]) -> tuple[HostedLayer, ...]:
    """Returns the layers of a model whose experts are hosted, the last one first.

    It may choose for fewer tokens than others: so its choices can lie where theirs begin.
    """
    return tuple(
        HostedLayer(
            experts.router,
            (experts.up.matrix, experts.down.matrix),
            is_last=layer is weights.layers[-1],
        )
        for layer in reversed(weights.layers)
        if (experts := layer.experts) is not None
        and isinstance(experts.up, MatrixPart)
        and isinstance(experts.down, MatrixPart)
        and experts.up.matrix.hosted is not None
    )


class HostLoading:
    """Brings the experts of one model to the host's memory, by way of the device.

    Args:
        driver: Of the device.
        stream: In which matrices are repacked.
        memory: Owner of the host memory, and of the tables of places.
        plans: The matrices; at least one.
    """

    def __init__(
        self, driver: Driver, stream: int, memory: Memory, plans: list[PlannedMatrix]
    ) -> None:
        self._driver = driver
        self._stream = stream
        self._memory = memory
        self._own: Final = Memory(driver)
        largest = max(plan.storage.nbytes for plan in plans)
        self._scratch = self._own.device(spec((largest,), "u1"), "experts on their way to the host")
        self._scratch.fill(0, stream)  # rows of no tensor
        count = sum(plan.num_experts for plan in plans)
        self._places = memory.device(spec((count,), PLACE), "places of experts").array
        self._used_places = 0

    def host(self, plan: PlannedMatrix) -> HostedExperts:
        """Makes room for the experts of a matrix."""
        assert plan.seats is not None
        first = self._used_places
        self._used_places += plan.num_experts
        buffer = self._memory.pinned(plan.storage.nbytes, plan.name, is_read_by_kernels=True)
        places = self._places.rows(first, self._used_places)
        return HostedExperts(plan.seats, buffer.address, places)

    def target(self, plan: PlannedMatrix) -> DeviceArray:
        """Returns the array in which a matrix is put together."""
        what = plan.storage
        return DeviceArray(self._scratch.array.address, what.shape, what.dtype)

    def then_store(
        self, pieces: Iterator[StagingPiece], matrix: Callable[[], Matrix], plan: PlannedMatrix
    ) -> Iterator[StagingPiece]:
        """Yields the pieces of a matrix, and has it stored when the last has arrived."""
        *others, last = pieces

        def finish(stage: StagingBuffer) -> None:
            last.finish(stage)
            self._store(matrix(), plan)

        yield from others
        yield StagingPiece(last.source, last.nbytes, finish)

    def close(self) -> None:
        """Gives back what only loading needs; the stream has nothing to do."""
        for buffer in self._own.release():
            buffer.free()

    def _store(self, matrix: Matrix, plan: PlannedMatrix) -> None:
        assert matrix.hosted is not None
        source, nbytes = self._scratch.array.address, plan.storage.nbytes
        self._driver.copy_to_host(matrix.hosted.host, source, nbytes, self._stream)
        if seated := matrix.hosted.seats * matrix.nbytes:
            self._driver.copy_on_device(matrix.data.address, source, seated, self._stream)
        if plan.is_padded:
            self._scratch.fill(0, self._stream)
