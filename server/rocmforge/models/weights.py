"""The weights of a decoder, and how they are taken from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.models.config import ModelConfig

W = TypeVar("W")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights(Generic[W]):
    """One layer's weights; None where the architecture has no such weight."""

    attn_norm: W  # [hidden_size]
    q: W  # [num_heads * head_dim, hidden_size]
    k: W  # [num_kv_heads * head_dim, hidden_size]
    v: W  # [num_kv_heads * head_dim, hidden_size]
    q_bias: W | None = None
    k_bias: W | None = None
    v_bias: W | None = None
    q_norm: W | None = None  # [head_dim]
    k_norm: W | None = None  # [head_dim]
    output: W  # [hidden_size, num_heads * head_dim]
    output_bias: W | None = None  # [hidden_size]
    attn_post_norm: W | None = None  # [hidden_size]
    ffn_norm: W  # [hidden_size]
    gate: W  # [intermediate_size, hidden_size]
    up: W  # [intermediate_size, hidden_size]
    down: W  # [hidden_size, intermediate_size]
    ffn_post_norm: W | None = None  # [hidden_size]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights(Generic[W]):
    """All weights of a decoder; `output` is `embedding` itself where the file has no other."""

    embedding: W  # [vocab_size, hidden_size]
    layers: tuple[LayerWeights[W], ...]
    output_norm: W  # [hidden_size]
    output: W  # [vocab_size, hidden_size]


FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attention_norm": "attn_norm",
        "attention_post_norm": "attn_post_norm",
        "attention_norm_2": "attn_norm_2",
        "feed_forward_norm": "ffn_norm",
        "feed_forward_post_norm": "ffn_post_norm",
    }
)
"""Fields whose names are not the last part of the weight's name."""


def load_weights(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    convert: Callable[[Tensor], W],
    progress: Callable[[float], None] = lambda share: None,
) -> ModelWeights[W]:
    """Converts every tensor of the decoder once.

    Args:
        config: Describes the expected tensors.
        weights: As `Checkpoint.weights`. Their memory is referenced only if `convert` does so.
        convert: Makes the backend's weight of a matrix [out_features, in_features] or a vector.
        progress: Called with the share of bytes converted, 0..1.

    Raises:
        UnsupportedTensor: `convert` says so.
    """
    kept = {path: tensor for path, tensor in weights.items() if not path.startswith("head.")}
    converted = convert_all(kept, convert, progress)
    embedding = converted["embedding.token"]
    return ModelWeights(
        embedding=embedding,
        layers=tuple(
            LayerWeights(**layer_fields(converted, index)) for index in range(config.num_layers)
        ),
        output_norm=converted["output_norm"],
        output=converted.get("output", embedding),
    )


def convert_all(
    weights: Mapping[str, Tensor],
    convert: Callable[[Tensor], W],
    progress: Callable[[float], None],
) -> dict[str, W]:
    """Converts each tensor; calls `progress` with the share of bytes done."""
    total = sum(tensor.nbytes for tensor in weights.values())
    done, converted = 0, {}
    for path, tensor in weights.items():
        converted[path] = convert(tensor)
        done += tensor.nbytes
        progress(done / total)
    return converted


def layer_fields(converted: Mapping[str, W], layer: int) -> dict[str, W]:
    """Returns the weights of a layer by the fields of its class."""
    prefix, found = f"layers.{layer}.", {}
    for path, weight in converted.items():
        if path.startswith(prefix):
            name, bias, _ = path.removeprefix(prefix).partition("_bias")
            found[FIELDS.get(name, name.rpartition(".")[2]) + bias] = weight
    return found


def weight_shape(config: ModelConfig, path: str) -> tuple[int, ...]:
    """Returns the shape of a weight, by its name in `Checkpoint.weights`."""
    hidden_size, name, layer = config.hidden_size, path, config.layers[0]
    if path.startswith("layers."):
        _, index, name = path.split(".", 2)
        layer = config.layers[int(index)]
    match name:
        case "embedding.token" | "output":
            return config.vocab_size, hidden_size
        case "embedding.position":
            return config.max_context, hidden_size
        case "embedding.type":
            return config.num_token_types, hidden_size
        case "attention.q":
            return layer.query_features, hidden_size
        case "attention.k":
            return layer.key_features, hidden_size
        case "attention.v":
            return layer.value_features, hidden_size
        case "attention.q_bias":
            return (layer.query_features,)
        case "attention.k_bias":
            return (layer.key_features,)
        case "attention.v_bias":
            return (layer.value_features,)
        case "attention.q_norm" | "attention.k_norm" if config.causal:
            return (layer.key_dim,)
        case "attention.output":
            return hidden_size, layer.attended_features
        case "feed_forward.gate" | "feed_forward.up":
            return layer.intermediate_size, hidden_size
        case "feed_forward.up_bias":
            return (layer.intermediate_size,)
        case "feed_forward.down":
            return hidden_size, layer.intermediate_size
        case "head.scores":
            return config.num_scores, hidden_size
        case "head.scores_bias":
            return (config.num_scores,)
        case "head.dense":
            return hidden_size, hidden_size
        case _:  # norms and the other biases
            return (hidden_size,)
