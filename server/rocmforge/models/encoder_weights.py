"""From the tensors of a file to the weights of an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    q_norm: W | None = None  # [dim], of all heads together
    q_norm_bias: W | None = None  # [dim]
    k_norm: W | None = None  # [dim]
    k_norm_bias: W | None = None  # [dim]
    output: W  # [dim, dim]
    output_bias: W | None = None  # [dim]
    attn_norm: W | None = None  # [dim], after the attention or before it
    attn_norm_bias: W | None = None  # [dim]
    attn_norm_2: W | None = None  # [dim], of what the layer reads plus the other norm
    attn_norm_2_bias: W | None = None  # [dim]
    gate: W | None = None  # [ffn, dim]
    up: W  # [ffn, dim]
    up_bias: W | None = None  # [ffn]; never with a gate
    down: W  # [dim, ffn]
    down_bias: W | None = None  # [dim]
    ffn_norm: W  # [dim], after the feed-forward network or before it
    ffn_norm_bias: W | None = None  # [dim]


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
    positions: W | None = None  # [max_context, dim]; None if it has no such table
    types: W | None = None  # [types, dim]
    norm: W  # [dim], of the embedding
    norm_bias: W | None = None  # [dim]
    layers: tuple[EncoderLayer[W], ...]
    output_norm: W | None = None  # [dim], after the last layer
    head: ScoreHead[W] | None = None


# Tensors of the head by the fields that they fill.
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

    def take_all(names: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, W]:
        taken: dict[str, W] = {}
        for name, slots in names:
            if name in file.tensors:
                taken |= take(name, slots)
        return taken

    row = ENCODERS[config.architecture]
    layers = [
        EncoderLayer(
            **take_all(
                (f"blk.{index}.{rule.name}", rule.slots) for rule in row.layer_rules(file, index)
            )
        )
        for index in range(config.num_layers)
    ]
    head = None
    if config.num_scores:
        head = ScoreHead(**take_all((name, (slot,)) for slot, name in _HEAD.items()))
    return EncoderWeights(
        **take_all((rule.name, rule.slots) for rule in row.model), layers=tuple(layers), head=head
    )


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
    dim, row = config.dim, ENCODERS[config.architecture]
    rules = [(rule.name, rule) for rule in row.model]
    for index in range(config.num_layers):
        rules += [(f"blk.{index}.{rule.name}", rule) for rule in row.layer_rules(file, index)]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rule in rules:
        rows, *columns = _slot_shape(config, file, rule.slots[0])
        shapes[name] = (rows * len(rule.slots), *columns)
    required = [name for name, rule in rules if rule.required]
    if row.has_head and (scores := file.tensors.get(SCORES)) is not None:
        rows = _as_matrix(scores).shape[0]
        shapes[SCORES] = (rows, dim)
        shapes["cls.output.bias"] = (rows,)
        shapes["cls.weight"] = (dim, dim)
        shapes["cls.bias"] = (dim,)
    return shapes, required


def _slot_shape(config: EncoderConfig, file: GgufFile, slot: str) -> tuple[int, ...]:
    dim, ffn = config.dim, config.ffn_dim
    match slot:
        case "tokens":
            return config.vocab_size, dim
        case "positions":
            return config.max_context, dim
        case "types":
            return file.get_int("tokenizer.ggml.token_type_count", 1), dim
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
