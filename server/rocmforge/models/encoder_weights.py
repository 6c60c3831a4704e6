"""The weights of an encoder, and how they are taken from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import convert_all, layer_fields

W = TypeVar("W")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayer(Generic[W]):
    """One layer's weights; None where the architecture has no such weight."""

    q: W  # [hidden_size, hidden_size]
    k: W  # [hidden_size, hidden_size]
    v: W  # [hidden_size, hidden_size]
    q_bias: W | None = None  # [hidden_size]
    k_bias: W | None = None  # [hidden_size]
    v_bias: W | None = None  # [hidden_size]
    q_norm: W | None = None  # [hidden_size], of all heads together
    q_norm_bias: W | None = None  # [hidden_size]
    k_norm: W | None = None  # [hidden_size]
    k_norm_bias: W | None = None  # [hidden_size]
    output: W  # [hidden_size, hidden_size]
    output_bias: W | None = None  # [hidden_size]
    attn_norm: W | None = None  # [hidden_size], after the attention or before it
    attn_norm_bias: W | None = None  # [hidden_size]
    attn_norm_2: W | None = None  # [hidden_size], of what the layer reads plus the other norm
    attn_norm_2_bias: W | None = None  # [hidden_size]
    gate: W | None = None  # [intermediate_size, hidden_size]
    up: W  # [intermediate_size, hidden_size]
    up_bias: W | None = None  # [intermediate_size]; never with a gate
    down: W  # [hidden_size, intermediate_size]
    down_bias: W | None = None  # [hidden_size]
    ffn_norm: W  # [hidden_size], after the feed-forward network or before it
    ffn_norm_bias: W | None = None  # [hidden_size]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreHead(Generic[W]):
    """The classification head: scores(tanh(dense(state))) of the first token's hidden state."""

    dense: W | None = None  # [hidden_size, hidden_size]
    dense_bias: W | None = None  # [hidden_size]
    scores: W  # [num_scores, hidden_size]
    scores_bias: W | None = None  # [num_scores]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWeights(Generic[W]):
    """All weights of an encoder."""

    tokens: W  # [vocab_size, hidden_size]
    positions: W | None = None  # [max_context, hidden_size]; None if it has no such table
    types: W | None = None  # [types, hidden_size]
    norm: W  # [hidden_size], of the embedding
    norm_bias: W | None = None  # [hidden_size]
    layers: tuple[EncoderLayer[W], ...]
    output_norm: W | None = None  # [hidden_size], after the last layer
    head: ScoreHead[W] | None = None


def load_encoder_weights(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    convert: Callable[[Tensor], W],
    progress: Callable[[float], None] = lambda share: None,
) -> EncoderWeights[W]:
    """Converts every tensor of the encoder once.

    Args:
        config: Describes the expected tensors.
        weights: As `Checkpoint.weights`. Their memory is referenced only if `convert` does so.
        convert: Makes the backend's weight of a matrix [out_features, in_features] or a vector.
        progress: Called with the share of bytes converted, 0..1.

    Raises:
        UnsupportedTensor: `convert` says so.
    """
    kept = {
        path: tensor
        for path, tensor in weights.items()
        if config.num_scores or not path.startswith("head.")
    }
    converted = convert_all(kept, convert, progress)
    head = {
        path.removeprefix("head."): weight
        for path, weight in converted.items()
        if path.startswith("head.")
    }
    return EncoderWeights(
        tokens=converted["embedding.token"],
        positions=converted.get("embedding.position"),
        types=converted.get("embedding.type"),
        norm=converted["embedding.norm"],
        norm_bias=converted.get("embedding.norm_bias"),
        layers=tuple(
            EncoderLayer(**layer_fields(converted, index)) for index in range(config.num_layers)
        ),
        output_norm=converted.get("output_norm"),
        head=ScoreHead(**head) if head else None,
    )
