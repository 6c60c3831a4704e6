"""Experts move between the host's memory and seats on the device while steps run.

No step waits for any of this. A step's kernels find each expert through a table; all experts stay
in the host's memory, so one without a seat is read from there. What tokens chose comes back with
the results of their step. A swap takes three steps, or more:

1. Before a step, the table says that the leaving expert is on the host. From this step on, nothing
   reads its seat.
2. When the step before has ended, the coming expert is copied to the seat, in a stream of its own.
3. Before the first step that is submitted after that copy is seen to be done, the table says that
   the expert has the seat.

The table changes in the order of the steps' stream: each step sees one table from start to end.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import numpy as np

from rocmforge_hip.device.memory import DeviceArray, PinnedBuffer
from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.activations import ExpertArrays
from rocmforge_hip.run.expert_use import Bools, ExpertReads, ExpertUse, Swap
from rocmforge_hip.run.pipeline import PIPELINE_DEPTH
from rocmforge_hip.weights.formats import HostedExperts, Matrix
from rocmforge_hip.weights.hosting import HostedLayer
from rocmforge_hip.weights.placement import PLACE

_NOBODY: Final = -1
"""The expert of a token that has none."""
_BATCH_BYTES: Final = 32 << 20
"""Of swaps at a time, as the bus is what steps wait for, too."""


class _Lane(NamedTuple):
    """The pinned memory of one of the steps in flight."""

    table: PinnedBuffer
    chosen: PinnedBuffer


class _Step(NamedTuple):
    lane: _Lane
    seated: Bools
    swaps: int
    rows: int
    tokens: int
    last_tokens: int


class CollectedExperts(NamedTuple):
    """The experts that a step read, and the swaps before it."""

    reads: ExpertReads
    swaps: int  # that were finished before it


class ExpertCache:
    """The seats of one model.

    Args:
        device: Of the model.
        layers: Those whose experts are hosted, with the first experts in the seats; at least one,
            and the model's last in front if it is one of them.
        chosen: Where routers write, int32 [L * tokens, num_chosen]; in a step of so many rows,
            those of each layer follow each other.
    """

    def __init__(
        self, device: Device, layers: tuple[HostedLayer, ...], chosen: DeviceArray
    ) -> None:
        self._driver, self._stream = device.driver, device.stream
        self._layers, self._chosen = layers, chosen
        self._copies = device.driver.create_stream()
        self._left, self._arrived = (device.driver.create_event(timed=False) for _ in range(2))
        hosted = [hosted_of(matrix).places for layer in layers for matrix in layer.matrices]
        self._address = min(places.address for places in hosted)
        self._table = np.zeros(sum(places.shape[0] for places in hosted), PLACE)
        first_seats = [hosted_of(layer.matrices[0]).seats for layer in layers]
        self._use = ExpertUse([layer.matrices[0].num_experts for layer in layers], first_seats)
        for layer in layers:
            for matrix in layer.matrices:
                for expert in range(matrix.num_experts):
                    seat = expert if expert < hosted_of(matrix).seats else None
                    self._place(matrix, expert, seat)
        expert_bytes = max(sum(each.nbytes for each in layer.matrices) for layer in layers)
        self._most = max(1, _BATCH_BYTES // expert_bytes)
        memory = device.memory
        self._lanes = deque(
            _Lane(
                memory.pinned(self._table.nbytes, "places of experts"),
                memory.pinned(chosen.nbytes, "chosen experts"),
            )
            for _ in range(PIPELINE_DEPTH)
        )
        self._steps: deque[_Step] = deque()
        self._moving: tuple[Swap, ...] = ()
        self._is_stale = True  # the device's table

    def begin(self, rows: int, tokens: int, last_tokens: int) -> None:
        """Starts a step: the table that it reads, and the copies that may run beside it.

        Args:
            rows: Of the step, with padding.
            tokens: The first of them, which are not padding.
            last_tokens: For how many the model's last layer chooses.
        """
        driver, stream, lane = self._driver, self._stream, self._lanes[0]
        self._lanes.rotate(-1)
        arrived: tuple[Swap, ...] = ()
        if self._moving and driver.has_happened(self._arrived):
            driver.wait_for_event(stream, self._arrived)
            arrived, self._moving = self._moving, ()
            for swap in arrived:
                self._use.come(swap)
                self._place_all(swap.layer, swap.coming, swap.seat)
        leaving: tuple[Swap, ...] = ()
        if not self._moving:
            leaving = self._moving = self._use.choose_swaps(self._most)
            for swap in leaving:
                self._use.leave(swap)
                self._place_all(swap.layer, swap.leaving, None)
        if self._is_stale:
            lane.table.bytes.view(PLACE)[:] = self._table
            driver.copy_to_device(self._address, lane.table.address, self._table.nbytes, stream)
            self._is_stale = False
        if leaving:
            self._copy(leaving)
        self._steps.append(_Step(lane, self._use.seated, len(arrived), rows, tokens, last_tokens))

    def end(self) -> None:
        """Has the choices of the step that began last brought with its results."""
        step = self._steps[-1]
        nbytes = self._step_bytes(step)
        self._driver.copy_to_host(
            step.lane.chosen.address, self._chosen.address, nbytes, self._stream
        )

    def collect(self) -> CollectedExperts:
        """Counts what the oldest step chose, which has ended."""
        step = self._steps.popleft()
        chosen = step.lane.chosen.bytes[: self._step_bytes(step)].view(np.int32)
        chosen = chosen.reshape(len(self._layers), step.rows, -1)[:, : step.tokens]
        if self._layers[0].is_last:
            chosen[0, step.last_tokens :] = _NOBODY
        return CollectedExperts(self._use.add(chosen, step.seated), step.swaps)

    def close(self) -> None:
        """Waits for the last copy and gives back what is not memory; no step is running."""
        driver = self._driver
        driver.synchronize_stream(self._copies)
        for event in (self._left, self._arrived):
            driver.destroy_event(event)
        driver.destroy_stream(self._copies)

    def _step_bytes(self, step: _Step) -> int:
        num_chosen, element = self._chosen.shape[1], self._chosen.dtype.itemsize
        return len(self._layers) * step.rows * num_chosen * element

    def _copy(self, swaps: tuple[Swap, ...]) -> None:
        """Copies experts to their seats, once the steps so far have ended."""
        driver = self._driver
        driver.record_event(self._left, self._stream)
        driver.wait_for_event(self._copies, self._left)
        for swap in swaps:
            for matrix in self._layers[swap.layer].matrices:
                target = matrix.data.address + swap.seat * matrix.nbytes
                source = hosted_of(matrix).host + swap.coming * matrix.nbytes
                driver.copy_to_device(target, source, matrix.nbytes, self._copies)
        driver.record_event(self._arrived, self._copies)

    def _place_all(self, layer: int, expert: int, seat: int | None) -> None:
        for matrix in self._layers[layer].matrices:
            self._place(matrix, expert, seat)

    def _place(self, matrix: Matrix, expert: int, seat: int | None) -> None:
        """Says in the table where an expert is; None: on the host alone."""
        hosted = hosted_of(matrix)
        first = (hosted.places.address - self._address) // PLACE.itemsize
        place = expert * matrix.nbytes + hosted.host - matrix.data.address
        self._table[first + expert] = place if seat is None else seat * matrix.nbytes
        self._is_stale = True


def open_expert_cache(
    device: Device, layers: tuple[HostedLayer, ...], arrays: ExpertArrays[DeviceArray] | None
) -> ExpertCache | None:
    """Returns the seats of a model, or None if all of its experts are on the device.

    Args:
        device: Of the model.
        layers: Those whose experts are hosted.
        arrays: That experts write; there are some if a layer is hosted.
    """
    if not layers:
        return None
    assert arrays is not None
    assert arrays.chosen.i32 is not None
    return ExpertCache(device, layers, arrays.chosen.i32)


def hosted_of(matrix: Matrix) -> HostedExperts:
    """Returns where the experts of a matrix are, some of which the device has no room for."""
    assert matrix.hosted is not None
    return matrix.hosted
