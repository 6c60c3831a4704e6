"""The blocks of a running sequence in the groups of layers that have a window."""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.backend.arrays import Int32Array


@dataclass(slots=True, eq=False)
class SequenceWindows:
    """The block tables of one sequence, from when it begins to run until it ends or is preempted.

    Of each group it holds the blocks `first..stop` of the sequence.
    """

    tables: Int32Array  # [groups, blocks], 0 where it holds none
    quota: int  # blocks of each group that it may hold, beside those of a step's tokens
    worth: frozenset[int]  # blocks that others may begin behind: kept longer than others
    first: int = 0
    stop: int = 0

    @property
    def held(self) -> list[int]:
        """All blocks that it holds."""
        blocks: list[int] = self.tables[:, self.first : self.stop].ravel().tolist()
        return blocks
