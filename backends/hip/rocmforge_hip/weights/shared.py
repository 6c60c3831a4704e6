"""A layer's shared expert as one of the others, which every token goes to.

Its matrices are of their shape in Qwen3.5, DeepSeek V3, GLM 4.5 and others: then it costs a ninth
pair of each token, and not launches of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rocmforge.models.blocks import Experts, ModelWeights, SharedExpert
from rocmforge_hip.weights.placement import (
    Planned,
    PlannedMatrix,
    PlannedPart,
    PlannedVector,
    with_experts,
)


def join_shared(plan: ModelWeights[Planned]) -> ModelWeights[Planned]:
    """Returns the plan in which shared experts are the first of the others, where they can be.

    Experts that the host has stay as they are, and so do all shared experts unless every one can be
    joined. One without a router of its own weighs 1.
    """
    joined = with_experts(plan, _joined)
    of_layers = (layer.experts for layer in joined.layers)
    are_all = all(experts is None or experts.shared is None for experts in of_layers)
    return joined if are_all else plan


def num_shared(plan: ModelWeights[Planned]) -> int:
    """Returns how many of the experts that a token goes to are shared by all."""
    of_layers = [layer.experts for layer in plan.layers if layer.experts is not None]
    return max((_part(experts.down).matrix.num_shared for experts in of_layers), default=0)


def num_logits(experts: Experts[Planned]) -> int:
    """Returns the rows of a layer's router, with that of a shared expert."""
    assert isinstance(experts.router, PlannedVector)
    return sum(math.prod(tensor.shape[:-1]) for tensor in experts.router.tensors)


def _joined(experts: Experts[Planned]) -> Experts[Planned]:
    shared = experts.shared
    if shared is None or not _can_join(experts, shared):
        return experts
    gate_up = _with_first(_part(experts.gate), _part(shared.gate))
    return replace(
        experts,
        gate=gate_up,
        up=gate_up,
        down=_with_first(_part(experts.down), _part(shared.down)),
        shared=None,
    )


def _can_join(experts: Experts[Planned], shared: SharedExpert[Planned]) -> bool:
    others = experts.gate_bias, experts.up_bias, experts.down_bias, experts.latent_down
    if None in (shared.gate, experts.gate) or any(other is not None for other in others):
        return False
    pairs = (experts.gate, shared.gate), (experts.up, shared.up), (experts.down, shared.down)
    return all(_are_alike(_part(own).matrix, _part(other).matrix) for own, other in pairs)


def _are_alike(own: PlannedMatrix, other: PlannedMatrix) -> bool:
    shapes = [
        (each.format, each.in_features, each.out_features, each.stored_rows)
        for each in (own, other)
    ]
    return own.seats is None and shapes[0] == shapes[1]


def _with_first(experts: PlannedPart, shared: PlannedPart) -> PlannedPart:
    """Returns the matrices of experts behind one that is shared."""
    own, first = experts.matrix, shared.matrix
    behind = tuple((tensor, row + tensor.shape[-2], placing) for tensor, row, placing in own.parts)
    matrix = replace(
        own, parts=(*first.parts, *behind), num_experts=own.num_experts + 1, num_shared=1
    )
    return replace(experts, matrix=matrix)


def _part(planned: Planned | None) -> PlannedPart:
    assert isinstance(planned, PlannedPart), "a matrix is needed here"
    return planned
