"""Layers with a window, in groups of their own: what no window reaches any more is released.

The layers without a window are group 0. Those with one are cut into as many groups as it takes for
none to be larger. A block then is of one group, and all groups share the memory: a layer's cache
lies in the arrays of a layer of group 0, and each group has a block table of its own. So blocks go
from one group to another, and nobody need know beforehand how many each will need. vLLM's hybrid KV
cache manager does the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rocmforge.backend.protocol import LoadOptions, RunnerInfo, StepInput
from rocmforge.models.config import LayerConfig, ModelConfig

_MOST_AHEAD: Final = 34
"""Tokens that a sequence may be ahead of what is known of it: a draft, and two steps in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowGroups:
    """The groups of a model's layers, and how many blocks they need. None: there is one group."""

    window: int  # the largest: tokens that a token sees, itself among them
    reach: int  # these, and the tokens before them that kernels touch
    group_of: tuple[int, ...]  # of each layer
    cache_of: tuple[int, ...]  # of each layer, the one of group 0 whose arrays it uses
    sequence_blocks: int  # that a sequence holds in all groups with a window, beside those of steps
    step_blocks: int  # in all of those, for the tokens of one step

    @property
    def count(self) -> int:
        """Groups with a window."""
        return max(self.group_of)


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
        block_size: tokens.
        key_tile: tokens of the largest tile.
    """
    layers = config.layers
    windows = [layer.window for layer in layers if layer.window is not None]
    if _releases_little(config, options, block_size, key_tile) or _why_kept(config, options):
        return None
    full = [index for index, layer in enumerate(layers) if layer.window is None]
    reach = _reach(config, block_size, key_tile)
    of_sequence = window_blocks(reach, block_size)
    of_step = options.max_batched_tokens // block_size
    places = []  # group, layer of group 0
    num_full = num_local = 0
    for layer in layers:
        if layer.window is None:
            places.append((0, full[num_full]))
            num_full += 1
        else:
            places.append((1 + num_local // len(full), full[num_local % len(full)]))
            num_local += 1
    groups, caches = zip(*places, strict=True)
    return WindowGroups(
        window=max(windows),
        reach=reach,
        group_of=groups,
        cache_of=caches,
        sequence_blocks=max(groups) * of_sequence,
        step_blocks=max(groups) * of_step,
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

    Caches share arrays only if they are alike. Draft tokens of a predictor and states count on one
    block table.
    """
    layers = config.layers
    num_full = sum(layer.window is None for layer in layers)
    if not options.releases_windows:
        return "what goes to a tier, or drafts, is blocks of all layers"
    if config.predicts:
        return "a predictor keeps hidden states in blocks of all layers"
    if config.has_states:
        return "snapshots of states are taken of all layers at once"
    if num_full == 0:
        return "all layers have a window, and none is left to share memory with"
    if num_full > len(layers) - num_full:
        return f"{num_full} of {len(layers)} layers have none"
    if len({_cache_shape(layer) for layer in layers}) > 1:
        return "their keys and values differ in size from those of layers without one"
    if layers[0].latent is not None:
        return "latent vectors are kept in blocks of all layers"
    return ""


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


def _cache_shape(layer: LayerConfig) -> tuple[object, ...]:
    return (layer.num_kv_heads, layer.key_dim, layer.value_dim, layer.latent, layer.cache_of)
