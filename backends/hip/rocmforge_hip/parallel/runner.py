"""A model on several devices, as the engine sees it: one `Runner`.

The engine's process is rank 0. It passes each call on to the workers, which make it too, and then
makes it itself, with the code for one device. Results are read on rank 0 only. The devices wait for
each other within a step, so one that fails leaves the others waiting: `Workers` notices, and the
communicator is aborted, which ends that wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from rocmforge.backend.arrays import UInt32Array
from rocmforge.backend.protocol import LoadOptions, ProgressCallback, RunnerInfo
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.errors import EngineError
from rocmforge.models.checkpoint import Checkpoint
from rocmforge_hip.device.discovery import FoundDevice, list_names
from rocmforge_hip.device.opening import Device
from rocmforge_hip.load.loading import load_model
from rocmforge_hip.ops.collective import Communicator, new_group_id
from rocmforge_hip.parallel.messages import Order, StartRank
from rocmforge_hip.parallel.processes import Workers
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.weights.shard import Shard


def load_sharded(
    devices: Sequence[FoundDevice],
    checkpoint: Checkpoint,
    options: LoadOptions,
    progress: ProgressCallback,
) -> ShardedRunner:
    """Loads a model onto equal devices, with a process for each but the first.

    Args:
        devices: Where to; ranks are in this order.
        checkpoint: The opened model; the other processes open it again.
        options: For all of them.
        progress: Told about rank 0, which has as much to do as the others.

    Raises:
        RocmForgeError: It cannot be loaded.
        RankFailed: It cannot be loaded on another device than the first.
    """
    group_id = new_group_id()  # fails at once without a library
    free = min(options.memory_of(device.info) for device in devices)
    devices = [replace(each, info=replace(each.info, memory_free=free)) for each in devices]
    first = _FirstRank(Shard(0, len(devices)), group_id, devices, checkpoint, options)
    try:
        runner = load_model(devices[0], checkpoint, options, progress, first)
    except BaseException as error:
        first.give_up()
        if first.workers.failure is None:
            raise
        raise first.workers.failure from error
    try:
        first.workers.wait_loaded()
    except BaseException:
        first.give_up()
        runner.close()
        raise
    return ShardedRunner(runner, first, _describe(runner.info, devices))


class _FirstRank:
    """Implements `Rank`: starts the others and joins them."""

    def __init__(
        self,
        shard: Shard,
        group_id: bytes,
        devices: Sequence[FoundDevice],
        checkpoint: Checkpoint,
        options: LoadOptions,
    ) -> None:
        self.shard = shard
        self._group_id = group_id
        self._devices = devices
        self._path = checkpoint.path
        self._options = options
        # Now, as they take a while to start.
        self.workers = Workers([device.properties.index for device in devices[1:]])
        self._communicator: Communicator | None = None

    def join(self, device: Device) -> Communicator:
        size = self.shard.size
        self.workers.send_each(
            lambda rank: StartRank(
                self._devices[rank], self._path, self._options, Shard(rank, size)
            )
        )
        self.workers.wait_opened()
        self.workers.send(self._group_id)
        self._communicator = Communicator(self._group_id, self.shard, device.stream)
        # From now on a failing rank ends what this one waits for.
        self.workers.watch(self._communicator.abort)
        return self._communicator

    def leave(self) -> None:
        """Ends the group once all have closed their models."""
        assert self._communicator is not None
        self._communicator.close()
        self.workers.wait()

    def give_up(self) -> None:
        """Ends the workers and everything that waits for them."""
        self.workers.kill()
        if self._communicator is not None:
            self._communicator.abort()


class ShardedRunner:
    """Implements `MasksLate`."""

    def __init__(self, runner: HipRunner, rank: _FirstRank, info: RunnerInfo) -> None:
        self._runner = runner
        self._rank = rank
        self._info = info
        self._is_sound = True
        self._is_closed = False

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def submit(self, step: StepInput) -> None:
        with self._on_all_ranks(step):
            self._runner.submit(step)

    def constrain(self, allowed: UInt32Array) -> None:
        with self._on_all_ranks(allowed):
            self._runner.constrain(allowed)

    def collect(self) -> StepOutput:
        with self._on_all_ranks(Order.COLLECT):
            return self._runner.collect()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        workers = self._rank.workers
        try:
            if self._is_sound and workers.failure is None:
                workers.tell_to_close()
                self._runner.close()
                self._rank.leave()
                return
        except EngineError:
            self._give_up()
            raise
        self._give_up()

    def _give_up(self) -> None:
        self._rank.give_up()
        with suppress(EngineError):  # the device may not answer; what happened was raised before
            self._runner.close()

    @contextmanager
    def _on_all_ranks(self, call: StepInput | UInt32Array | Order) -> Iterator[None]:
        """Makes the same call on the workers, which run it while this process does.

        Raises:
            RankFailed: On one of them it failed; what failed here may be a consequence of that.
        """
        workers = self._rank.workers
        try:
            workers.send(call)
            yield
        except BaseException as error:
            self._is_sound = False
            if workers.failure is None or workers.failure is error:
                raise
            raise workers.failure from error
        if workers.failure is not None:
            self._is_sound = False
            raise workers.failure


def _describe(info: RunnerInfo, devices: Sequence[FoundDevice]) -> RunnerInfo:
    """Returns what rank 0 says of its part, as what is to be said of the whole."""
    size = len(devices)
    return replace(
        info,
        weights_bytes=info.weights_bytes * size,
        kv_bytes=info.kv_bytes * size,
        state_bytes=info.state_bytes * size,
        adapter_bytes=info.adapter_bytes * size,
        bus_ids=tuple(device.properties.pci_id for device in devices),
        notes=(
            f"tensor parallel over devices {list_names(devices)}; on each of them:",
            *info.notes,
        ),
    )
