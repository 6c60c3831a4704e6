"""The activations of a model: which arrays there are, and how large they are at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import ModelWeights
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.memory import ArraySpec, DeviceArray, spec
from rocmforge_hip.ops.geometry import MAX_GEMV_ROWS, Geometry
from rocmforge_hip.weights.buffers import (
    ATTENDED,
    DELTA,
    GATHERED,
    HIDDEN,
    LOGITS,
    NORMED,
    POST_NORMED,
    QKV_BUFFERS,
    RESIDUAL,
    ROTATED,
    ROWS,
)
from rocmforge_hip.weights.placement import Planned, PlannedPart

SCORED_ROWS: Final = 256
"""Rows of logits beyond one for each sequence: prompt tokens that are scored."""
MAX_TOP_LOGPROBS: Final = 32
"""The most top_logprobs that a row may ask for."""


@dataclass(slots=True, eq=False)
class Activation:
    """A [rows, features] matrix in one or several forms, those not None.

    `q`, `scale` and `lo_offset` are the int8 form of kernels/include/rf/act.h.
    """

    buffer: str
    rows: int
    features: int
    f32: DeviceArray | None = None
    f16: DeviceArray | None = None
    q: DeviceArray | None = None
    scale: DeviceArray | None = None
    lo_offset: int = 0  # elements of q from the high slice to the low one; 0 = one slice
    stride: int = 0  # elements between rows of f32 and f16; 0 = features


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The largest step."""

    tokens: int
    sequences: int
    context: int  # tokens of one sequence
    adapters: int = 0  # that a sequence may have one of

    @property
    def rows(self) -> int:
        """Rows of logits."""
        return self.sequences + SCORED_ROWS


def plan_activations(
    config: ModelConfig, weights: ModelWeights[Planned], limits: StepLimits, geometry: Geometry
) -> dict[str, ArraySpec]:
    """Every array that a step of this model writes, by name.

    The name is that of a buffer and a form, "normed.f16". Int8 forms exist for the few rows that
    GEMV takes, slices included; matrices that are not quantised are multiplied with float32 there.
    """
    tokens, rows = limits.tokens, limits.rows
    few = MAX_GEMV_ROWS
    attended = config.num_heads * config.head_dim
    plan: dict[str, ArraySpec] = {
        "tokens": spec((tokens,), "i4"),
        f"{RESIDUAL}.f32": spec((tokens, config.hidden_size), "f4"),
        f"{DELTA}.f32": spec((tokens, config.hidden_size), "f4"),
        f"{ROTATED}.f16": spec((tokens, attended), "f2"),
        f"{HIDDEN}.f32": spec((few, config.intermediate_size), "f4"),
        f"{ATTENDED}.f32": spec((few, attended), "f4"),
        f"{ROWS}.f32": spec((rows, config.hidden_size), "f4"),
        f"{NORMED}.f32": spec((tokens, config.hidden_size), "f4"),
        f"{LOGITS}.f32": spec((rows, config.vocab_size), "f4"),
    }
    if weights.layers[0].attn_post_norm is not None:
        plan[f"{POST_NORMED}.f32"] = spec((tokens, config.hidden_size), "f4")
    for buffer, count, features in (
        (NORMED, tokens, config.hidden_size),
        (ATTENDED, tokens, attended),
        (HIDDEN, tokens, config.intermediate_size),
        (ROWS, rows, config.hidden_size),
    ):
        plan[f"{buffer}.f16"] = spec((count, features), "f2")
        plan[f"{buffer}.q"] = spec((few, features), "i1")
        plan[f"{buffer}.scale"] = spec((few, features // QUANT_BLOCK), "u8")
    for buffer, features in _attention_input_features(weights).items():
        plan[f"{buffer}.f32"] = spec((tokens, features), "f4")
    assert isinstance(weights.output, PlannedPart)
    if weights.output.out_features < config.vocab_size:  # the rest is computed on other devices
        plan[f"{GATHERED}.f32"] = spec((rows, config.vocab_size), "f4")
    plan |= geometry.scratch(config, limits.sequences)
    plan |= _sampling(config, limits, geometry)
    return plan


def _attention_input_features(weights: ModelWeights[Planned]) -> dict[str, int]:
    """Features of each buffer that query, key and value go to."""
    features: dict[str, int] = {}
    for layer in weights.layers:
        for part in (layer.q, layer.k, layer.v):
            assert isinstance(part, PlannedPart)
            assert part.buffer in QKV_BUFFERS
            features[part.buffer] = max(features.get(part.buffer, 0), part.matrix.out_features)
    return features


def _sampling(config: ModelConfig, limits: StepLimits, geometry: Geometry) -> dict[str, ArraySpec]:
    rows, hidden = limits.rows, limits.sequences * config.hidden_size
    parts = geometry.most_sampling_parts(rows)
    return {
        "scores": spec((rows, config.vocab_size), "f4"),
        "highest": spec((parts, 2), "f4"),
        "drawn": spec((parts, 2), "f4"),
        "limits": spec((rows,), "u4"),
        "output": spec((rows * (2 + 2 * MAX_TOP_LOGPROBS) + 64 + hidden,), "i4"),
    }
