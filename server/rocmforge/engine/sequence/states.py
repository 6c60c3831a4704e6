"""The states of a running sequence: in which slots they are, and what is kept of them."""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.backend.step import NO_SLOT
from rocmforge.engine.sequence.block_keys import BlockKey


@dataclass(slots=True, eq=False)
class Snapshot:
    """States at the end of a block, with which any sequence that begins alike can go on.

    Its slot is never written. Whoever goes on from it reads it and writes another one.
    """

    key: BlockKey  # of the block at whose end it is
    end: int  # tokens that the states have taken in
    slot: int
    parent: Snapshot | None  # the last one before it that its sequence knew of
    used: int  # when it was last of use, counted in sequences that began
    readers: int = 0  # steps and sequences that are to read it
    is_kept: bool = True  # whether it can be found
    has_rested: bool = False  # whether a sequence that left it, or a later one, has ended

    @property
    def start(self) -> int:
        """Where one would go on without it."""
        self.parent = last_kept(self.parent)
        return 0 if self.parent is None else self.parent.end


def last_kept(snapshot: Snapshot | None) -> Snapshot | None:
    """Returns the snapshot, or the last one before it that can still be found."""
    while snapshot is not None and not snapshot.is_kept:
        snapshot = snapshot.parent
    return snapshot


@dataclass(slots=True, eq=False)
class SequenceStates:
    """The slots of one sequence, from when it begins to run until it ends or is preempted."""

    read: int  # holds the states after its computed tokens
    write: int  # gets those after the next step; its own
    source: Snapshot | None = None  # what `read` is of, if it is not its own
    base: Snapshot | None = None  # the last snapshot that it goes on from or has left
    tail: int = NO_SLOT  # its own: holds the states at the end of its last full block, `tail_end`
    tail_end: int = 0
    points: frozenset[int] = frozenset()  # ends of blocks where snapshots are wanted
    # Its own, in a step that checks draft tokens: get the states after each token but the last.
    between: tuple[int, ...] = ()
    is_trusted: bool = True  # whether others may go on from its states
