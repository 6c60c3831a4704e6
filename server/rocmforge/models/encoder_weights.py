"""From the tensors of a file to the weights of an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.reader import GgufFile, GgufTensor
from rocmforge.models.encoder_config import ENCODERS, EncoderConfig
from rocmforge.models.pooling import SCORES

W = TypeVar("W")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayer(Generic[W]):
    """One layer. Matrices are [out, in]; what an architecture does not have is None."""

    q: W  # [dim, dim]
    k: W  # [dim, dim]
    v: W  # [dim, dim]
    q_bias: W | None = None  # [dim]
    k_bias: W | None = None  # [dim]
    v_bias: W | None = None  # [dim]
    output: W  # [dim, dim]
    output_bias: W | None = None  # [dim]
    attn_norm: W  # [dim], after the attention
    attn_norm_bias: W  # [dim]
    gate: W | None = None  # [ffn, dim]
    up: W  # [ffn, dim]
    up_bias: W | None = None  # [ffn]; never with a gate
    down: W  # [dim, ffn]
    down_bias: W | None = None  # [dim]
    ffn_norm: W  # [dim], after the feed-forward network
    ffn_norm_bias: W  # [dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreHead(Generic[W]):
    """What makes scores of the first token's state: scores(tanh(dense(state)))."""

    dense: W | None = None  # [dim, dim]
    dense_bias: W | None = None  # [dim]
    scores: W  # [num_scores, dim]
    scores_bias: W | None = None  # [num_scores]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWeights(Generic[W]):
    """All weights."""

    tokens: W  # [vocab, dim]
    positions: W | None = None  # [max_context, dim]; None if the model rotates
    types: W | None = None  # [types, dim]
    norm: W  # [dim], of the embedding
    norm_bias: W  # [dim]
    layers: tuple[EncoderLayer[W], ...]
    head: ScoreHead[W] | None = None


# Tensors outside the layers by the fields that they fill.
_MODEL = {
    "tokens": "token_embd.weight",
    "positions": "position_embd.weight",
    "types": "token_types.weight",
    "norm": "token_embd_norm.weight",
    "norm_bias": "token_embd_norm.bias",
}
_HEAD = {
    "dense": "cls.weight",
    "dense_bias": "cls.bias",
    "scores": SCORES,
    "scores_bias": "cls.output.bias",
}


def load_encoder_weights(
    config: EncoderConfig,
    file: GgufFile,
    convert: Callable[[GgufTensor], W],
    progress: Callable[[float], None] = lambda share: None,
) -> EncoderWeights[W]:
    """Converts every tensor of the model once; arguments as `models.weights.load_weights`.

    Raises:
        UnsupportedTensor: One is missing, unexpected, of the wrong shape, or `convert` says so.
    """
    check_encoder_tensors(config, file)
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    done = 0

    def take(name: str, slots: tuple[str, ...]) -> dict[str, W]:
        nonlocal done
        tensor = file.tensors[name]
        if len(slots) > 1:
            rows = tensor.shape[0] // len(slots)
            parts = [tensor.rows(i * rows, (i + 1) * rows) for i in range(len(slots))]
        else:
            parts = [_as_matrix(tensor) if name == SCORES else tensor]
        converted = [convert(part) for part in parts]
        done += tensor.nbytes
        progress(done / total)
        return dict(zip(slots, converted, strict=True))

    def take_all(names: dict[str, str]) -> dict[str, W]:
        taken: dict[str, W] = {}
        for slot, name in names.items():
            if name in file.tensors:
                taken |= take(name, (slot,))
        return taken

    layers = []
    for index in range(config.num_layers):
        weights: dict[str, W] = {}
        for rule in ENCODERS[config.architecture].layer:
            if (name := f"blk.{index}.{rule.name}") in file.tensors:
                weights |= take(name, rule.slots)
        layers.append(EncoderLayer(**weights))
    head = ScoreHead(**take_all(_HEAD)) if config.num_scores else None
    return EncoderWeights(**take_all(_MODEL), layers=tuple(layers), head=head)


def check_encoder_tensors(config: EncoderConfig, file: GgufFile) -> None:
    """Compares the file's tensor directory with what the architecture has; reads no data.

    Raises:
        UnsupportedTensor: One is missing, unexpected or of the wrong shape.
    """
    shapes, required = _expected(config, file)
    for name in required:
        if name not in file.tensors:
            raise UnsupportedTensor(name, f"missing; every such {config.architecture} model has it")
    for name, tensor in file.tensors.items():
        if name not in shapes:
            raise UnsupportedTensor(
                name,
                f"not a part of {config.architecture} models with {config.num_layers} layers as "
                "we know them",
            )
        shape = _as_matrix(tensor).shape if name == SCORES else tensor.shape
        if shape != shapes[name]:
            raise UnsupportedTensor(
                name, f"its shape is {shape}, the metadata asks for {shapes[name]}"
            )


def _expected(
    config: EncoderConfig, file: GgufFile
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Shapes of all tensors the model may have, and the names of those it must have."""
    dim = config.dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, dim),
        "token_embd_norm.weight": (dim,),
        "token_embd_norm.bias": (dim,),
    }
    if config.rope is None:
        shapes["position_embd.weight"] = (config.max_context, dim)
    required = list(shapes)
    shapes["token_types.weight"] = (
        file.get_int("tokenizer.ggml.token_type_count", 1),
        dim,
    )
    for index in range(config.num_layers):
        for rule in ENCODERS[config.architecture].layer:
            name = f"blk.{index}.{rule.name}"
            rows, *columns = _slot_shape(config, rule.slots[0])
            shapes[name] = (rows * len(rule.slots), *columns)
            if rule.required:
                required.append(name)
    if (scores := file.tensors.get(SCORES)) is not None:
        rows = _as_matrix(scores).shape[0]
        shapes[SCORES] = (rows, dim)
        shapes["cls.output.bias"] = (rows,)
        shapes["cls.weight"] = (dim, dim)
        shapes["cls.bias"] = (dim,)
    return shapes, required


def _slot_shape(config: EncoderConfig, slot: str) -> tuple[int, ...]:
    dim, ffn = config.dim, config.ffn_dim
    match slot:
        case "q" | "k" | "v" | "output":
            return dim, dim
        case "gate" | "up":
            return ffn, dim
        case "down":
            return dim, ffn
        case "up_bias":
            return (ffn,)
        case _:  # norms and the other biases
            return (dim,)


def _as_matrix(tensor: GgufTensor) -> GgufTensor:
    """A matrix of one row, if llama.cpp has dropped its first axis."""
    if len(tensor.shape) != 1:
        return tensor
    return replace(tensor, shape=(1, *tensor.shape), data=tensor.data.reshape(1, -1))
