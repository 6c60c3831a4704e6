"""Blocks of the KV cache, and states, are copied to pinned memory of the host and back.

A kernel in a stream of its own makes each copy while steps run, as a block has a part in every
array of every layer: thousands of small copies by the driver would take longer than to compute the
block. A state slot has parts in the same way. Two orders are kept by events:

- A copy begins when the steps submitted before it have ended. So what it saves has been computed,
  and nobody reads any more what it overwrites.
- A step that is submitted later waits for the copy in the device's stream, if it overwrites what is
  being saved, or reads what is being restored. Other steps do not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rocmforge.backend.arrays import Int32Array, UInt8Array
from rocmforge.backend.step import StepInput
from rocmforge_hip.device.memory import DeviceArray, PinnedBuffer
from rocmforge_hip.device.opening import Device
from rocmforge_hip.kernels.cache import rf_copy_blocks

_THREADS: Final = 256
_GRID: Final = 16
"""Thread blocks of a copy: enough for the bus (52 GB/s on an H200), and few beside a step's."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """The memory and events of a copy until it has ended; used again then."""

    pairs: PinnedBuffer
    before: int  # event: the steps before have ended
    started: int
    ended: int


class Stored:
    """Places of one kind on the device, blocks or state slots, and memory of the host for some.

    Args:
        device: Of the model.
        arrays: On the device, [places, ...] each.
        count: Slots of the host's memory.
        name: Of a place, for messages.

    Raises:
        OutOfMemory: The host has not so much that can be pinned.
    """

    def __init__(
        self, device: Device, arrays: Sequence[DeviceArray], count: int, name: str
    ) -> None:
        arrays = [array for array in arrays if array.nbytes]
        self.num_places = arrays[0].shape[0]
        self.first = arrays[0]
        sizes = [array.nbytes // self.num_places for array in arrays]
        assert all(size % 16 == 0 for size in sizes), "a thread copies 16 bytes"
        self.num_arrays = len(arrays)
        self.nbytes = sum(sizes)
        rows = [
            [array.address - self.first.address for array in arrays],
            sizes,
            np.cumsum([0, *sizes[:-1]]),
        ]
        values = np.array(rows, np.int64)
        # Kernels read the little that they need to know from the host's memory, too.
        table = device.memory.pinned(values.nbytes, f"parts of {name}")
        table.bytes.view(np.int64)[:] = values.reshape(-1)
        self.offsets, self.sizes, self.starts = (
            _pinned(table.address + row.nbytes * i, len(row), np.int64)
            for i, row in enumerate(values)
        )
        self.host = device.memory.pinned(count * self.nbytes, f"{name} on the host")

    @property
    def slots(self) -> UInt8Array:
        """The host's memory, [count, nbytes]."""
        return self.host.bytes.reshape(-1, self.nbytes)


@dataclass(frozen=True, slots=True)
class _Copy:
    lane: _Lane
    of: Stored
    places: Int32Array
    is_restore: bool


class BlockCopies:
    """The copies of one model's blocks, and of its states if they are opened.

    Args:
        device: Of the model.
        arrays: Of its cache, [blocks, ...] each.
        block_size: Tokens of a block.
        count: Slots of the host's memory, for blocks.

    Raises:
        OutOfMemory: The host has not so much that can be pinned.
    """

    def __init__(
        self, device: Device, arrays: Sequence[DeviceArray], block_size: int, count: int
    ) -> None:
        self._block_size = block_size
        self._device, self._driver, self._stream = device, device.driver, device.stream
        self.blocks = Stored(device, arrays, count, "blocks")
        self.states: Stored | None = None
        self._copies = device.driver.create_stream()
        self._kernel = device.library.kernel("rf_copy_blocks", rf_copy_blocks, self._copies)
        self._free: list[_Lane] = []
        self._running: deque[_Copy] = deque()

    def open_states(self, arrays: Sequence[DeviceArray], count: int) -> UInt8Array:
        """Returns memory of the host for states, [slots, ...] each; before any copy.

        Raises:
            OutOfMemory: The host has not so much that can be pinned.
        """
        self.states = Stored(self._device, arrays, count, "states")
        return self.states.slots

    def start(self, of: Stored, places: Int32Array, slots: Int32Array, *, is_restore: bool) -> None:
        """Starts a copy between places on the device and slots, [N] each, behind the steps."""
        driver, lane = self._driver, self._free.pop() if self._free else self._new_lane()
        count = len(places)
        pairs = lane.pairs.bytes.view(np.int32).reshape(-1, 2)
        pairs[:count, 0], pairs[:count, 1] = places, slots
        driver.record_event(lane.before, self._stream)
        driver.wait_for_event(self._copies, lane.before)
        driver.record_event(lane.started, self._copies)
        self._kernel.launch(
            (min(_GRID, count * of.num_arrays), 1, 1),
            _THREADS,
            cache=of.first,
            arrays=of.offsets,
            part_bytes=of.sizes,
            starts=of.starts,
            pairs=_pinned(lane.pairs.address, 2 * count, np.int32),
            host=_pinned(of.host.address, of.host.bytes.size, np.uint8),
            block_bytes=of.nbytes,
            num_arrays=of.num_arrays,
            count=count,
            to_host=int(not is_restore),
        )
        driver.record_event(lane.ended, self._copies)
        self._running.append(_Copy(lane, of, places.copy(), is_restore))

    def before_step(self, step: StepInput) -> None:
        """Lets the steps' stream wait for the copies that a step about to start depends on."""
        if not self._running:
            return
        tables, slots = (
            np.concatenate([own.ravel(), of_windows.ravel()])
            for own, of_windows in (
                (step.block_table, step.window_tables),
                (step.slot_mapping, step.window_slots),
            )
        )
        blocks = np.unique(tables), np.unique(slots // self._block_size)
        states = step.state_reads, step.state_writes
        for copy in reversed(self._running):  # the copies before one have ended when it has
            read, written = blocks if copy.of is self.blocks else states
            if np.isin(copy.places, read if copy.is_restore else written).any():
                self._driver.wait_for_event(self._stream, copy.lane.ended)
                return

    def finished(self) -> list[int]:
        """Returns the nanoseconds of each copy that has ended since this was asked."""
        found = []
        while self._running and self._driver.has_happened(self._running[0].lane.ended):
            lane = self._running.popleft().lane
            found.append(self._driver.elapsed_ns(lane.started, lane.ended))
            self._free.append(lane)
        return found

    def close(self) -> None:
        """Waits for the last copy and gives back what is not memory."""
        self._driver.synchronize_stream(self._copies)
        for lane in [*self._free, *(copy.lane for copy in self._running)]:
            for event in (lane.before, lane.started, lane.ended):
                self._driver.destroy_event(event)
        self._driver.destroy_stream(self._copies)

    def _new_lane(self) -> _Lane:
        driver = self._driver
        most = self.blocks.num_places
        if self.states is not None:
            most = max(most, self.states.num_places)
        return _Lane(
            self._device.memory.pinned(8 * most, "places of a copy"),
            driver.create_event(timed=False),
            driver.create_event(timed=True),
            driver.create_event(timed=True),
        )


def _pinned(address: int, count: int, dtype: type[np.generic]) -> DeviceArray:
    """Returns memory of the host as kernels see it, which is where the host does."""
    return DeviceArray(address, (count,), np.dtype(dtype))
