"""Which keys of a prompt's attention are split among thread blocks.

A block takes a tile of rows, queries of one kv head, through all keys that they see. Where there
are fewer tiles than the device runs at once, or a last round of few, most of it would be idle. So
the first tiles of each sequence, whose blocks come last, have their keys split.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final

from rocmforge_hip.device.constants import ATTENTION_ROWS
from rocmforge_hip.weights.formats import ceil_div, round_up

KEY_TILE: Final = 64
"""Keys of the largest tile that attention takes from the cache: `attention_keys` in
online_softmax.h, and kKeys in attention_warpgroup.h."""
_COUNTS: Final = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)  # of splits, that are tried
_BLOCK_SHARE: Final = 3 / 8  # of the least keys: what else a block of a split does takes as long


@dataclass(frozen=True, slots=True)
class PrefillSplit:
    """The cutting of the keys that some tiles of rows see."""

    tiles: int  # the first ones of each sequence; 0 = none
    count: int
    tokens: int  # of a split, a multiple of the keys that attention takes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTiles:
    """The tiles of rows of a step's prompts.

    Attributes:
        context: Tokens of the longest sequence that its new ones see.
        of_sequences: Tiles of each sequence.
        kv_heads: Of the layer; each takes a block for a tile.
        group: Heads that share one.
    """

    context: int
    of_sequences: tuple[int, ...]
    kv_heads: int
    group: int

    def blocks(self, first: int) -> int:
        """Returns the blocks of so many tiles of each sequence, its first ones."""
        return self.kv_heads * sum(min(tiles, first) for tiles in self.of_sequences)

    def results(self, first: int) -> int:
        """Returns how many results a split of these has room for: of a head of a token."""
        return len(self.of_sequences) * self.tokens(first) * self.kv_heads * self.group

    def tokens(self, first: int) -> int:
        """Returns how many tokens of a sequence have rows in these."""
        return ceil_div(first * ATTENTION_ROWS, self.group)


@lru_cache(maxsize=16)  # the layers of a step ask for the same
def best_split(tiles: PrefillTiles, at_once: int, most_results: int, least: int) -> PrefillSplit:
    """Returns the split that is done soonest, by a count of keys; perhaps none.

    Args:
        tiles: Of the step.
        at_once: Blocks that the device runs at once; 0 = no splits.
        most_results: Of all splits together.
        least: Keys of a split; to put splits together takes as long as so many.
    """
    context, longest = tiles.context, max(tiles.of_sequences)
    blocks = tiles.blocks(longest)
    best = PrefillSplit(0, 1, context)
    if not at_once or context < 2 * least:
        return best
    soonest = ceil_div(blocks, at_once) * context
    firsts = [longest]
    # New tokens that are most of the context see ever more of it: rounds say little of them.
    if 2 * longest * ATTENTION_ROWS <= context * tiles.group:
        behind = (tile for tile in range(longest) if tiles.blocks(tile) >= blocks % at_once)
        firsts.append(next(behind, longest))
    for first, count in product(firsts, _COUNTS):
        results = count * tiles.results(first)
        if not first or results > most_results or count * least > context:
            continue
        tokens = round_up(ceil_div(context, count), KEY_TILE)
        split = PrefillSplit(first, ceil_div(context, tokens), tokens)
        cut, each = tiles.blocks(first), tokens + round(_BLOCK_SHARE * least)
        keys = least + _keys(context, blocks - cut, cut * split.count, each, at_once)
        if keys < soonest:
            best, soonest = split, keys
    return best


def _keys(context: int, whole: int, splits: int, each: int, at_once: int) -> int:
    """Returns after how many keys of a tile all have ended, if splits come after whole tiles.

    Args:
        context: Keys of a whole tile.
        whole: Blocks of those.
        splits: Blocks of splits.
        each: What each of these takes, in keys.
        at_once: Blocks that the device runs at once.
    """
    rounds = ceil_div(whole, at_once)
    beside = (rounds * at_once - whole) * (context // each)  # splits, in the last of these rounds
    return rounds * context + ceil_div(max(splits - beside, 0), at_once) * each
