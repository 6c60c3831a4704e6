"""How many experts of each layer the device has a seat for; all are in the host's memory then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rocmforge.models.blocks import ModelWeights, WeightPlace
from rocmforge.models.weights import map_places, walk
from rocmforge_hip.weights.placement import Planned, PlannedMatrix, PlannedPart

SeatsOf = Callable[[PlannedMatrix], int]


def expert_matrices(plan: ModelWeights[Planned]) -> list[PlannedMatrix]:
    """Returns the matrices of experts, each once, in the order of the model."""
    found = {
        id(planned.matrix): planned.matrix
        for place, planned in walk(plan)
        if isinstance(planned, PlannedPart) and _is_of_experts(place)
    }
    return list(found.values())


def hosted_matrices(plan: ModelWeights[Planned]) -> list[PlannedMatrix]:
    """Returns those whose experts are in the host's memory: two of each such layer."""
    return [matrix for matrix in expert_matrices(plan) if matrix.seats is not None]


def with_seats(plan: ModelWeights[Planned], seats_of: SeatsOf) -> ModelWeights[Planned]:
    """Returns the plan in which the device holds so many experts of each matrix, the host all."""
    made = {
        id(matrix): replace(matrix, seats=min(seats_of(matrix), matrix.num_experts))
        for matrix in expert_matrices(plan)
    }

    def seated(place: WeightPlace, planned: Planned) -> Planned:
        if not isinstance(planned, PlannedPart) or not _is_of_experts(place):
            return planned
        return replace(planned, matrix=made[id(planned.matrix)])

    return map_places(plan, seated)


def host_bytes(plan: ModelWeights[Planned]) -> int:
    """Returns the bytes of host memory that the experts take; 0 if the device holds all."""
    return sum(matrix.storage.nbytes for matrix in hosted_matrices(plan))


def table_bytes(plan: ModelWeights[Planned]) -> int:
    """Returns the bytes of host memory that a table takes whose rows kernels read there."""
    tables = {
        id(planned.matrix): planned.matrix.storage.nbytes
        for _, planned in walk(plan)
        if isinstance(planned, PlannedPart) and planned.matrix.is_hosted
    }
    return sum(tables.values())


def _is_of_experts(place: WeightPlace) -> bool:
    return place.declared.shape[0] == "num_experts" and place.name.startswith("experts.")
