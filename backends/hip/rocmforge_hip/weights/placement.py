"""The placement of each tensor of the file on the device; nothing is read or allocated yet.

Query, key and value of one stored type, or what they are made of, are stacked into one matrix, and
gate and up interleaved: both are multiplied with the same activation, and one launch reads more
memory at a time than three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from rocmforge.checkpoint.formats import WeightFormat
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.models.blocks import Experts, Fusion, ModelWeights, Role, WeightPlace
from rocmforge.models.weights import map_places, walk
from rocmforge_hip.device.constants import GATE_ROWS, ROW_ALIGN
from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.weights.formats import format_of, round_up
from rocmforge_hip.weights.products import QKV_PRODUCTS, Product

AS_IS: Final = 0
AS_GATE: Final = 1
AS_UP: Final = 2
_BOUNDED: Final = MappingProxyType(
    {
        "attention.q": Product.QKV,
        "attention.k": Product.QKV_2,
        "attention.v": Product.QKV_3,
        "feed_forward.gate": Product.INTERMEDIATE,
        "feed_forward.up": Product.GATE_UP,
    }
)
"""Matrices that are apart where each has bounds of its own: they read different activations."""
PLACE: Final = np.dtype(np.int64)
"""Type of the distance to an expert's matrix: kernels/include/rf/experts/expert_matrices.h."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMatrix:
    """A matrix to be made of tensors, each with its first row and how its rows are placed.

    Of experts, it is as many matrices, one after the other, and the numbers are of one.
    """

    format: WeightFormat
    in_features: int
    out_features: int
    stored_rows: int
    parts: tuple[tuple[Tensor, int, int], ...]
    num_experts: int = 0  # 0: it is of none
    num_shared: int = 0  # of them, the first, which every token goes to
    seats: int | None = None  # experts that the device holds, of those in host memory; None: all
    is_hosted: bool = False  # a table in host memory, of which kernels read the rows of tokens

    @property
    def name(self) -> str:
        """The tensors it is made of."""
        return "+".join(tensor.name for tensor, _, _ in self.parts)

    @property
    def storage(self) -> ArraySpec:
        """The bytes it takes."""
        rows = self.stored_rows * max(1, self.num_experts)
        return spec((rows, self.format.row_bytes(self.in_features)), "u1")

    @property
    def seated(self) -> ArraySpec:
        """The bytes of it that the device holds."""
        if self.is_hosted:
            return spec((0, self.storage.shape[1]), "u1")
        if self.seats is None:
            return self.storage
        rows, row_bytes = self.storage.shape
        return spec((rows // self.num_experts * self.seats, row_bytes), "u1")

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that it takes."""
        if self.seats is None:
            return self.seated.nbytes
        return self.seated.nbytes + PLACE.itemsize * self.num_experts

    @property
    def is_padded(self) -> bool:
        """Whether some stored rows are of no tensor."""
        of_all = sum(tensor.shape[-2] for tensor, _, _ in self.parts)
        return self.stored_rows * (1 + self.num_shared) != of_all


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPart:
    """The place of one weight of the model in a planned matrix."""

    matrix: PlannedMatrix
    first: int
    out_features: int
    product: Product | None  # see `MatrixPart`
    role: Role


@dataclass(frozen=True, slots=True, eq=False)
class PlannedVector:
    """A float32 vector to be made of all elements of tensors, one after the other."""

    tensors: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        """The tensors it is made of."""
        return "+".join(tensor.name for tensor in self.tensors)

    @property
    def storage(self) -> ArraySpec:
        """The bytes it takes."""
        return spec((sum(math.prod(tensor.shape) for tensor in self.tensors),), "f4")

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that it takes."""
        return self.storage.nbytes


Planned = PlannedPart | PlannedVector


def plan_weights(model: ModelWeights[Tensor], context: int | None = None) -> ModelWeights[Planned]:
    """Returns the plan of a model's weights.

    Args:
        model: The tensors.
        context: Tokens that a sequence may have: a table has rows for so many positions. None for
            all that the table has.

    Raises:
        UnsupportedTensor: There are no kernels for a tensor.
    """
    groups: dict[object, dict[WeightPlace, Tensor]] = {}
    planned: dict[WeightPlace, Planned] = {}
    bounded = {place.path for place, _ in walk(model) if place.declared.shape == ("bounds",)}
    for place, tensor in walk(model):
        if place.name in _BOUNDED and f"{place.path}_bounds" in bounded:
            planned |= _stack({place: tensor}, _BOUNDED[place.name])
            continue
        # A tensor may be in two places: the output matrix is that of the embedding.
        block = place.path.rpartition(".")[0]
        key = (block, place.declared.group) if place.declared.group else id(tensor)
        groups.setdefault(key, {})[place] = tensor
    for members in groups.values():
        planned |= _plan_group(members, context)
    return _with_joined_routers(map_places(model, lambda place, _: planned[place]))


def _with_joined_routers(plan: ModelWeights[Planned]) -> ModelWeights[Planned]:
    """Returns the plan in which the router of a shared expert is the last row of the experts' own.

    Both are one vector then: a launch multiplies with all of it.
    """

    def joined(experts: Experts[Planned]) -> Experts[Planned]:
        shared, router = experts.shared, experts.router
        if shared is None or shared.router is None:
            return experts
        assert isinstance(router, PlannedVector)
        assert isinstance(shared.router, PlannedVector)
        router = PlannedVector((*router.tensors, *shared.router.tensors))
        return replace(experts, router=router, shared=replace(shared, router=router))

    return with_experts(plan, joined)


def with_experts(
    plan: ModelWeights[Planned], change: Callable[[Experts[Planned]], Experts[Planned]]
) -> ModelWeights[Planned]:
    """Returns the plan in which the experts of each layer that has some are changed."""
    layers = (
        layer if layer.experts is None else replace(layer, experts=change(layer.experts))
        for layer in plan.layers
    )
    return replace(plan, layers=tuple(layers))


def with_whole(plan: ModelWeights[Planned], names: Collection[str]) -> ModelWeights[Planned]:
    """Returns the plan with weights of these names that every device has all of."""

    def known(place: WeightPlace, planned: Planned) -> Planned:
        if place.name in names and isinstance(planned, PlannedPart):
            return replace(planned, role=Role.REPLICATED)
        return planned

    return map_places(plan, known) if names else plan


def storages(plan: ModelWeights[Planned]) -> list[PlannedMatrix | PlannedVector]:
    """Returns everything to be allocated, each once, in the order of the model."""
    each = (
        weight.matrix if isinstance(weight, PlannedPart) else weight for _, weight in walk(plan)
    )
    return list({id(storage): storage for storage in each}.values())


def weight_bytes(plan: ModelWeights[Planned]) -> int:
    """Returns the bytes of device memory that the weights take."""
    return sum(storage.device_bytes for storage in storages(plan))


def stored_bytes(plan: ModelWeights[Planned]) -> int:
    """Returns the bytes of the weights, wherever they are."""
    return sum(storage.storage.nbytes for storage in storages(plan))


def _plan_group(
    members: dict[WeightPlace, Tensor], context: int | None
) -> dict[WeightPlace, Planned]:
    """Plans weights that are multiplied with one activation, or one weight on its own."""
    place, tensor = next(iter(members.items()))
    match place.declared.group:
        case Fusion.QKV:
            return _stack_by_format(members)
        case Fusion.GATE_UP if len(members) == 2:
            gate, up = members.values()
            return dict.fromkeys(members, _interleave(gate, up, place.declared.role))
    return dict.fromkeys(members, _plan_one(place, tensor, context))


def _plan_one(place: WeightPlace, tensor: Tensor, context: int | None) -> Planned:
    match place.declared.shape:
        case (_,):
            return PlannedVector((tensor,))
        case ("convolved_features", "convolution_width"):
            return PlannedVector((tensor,))
        case ("num_experts", _):  # the router, or a bias of experts
            return PlannedVector((tensor,))
        case ("num_token_types", _):  # all text is of the first
            row = tensor.slice(0, 0, 1)
            return PlannedVector((replace(row, shape=row.shape[1:], data=row.data[0]),))
        case ("max_context", _):
            if tensor.format.is_quantised:
                raise UnsupportedTensor(
                    tensor.name, f"the HIP backend adds rows of floats, and it is {tensor.format}"
                )
            tensor = tensor.slice(0, 0, min(context or tensor.shape[0], tensor.shape[0]))
        case ("vocab_size", "per_layer_features"):
            part = _stack({place: tensor}, None)[place]
            return replace(part, matrix=replace(part.matrix, is_hosted=True))
        case ("num_experts" | "num_heads", _, _):
            return _of_experts(tensor, place.declared.role)
    return _stack({place: tensor}, _product(place))[place]


def _of_experts(tensor: Tensor, role: Role) -> PlannedPart:
    """Plans the matrices of all experts, or those of all heads, which are multiplied alike."""
    experts, rows, in_features = tensor.shape
    matrix = PlannedMatrix(
        format=format_of(tensor),
        in_features=in_features,
        out_features=rows,
        stored_rows=round_up(rows, ROW_ALIGN),
        parts=((tensor, 0, AS_IS),),
        num_experts=experts,
    )
    return PlannedPart(matrix, 0, rows, Product.DELTA, role)


def _product(place: WeightPlace) -> Product | None:
    """Returns the activation that the product with a matrix is written to."""
    if place.declared.role is Role.ROW:
        return Product.DELTA
    match place.declared.shape[0]:
        case (
            "intermediate_size"
            | "shared_intermediate_size"
            | "projected_features"
            | "merger_features"
        ):
            return Product.INTERMEDIATE
        case "gated_features" | "mamba_input_features":
            return Product.QKV
        case "per_layer_features":
            return Product.PER_LAYER
        case "per_layer_size":
            return Product.PER_LAYER_GATE
        case "latent_query_features":  # what they are made of, and keys and values, is in two more
            return Product.QKV_3
        case "vocab_size":
            return Product.LOGITS
        case "num_scores" | "row_features":
            return Product.SCORES
        case "expert_latent_size":
            return Product.EXPERT_INPUTS
        case "hidden_size" if place.name == "experts.latent_up":
            return Product.EXPERT_RESULTS
        case "hidden_size" if place.name == "predictor.projection":
            return Product.RESIDUAL
        case "hidden_size" if place.name == "projector.merger":
            return Product.QKV
        case "hidden_size" if place.name in ("patches.matrix", "dense"):
            return Product.DELTA
        case "hidden_size":
            return Product.DENSE if place.layer is None else Product.DELTA
    return None  # a table of rows


def _stack(
    members: Mapping[WeightPlace, Tensor], product: Product | None
) -> dict[WeightPlace, PlannedPart]:
    """Plans one matrix with the rows of several tensors of one format and in_features."""
    starts: dict[int, int] = {}  # of tensors, by identity: keys may be values, too
    parts, row = [], 0
    for tensor in members.values():
        if id(tensor) not in starts:
            starts[id(tensor)] = row
            parts.append((tensor, row, AS_IS))
            row += tensor.shape[0]
    matrix = PlannedMatrix(
        format=format_of(tensor),
        in_features=tensor.shape[1],
        out_features=row,
        stored_rows=round_up(row, ROW_ALIGN),
        parts=tuple(parts),
    )
    return {
        place: PlannedPart(
            matrix, starts[id(tensor)], tensor.shape[0], product, place.declared.role
        )
        for place, tensor in members.items()
    }


def _stack_by_format(members: dict[WeightPlace, Tensor]) -> dict[WeightPlace, Planned]:
    """Stacks matrices by format and by whether they have a bias, and their biases alike."""
    biases = {place.path: place for place, tensor in members.items() if len(tensor.shape) == 1}
    stacks: dict[tuple[str, bool], dict[WeightPlace, Tensor]] = {}
    for place, tensor in members.items():
        if len(tensor.shape) == 2:
            key = tensor.format.name, f"{place.path}_bias" in biases
            stacks.setdefault(key, {})[place] = tensor
    planned: dict[WeightPlace, Planned] = {}
    for product, ((_, has_bias), stack) in zip(QKV_PRODUCTS, stacks.items(), strict=False):
        planned |= _stack(stack, product)
        if has_bias:
            of_stack = [biases[f"{place.path}_bias"] for place in stack]
            vector = PlannedVector(tuple(members[place] for place in of_stack))
            planned |= dict.fromkeys(of_stack, vector)
    return planned


def _interleave(gate: Tensor, up: Tensor, role: Role) -> PlannedPart:
    """Interleaves gate and up in one matrix, or in one of each expert."""
    if gate.format is not up.format:
        raise UnsupportedTensor(up.name, f"it is {up.format}, but {gate.name} is {gate.format}")
    *experts, rows, in_features = gate.shape
    matrix = PlannedMatrix(
        format=format_of(gate),
        in_features=in_features,
        out_features=rows,
        stored_rows=round_up(rows, GATE_ROWS) * 2,
        parts=((gate, 0, AS_GATE), (up, 0, AS_UP)),
        num_experts=experts[0] if experts else 0,
    )
    return PlannedPart(matrix, 0, rows, Product.INTERMEDIATE, role)
