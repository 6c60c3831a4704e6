"""Weights of a decoder, and what LoRA adapters add to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.models.blocks import ModelWeights, WeightPlace
from rocmforge.models.lora import Adapter
from rocmforge.models.weights import map_places


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """The change that an adapter makes to a matrix: `b @ a` is added."""

    a: Float32Array  # [rank, in_features]
    b: Float32Array  # [out_features, rank], times the scale


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A matrix or a vector, as it is and as adapters change it."""

    values: Float32Array
    changes: Mapping[int, Change] = field(default_factory=dict)  # by number of the adapter


def with_adapters(
    weights: ModelWeights[Float32Array], adapters: Sequence[Adapter]
) -> ModelWeights[Weight]:
    """Returns the weights, each with what the adapters add to it: once where it has two places.

    Raises:
        BadAdapter: A value is not finite.
    """
    made: dict[int, Weight] = {}

    def changed(place: WeightPlace, values: Float32Array) -> Weight:
        if id(values) not in made:  # what changes keys that are values changes these, too
            made[id(values)] = Weight(values, _changes(place, adapters))
        return made[id(values)]

    return map_places(weights, changed)


def _changes(place: WeightPlace, adapters: Sequence[Adapter]) -> dict[int, Change]:
    changes = {}
    for number, adapter in enumerate(adapters):
        low_rank = adapter.changes.get(place)
        if low_rank is not None:
            a, b = low_rank.factors()
            changes[number] = Change(a, b * np.float32(low_rank.scale))
    return changes
