"""The weights of an encoder, and how they are taken from a file's tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.config import ModelConfig
from rocmforge.models.encoder_config import ENCODERS
from rocmforge.models.pooling import SCORES

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


# Tensors of the head by the fields that they fill.
_HEAD = {
    "dense": "cls.weight",
    "dense_bias": "cls.bias",
    "scores": SCORES,
    "scores_bias": "cls.output.bias",
}


def load_encoder_weights(
    config: ModelConfig,
    file: GgufFile,
    convert: Callable[[Tensor], W],
    progress: Callable[[float], None] = lambda share: None,
) -> EncoderWeights[W]:
    """Converts every tensor of the encoder once.

    Args:
        config: Describes the expected tensors.
        file: Holds the tensors. Its memory is referenced only if `convert` does so.
        convert: Makes the backend's weight of a matrix [out_features, in_features] or a vector.
        progress: Called with the share of bytes converted, 0..1.

    Raises:
        UnsupportedTensor: One is missing, unexpected, of the wrong shape, or `convert` says so.
    """
    check_encoder_tensors(config, file)
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    done = 0

    def take(name: str, roles: tuple[str, ...]) -> dict[str, W]:
        nonlocal done
        tensor = file.tensors[name]
        if len(roles) > 1:
            rows = tensor.shape[0] // len(roles)
            parts = [tensor.slice(0, i * rows, (i + 1) * rows) for i in range(len(roles))]
        else:
            parts = [_as_matrix(tensor) if name == SCORES else tensor]
        converted = [convert(part) for part in parts]
        done += tensor.nbytes
        progress(done / total)
        return dict(zip(roles, converted, strict=True))

    def take_all(names: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, W]:
        taken: dict[str, W] = {}
        for name, roles in names:
            if name in file.tensors:
                taken |= take(name, roles)
        return taken

    row = ENCODERS[config.architecture]
    layers = [
        EncoderLayer(
            **take_all(
                (f"blk.{index}.{rule.name}", rule.roles) for rule in row.layer_rules(file, index)
            )
        )
        for index in range(config.num_layers)
    ]
    head = None
    if config.num_scores:
        head = ScoreHead(**take_all((name, (role,)) for role, name in _HEAD.items()))
    return EncoderWeights(
        **take_all((rule.name, rule.roles) for rule in row.model), layers=tuple(layers), head=head
    )


def check_encoder_tensors(config: ModelConfig, file: GgufFile) -> None:
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


def _expected(config: ModelConfig, file: GgufFile) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Returns the shapes of all tensors that may be there and the names of those that must be."""
    hidden_size, row = config.hidden_size, ENCODERS[config.architecture]
    rules = [(rule.name, rule) for rule in row.model]
    for index in range(config.num_layers):
        rules += [(f"blk.{index}.{rule.name}", rule) for rule in row.layer_rules(file, index)]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rule in rules:
        rows, *columns = _role_shape(config, rule.roles[0])
        shapes[name] = (rows * len(rule.roles), *columns)
    required = [name for name, rule in rules if rule.required]
    if row.has_head and (scores := file.tensors.get(SCORES)) is not None:
        rows = _as_matrix(scores).shape[0]
        shapes[SCORES] = (rows, hidden_size)
        shapes["cls.output.bias"] = (rows,)
        shapes["cls.weight"] = (hidden_size, hidden_size)
        shapes["cls.bias"] = (hidden_size,)
    return shapes, required


def _role_shape(config: ModelConfig, role: str) -> tuple[int, ...]:
    hidden_size, intermediate_size = config.hidden_size, config.layers[0].intermediate_size
    match role:
        case "tokens":
            return config.vocab_size, hidden_size
        case "positions":
            return config.max_context, hidden_size
        case "types":
            return config.num_token_types, hidden_size
        case "q" | "k" | "v" | "output":
            return hidden_size, hidden_size
        case "gate" | "up":
            return intermediate_size, hidden_size
        case "down":
            return hidden_size, intermediate_size
        case "up_bias":
            return (intermediate_size,)
        case _:  # norms and the other biases
            return (hidden_size,)


def _as_matrix(tensor: Tensor) -> Tensor:
    """Returns a vector, of which llama.cpp has dropped the first axis, as a matrix of one row."""
    if len(tensor.shape) != 1:
        return tensor
    return replace(tensor, shape=(1, *tensor.shape), data=tensor.data.reshape(1, -1))
