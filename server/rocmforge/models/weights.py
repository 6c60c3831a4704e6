"""From the tensors of a file to the weights of a model: names, shapes, fused tensors, ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.reader import GgufFile, GgufTensor
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
    """One layer. Matrices are [out, in]; what an architecture does not have is None."""

    attn_norm: W  # [dim]
    q: W  # [heads * head_dim, dim]
    k: W  # [kv_heads * head_dim, dim]
    v: W  # [kv_heads * head_dim, dim]
    q_bias: W | None = None
    k_bias: W | None = None
    v_bias: W | None = None
    q_norm: W | None = None  # [head_dim]
    k_norm: W | None = None  # [head_dim]
    output: W  # [dim, heads * head_dim]
    output_bias: W | None = None  # [dim]
    attn_post_norm: W | None = None  # [dim]
    ffn_norm: W  # [dim]
    gate: W  # [ffn, dim]
    up: W  # [ffn, dim]
    down: W  # [dim, ffn]
    ffn_post_norm: W | None = None  # [dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights(Generic[W]):
    """All weights. `output` is `embedding` itself where the file has no matrix of its own."""

    embedding: W  # [vocab, dim]
    layers: tuple[LayerWeights[W], ...]
    output_norm: W  # [dim]
    output: W  # [vocab, dim]


def load_weights(
    config: ModelConfig,
    file: GgufFile,
    convert: Callable[[GgufTensor], W],
    progress: Callable[[float], None] = lambda share: None,
) -> ModelWeights[W]:
    """Converts every tensor of the model once.

    Args:
        config: What the file should contain.
        file: The tensors. None of their memory is referenced unless `convert` does so.
        convert: Makes the backend's weight of a [out, in] matrix or a [n] vector.
        progress: Called with the share of bytes converted, 0..1.

    Raises:
        UnsupportedTensor: One is missing, unexpected, of the wrong shape, or `convert` says so.
    """
    check_tensors(config, file)
    others = (FREQUENCY_FACTORS, LONG_FACTORS, SHORT_FACTORS, SCORES)  # no weights of layers
    total = sum(tensor.nbytes for name, tensor in file.tensors.items() if name not in others)
    done = 0

    def take(name: str, slots: tuple[str, ...]) -> dict[str, W]:
        nonlocal done
        tensor = file.tensors[name]
        parts = _split(tensor, [slot_shape(config, slot)[0] for slot in slots])
        converted = [convert(part) for part in parts]
        done += tensor.nbytes
        progress(done / total)
        return dict(zip(slots, converted, strict=True))

    embedding = take("token_embd.weight", ("embedding",))["embedding"]
    layers = []
    for index in range(config.num_layers):
        weights: dict[str, W] = {}
        for rule in ARCHITECTURES[config.architecture].layer:
            name = layer_name(index, rule)
            if name in file.tensors:
                weights |= take(name, rule.slots)
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
        shapes[SCORES] = (2, config.dim)
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
    """Shapes of all tensors the model may have, and the names of those it must have."""
    row = ARCHITECTURES[config.architecture]
    factors = (config.rope.dim // 2,)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": slot_shape(config, "embedding"),
        "output_norm.weight": slot_shape(config, "output_norm"),
    }
    required = list(shapes)
    for index in range(config.num_layers):
        for rule in row.layer:
            parts = [slot_shape(config, slot) for slot in rule.slots]
            rows = sum(part[0] for part in parts)
            shapes[layer_name(index, rule)] = (rows, *parts[0][1:])
            if rule.required:
                required.append(layer_name(index, rule))
    if row.separate_output:
        shapes["output.weight"] = slot_shape(config, "output_matrix")
    scaling = config.rope.scaling
    if scaling is not None and scaling.kind is RopeScalingKind.LONGROPE:
        shapes[LONG_FACTORS] = shapes[SHORT_FACTORS] = factors
        required += [LONG_FACTORS, SHORT_FACTORS]
    else:
        shapes[FREQUENCY_FACTORS] = factors
    return shapes, required


def slot_shape(config: ModelConfig, slot: str) -> tuple[int, ...]:
    """Shape of a field of `LayerWeights`; also of "embedding" and "output_matrix"."""
    dim, ffn, head = config.dim, config.ffn_dim, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head
    match slot:
        case "embedding" | "output_matrix":
            return config.vocab_size, dim
        case "q":
            return queries, dim
        case "k" | "v":
            return keys, dim
        case "q_bias":
            return (queries,)
        case "k_bias" | "v_bias":
            return (keys,)
        case "q_norm" | "k_norm":
            return (head,)
        case "output":
            return dim, queries
        case "gate" | "up":
            return ffn, dim
        case "down":
            return dim, ffn
        case _:  # norms and the bias of the output projection
            return (dim,)


def _split(tensor: GgufTensor, rows: list[int]) -> list[GgufTensor]:
    if len(rows) == 1:
        return [tensor]
    parts, start = [], 0
    for count in rows:
        parts.append(tensor.rows(start, start + count))
        start += count
    return parts


def layer_name(index: int, rule: TensorRule) -> str:
    """Name in the file of a tensor of a layer."""
    return f"blk.{index}.{rule.name}"
