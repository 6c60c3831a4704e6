"""Where weights lie on the device as the file has them, until a kernel repacks them."""

from __future__ import annotations

from typing import Final

from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import DeviceArray, Memory, spec
from rocmforge_hip.weights.formats import round_up

PIECES: Final = 6
"""How many pieces are repacked together, at most.

As they arrive one after the other, what is done for each holds up the next; a kernel for several
of them is one launch and one event.
"""
_HALVES: Final = 2  # one is filled while the other is emptied
_ALIGN: Final = 256  # bytes


class Landing:
    """Room for two runs of pieces, used by turns.

    Args:
        driver: Of the device.
        copies: The stream in which pieces arrive.
        stream: The one in which they are repacked.
        piece_bytes: Of the largest piece.

    Raises:
        OutOfMemory: The device has no room for them.
    """

    def __init__(self, driver: Driver, copies: int, stream: int, piece_bytes: int) -> None:
        self._driver = driver
        self._copies = copies
        self._stream = stream
        self._memory = Memory(driver)
        nbytes = round_up(PIECES * piece_bytes, _ALIGN)
        halves = self._memory.device(spec((_HALVES, nbytes), "u1"), "loading weights").array
        self._rooms = [
            DeviceArray(halves.address + half * nbytes, (nbytes,), halves.dtype)
            for half in range(_HALVES)
        ]
        self._emptied = [driver.create_event(timed=False) for _ in range(_HALVES)]
        self._turn = 0  # runs that have ended

    @property
    def room(self) -> DeviceArray:
        """Room for the pieces of the run, bytes."""
        return self._rooms[self._turn % _HALVES]

    def begin(self) -> None:
        """Begins a run: its copies wait until its room was emptied."""
        if self._turn >= _HALVES:
            self._driver.wait_for_event(self._copies, self._emptied[self._turn % _HALVES])

    def end(self) -> None:
        """Ends a run, when the launch that empties its room has been started."""
        self._driver.record_event(self._emptied[self._turn % _HALVES], self._stream)
        self._turn += 1

    def close(self) -> None:
        """Gives everything back; no copy and no launch may be running."""
        for event in self._emptied:
            self._driver.destroy_event(event)
        for buffer in self._memory.release():
            buffer.free()
