"""Tensors of files become weights: what they hold as one is cut, what apart is joined."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.tensor import (
    MatrixProduct,
    PickedRows,
    Stack,
    Summed,
    Tensor,
    Transposed,
    float32_tensor,
)
from rocmforge.errors import UnsupportedTensor
from rocmforge.models.blocks import Role, WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.weights import check_shape, places

_GROUPED: Final = frozenset(
    {
        ("attention.q", "attention.gate"),
        ("delta.mixed", "delta.gate"),
        ("delta.beta", "delta.alpha"),
    }
)
"""Weights whose parts stand side by side within each head where a file has them as one."""
_BOUNDS: Final = (".input_min", ".input_max", ".output_min", ".output_max")
"""What the names of the bounds of a product end in."""


def cut_fused(
    config: ModelConfig, tensor: Tensor, fused: Sequence[WeightPlace]
) -> dict[str, Tensor]:
    """Returns the weights that a tensor holds, one after the other by rows, by their paths.

    Args:
        config: Says how many rows each has.
        tensor: Of a file.
        fused: The places of the weights. Those of experts follow each other within each expert,
            those of latent attention within each head, and so do queries and their gates. Those of
            Gated DeltaNet do so within each head of keys.

    Raises:
        UnsupportedTensor: It has another shape.
    """
    names = tuple(place.name for place in fused)
    if names[0] == "latent.k_b":
        return _cut_heads(config, tensor, fused[0], fused[1])
    if names in _GROUPED:
        return _cut_groups(config, tensor, fused)
    axis = 1 if fused[0].declared.role is Role.EXPERT else 0
    shapes = [place.shape(config) for place in fused]
    first = shapes[0]
    check_shape(tensor, (*first[:axis], sum(each[axis] for each in shapes), *first[axis + 1 :]))
    parts, start = {}, 0
    for place, shape in zip(fused, shapes, strict=True):
        parts[place.path] = tensor.slice(axis, start, start + shape[axis])
        start += shape[axis]
    return parts


def _cut_groups(
    config: ModelConfig, tensor: Tensor, fused: Sequence[WeightPlace]
) -> dict[str, Tensor]:
    """Returns weights that a tensor holds one after the other within each head."""
    index = fused[0].layer
    assert index is not None
    layer, columns = config.layers[index], config.hidden_size
    if (delta := layer.delta) is None:
        groups, parts = layer.num_heads, [(0, layer.key_dim), (1, layer.value_dim)]
    else:
        groups, each = delta.num_key_heads, delta.num_value_heads // delta.num_key_heads
        values = each * delta.value_dim
        parts = [(0, delta.key_dim), (0, delta.key_dim), (0, values), (1, values)]
        if fused[0].name == "delta.beta":
            parts = [(0, each), (1, each)]
    rows = sum(size for _, size in parts)
    check_shape(tensor, (groups * rows, columns))
    found: list[list[npt.NDArray[np.intp]]] = [[], []]
    places, start = np.arange(groups * rows).reshape(groups, rows), 0
    for owner, size in parts:
        found[owner].append(places[:, start : start + size].ravel())
        start += size
    return {
        place.path: PickedRows(f"{place.name} of {tensor.name}", tensor, np.concatenate(own))
        for place, own in zip(fused, found, strict=True)
    }


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


def with_shared_heads(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights of a model whose layers share keys, values or both.

    Layers that read the keys and values of another may have some of their own in a file, which
    nobody uses. Where a layer has no matrix of values, that of keys makes them, too.
    """
    found = dict(weights)
    for index, layer in enumerate(config.layers):
        stem = f"layers.{index}.attention"
        if layer.cache_of is not None:
            for name in ("k", "v", "k_norm"):
                found.pop(f"{stem}.{name}", None)
        elif f"{stem}.v" not in found and f"{stem}.k" in found and layer.norms_values:
            found[f"{stem}.v"] = found[f"{stem}.k"]
    return found


def with_unit_norms(
    config: ModelConfig, weights: Mapping[str, Tensor], names: Collection[str]
) -> dict[str, Tensor]:
    """Returns the weights with ones for norms that files do not have, as they have no weights.

    Args:
        config: The model.
        weights: By their paths.
        names: Of those norms, as `WeightPlace.name`.

    Raises:
        UnsupportedTensor: There is such a weight nevertheless.
    """
    found = dict(weights)
    for place in places(config.num_layers):
        if place.name not in names:
            continue
        if place.path in found:
            raise UnsupportedTensor(found[place.path].name, "such a norm has no weight")
        ones = np.ones(place.shape(config), np.float32)
        found[place.path] = float32_tensor(f"{place.path} (ones)", ones)
    return found


def scaled_router_norms(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights with those of routers' norms divided by sqrt(hidden_size)."""
    scale = np.float32(config.hidden_size**-0.5)
    return {
        path: float32_tensor(f"{scale:.6g} * {tensor.name}", tensor.to_float32() * scale)
        if path.endswith("experts.router_norm")
        else tensor
        for path, tensor in weights.items()
    }


def dense_product(config: ModelConfig, matrices: Sequence[Tensor]) -> Tensor:
    """Returns the matrices behind an encoder, one or two with nothing in between, as one.

    Raises:
        UnsupportedTensor: One has a shape that does not fit.
    """
    first, last = matrices[0], matrices[-1]
    if first is last:
        return first
    inner = first.shape[0]
    check_shape(first, (inner, config.hidden_size))
    check_shape(last, (config.hidden_size, inner))
    return MatrixProduct(first, last)


def as_declared(tensor: Tensor, place: WeightPlace) -> Tensor:
    """Returns a tensor without the axis of one that a file has and the weight has not.

    That is the first of a vector, and the second of the filter of a convolution. Vectors of Mamba-2
    may have others, as one of groups. Patches have colours, rows and columns.
    """
    shape, num_axes = tensor.shape, len(place.declared.shape)
    if place.name == "embedding.token" and len(shape) == 3 and shape[0] == 2:
        # Of Gemma 4's tower: a table for columns, then one for rows.
        joined = tensor.data.reshape(shape[0] * shape[1], -1)
        return replace(tensor, shape=(shape[0] * shape[1], shape[2]), data=joined)
    if place.name in ("embedding.token", "embedding.class_token"):
        while len(shape) > num_axes and shape[0] == 1:
            tensor = replace(tensor, shape=shape[1:], data=tensor.data[0])
            shape = tensor.shape
        return tensor
    if place.name == "patches.matrix" and len(shape) == 4:
        rows = tensor.data.reshape(shape[0], -1)
        return replace(tensor, shape=(shape[0], prod(shape[1:])), data=rows)
    if place.name == "patches.matrix" and len(shape) == 5:
        # Of several pictures of a film, of which one is several times the same.
        parts = [tensor.slice(2, index, index + 1) for index in range(shape[2])]
        columns = shape[1] * shape[3] * shape[4]
        return Summed(f"{tensor.name}, summed", parts, (shape[0], columns))
    if len(shape) != num_axes + 1:
        return tensor
    if num_axes == 1 and (shape[0] == 1 or place.name.startswith("mamba.")):
        return replace(tensor, shape=(prod(shape),), data=tensor.data.reshape(-1))
    if num_axes == 2 and shape[1] == 1:
        return replace(tensor, shape=(shape[0], shape[2]), data=tensor.data[:, 0])
    return tensor


def turn_projection(weights: dict[str, Tensor]) -> None:
    """Exchanges the axes of a tower's last matrix, which files of Gemma 3 have the other way."""
    matrix = weights.get("projector.matrix")
    if matrix is not None and len(matrix.shape) == 2:
        weights["projector.matrix"] = Transposed(matrix)


def without_places(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Adds the table of positions of a tower that has none: one place, of zeros.

    Raises:
        UnsupportedTensor: The file has one.
    """
    if (table := weights.get("embedding.token")) is not None:
        reason = f"a table of positions, which towers of the kind {config.architecture} do not have"
        raise UnsupportedTensor(table.name, reason)
    zeros = np.zeros((config.vocab_size, config.hidden_size), np.float32)
    weights["embedding.token"] = float32_tensor("no table of positions", zeros)


def merge_by_patch(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Orders the columns of Mistral 3's merger by patch, which files have by feature."""
    matrix, size = weights.get("projector.merger"), config.hidden_size
    if matrix is not None and matrix.shape == (size, config.merged_features):
        order = np.arange(config.merged_features).reshape(size, -1).T.reshape(-1)
        name = f"{matrix.name}, by patch"
        weights["projector.merger"] = Transposed(PickedRows(name, Transposed(matrix), order))


def colours_first(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Orders what multiplies a patch by colour, where files have the colours of each pixel.

    So are the weights and the bias of a norm of it.
    """
    matrix, order = weights.get("patches.matrix"), np.arange(config.patch_features)
    order = order.reshape(-1, 3).T.reshape(-1)
    if matrix is not None and matrix.shape == (config.hidden_size, config.patch_features):
        name = f"{matrix.name}, by colour"
        weights["patches.matrix"] = Transposed(PickedRows(name, Transposed(matrix), order))
    for path in ("patches.norm", "patches.norm_bias"):
        vector = weights.get(path)
        if vector is not None and vector.shape == (config.patch_features,):
            values = vector.to_float32()[order]
            weights[path] = float32_tensor(f"{vector.name}, by colour", values)


def axes_first(weights: dict[str, Tensor]) -> None:
    """Orders a table of places by axis, where files have both axes of each place."""
    table = weights.get("embedding.token")
    if table is not None and len(table.shape) == 3 and table.shape[1] == 2:
        places, _, size = table.shape
        rows = replace(table, shape=(2 * places, size), data=table.data.reshape(2 * places, -1))
        order = np.arange(2 * places).reshape(-1, 2).T.reshape(-1)
        weights["embedding.token"] = PickedRows(f"{table.name}, by axis", rows, order)


def turn_gemma4_tower(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Gives heads of Gemma 4's tower the order of others, and its end what each row needs.

    In files, the first half of a head rotates by columns and the other one by rows, the pairs of
    each a quarter of a head apart. Here, pairs lie half a head apart, those of rows first. A row is
    the mean of its patches times sqrt(hidden_size), from which one vector is taken, and which
    another one multiplies: what is added to the sum of its patches is made of the first.
    """
    for index, layer in enumerate(config.layers):
        quarters = np.arange(layer.key_dim).reshape(4, -1)[[2, 0, 3, 1]].reshape(-1)
        for part, heads in (("q", layer.num_heads), ("k", layer.num_kv_heads)):
            stem = f"layers.{index}.attention.{part}"
            matrix, norm = weights.get(stem), weights.get(f"{stem}_norm")
            if matrix is not None and matrix.shape[0] == heads * layer.key_dim:
                rows = (np.arange(heads)[:, None] * layer.key_dim + quarters).reshape(-1)
                weights[stem] = PickedRows(f"{matrix.name}, by axes", matrix, rows)
            if norm is not None and norm.shape == (layer.key_dim,):
                values = norm.to_float32()[quarters]
                weights[f"{stem}_norm"] = float32_tensor(f"{norm.name}, by axes", values)
    shift = weights.get("projector.shift")
    if shift is not None and config.tower is not None:
        factor = np.float32(-config.tower.merged / config.hidden_size**0.5)
        name = f"{shift.name}, of sums"
        weights["projector.shift"] = float32_tensor(name, shift.to_float32() * factor)
    for one, other in (("shift", "scale"), ("scale", "shift")):
        alone = weights.get(f"projector.{one}")
        if alone is not None and f"projector.{other}" not in weights:
            raise UnsupportedTensor(alone.name, "what is standardised has another such vector, too")


def has_bounds(names: Iterable[str]) -> bool:
    """Returns whether tensors of these names are bounds of products."""
    return any(name.endswith(_BOUNDS) for name in names)


def join_bounds(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors by name, with all bounds of a product as one, which has the first's name.

    Raises:
        UnsupportedTensor: One of several is missing, has more than one number, or they are no
            range: 0 is always within one, as what is padded has it.
    """
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith(_BOUNDS)}
    stems = {name.rpartition(".")[0]: None for name in tensors if name.endswith(_BOUNDS)}
    for stem in stems:
        numbers: list[float] = []
        for end in _BOUNDS:
            tensor = tensors.get(f"{stem}{end}")
            if tensor is None:
                raise UnsupportedTensor(f"{stem}{end}", "missing; other bounds of it are there")
            check_shape(tensor, (1,))
            numbers += tensor.to_float32().tolist()
        for end, least, most in zip(_BOUNDS[::2], numbers[::2], numbers[1::2], strict=True):
            if not least <= 0 <= most:
                reason = f"it and the other bound are {least:g} and {most:g}, and 0 must be between"
                raise UnsupportedTensor(f"{stem}{end}", reason)
        name = f"{stem}{_BOUNDS[0]}"
        found[name] = float32_tensor(name, np.array(numbers, np.float32))
    return found


def halves_of_heads(config: ModelConfig, weights: dict[str, Tensor]) -> None:
    """Puts elements of queries and keys that rotate together half a head apart.

    GGUF files have them side by side.
    """
    for index, layer in enumerate(config.layers):
        order = np.arange(layer.query_features).reshape(layer.num_heads, -1, 2)
        rows = order.swapaxes(1, 2).reshape(-1)
        for path in (f"layers.{index}.attention.{part}" for part in "qk"):
            if (matrix := weights.get(path)) is not None and matrix.shape[0] == len(rows):
                weights[path] = PickedRows(f"{matrix.name}, in halves", matrix, rows)


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
