"""The experts of gpt-oss and Qwen3-VL as their folders have them, which is not as others do.

Those of gpt-oss have gate and up in turns, and MXFP4 in two tensors.
In MXFP4, `NAME_blocks` is [experts, out_features, in_features / 32, 16] of two codes a byte, the
first in the low bits, and `NAME_scales` [experts, out_features, in_features / 32]. Otherwise NAME
is [experts, in_features, out_features]. Gate and up alternate among the out_features, gate first.

Those of Qwen3-VL are [experts, in_features, out_features], too, but up follows gate. Transformers
turns them when it reads them, so that a folder that it has written may have them as others do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.tensor import Derived, Stack, Tensor, Transposed
from rocmforge.errors import UnsupportedTensor
from rocmforge.models.config import ModelConfig

PACKED: Final = re.compile(r"\.mlp\.experts\.(gate_up|down)_proj_(blocks|scales)$")
"""What the names of the parts of MXFP4 end with."""
_MATRIX: Final = re.compile(r"(.+\.mlp\.experts\.)(gate_up|down)_proj(_bias|_blocks|_scales)?")


class Alternate(Derived):
    """Every other element along the last axis: reads nothing until its data are asked for."""

    __slots__ = ("first", "original")

    original: Tensor
    first: int

    def __init__(self, original: Tensor, first: int) -> None:
        """Makes it.

        Args:
            original: Of plain numbers, an even number of them along the last axis.
            first: The first element, 0 or 1.
        """
        *outer, count = original.shape
        self._set(f"{original.name}[..., {first}::2]", (*outer, count // 2), original.format)
        object.__setattr__(self, "original", original)
        object.__setattr__(self, "first", first)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored data, in new memory."""
        original = self.original
        elements = original.data.reshape(*original.shape, original.format.block_bytes)
        return elements[..., self.first :: 2, :].reshape(*self.shape[:-1], -1)

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis; see `Tensor.slice`."""
        is_last = axis % len(self.shape) == len(self.shape) - 1
        times = 2 if is_last else 1
        return Alternate(self.original.slice(axis, times * start, times * stop), self.first)


class PackedMatrix(Derived):
    """A matrix of MXFP4 that a file has as codes and scales: reads nothing until asked."""

    __slots__ = ("blocks", "scales")

    blocks: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint8]

    def __init__(
        self, name: str, blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]
    ) -> None:
        """Makes it.

        Args:
            name: For messages.
            blocks: uint8 [out_features, in_features / 32, 16].
            scales: uint8 [out_features, in_features / 32].
        """
        format = FORMATS["mxfp4"]
        self._set(name, (len(blocks), blocks.shape[1] * format.block_size), format)
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "scales", scales)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The stored data, in new memory: scale, codes 0 and 16, 1 and 17, of each block."""
        codes = np.stack((self.blocks & 15, self.blocks >> 4), axis=-1)
        codes = codes.reshape(*self.blocks.shape[:-1], 32)
        packed = codes[..., :16] | codes[..., 16:] << 4
        stored = np.concatenate((self.scales[..., None], packed), axis=-1)
        return stored.reshape(len(stored), -1)

    def slice(self, axis: int, start: int, stop: int) -> Tensor:
        """Returns `start:stop` along an axis; see `Tensor.slice`."""
        if axis in (0, -2) and 0 <= start < stop <= self.shape[0]:
            name = f"{self.name}[{start}:{stop}]"
            return PackedMatrix(name, self.blocks[start:stop], self.scales[start:stop])
        return Tensor(self.name, self.shape, self.format, self.data).slice(axis, start, stop)


def unpack_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with those of experts as other folders have them.

    That is `gate_proj`, `up_proj` and `down_proj`, [experts, out_features, in_features], and their
    biases.

    Raises:
        UnsupportedTensor: A part is missing or of another shape; names it.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for own, part in _unpacked(tensors, name, tensor):
            if own in found:
                raise UnsupportedTensor(name, f"another tensor is {own}, too")
            found[own] = part
    return found


def turn_experts(config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of Qwen3-VL with those of experts as other folders have them.

    A tensor whose shape is the same in both ways is taken as it is, as Transformers does; one whose
    shape fits neither way is left for others to refuse.

    Args:
        config: Says how large the experts are.
        tensors: By their names.
    """
    experts = next((layer.experts for layer in config.layers if layer.experts), None)
    if experts is None:
        return dict(tensors)
    size, width = experts.intermediate_size, config.hidden_size
    shapes = {"gate_up": (2 * size, width), "down": (width, size)}

    def turned(name: str, tensor: Tensor) -> Tensor:
        match = _MATRIX.fullmatch(name)
        if match is None or match[3]:
            return tensor
        wanted = experts.num_experts, *shapes[match[2]]
        published = wanted[0], wanted[2], wanted[1]
        if tensor.shape == wanted or tensor.shape != published:
            return tensor
        return _by_expert(tensor, None)

    return {name: turned(name, tensor) for name, tensor in tensors.items()}


def _unpacked(
    tensors: Mapping[str, Tensor], name: str, tensor: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yields what one tensor becomes, by name; nothing for scales, which go with their codes."""
    match = _MATRIX.fullmatch(name)
    if match is None:
        yield name, tensor
        return
    prefix, which, kind = match.groups()
    if kind == "_scales":
        _part(tensors, name, "_scales", "_blocks")
        return
    for place, part in ((0, "gate"), (1, "up")) if which == "gate_up" else ((None, "down"),):
        own = f"{prefix}{part}_proj"
        if kind == "_blocks":
            yield own, _packed(tensor, _part(tensors, name, "_blocks", "_scales"), place)
        elif kind == "_bias":
            _check(tensor, 2, place)
            yield f"{own}_bias", tensor if place is None else Alternate(tensor, place)
        else:
            _check(tensor, 3, place)
            yield own, _by_expert(tensor, place)


def _part(tensors: Mapping[str, Tensor], name: str, kind: str, other: str) -> Tensor:
    """Returns the other tensor of a pair."""
    wanted = name.removesuffix(kind) + other
    if wanted not in tensors:
        raise UnsupportedTensor(wanted, f"missing; {name} is there")
    return tensors[wanted]


def _check(tensor: Tensor, axes: int, place: int | None) -> None:
    if len(tensor.shape) != axes or (place is not None and tensor.shape[-1] % 2):
        turns = "" if place is None else ", the last of them of gate and up in turns"
        raise UnsupportedTensor(
            tensor.name, f"its shape is {tensor.shape}, not one of {axes} axes{turns}"
        )


def _by_expert(tensor: Tensor, place: int | None) -> Stack:
    """Returns the matrices of experts, each transposed when it is read."""
    each = [
        Tensor(f"{tensor.name}[{expert}]", tensor.shape[1:], tensor.format, data)
        for expert, data in enumerate(tensor.data)
    ]
    return Stack(
        tensor.name,
        [Transposed(one if place is None else Alternate(one, place)) for one in each],
    )


def _packed(blocks: Tensor, scales: Tensor, place: int | None) -> Stack:
    """Returns the matrices of experts; of gate and up in turns, those at a place."""
    *outer, nbytes = blocks.shape
    rows_are_even = place is None or len(outer) != 3 or outer[1] % 2 == 0
    if len(outer) != 3 or nbytes != 16 or not rows_are_even:
        raise UnsupportedTensor(
            blocks.name, f"its shape is {blocks.shape}, not [experts, rows, blocks, 16]"
        )
    if tuple(outer) != scales.shape:
        raise UnsupportedTensor(
            scales.name, f"its shape is {scales.shape}, but {blocks.name} is {blocks.shape}"
        )
    step = slice(place, None, None if place is None else 2)
    return Stack(
        blocks.name,
        [
            PackedMatrix(f"{blocks.name}[{expert}]", codes[step], own[step])
            for expert, (codes, own) in enumerate(zip(blocks.data, scales.data, strict=True))
        ],
    )
