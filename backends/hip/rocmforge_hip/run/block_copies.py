"""Blocks of the KV cache are copied to pinned memory of the host and back while steps run.

A kernel in a stream of its own makes each copy, as a block has a part in every array of every
layer: thousands of small copies by the driver would take longer than to compute the block. Two
orders are kept by events:

- A copy begins when the steps submitted before it have ended. So what it saves has been computed,
  and nobody reads any more what it overwrites.
- A step that is submitted later waits for the copy in the device's stream, if it overwrites a block
  that is being saved, or reads one that is being restored. Other steps do not wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from rocmforge.backend.protocol import Int32Array, StepInput, UInt8Array
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.memory import DeviceArray, PinnedBuffer
from rocmforge_hip.device.opening import Device
from rocmforge_hip.kernels.cache import rf_copy_blocks
from rocmforge_hip.ops.cached_attention import LayerCache

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


@dataclass(frozen=True, slots=True)
class _Copy:
    lane: _Lane
    blocks: Int32Array
    is_restore: bool


class BlockCopies:
    """The copies of one model's blocks.

    Args:
        device: Of the model.
        caches: Of its layers.
        block_bytes: Of a block, in all of them.
        count: Slots of the host's memory.

    Raises:
        OutOfMemory: The host has not so much that can be pinned.
    """

    def __init__(
        self,
        device: Device,
        caches: tuple[LayerCache[DeviceArray], ...],
        block_bytes: int,
        count: int,
    ) -> None:
        self._device, self._driver, self._stream = device, device.driver, device.stream
        self._block_bytes = block_bytes
        self._copies = device.driver.create_stream()
        self._kernel = device.library.kernel("rf_copy_blocks", rf_copy_blocks, self._copies)
        arrays = [
            array
            for cache in caches
            for array in (cache.keys, cache.values, cache.key_scale, cache.value_scale)
            if array is not None and array.nbytes
        ]
        self._num_blocks = arrays[0].shape[0]
        self._cache = arrays[0]
        sizes = [array.nbytes // self._num_blocks for array in arrays]
        assert sum(sizes) == block_bytes, "all of a block is copied"
        assert all(size % 16 == 0 for size in sizes), "a thread copies 16 bytes"
        self._num_arrays = len(arrays)
        table = np.array(
            [
                [array.address - self._cache.address for array in arrays],
                sizes,
                np.cumsum([0, *sizes[:-1]]),
            ],
            np.int64,
        )
        # Kernels read the little that they need to know from the host's memory, too.
        self._table = device.memory.pinned(table.nbytes, "parts of blocks")
        self._table.bytes.view(np.int64)[:] = table.reshape(-1)
        self._host = device.memory.pinned(count * block_bytes, "blocks on the host")
        self._free: list[_Lane] = []
        self._running: deque[_Copy] = deque()

    @property
    def slots(self) -> UInt8Array:
        """The host's memory, [count, block_bytes]."""
        return self._host.bytes.reshape(-1, self._block_bytes)

    def start(self, blocks: Int32Array, slots: Int32Array, *, is_restore: bool) -> None:
        """Starts a copy between blocks and slots, [N] each, behind the steps so far."""
        driver, lane = self._driver, self._free.pop() if self._free else self._new_lane()
        count = len(blocks)
        pairs = lane.pairs.bytes.view(np.int32).reshape(-1, 2)
        pairs[:count, 0], pairs[:count, 1] = blocks, slots
        driver.record_event(lane.before, self._stream)
        driver.wait_for_event(self._copies, lane.before)
        driver.record_event(lane.started, self._copies)
        table, size = self._table.address, self._num_arrays
        self._kernel.launch(
            (min(_GRID, count * size), 1, 1),
            _THREADS,
            cache=self._cache,
            arrays=_pinned(table, size, np.int64),
            part_bytes=_pinned(table + 8 * size, size, np.int64),
            starts=_pinned(table + 16 * size, size, np.int64),
            pairs=_pinned(lane.pairs.address, 2 * count, np.int32),
            host=_pinned(self._host.address, self._host.bytes.size, np.uint8),
            block_bytes=self._block_bytes,
            num_arrays=size,
            count=count,
            to_host=int(not is_restore),
        )
        driver.record_event(lane.ended, self._copies)
        self._running.append(_Copy(lane, blocks.copy(), is_restore))

    def before_step(self, step: StepInput) -> None:
        """Lets the steps' stream wait for the copies that a step about to start depends on."""
        if not self._running:
            return
        written = np.unique(step.slot_mapping // BLOCK_TOKENS)
        read = np.unique(step.block_table)
        for copy in reversed(self._running):  # the copies before one have ended when it has
            if np.isin(copy.blocks, read if copy.is_restore else written).any():
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
        return _Lane(
            self._device.memory.pinned(8 * self._num_blocks, "blocks of a copy"),
            driver.create_event(timed=False),
            driver.create_event(timed=True),
            driver.create_event(timed=True),
        )


def _pinned(address: int, count: int, dtype: type[np.generic]) -> DeviceArray:
    """Returns memory of the host as kernels see it, which is where the host does."""
    return DeviceArray(address, (count,), np.dtype(dtype))
