"""Weights of a decoder, and what LoRA adapters add to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rocmforge.backend.protocol import Float32Array
from rocmforge.models.lora import Adapter
from rocmforge.models.weights import LayerWeights, ModelWeights


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
    """Returns the weights, each with what the adapters add to it.

    Raises:
        BadAdapter: A value is not finite.
    """
    return ModelWeights(
        embedding=Weight(weights.embedding),
        layers=tuple(_layer(index, layer, adapters) for index, layer in enumerate(weights.layers)),
        output_norm=Weight(weights.output_norm),
        output=Weight(weights.output),
    )


def _layer(
    index: int, layer: LayerWeights[Float32Array], adapters: Sequence[Adapter]
) -> LayerWeights[Weight]:
    found: dict[str, Any] = {}
    for role in (each.name for each in fields(layer)):
        values = getattr(layer, role)
        found[role] = None if values is None else Weight(values, _changes(index, role, adapters))
    return LayerWeights(**found)


def _changes(index: int, role: str, adapters: Sequence[Adapter]) -> dict[int, Change]:
    changes = {}
    for number, adapter in enumerate(adapters):
        low_rank = adapter.layers[index].get(role)
        if low_rank is not None:
            a, b = low_rank.factors()
            changes[number] = Change(a, b * np.float32(low_rank.scale))
    return changes
