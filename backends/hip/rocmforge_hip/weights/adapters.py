"""The placement of LoRA adapters on the device; nothing is allocated yet.

All adapters of a matrix, which may itself be a stack of matrices of the model, lie together in the
layout of kernels/src/matrices/lora.hip: one launch serves the rows of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.models.blocks import Fusion, ModelWeights, WeightPlace
from rocmforge.models.lora import Adapter, LowRank
from rocmforge.models.weights import walk
from rocmforge_hip.device.constants import QUANT_BLOCK
from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.device.records import mapped, total_bytes
from rocmforge_hip.weights.formats import ceil_div, round_up

TILE: Final = 16
"""Rows, ranks or columns of a block or wave of the kernels."""
_CHUNK: Final = 8
_SPLIT_ROWS: Final = 128
"""Up to so many rows, there are too few tiles to keep a device busy: in_features are split, too."""
_SPLIT_FEATURES: Final = 512
_MOST_SPLITS: Final = 8

M = TypeVar("M")
X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class StackPart:
    """A matrix of the model and where its outputs lie in those of the stack."""

    first: int  # of the first TILE outputs
    step: int  # from each TILE outputs to the next
    tiles: int  # of TILE outputs
    changes: tuple[LowRank | None, ...]  # by adapter

    @property
    def rank(self) -> int:
        """The largest."""
        return max((low.rank for low in self.changes if low is not None), default=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdapterArrays(Generic[X]):
    """The arrays of a stack of adapters, as kernels/src/matrices/lora.hip reads them."""

    a: X  # float16 [ranks of all pairs, in_features]
    b: X  # float16 [chunks of all pairs, _CHUNK]
    places: X  # int32 [pairs of adapter and part, 3]: row of a, chunk of b, rank
    factors: X  # float32 [pairs]
    outputs: X  # int32 [parts, 3]: first output, step, tiles


@dataclass(frozen=True, slots=True, eq=False)
class AdapterStack(Generic[M]):
    """The adapters of one matrix on the device, at least one of which changes it."""

    matrix: M
    name: str
    in_features: int
    parts: tuple[StackPart, ...]
    is_gated: bool

    @property
    def ranks(self) -> int:
        """Elements of a shrunk row: the same number for each part."""
        return len(self.parts) * round_up(max(part.rank for part in self.parts), TILE)

    @property
    def low_ranks(self) -> Iterator[tuple[StackPart, LowRank | None]]:
        """By adapter, and then by part."""
        for changes in zip(*(part.changes for part in self.parts), strict=True):
            yield from zip(self.parts, changes, strict=True)

    @property
    def arrays(self) -> AdapterArrays[ArraySpec]:
        """The arrays that the kernels read."""
        a_rows = b_chunks = pairs = 0
        for part, low_rank in self.low_ranks:
            pairs += 1
            if low_rank is not None:
                a_rows += low_rank.rank
                b_chunks += part.tiles * TILE * ceil_div(low_rank.rank, _CHUNK)
        return AdapterArrays(
            a=spec((a_rows, self.in_features), "f2"),
            b=spec((b_chunks, _CHUNK), "f2"),
            places=spec((pairs, 3), "i4"),
            factors=spec((pairs,), "f4"),
            outputs=spec((len(self.parts), 3), "i4"),
        )


def plan_adapters(
    weights: ModelWeights[Any], adapters: Sequence[Adapter]
) -> list[AdapterStack[Any]]:
    """Returns what adapters add to the matrices of a model, planned or on the device."""
    stored: dict[int, dict[WeightPlace, Any]] = {}
    for place, weight in walk(weights):
        if place.declared.adaptable:
            stored.setdefault(id(weight.matrix), {})[place] = weight
    stacks = (_plan_stack(members, adapters) for members in stored.values())
    return [stack for stack in stacks if any(part.rank for part in stack.parts)]


def _plan_stack(
    members: Mapping[WeightPlace, Any], adapters: Sequence[Adapter]
) -> AdapterStack[Any]:
    """Plans what is added to one matrix on the device, of these weights."""
    first = next(iter(members))
    matrix = members[first].matrix
    is_gated = len(members) > 1 and first.declared.group is Fusion.GATE_UP
    parts = tuple(
        StackPart(
            first=weight.first + (TILE * index if is_gated else 0),
            step=2 * TILE if is_gated else TILE,
            tiles=weight.out_features // TILE,
            changes=tuple(adapter.changes.get(place) for adapter in adapters),
        )
        for index, (place, weight) in enumerate(members.items())
    )
    name = f"adapters of {'+'.join(place.path for place in members)}"
    return AdapterStack(matrix, name, matrix.in_features, parts, is_gated)


def adapter_bytes(stacks: Sequence[AdapterStack[Any]]) -> int:
    """Returns the bytes of device memory that they take."""
    return sum(total_bytes(stack.arrays) for stack in stacks)


def most_tiles(rows: int, adapters: int) -> int:
    """Returns the most tiles that so many rows, each with one of the adapters, fall into."""
    return min(rows, (rows + (TILE - 1) * min(adapters, rows)) // TILE)


def features_of_split(rows: int, in_features: int) -> int:
    """Returns how many in_features of so many rows a block of the first kernel takes."""
    if rows > _SPLIT_ROWS:
        return in_features
    return round_up(
        ceil_div(in_features, min(_MOST_SPLITS, ceil_div(in_features, _SPLIT_FEATURES))),
        QUANT_BLOCK,
    )


def lora_scratch(
    stacks: Sequence[AdapterStack[Any]], tokens: int, adapters: int
) -> tuple[ArraySpec | None, ArraySpec | None]:
    """Returns the arrays that a step writes for adapters.

    They are those of shrunk rows, and of gate and up, [tokens, stored rows]; None if not needed.
    """
    if not stacks:
        return None, None
    few = min(tokens, _SPLIT_ROWS)
    tiles = max(most_tiles(tokens, adapters), most_tiles(few, adapters) * _MOST_SPLITS)
    ranks = max(stack.ranks for stack in stacks)
    gated = [stack.matrix.stored_rows for stack in stacks if stack.is_gated]
    gate_up = spec((tokens, max(gated)), "f4") if gated else None
    return spec((tiles * TILE * ranks,), "f4"), gate_up


def pack_stack(stack: AdapterStack[Any]) -> AdapterArrays[npt.NDArray[Any]]:
    """Returns the values of `AdapterStack.arrays`.

    A and B are multiplied by powers of two such that float16 holds them, and what comes of A, well;
    the factors make up for that.

    Raises:
        BadAdapter: A value is not finite.
        UnsupportedTensor: The type of a tensor cannot be dequantised.
    """
    values: AdapterArrays[npt.NDArray[Any]] = mapped(
        stack.arrays, ArraySpec, lambda name, what: np.zeros(what.shape, what.dtype)
    )
    a_row = b_chunk = 0
    for index, (_, low_rank) in enumerate(stack.low_ranks):
        if low_rank is None:
            continue
        a, b = low_rank.factors()
        a, a_exponent = _scaled(a, float(np.sqrt(np.square(a).sum(axis=1).max())))
        b, b_exponent = _scaled(b, float(np.abs(b).max()))
        chunks = len(b) * ceil_div(low_rank.rank, _CHUNK)
        values.a[a_row : a_row + len(a)] = a
        rows = values.b[b_chunk : b_chunk + chunks].reshape(len(b), -1)
        rows[:, : low_rank.rank] = b
        values.places[index] = a_row, b_chunk, low_rank.rank
        values.factors[index] = math.ldexp(low_rank.scale, a_exponent + b_exponent)
        a_row += len(a)
        b_chunk += chunks
    values.outputs[:] = [(part.first, part.step, part.tiles) for part in stack.parts]
    return values


def _scaled(values: Float32Array, size: float) -> tuple[Float32Array, int]:
    """Returns the values times a power of two that makes `size` at most 1, and its exponent."""
    exponent = math.frexp(size)[1]
    return np.ldexp(values, -exponent), exponent


def tile_rows(adapters: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Sorts rows with an adapter into tiles of at most TILE rows with the same one.

    Args:
        adapters: [T], the adapter of each row, or a negative number.

    Returns:
        The tiles, [n, 3]: adapter, first and number of its rows; and the order of all rows that
        have an adapter, to which `first` refers.
    """
    order = np.argsort(adapters, kind="stable").astype(np.int32)
    order = order[np.count_nonzero(adapters < 0) :]
    found, starts, counts = np.unique(adapters[order], return_index=True, return_counts=True)
    tiles = [
        (adapter, first, min(TILE, start + count - first))
        for adapter, start, count in zip(found, starts, counts, strict=True)
        for first in range(start, start + count, TILE)
    ]
    return np.array(tiles, np.int32).reshape(-1, 3), order
