"""Towers whose sizes no kernel has, with zeros behind what they have: each number stays as it is.

Heads become as large as the next size that there are kernels for: zeros in queries and keys add
nothing to a score, and zeros in values meet columns of zeros. So do the features within networks,
GELU of which is zero, and the numbers of a patch. Where heads rotate, zeros stand behind each of
their halves: pairs lie half a head apart as before, and those of zeros do not turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.tensor import Derived, Tensor, float32_tensor
from rocmforge.errors import UnsupportedArchitecture
from rocmforge.models.blocks import ModelWeights, WeightPlace
from rocmforge.models.config import ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.rope_config import RopeConfig
from rocmforge.models.weights import map_places
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.heads import HeadSize
from rocmforge_hip.weights.formats import round_up

Places = npt.NDArray[np.intp]
_NOTHING: Final = -1


class PaddedTensor(Derived):
    """A matrix or a vector with zeros between what another has: made when its data are asked for.

    Elements that are stored in blocks become float16.
    """

    __slots__ = ("columns", "original", "rows")

    original: Tensor
    rows: Places | None
    columns: Places

    def __init__(self, original: Tensor, rows: Places | None, columns: Places) -> None:
        """Makes it.

        Args:
            original: Of one or two axes.
            rows: Of each row, that of the original, or -1 for zeros; None of a vector.
            columns: The same of columns, or of the elements of a vector.
        """
        shape = (len(columns),) if rows is None else (len(rows), len(columns))
        plain = original.format.block_size == 1
        self._set(f"{original.name}, padded", shape, original.format if plain else FORMATS["f16"])
        for field, value in (("original", original), ("rows", rows), ("columns", columns)):
            object.__setattr__(self, field, value)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored data, in new memory."""
        original, element = self.original, self.format.block_bytes
        stored = original.data
        if original.format is not self.format:
            stored = np.ascontiguousarray(original.to_float32(), "<f2").view(np.uint8)
        elements = stored.reshape(-1, original.shape[-1], element)
        rows = np.zeros(1, np.intp) if self.rows is None else self.rows
        found = np.zeros((len(rows), len(self.columns), element), np.uint8)
        has_row, has_column = rows != _NOTHING, self.columns != _NOTHING
        picked = elements[rows[has_row]][:, self.columns[has_column]]
        found[np.ix_(has_row, has_column)] = picked
        return found.reshape(*self.shape[:-1], -1)

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis; see `Tensor.slice`."""
        rows, columns = self.rows, self.columns
        if axis % len(self.shape) == len(self.shape) - 1:
            return PaddedTensor(self.original, rows, columns[start:stop])
        assert rows is not None, "a vector has one axis"
        return PaddedTensor(self.original, rows[start:stop], columns)


def fit_tower(
    config: ModelConfig, weights: ModelWeights[Tensor], heads: Sequence[HeadSize]
) -> tuple[ModelConfig, ModelWeights[Tensor]]:
    """Returns a tower that kernels fit, and its weights; any other model as it is.

    Args:
        config: Of the model.
        weights: Its own.
        heads: The sizes of heads that there are kernels for. Larger ones than all are left alone.

    Raises:
        UnsupportedArchitecture: Patches are normed, of which zeros would change the mean.
    """
    tower = config.tower
    if tower is None:
        return config, weights
    old = config.layers
    norms_heads = "attention.q_norm" in FAMILIES[config.architecture].has
    new = tuple(_fitted(layer, heads, norms=norms_heads) for layer in old)
    features = round_up(tower.patch_features, QUANT_BLOCK)
    if tower.patch_norm_eps and features != tower.patch_features:
        raise UnsupportedArchitecture(
            f"{config.architecture} with norms of patches of {tower.patch_features} numbers",
            (f"multiples of {QUANT_BLOCK}",),
        )

    def padded(place: WeightPlace, tensor: Tensor) -> Tensor:
        if place.name == "patches.matrix":
            return _pad(tensor, columns=(tower.patch_features, features))
        if place.layer is None:
            return tensor
        before, after = old[place.layer], new[place.layer]
        head = before.key_dim, after.key_dim
        rotated = head if config.rope is None else (before.key_dim // 2, after.key_dim // 2)
        inner, joint = (
            (before.intermediate_size, after.intermediate_size),
            before.joint_head_norms,
        )
        match place.name:
            case "attention.q" | "attention.k":
                return _pad(tensor, rows=rotated)
            case "attention.v":
                return _pad(tensor, rows=head)
            case "attention.output":
                return _pad(tensor, columns=head)
            case "attention.q_norm" | "attention.k_norm":
                return tensor if joint else _pad_norm(tensor, head, halves=True)
            case "attention.v_norm":
                return _pad_norm(tensor, head, halves=False)
            case "attention.q_bias" | "attention.k_bias":
                return _pad(tensor, columns=rotated)
            case "attention.v_bias":
                return _pad(tensor, columns=head)
            case "feed_forward.up" | "feed_forward.gate":
                return _pad(tensor, rows=inner)
            case "feed_forward.gate_bias" | "feed_forward.up_bias" | "feed_forward.down":
                return _pad(tensor, columns=inner)
        return tensor

    rope = None if config.rope is None else _turned(config.rope, new[0].key_dim)
    ends = replace(tower, patch_features=features)
    fitted = replace(config, layers=new, tower=ends, rope=rope)
    return fitted, map_places(weights, padded)


def _turned(rope: RopeConfig, head: int) -> RopeConfig:
    """Returns the rotation of padded heads: pairs of zeros belong to an axis on which all is at 0.

    The rotation is by axes, each with frequencies of its own.
    """
    assert rope.axes_restart, "of towers that rotate"
    more = head // 2 - len(rope.axes)
    return replace(rope, rotary_dim=head, axes=rope.axes + (max(rope.axes) + 1,) * more)


def _fitted(layer: LayerConfig, heads: Sequence[HeadSize], *, norms: bool) -> LayerConfig:
    """Returns the layer; heads that are normed become as large as a power of two."""
    sizes = sorted(head.key_dim for head in heads)
    if norms:
        sizes = [size for size in sizes if size & (size - 1) == 0]
    head = next((size for size in sizes if size >= layer.key_dim), layer.key_dim)
    if layer.joint_head_norms:  # zeros would change the mean of their squares
        head = layer.key_dim
    return replace(
        layer,
        key_dim=head,
        value_dim=head,
        intermediate_size=round_up(layer.intermediate_size, QUANT_BLOCK),
    )


def _pad_norm(tensor: Tensor, head: tuple[int, int], *, halves: bool) -> Tensor:
    """Returns the weights of a norm of padded heads, whose mean of squares has zeros in it."""
    if head[0] == head[1]:
        return tensor
    parts = 2 if halves else 1
    values = tensor.to_float32() * np.float32((head[0] / head[1]) ** 0.5)
    own = float32_tensor(tensor.name, values)
    return _pad(own, columns=(head[0] // parts, head[1] // parts))


def _pad(
    tensor: Tensor, *, rows: tuple[int, int] = (1, 1), columns: tuple[int, int] = (1, 1)
) -> Tensor:
    """Returns a tensor whose parts of so many rows or columns have more of them."""
    if rows[0] == rows[1] and columns[0] == columns[1]:
        return tensor
    by_row = _places(tensor.shape[0], *rows) if len(tensor.shape) == 2 else None
    return PaddedTensor(tensor, by_row, _places(tensor.shape[-1], *columns))


def _places(count: int, size: int, padded: int) -> Places:
    """Returns where each element comes from, if each part of `size` becomes one of `padded`."""
    found = np.full((count // size, padded), _NOTHING, np.intp)
    found[:, :size] = np.arange(count).reshape(-1, size)
    return found.reshape(-1)
