"""The operations of a rank: those of one device, and what the ranks then do together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rocmforge.backend.arrays import Int32Array
from rocmforge.models.blocks import Experts, Role
from rocmforge.models.config import ActivationFunction
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.device.opening import Device
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.collective import Communicator
from rocmforge_hip.ops.model_ops import HipOps
from rocmforge_hip.ops.operands import empty, f32_of, part_of
from rocmforge_hip.ops.resources import Resources
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.weights.formats import MatrixPart, Weight
from rocmforge_hip.weights.products import Product


class ShardedOps(HipOps):
    """Implements `Ops` with a rank's part of the weights.

    Args:
        communicator: The ranks.
        orders: What `gather_orders` makes, on the device.
        resources: As of `HipOps`, for this rank.
    """

    def __init__(
        self, communicator: Communicator, orders: DeviceArray, resources: Resources
    ) -> None:
        super().__init__(resources)
        self._communicator = communicator
        self._orders = orders
        self._beside = None  # what experts make is added up first

    def linear(
        self, step: DeviceStep, x: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        out = super().linear(step, x, weight, bias)
        if part_of(weight).role is Role.ROW:
            assert out.f32 is not None
            self._communicator.all_reduce(out.f32)
        return out

    def experts(
        self,
        x: Activation,
        chosen: Activation,
        weights: Activation,
        experts: Experts[Weight],
        activation: ActivationFunction,
    ) -> Activation:
        """Adds up what the experts of each rank make of a token."""
        mixed = self._sums.made(super().experts(x, chosen, weights, experts, activation))
        self._communicator.all_reduce(f32_of(mixed))
        return mixed

    def _later(
        self, step: DeviceStep, x: Activation, part: MatrixPart, bias: Weight | None
    ) -> Activation | None:
        """Returns None: what is added is the sum of what all ranks have."""
        return None

    def logits(self, x: Activation, weight: Weight, softcap: float | None) -> Activation:
        part = super().logits(x, weight, softcap)
        assert part.f32 is not None
        ranks, rows = self._communicator.shard.size, part.rows
        whole = empty(part.arrays, rows, ranks * part.features, half=False)
        if rows:
            # All rows of the first rank, all of the second ... become all ranks of the first row,
            # all of the second ...; in the place of the part, which is not needed any more.
            assert self._arena.gathered is not None
            gathered = self._arena.gathered.float32(ranks * rows, part.features)
            self._communicator.all_gather(part.f32, gathered)
            there = f32_of(whole).first(ranks * rows, part.features)
            self._rows.take(gathered, self._order(rows), there)
        return whole

    def _order(self, rows: int) -> DeviceArray:
        first = self._communicator.shard.size * rows * (rows - 1) // 2
        count = self._communicator.shard.size * rows
        orders = self._orders
        return DeviceArray(orders.address + first * 4, (count,), orders.dtype)


def gather_orders(ranks: int, most_rows: int) -> Int32Array:
    """Returns, for 1, 2 ... rows of logits, where each part of a row was gathered.

    A kernel takes rows by their numbers, and a captured graph needs those on the device.
    """
    return np.concatenate(
        [
            (np.arange(rows)[:, None] + rows * np.arange(ranks)).reshape(-1)
            for rows in range(1, most_rows + 1)
        ]
    ).astype(np.int32)


def warm_up(communicator: Communicator, arena: ActivationArrays[DeviceArray]) -> None:
    """Makes each call once for every magnitude of size, on the zeros of a new arena.

    RCCL makes connections and allocates when it first uses an algorithm, which it chooses by size:
    that must not happen while a graph is captured.
    """
    assert arena.gathered is not None
    sums, gathered = arena.delta.f32, arena.gathered.f32
    assert sums is not None
    assert gathered is not None
    rows = 1
    while rows <= sums.shape[0]:
        communicator.all_reduce(sums.first(rows, sums.shape[1]))
        rows *= 2
    if arena.mamba is not None and (squares := arena.mamba.squares) is not None:
        rows = 1
        while rows <= squares.shape[0]:
            communicator.all_reduce(squares.first(rows))
            rows *= 2
    rows = 1
    while rows <= gathered.shape[0]:
        part = arena.product(Product.LOGITS).float32(
            rows, gathered.shape[1] // communicator.shard.size
        )
        communicator.all_gather(part, gathered.first(rows, gathered.shape[1]))
        rows *= 2


def any_rank(
    communicator: Communicator, device: Device, scratch: DeviceArray, flags: Sequence[bool]
) -> Sequence[bool]:
    """Returns which of the flags is true on any rank; waits for the device.

    Args:
        communicator: The ranks, all of which call this.
        device: With nothing to do.
        scratch: float32, of which as many elements as flags are overwritten.
        flags: This rank's.
    """
    driver, stream = device.driver, device.stream
    votes, there = np.array(flags, np.float32), scratch.first(len(flags))
    sums = np.empty_like(votes)
    driver.copy_to_device(there.address, votes.ctypes.data, votes.nbytes, stream)
    communicator.all_reduce(there)
    driver.copy_to_host(sums.ctypes.data, there.address, sums.nbytes, stream)
    driver.synchronize_stream(stream)
    return [votes_for > 0 for votes_for in sums.tolist()]
