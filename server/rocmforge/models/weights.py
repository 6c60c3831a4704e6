"""The weights of a decoder, and how they are taken from a file's tensors.

A file may fuse several weights in one tensor, and may have one matrix for two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.architectures import (
    ARCHITECTURES,
    FREQUENCY_FACTORS,
    LONG_FACTORS,
    SHORT_FACTORS,
    TensorRule,
)
from rocmforge.models.config import ModelConfig, RopeScalingKind
from rocmforge.models.pooling import SCORES, PoolingType, declared_pooling

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


def load_weights(
    config: ModelConfig,
    file: GgufFile,
    convert: Callable[[Tensor], W],
    progress: Callable[[float], None] = lambda share: None,
) -> ModelWeights[W]:
    """Converts every tensor of the decoder once.

    Args:
        config: Describes the expected tensors.
        file: Holds the tensors. Its memory is referenced only if `convert` does so.
        convert: Makes the backend's weight of a matrix [out_features, in_features] or a vector.
        progress: Called with the share of bytes converted, 0..1.

    Raises:
        UnsupportedTensor: One is missing, unexpected, of the wrong shape, or `convert` says so.
    """
    check_tensors(config, file)
    others = (FREQUENCY_FACTORS, LONG_FACTORS, SHORT_FACTORS, SCORES)  # no weights of layers
    total = sum(tensor.nbytes for name, tensor in file.tensors.items() if name not in others)
    done = 0

    def take(name: str, roles: tuple[str, ...], layer: int = 0) -> dict[str, W]:
        nonlocal done
        tensor = file.tensors[name]
        parts = _split(tensor, [role_shape(config, role, layer)[0] for role in roles])
        converted = [convert(part) for part in parts]
        done += tensor.nbytes
        progress(done / total)
        return dict(zip(roles, converted, strict=True))

    embedding = take("token_embd.weight", ("embedding",))["embedding"]
    layers = []
    for index in range(config.num_layers):
        weights: dict[str, W] = {}
        for rule in ARCHITECTURES[config.architecture].layer:
            name = layer_name(index, rule)
            if name in file.tensors:
                weights |= take(name, rule.roles, index)
        layers.append(LayerWeights(**weights))
    output_norm = take("output_norm.weight", ("output_norm",))["output_norm"]
    output = embedding
    if "output.weight" in file.tensors:
        output = take("output.weight", ("output_matrix",))["output_matrix"]
    return ModelWeights(
        embedding=embedding, layers=tuple(layers), output_norm=output_norm, output=output
    )


def check_tensors(config: ModelConfig, file: GgufFile) -> None:
    """Compares the file's tensor directory with what the architecture has; reads no data.

    Raises:
        UnsupportedTensor: One is missing, unexpected or of the wrong shape.
    """
    shapes, required = _expected(config)
    for name in required:
        if name not in file.tensors:
            raise UnsupportedTensor(name, f"missing; every {config.architecture} model has it")
    if declared_pooling(file) is PoolingType.RANK and SCORES in file.tensors:
        shapes[SCORES] = (2, config.hidden_size)
    for name, tensor in file.tensors.items():
        if name not in shapes:
            raise UnsupportedTensor(
                name,
                "mixture-of-experts models are not supported"
                if "_exps" in name or "ffn_gate_inp" in name
                else f"not a part of {config.architecture} models with "
                f"{config.num_layers} layers as we know them",
            )
        if tensor.shape != shapes[name]:
            raise UnsupportedTensor(
                name, f"its shape is {tensor.shape}, the metadata asks for {shapes[name]}"
            )


def _expected(config: ModelConfig) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Returns the shapes of all tensors that may be there and the names of those that must be."""
    row = ARCHITECTURES[config.architecture]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": role_shape(config, "embedding"),
        "output_norm.weight": role_shape(config, "output_norm"),
    }
    required = list(shapes)
    for index in range(config.num_layers):
        for rule in row.layer:
            parts = [role_shape(config, role, index) for role in rule.roles]
            rows = sum(part[0] for part in parts)
            shapes[layer_name(index, rule)] = (rows, *parts[0][1:])
            if rule.required:
                required.append(layer_name(index, rule))
    if row.separate_output:
        shapes["output.weight"] = role_shape(config, "output_matrix")
    assert config.rope is not None
    scaling, factors = config.rope.scaling, (config.rope.rotary_dim // 2,)
    if scaling is not None and scaling.kind is RopeScalingKind.LONGROPE:
        shapes[LONG_FACTORS] = shapes[SHORT_FACTORS] = factors
        required += [LONG_FACTORS, SHORT_FACTORS]
    else:
        shapes[FREQUENCY_FACTORS] = factors
    return shapes, required


def role_shape(config: ModelConfig, role: str, index: int = 0) -> tuple[int, ...]:
    """Returns the shape of a role: a field of `LayerWeights`, "embedding" or "output_matrix"."""
    hidden_size, layer = config.hidden_size, config.layers[index]
    match role:
        case "embedding" | "output_matrix":
            return config.vocab_size, hidden_size
        case "q":
            return layer.query_features, hidden_size
        case "k":
            return layer.key_features, hidden_size
        case "v":
            return layer.value_features, hidden_size
        case "q_bias":
            return (layer.query_features,)
        case "k_bias":
            return (layer.key_features,)
        case "v_bias":
            return (layer.value_features,)
        case "q_norm" | "k_norm":
            return (layer.key_dim,)
        case "output":
            return hidden_size, layer.attended_features
        case "gate" | "up":
            return layer.intermediate_size, hidden_size
        case "down":
            return hidden_size, layer.intermediate_size
        case _:  # norms and the bias of the output projection
            return (hidden_size,)


def _split(tensor: Tensor, rows: list[int]) -> list[Tensor]:
    if len(rows) == 1:
        return [tensor]
    parts, start = [], 0
    for count in rows:
        parts.append(tensor.slice(0, start, start + count))
        start += count
    return parts


def layer_name(index: int, rule: TensorRule) -> str:
    """Returns a layer's tensor's name in the file."""
    return f"blk.{index}.{rule.name}"
