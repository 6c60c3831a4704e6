"""Layers with a window, in groups of their own: what no window reaches any more is released.

The layers without a window are group 0. Those with one are cut into as many groups as it takes for
none to be larger. A block then is of one group, and all groups share the memory: a layer's cache
lies in the arrays of a layer of group 0, and each group has a block table of its own. So blocks go
from one group to another, and nobody need know beforehand how many each will need. vLLM's hybrid KV
cache manager does the same.

Where layers with a window have larger or smaller keys and values than the others (Gemma 4), a block
is so large that both kinds fill it: some of the backend's own blocks of a layer without a window,
or one each of some layers with one. Two of those of Gemma 4 26B-A4B have as many bytes as one of
its layers with a window. So the engine's blocks have twice the tokens there, and those of a group
with a window are two, one for each half. `in_own_blocks` makes the backend's of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Final

import numpy as np

from rocmforge.backend.protocol import LoadOptions, RunnerInfo
from rocmforge.backend.step import StepInput
from rocmforge.models.config import ModelConfig

_MOST_AHEAD: Final = 34
"""Tokens that a sequence may be ahead of what is known of it: a draft, and two steps in flight."""
_MOST_PARTS: Final = 4
"""Own blocks of a block: what is shared or given up is one, so that it must not be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowGroups:
    """The groups of a model's layers, and how many blocks they need. None: there is one group."""

    window: int  # the largest: tokens that a token sees, itself among them
    reach: int  # these, and the tokens before them that kernels touch
    block_size: int  # tokens
    parts: int  # own blocks of a layer without a window that are a block
    sharing: int  # layers with a window whose own blocks are one; all of them have `part_of`
    group_of: tuple[int, ...]  # of each layer: whose table it has
    cache_of: tuple[int, ...]  # of each layer, the one of group 0 whose arrays it uses
    part_of: tuple[int, ...]  # of each layer, which of the `sharing` it is
    sequence_blocks: int  # that a sequence holds in all groups with a window, beside those of steps
    step_blocks: int  # in all of those, for the tokens of one step

    @property
    def num_tables(self) -> int:
        """Tables of own blocks that layers with a window have."""
        return max(self.group_of)

    @property
    def count(self) -> int:
        """Groups with a window, as the engine has them: one for each part of a block's tokens."""
        return self.num_tables * self.parts

    @property
    def is_even(self) -> bool:
        """Whether all layers have keys and values of one size."""
        return self.parts == self.sharing == 1

    def share_of(self, config: ModelConfig) -> float:
        """Returns what a block takes of what as many tokens of all layers would."""
        sizes = [layer.cached_features for layer in config.layers]
        full = sum(size for i, size in enumerate(sizes) if self.cache_of[i] == i)
        return full / sum(sizes)


def window_blocks(window: int, block_size: int) -> int:
    """Returns the blocks that a sequence may hold in a group with a window between steps.

    One is for the window's first block, which need not be full, and one for the block that the
    sequence has begun: the blocks of a step, `max_batched_tokens // block_size`, are whole.
    """
    return -(-(window - 1 + _MOST_AHEAD) // block_size) + 2


def plan_windows(
    config: ModelConfig, options: LoadOptions, block_size: int, key_tile: int = 0
) -> WindowGroups | None:
    """Returns the groups of a model's layers; None if one group is all that it needs.

    Kernels take keys and values in tiles, from a multiple of a tile on, and hide those before the
    window: what is hidden has to be numbers, so all blocks of such a tile are kept.

    Args:
        config: of the model.
        options: as for `load`.
        block_size: tokens of an own block of the backend.
        key_tile: tokens of the largest tile.
    """
    if _releases_little(config, options, block_size, key_tile) or _why_kept(config, options):
        return None
    parts, sharing = _fitting(config) or (1, 1)
    block_size *= parts
    owners = _owners(config)
    full = [index for index in owners if config.layers[index].window is None]
    reach = _reach(config, block_size, key_tile)
    places: list[tuple[int, int, int]] = []  # table, layer of group 0, part of its blocks
    num_full = num_local = 0
    for layer in config.layers:
        if layer.cache_of is not None:
            places.append(places[layer.cache_of])
        elif layer.window is None:
            places.append((0, full[num_full], 0))
            num_full += 1
        else:
            group, place = divmod(num_local, len(full) * sharing)
            part, index = divmod(place, len(full))
            places.append((1 + group, full[index], part))
            num_local += 1
    groups, caches, of_parts = zip(*places, strict=True)
    count = max(groups) * parts
    return WindowGroups(
        window=max(config.layers[index].window or 0 for index in owners),
        reach=reach,
        block_size=block_size,
        parts=parts,
        sharing=sharing,
        group_of=groups,
        cache_of=caches,
        part_of=of_parts,
        sequence_blocks=count * window_blocks(reach, block_size),
        step_blocks=count * (options.max_batched_tokens // block_size),
    )


def why_windows_keep(
    config: ModelConfig, options: LoadOptions, block_size: int, key_tile: int = 0
) -> str:
    """Returns why layers with a window keep what it has left behind; empty if they do not.

    It is empty, too, where there would be little to release, as the context or the cache is short.
    Arguments are those of `plan_windows`.
    """
    if _releases_little(config, options, block_size, key_tile):
        return ""
    return _why_kept(config, options)


def _releases_little(
    config: ModelConfig, options: LoadOptions, block_size: int, key_tile: int
) -> bool:
    """Returns whether no layer has a window that context and cache are much longer than."""
    if not config.causal or all(layer.window is None for layer in config.layers):
        return True
    block_size *= (_fitting(config) or (1, 1))[0]
    of_sequence = window_blocks(_reach(config, block_size, key_tile), block_size)
    shortest = -(-options.context_of(config) // block_size)
    if options.kv_blocks is not None:
        shortest = min(shortest, options.kv_blocks)
    return of_sequence + options.max_batched_tokens // block_size >= shortest


def _reach(config: ModelConfig, block_size: int, key_tile: int) -> int:
    windows = (layer.window for layer in config.layers if layer.window is not None)
    return max(windows) + max(0, key_tile - block_size)


def _why_kept(config: ModelConfig, options: LoadOptions) -> str:
    """Returns why layers with a window keep everything; empty if they need not.

    Draft tokens of a predictor and states count on one block table.
    """
    layers = [config.layers[index] for index in _owners(config)]
    num_full = sum(layer.window is None for layer in layers)
    if not options.releases_windows:
        return "what drafts keeps blocks of all layers"
    if config.predicts:
        return "a predictor keeps hidden states in blocks of all layers"
    if config.has_states:
        return "snapshots of states are taken of all layers at once"
    if num_full == 0:
        return "all layers have a window, and none is left to share memory with"
    if num_full > len(layers) - num_full:
        return f"{num_full} of {len(layers)} layers have none"
    if any(layer.latent is not None for layer in layers):
        return "latent vectors are kept in blocks of all layers"
    if _fitting(config) is None:
        return "their keys and values differ in size in no simple ratio"
    return ""


def _owners(config: ModelConfig) -> list[int]:
    """Returns the layers that have a cache of their own."""
    return [index for index, layer in enumerate(config.layers) if layer.cache_of is None]


def _fitting(config: ModelConfig) -> tuple[int, int] | None:
    """Returns the own blocks that fill one: of a layer without a window, and of layers with one.

    None if there are none, as layers of a kind differ, or it takes too many.
    """
    shapes: dict[bool, set[tuple[int, int, int]]] = {True: set(), False: set()}
    for index in _owners(config):
        layer = config.layers[index]
        shape = layer.num_kv_heads, layer.key_dim, layer.value_dim
        shapes[layer.window is None].add(shape)
    if any(len(found) != 1 for found in shapes.values()):
        return None
    (heads, key, value), (own_heads, own_key, own_value) = (*shapes[True], *shapes[False])
    pairs = (heads * key, own_heads * own_key), (heads * value, own_heads * own_value)
    found = {(own // gcd(full, own), full // gcd(full, own)) for full, own in pairs}
    if len(found) != 1 or (sizes := found.pop())[0] > _MOST_PARTS:
        return None
    return sizes


def least_blocks(groups: WindowGroups | None, options: LoadOptions, context_blocks: int) -> int:
    """Returns the blocks that a cache must have: for one sequence, or as many as were asked for.

    Those asked for are of all layers.
    """
    if options.kv_blocks is not None:
        return options.kv_blocks * (1 if groups is None else 1 + groups.count)
    if groups is None:
        return context_blocks
    return context_blocks + groups.sequence_blocks + groups.step_blocks


def most_blocks(groups: WindowGroups | None, options: LoadOptions, context_blocks: int) -> int:
    """Returns the blocks that a cache can use: for all sequences, or as many as were asked for."""
    least = least_blocks(groups, options, context_blocks)
    if options.kv_blocks is not None:
        return least
    step = 0 if groups is None else groups.step_blocks
    return options.max_sequences * (least - step) + step


def context_blocks(info: RunnerInfo, step_tokens: int) -> int:
    """Returns the blocks of a loaded model's cache that one sequence may use for its context."""
    if not info.window_groups:
        return info.num_blocks
    of_windows = window_blocks(info.window, info.block_size) + step_tokens // info.block_size
    return info.num_blocks - info.window_groups * of_windows


def with_windows(step: StepInput, info: RunnerInfo) -> StepInput:
    """Returns a step that names blocks of one group only with blocks of the others beside them.

    Args:
        step: its blocks are among the first `num_blocks // (1 + window_groups)`.
        info: of the runner that is to compute it.
    """
    groups = info.window_groups
    if not groups:
        return step
    first = info.num_blocks // (1 + groups) * np.arange(1, 1 + groups)
    tables = step.block_table + first[:, None, None]
    slots = step.slot_mapping + first[:, None] * info.block_size
    return replace(step, window_tables=tables.astype(np.int32), window_slots=slots.astype(np.int64))


def in_own_blocks(step: StepInput, groups: WindowGroups | None) -> StepInput:
    """Returns a step whose tables and slots are of a backend's own blocks; the engine's are `step`.

    There is one table for all parts of a block, `WindowGroups.num_tables` of layers with a window.
    """
    if groups is None or groups.is_even:
        return step
    parts, (rows, columns) = groups.parts, step.block_table.shape
    size = groups.block_size // parts  # tokens
    own = step.block_table[:, :, None] * parts + np.arange(parts)
    tables = step.window_tables.reshape(-1, parts, rows, columns).transpose(0, 2, 3, 1)
    blocks, offsets = np.divmod(step.window_slots, groups.block_size)
    part, offset = np.divmod(offsets[0], size)
    written = blocks.reshape(-1, parts, len(part))[:, part, np.arange(len(part))]
    return replace(
        step,
        block_table=own.reshape(rows, -1).astype(np.int32),
        window_tables=(tables.reshape(-1, rows, columns * parts) * groups.sharing).astype(np.int32),
        window_slots=written * (groups.sharing * size) + offset,
    )
