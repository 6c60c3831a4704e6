"""Weights that are computed into others before a model is: they cost a step nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rocmforge.checkpoint.tensor import ScaledRows, Tensor, float32_tensor
from rocmforge.models.config import ModelConfig

_SCALED: Final = {
    "attention_scale": ("attention.output", "attention.output_bias"),
    "feed_forward_scale": ("feed_forward.down", "feed_forward.down_bias"),
}
"""Scales of what a part of a layer adds, and the ends of that part."""


def folded(config: ModelConfig, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Returns weights, by their paths, without scales of layers and without a class token.

    A tower multiplies the patch that a class token has not, which is zeros, as all others: its row
    in the table of positions, the last, has what is missing. It reads that row alone.
    """
    token = weights.get("embedding.class_token")
    found = dict(weights)
    for index in range(config.num_layers):
        for scale, ends in _SCALED.items():
            if (factors := found.pop(f"layers.{index}.{scale}", None)) is not None:
                for path in (f"layers.{index}.{end}" for end in ends):
                    found[path] = ScaledRows(found[path], factors)
    if token is not None:
        del found["embedding.class_token"]
        table = found["embedding.token"].to_float32()
        of_class = table[0] + token.to_float32() - found["patches.bias"].to_float32()
        rows = np.concatenate([table[1:], of_class[None]])
        found["embedding.token"] = float32_tensor(found["embedding.token"].name, rows)
    return found
