"""Models of random weights whose layers differ: no file of ours has such layers yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.blocks import WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.lora import Adapter, LowRank
from rocmforge.models.weights import places
from tests.support.operands.weights import random_matrix

# Heads of queries, of keys and values, elements of keys, of values, window, width.
Layer = tuple[int, int, int, int, int | None, int]
RANK = 4


def uneven(config: ModelConfig, layers: Sequence[Layer]) -> ModelConfig:
    """The model with these layers."""
    made = tuple(
        LayerConfig(
            num_heads=heads,
            num_kv_heads=kv_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            attention_scale=key_dim**-0.5,
            window=window,
            intermediate_size=width,
        )
        for heads, kv_heads, key_dim, value_dim, window, width in layers
    )
    return replace(config, layers=made)


def random_weights(config: ModelConfig) -> dict[str, Tensor]:
    """Matrices in Q5_0, and norms."""
    rng = np.random.default_rng(3)
    weights = {}
    for place in places(config.num_layers):
        shape = place.shape(config)
        if 0 in shape or (place.is_optional and place.name not in FAMILIES["llama"].has):
            continue
        if len(shape) > 1:
            raw = random_matrix(rng, "q5_0", *shape, magnitude=0.5 / shape[1] ** 0.5).raw
            weights[place.path] = Tensor(place.path, shape, FORMATS["q5_0"], raw)
        else:
            ones = (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
            weights[place.path] = Tensor(place.path, shape, FORMATS["f32"], ones.view(np.uint8))
    return weights


def random_adapter(config: ModelConfig) -> Adapter:
    """One of every matrix that an adapter may change."""
    rng = np.random.default_rng(4)

    def factor(name: str, *shape: int) -> Tensor:
        values = (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
        return Tensor(name, shape, FORMATS["f32"], values.view(np.uint8))

    def change(place: WeightPlace) -> LowRank:
        rows, columns = place.shape(config)
        a, b = factor(f"{place.path}.a", RANK, columns), factor(f"{place.path}.b", rows, RANK)
        return LowRank(a, b, 0.5, "random")

    adaptable = [place for place in places(config.num_layers) if place.declared.adaptable]
    return Adapter("random", {place: change(place) for place in adaptable})
