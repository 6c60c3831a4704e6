"""Hands out the state slots of a model that remembers what it computed in states of fixed size."""

from __future__ import annotations

from collections.abc import Iterable

from rocmforge.backend.step import NO_SLOT


class StateSlots:
    """Slots, each with all states of one sequence. None, if the model has no states.

    Nothing clears a slot: a sequence begins with states of zero, whatever its slot holds.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_used(self) -> int:
        """Slots that sequences hold."""
        return self.num_slots - len(self._free)

    @property
    def is_full(self) -> bool:
        """Whether the model has slots, and no sequence can get one."""
        return bool(self.num_slots) and not self._free

    def take(self) -> int:
        """Returns a free slot, or NO_SLOT of a model without states; it is not full."""
        return self._free.pop() if self.num_slots else NO_SLOT

    def release(self, slot: int) -> None:
        """Takes back a slot, or NO_SLOT."""
        if slot != NO_SLOT:
            self._free.append(slot)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Asserts that the slots held by all sequences explain which are free."""
        slots = sorted([*held, *self._free]) if self.num_slots else [*held]
        expected = list(range(self.num_slots)) if self.num_slots else [NO_SLOT] * len(slots)
        assert slots == expected, f"state slots {slots} of {self.num_slots}"
