"""The placement of each tensor of the file on the device; nothing is read or allocated yet.

Query, key and value of one stored type are stacked into one matrix, and gate and up interleaved:
both are multiplied with the same activation, and one launch reads more memory at a time than three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.models.encoder_weights import EncoderLayer
from rocmforge.models.weights import LayerWeights, ModelWeights
from rocmforge_hip.device.constants import GATE_ROWS, ROW_ALIGN
from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.weights.formats import Format, format_of, round_up
from rocmforge_hip.weights.products import QKV_PRODUCTS, Product

AS_IS: Final = 0
AS_GATE: Final = 1
AS_UP: Final = 2

W = TypeVar("W")
X = TypeVar("X")


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMatrix:
    """A matrix to be made of tensors, each with its first row and how its rows are placed."""

    format: Format
    in_features: int
    out_features: int
    stored_rows: int
    parts: tuple[tuple[Tensor, int, int], ...]

    @property
    def name(self) -> str:
        """The tensors it is made of."""
        return "+".join(tensor.name for tensor, _, _ in self.parts)

    @property
    def storage(self) -> ArraySpec:
        """The bytes it takes."""
        return spec((self.stored_rows, self.format.row_bytes(self.in_features)), "u1")

    @property
    def is_padded(self) -> bool:
        """Whether some stored rows are of no tensor."""
        return self.stored_rows != sum(tensor.shape[0] for tensor, _, _ in self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPart:
    """The place of one weight of the model in a planned matrix."""

    matrix: PlannedMatrix
    first: int
    out_features: int
    product: Product | None  # see `MatrixPart`


@dataclass(frozen=True, slots=True, eq=False)
class PlannedVector:
    """A float32 vector to be made of tensors, one after the other."""

    tensors: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        """The tensors it is made of."""
        return "+".join(tensor.name for tensor in self.tensors)

    @property
    def storage(self) -> ArraySpec:
        """The bytes it takes."""
        return spec((sum(tensor.shape[0] for tensor in self.tensors),), "f4")


Planned = PlannedPart | PlannedVector


def plan_weights(model: ModelWeights[Tensor]) -> ModelWeights[Planned]:
    """Returns the plan of a model's weights.

    Raises:
        UnsupportedTensor: There are no kernels for a tensor.
    """
    embedding = single(model.embedding, Product.LOGITS)
    output = embedding if model.output is model.embedding else single(model.output, Product.LOGITS)
    return ModelWeights(
        embedding=embedding,
        layers=tuple(_plan_layer(layer) for layer in model.layers),
        output_norm=PlannedVector((model.output_norm,)),
        output=output,
    )


def storages(plan: ModelWeights[Planned]) -> list[PlannedMatrix | PlannedVector]:
    """Returns everything to be allocated, each once, in the order of the model."""
    found: list[Planned] = []
    convert(plan, found.append)
    return distinct_storages(found)


def distinct_storages(found: Iterable[Planned]) -> list[PlannedMatrix | PlannedVector]:
    """Returns what these weights lie in, each once."""
    each = (weight.matrix if isinstance(weight, PlannedPart) else weight for weight in found)
    return list({id(storage): storage for storage in each}.values())


def weight_bytes(plan: ModelWeights[Planned]) -> int:
    """Returns the bytes of device memory that the weights take."""
    return sum(storage.storage.nbytes for storage in storages(plan))


def convert(model: ModelWeights[W], function: Callable[[W], X]) -> ModelWeights[X]:
    """Returns the same weights, each replaced by what the function makes of it."""
    return ModelWeights(
        embedding=function(model.embedding),
        layers=tuple(_convert_layer(layer, function) for layer in model.layers),
        output_norm=function(model.output_norm),
        output=function(model.output),
    )


def _convert_layer(layer: LayerWeights[W], function: Callable[[W], X]) -> LayerWeights[X]:
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    converted: dict[str, Any] = {
        name: None if value is None else function(value) for name, value in values.items()
    }
    return LayerWeights(**converted)


def _plan_layer(layer: LayerWeights[Tensor]) -> LayerWeights[Planned]:
    q, k, v, biases = attention_input(layer)
    gate, up = interleave(layer.gate, layer.up)
    return LayerWeights(
        attn_norm=PlannedVector((layer.attn_norm,)),
        q=q,
        k=k,
        v=v,
        q_bias=biases[0],
        k_bias=biases[1],
        v_bias=biases[2],
        q_norm=vector(layer.q_norm),
        k_norm=vector(layer.k_norm),
        output=single(layer.output, Product.DELTA),
        output_bias=vector(layer.output_bias),
        attn_post_norm=vector(layer.attn_post_norm),
        ffn_norm=PlannedVector((layer.ffn_norm,)),
        gate=gate,
        up=up,
        down=single(layer.down, Product.DELTA),
        ffn_post_norm=vector(layer.ffn_post_norm),
    )


def vector(tensor: Tensor | None) -> PlannedVector | None:
    """Returns a vector on its own, if there is one."""
    return None if tensor is None else PlannedVector((tensor,))


def single(tensor: Tensor, product: Product | None) -> PlannedPart:
    """Returns a matrix on its own."""
    return _stack([tensor], product)[0]


def _stack(tensors: Iterable[Tensor], product: Product | None) -> list[PlannedPart]:
    """Plans one matrix with the rows of several tensors of one type and in_features."""
    tensors = list(tensors)
    parts, row = [], 0
    for tensor in tensors:
        parts.append((tensor, row, AS_IS))
        row += tensor.shape[0]
    matrix = PlannedMatrix(
        format=format_of(tensors[0]),
        in_features=tensors[0].shape[1],
        out_features=row,
        stored_rows=round_up(row, ROW_ALIGN),
        parts=tuple(parts),
    )
    return [PlannedPart(matrix, first, tensor.shape[0], product) for tensor, first, _ in parts]


def attention_input(
    layer: LayerWeights[Tensor] | EncoderLayer[Tensor],
) -> tuple[PlannedPart, PlannedPart, PlannedPart, tuple[PlannedVector | None, ...]]:
    """Stacks query, key and value by type, and their biases alike."""
    matrices = (layer.q, layer.k, layer.v)
    biases = (layer.q_bias, layer.k_bias, layer.v_bias)
    groups: dict[tuple[object, bool], list[int]] = {}
    for index, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
        groups.setdefault((matrix.format.name, bias is not None), []).append(index)
    planned: dict[int, PlannedPart] = {}
    vectors: list[PlannedVector | None] = [None, None, None]
    for product, members in zip(QKV_PRODUCTS, groups.values(), strict=False):
        planned |= zip(
            members, _stack([matrices[index] for index in members], product), strict=True
        )
        group_biases = tuple(bias for index in members if (bias := biases[index]) is not None)
        if group_biases:
            vector = PlannedVector(group_biases)
            for index in members:
                vectors[index] = vector
    return planned[0], planned[1], planned[2], tuple(vectors)


def interleave(gate: Tensor, up: Tensor) -> tuple[PlannedPart, PlannedPart]:
    """Interleaves gate and up in one matrix."""
    if gate.format is not up.format:
        raise UnsupportedTensor(
            up.name,
            f"it is {up.format}, but {gate.name} is {gate.format}",
        )
    rows = gate.shape[0]
    matrix = PlannedMatrix(
        format=format_of(gate),
        in_features=gate.shape[1],
        out_features=rows,
        stored_rows=round_up(rows, GATE_ROWS) * 2,
        parts=((gate, 0, AS_GATE), (up, 0, AS_UP)),
    )
    part = PlannedPart(matrix, 0, rows, Product.INTERMEDIATE)
    return part, replace(part)
