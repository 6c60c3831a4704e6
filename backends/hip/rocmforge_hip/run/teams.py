"""Teams of a step's decodes: sequences whose contexts begin with the same blocks of the cache.

A prompt that many requests share lies in the cache once. Attention then reads it once for a team
(kernels/include/rf/attention/teams.h), and not once for each of its sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.choices import Switch
from rocmforge_hip.device.constants import BLOCK_TOKENS

LEAST_SHARED: Final = 512
"""Tokens at the front of a context from which a team is worth it. Not measured yet: no less than a
few splits of a context, as each split that is shared has results for every member."""
_LEAST_GAIN: Final = 2
"""How many times as much a step would read of the cache without teams, for `auto`."""
_STEPS_KEPT: Final = BLOCK_TOKENS
"""After which teams are found anew, as what is shared may have become longer."""


@dataclass(frozen=True, slots=True, eq=False)
class Teams:
    """The teams of a step."""

    rows: Int32Array
    """[decodes, 4]. Of each decode: the tokens at its front that its team reads, a multiple of
    BLOCK_TOKENS and less than its context; how many members the team has that it is the first of,
    or 0; where these begin in the fourth column, which has all decodes, team by team."""

    @property
    def saved(self) -> int:
        """The tokens that are not read again, of all decodes together."""
        shared, members = self.rows[:, 0], self.rows[:, 1]
        return int((shared * (members - 1))[members > 0].sum())


def form_teams(table: Int32Array, contexts: Int32Array, *, most: int, least: int) -> Teams | None:
    """Returns the teams of sequences, or None if no two share as much as is worth it.

    Args:
        table: Blocks of each sequence, [decodes, M].
        contexts: Tokens of each, with the new one, [decodes].
        most: Members of a team.
        least: Tokens at the front that a team shares.
    """
    count = len(contexts)
    if count < 2 or most < 2 or not table.shape[1]:
        return None
    whole = np.minimum((contexts - 1) // BLOCK_TOKENS, table.shape[1])
    # In the order of their bytes, those that begin alike stand together.
    keys = [row.tobytes() for row in np.ascontiguousarray(table[:, : int(whole.max())])]
    order = np.array(sorted(range(count), key=keys.__getitem__))
    own, whole = table[order], whole[order]
    differs = own[1:] != own[:-1]
    alike = np.where(differs.any(axis=1), differs.argmax(axis=1), table.shape[1])
    shared = np.minimum(alike, np.minimum(whole[1:], whole[:-1])).tolist()

    rows = np.zeros((count, 4), np.int32)
    rows[:, 3] = order
    first = 0
    while first < count:
        blocks, size = 0, 1
        while size < most and first + size < count:
            next_blocks = shared[first + size - 1]
            both = min(blocks, next_blocks) if size > 1 else next_blocks
            # One more member is not worth it where that leaves less to share.
            if both * BLOCK_TOKENS < least or both * size < blocks * (size - 1):
                break
            blocks, size = both, size + 1
        if size > 1:
            rows[order[first : first + size], 0] = blocks * BLOCK_TOKENS
            rows[order[first], 1:3] = size, first
        first += size
    return Teams(rows) if rows[:, 0].any() else None


class TeamFinder:
    """Finds the teams of one step after the other, and keeps them while nothing changes.

    Args:
        mode: Whether there are teams: where the step would read at least twice as much of the cache
            without them (`auto`), wherever sequences share enough, or never.
        most: Members of a team; 0 = no layer has teams.
    """

    def __init__(self, mode: Switch, most: int) -> None:
        self._mode = mode
        self._most = 0 if mode == "off" else most
        self.may_find: Final = self._most > 1
        """Whether there may be teams in any step."""
        self._front: Int32Array | None = None  # of all sequences of the step before: what is shared
        self._kept: Teams | None = None
        self._age = 0

    def of(self, table: Int32Array, contexts: Int32Array) -> Teams | None:
        """Returns the teams of a step's decodes, or None.

        Args:
            table: Blocks of each, [decodes, M].
            contexts: Tokens of each, with the new one, [decodes].
        """
        if not self.may_find or len(contexts) < 2:
            return None
        if not self._still_right(table, contexts):
            self._kept = form_teams(table, contexts, most=self._most, least=LEAST_SHARED)
            self._age = 0
            self._front = None
            if self._kept is not None:
                columns = int(self._kept.rows[:, 0].max()) // BLOCK_TOKENS
                self._front = table[:, :columns].copy()
        self._age += 1
        found = self._kept
        if found is None or self._mode == "on":
            return found
        tokens = int(contexts.sum(dtype=np.int64))
        return found if tokens >= _LEAST_GAIN * (tokens - found.saved) else None

    def _still_right(self, table: Int32Array, contexts: Int32Array) -> bool:
        front, kept = self._front, self._kept
        return (
            front is not None
            and kept is not None
            and self._age < _STEPS_KEPT
            and len(front) == len(table)
            and bool((contexts > kept.rows[:, 0]).all())
            and np.array_equal(front, table[:, : front.shape[1]])
        )
