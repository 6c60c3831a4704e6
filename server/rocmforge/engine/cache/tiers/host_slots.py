"""Slots of the host's memory: which block each holds, and which may be given to another."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import Final

from rocmforge.engine.sequence.block_keys import BlockKey

_LOOKED_AT: Final = 256
"""Entries at most, for one that may go: no step waits for a search through all."""


@dataclass(slots=True)
class HostEntry:
    """A block in the host's memory."""

    slot: int
    position: int  # in its prefix, in blocks
    users: int = 0  # copies, reads and writes that need the slot as it is
    is_there: bool = False  # whether its bytes have come
    is_written: bool = False  # whether it need not be written to a file any more


class HostSlots:
    """A fixed number of slots; the entry that was used longest ago goes first."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._entries: OrderedDict[BlockKey, HostEntry] = OrderedDict()  # least used first

    @property
    def num_used(self) -> int:
        """Slots that hold a block, or will."""
        return len(self._entries)

    def find(self, key: BlockKey) -> HostEntry | None:
        """Finds a block, complete or not."""
        return self._entries.get(key)

    def use(self, key: BlockKey) -> None:
        """Makes a block the last to go."""
        self._entries.move_to_end(key)

    def take(self, key: BlockKey, position: int, *, may_lose: bool) -> HostEntry | None:
        """Takes a slot for a block that has none; its user must give it back.

        Args:
            key: of the block.
            position: of the block.
            may_lose: whether an entry may go for it that should still be written to a file.

        Returns:
            The new entry, with one user; None if there is no slot for it now.
        """
        assert key not in self._entries, "the block has a slot"
        if self._free:
            slot = self._free.pop()
        else:
            gone = next(
                (
                    key
                    for key, entry in islice(self._entries.items(), _LOOKED_AT)
                    if not entry.users and (may_lose or entry.is_written)
                ),
                None,
            )
            if gone is None:
                return None
            slot = self._entries.pop(gone).slot
        entry = self._entries[key] = HostEntry(slot, position, users=1)
        return entry

    def drop(self, key: BlockKey) -> None:
        """Forgets a block that nobody uses."""
        entry = self._entries.pop(key)
        assert not entry.users, "a copy needs the slot"
        self._free.append(entry.slot)

    def check_integrity(self) -> None:
        """Asserts that each slot is in one place."""
        held = [entry.slot for entry in self._entries.values()]
        assert sorted([*self._free, *held]) == list(range(self.num_slots)), "a slot is lost"
