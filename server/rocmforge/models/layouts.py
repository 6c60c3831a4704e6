"""Tensors of files become weights: what they hold as one is cut, what apart is joined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rocmforge.checkpoint.tensor import Stack, Tensor, Transposed
from rocmforge.errors import UnsupportedTensor
from rocmforge.models.blocks import Role, WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import check_shape


def cut_fused(
    config: ModelConfig, tensor: Tensor, fused: Sequence[WeightPlace]
) -> dict[str, Tensor]:
    """Returns the weights that a tensor holds, one after the other by rows, by their paths.

    Args:
        config: Says how many rows each has.
        tensor: Of a file.
        fused: The places of the weights. Those of experts follow each other within each expert,
            those of latent attention within each head.

    Raises:
        UnsupportedTensor: It has another shape.
    """
    if fused[0].name == "latent.k_b":
        return _cut_heads(config, tensor, fused[0], fused[1])
    axis = 1 if fused[0].declared.role is Role.EXPERT else 0
    shapes = [place.shape(config) for place in fused]
    first = shapes[0]
    check_shape(tensor, (*first[:axis], sum(each[axis] for each in shapes), *first[axis + 1 :]))
    parts, start = {}, 0
    for place, shape in zip(fused, shapes, strict=True):
        parts[place.path] = tensor.slice(axis, start, start + shape[axis])
        start += shape[axis]
    return parts


def _cut_heads(
    config: ModelConfig, tensor: Tensor, k_b: WeightPlace, v_b: WeightPlace
) -> dict[str, Tensor]:
    """Returns the matrices that make keys and values, of one tensor: of keys, the transposed ones.

    That of keys is multiplied with queries, not with latent vectors.
    """
    (heads, rank, plain_dim), (_, value_dim, _) = k_b.shape(config), v_b.shape(config)
    rows = plain_dim + value_dim
    check_shape(tensor, (heads * rows, rank))
    of_heads = replace(tensor, shape=(heads, rows, rank), data=tensor.data.reshape(heads, rows, -1))
    return {
        k_b.path: Transposed(of_heads.slice(1, 0, plain_dim)),
        v_b.path: of_heads.slice(1, plain_dim, rows),
    }


def as_declared(tensor: Tensor, place: WeightPlace) -> Tensor:
    """Returns a tensor without the axis of one that a file has and the weight has not.

    That is the first of a vector, and the second of the filter of a convolution.
    """
    shape, num_axes = tensor.shape, len(place.declared.shape)
    if len(shape) != num_axes + 1:
        return tensor
    if num_axes == 1 and shape[0] == 1:
        return replace(tensor, shape=shape[1:], data=tensor.data[0])
    if num_axes == 2 and shape[1] == 1:
        return replace(tensor, shape=(shape[0], shape[2]), data=tensor.data[:, 0])
    return tensor


def join_experts(
    tensors: Mapping[str, Tensor], one: re.Pattern[str], together: str
) -> dict[str, Tensor]:
    """Returns the tensors of a file, with those that it has for each expert as one.

    Args:
        tensors: By their names.
        one: What a tensor of one expert is called; the group "expert" is its index.
        together: What to call all of them: a template of that pattern's groups.

    Raises:
        UnsupportedTensor: One of them is missing, differs in shape or format, or is there twice.
    """
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := one.fullmatch(name):
            experts.setdefault(match.expand(together), {})[int(match["expert"])] = tensor
        else:
            found[name] = tensor
    for name, parts in experts.items():
        missing = next((index for index in range(len(parts)) if index not in parts), None)
        if missing is not None:
            other = next(iter(parts.values())).name
            raise UnsupportedTensor(name, f"that of expert {missing} is missing; {other} is there")
        if name in found:
            raise UnsupportedTensor(name, f"{parts[0].name} and others are there, too")
        found[name] = Stack(name, [parts[index] for index in range(len(parts))])
    return found
