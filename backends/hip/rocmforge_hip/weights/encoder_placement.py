"""The placement of each tensor of an encoder's file on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.models.encoder_weights import EncoderLayer, EncoderWeights, ScoreHead
from rocmforge_hip.weights.placement import (
    Planned,
    PlannedMatrix,
    PlannedPart,
    PlannedVector,
    attention_input,
    distinct_storages,
    interleave,
    single,
    vector,
)
from rocmforge_hip.weights.products import Product

W = TypeVar("W")
X = TypeVar("X")


def plan_encoder_weights(model: EncoderWeights[Tensor], context: int) -> EncoderWeights[Planned]:
    """Returns the plan of an encoder's weights, for prompts of at most `context` tokens.

    Raises:
        UnsupportedTensor: There are no kernels for a tensor.
    """
    return EncoderWeights(
        tokens=single(model.tokens, None),
        positions=_positions(model.positions, context),
        types=None if model.types is None else PlannedVector((_first_row(model.types),)),
        norm=PlannedVector((model.norm,)),
        norm_bias=vector(model.norm_bias),
        layers=tuple(_plan_layer(layer) for layer in model.layers),
        output_norm=vector(model.output_norm),
        head=None if model.head is None else _plan_head(model.head),
    )


def encoder_storages(plan: EncoderWeights[Planned]) -> list[PlannedMatrix | PlannedVector]:
    """Returns everything to be allocated, each once, in the order of the model."""
    found: list[Planned] = []
    convert_encoder(plan, found.append)
    return distinct_storages(found)


def convert_encoder(model: EncoderWeights[W], function: Callable[[W], X]) -> EncoderWeights[X]:
    """Returns the same weights, each replaced by what the function makes of it."""
    own: dict[str, Any] = {
        name: _apply(function, getattr(model, name))
        for name in ("tokens", "positions", "types", "norm", "norm_bias", "output_norm")
    }
    return EncoderWeights(
        **own,
        layers=tuple(EncoderLayer(**_converted(layer, function)) for layer in model.layers),
        head=None if model.head is None else ScoreHead(**_converted(model.head, function)),
    )


def _converted(weights: EncoderLayer[W] | ScoreHead[W], function: Callable[[W], X]) -> Any:
    return {field.name: _apply(function, getattr(weights, field.name)) for field in fields(weights)}


def _apply(function: Callable[[W], X], weight: W | None) -> X | None:
    return None if weight is None else function(weight)


def _plan_layer(layer: EncoderLayer[Tensor]) -> EncoderLayer[Planned]:
    q, k, v, biases = attention_input(layer)
    gate, up = None, single(layer.up, Product.INTERMEDIATE)
    if layer.gate is not None:
        gate, up = interleave(layer.gate, layer.up)
    return EncoderLayer(
        q=q,
        k=k,
        v=v,
        q_bias=biases[0],
        k_bias=biases[1],
        v_bias=biases[2],
        q_norm=vector(layer.q_norm),
        q_norm_bias=vector(layer.q_norm_bias),
        k_norm=vector(layer.k_norm),
        k_norm_bias=vector(layer.k_norm_bias),
        output=single(layer.output, Product.DELTA),
        output_bias=vector(layer.output_bias),
        attn_norm=vector(layer.attn_norm),
        attn_norm_bias=vector(layer.attn_norm_bias),
        attn_norm_2=vector(layer.attn_norm_2),
        attn_norm_2_bias=vector(layer.attn_norm_2_bias),
        gate=gate,
        up=up,
        up_bias=vector(layer.up_bias),
        down=single(layer.down, Product.DELTA),
        down_bias=vector(layer.down_bias),
        ffn_norm=PlannedVector((layer.ffn_norm,)),
        ffn_norm_bias=vector(layer.ffn_norm_bias),
    )


def _plan_head(head: ScoreHead[Tensor]) -> ScoreHead[Planned]:
    return ScoreHead(
        dense=None if head.dense is None else single(head.dense, Product.DENSE),
        dense_bias=vector(head.dense_bias),
        scores=single(head.scores, Product.SCORES),
        scores_bias=vector(head.scores_bias),
    )


def _positions(table: Tensor | None, context: int) -> PlannedPart | None:
    """Returns the rows of the table for positions that there can be."""
    if table is None:
        return None
    part = single(table.slice(0, 0, context), None)
    if part.matrix.format.is_quantised:
        raise UnsupportedTensor(
            table.name,
            f"the HIP backend adds rows of floats, and it is {table.format}",
        )
    return part


def _first_row(table: Tensor) -> Tensor:
    row = table.slice(0, 0, 1)
    return replace(row, shape=row.shape[1:], data=row.data[0])
