"""The abilities that a backend may have beyond `protocol.Backend`; `isinstance` finds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from rocmforge.backend.protocol import Backend, LoadOptions, Runner
from rocmforge.models.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCheck:
    """One operation of a device, compared with its definition in float64."""

    op: str  # "gemv"
    case: str  # "q4_k, 8 rows"
    error: float  # the worst; what it is relative to is the operation's business
    limit: float  # what rounding explains
    problem: str = ""  # why there is no result

    @property
    def passed(self) -> bool:
        """Whether there is a result, and a right one; NaN is not."""
        return not self.problem and self.error <= self.limit


@runtime_checkable
class SelfChecking(Backend, Protocol):
    """A backend that can check its own operations: what `rocmforge verify` shows first."""

    def devices(self, device: str | None, count: int) -> tuple[str, ...]:
        """Returns the devices that a model would be loaded onto, as the other methods take them.

        Args:
            device: as in `LoadOptions`.
            count: `tensor_parallel` of those.

        Raises:
            ConfigurationError: no such devices.
        """
        ...

    def describe(self, device: str) -> tuple[tuple[str, str], ...]:
        """Describes the device and its software for someone far away, as labels and texts.

        Raises:
            ConfigurationError: no such device.
            EngineError: the device failed.
        """
        ...

    def check_ops(self, device: str, only: str) -> Iterator[OpCheck]:
        """Runs each operation on small random inputs; an operation that fails is a result.

        Args:
            device: one of `devices`.
            only: a pattern of `fnmatch`; operations whose name does not match are left out.

        Raises:
            ConfigurationError: no such device.
            EngineError: the device cannot be used at all.
        """
        ...


@runtime_checkable
class KnowsTargets(Backend, Protocol):
    """A backend with compiled kernels: `rocmforge doctor` asks for which chips."""

    def kernels_for(self, target: str) -> str | None:
        """Returns the target whose kernels a chip runs, its own or its family's; None = none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLibrary:
    """A shared library that drives devices."""

    path: str  # a name without a folder is the loader's to find
    origin: str  # where it was looked for, for people
    problem: str | None  # why it cannot be used


@runtime_checkable
class FindsRuntimes(Backend, Protocol):
    """A backend that looks for its runtime: `rocmforge doctor` asks what it has found."""

    def runtimes(self) -> tuple[RuntimeLibrary, ...]:
        """Returns all it finds; the first is the one that it uses, unless it has a problem."""
        ...


BUS_SPEEDS: Final = MappingProxyType({"PCIe 4.0 x16": 25e9, "PCIe 5.0 x16": 50e9})
"""Bytes a second that a device reads of the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedEstimate:
    """The experts of a model where the device has no room for all of them."""

    seats: int  # experts of a layer that the device holds at a time
    experts: int  # of a layer
    host: int  # bytes of the host's memory
    token_bytes: int  # that a token reads from there, if all experts are chosen alike
    host_free: int | None = None  # bytes that the host can give; None: it is not the one at hand

    @property
    def host_missing(self) -> int:
        """Bytes that the host lacks for all experts."""
        return 0 if self.host_free is None else max(self.host - self.host_free, 0)

    def __str__(self) -> str:
        """Says it to people, with the speed that follows."""
        speeds = " or ".join(
            f"{speed / max(self.token_bytes, 1):,.0f} through {bus}"
            for bus, speed in BUS_SPEEDS.items()
        )
        return (
            f"{self.seats} of {self.experts} of each layer have a seat on the device, and all "
            f"{self.host / 2**30:.1f} GiB are in the host's memory; a token reads "
            f"{self.token_bytes / 2**20:,.0f} MiB from it if all are chosen alike, which allows "
            f"{speeds} a second; those chosen most get the seats, which makes it faster"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The bytes of a device's memory that a model would take."""

    device: str  # a name, or what was assumed instead
    free: int
    allowed: int  # of it, by `memory_utilization`
    weights: int
    activations: int  # and everything else that does not grow with the cache
    states: int = 0  # of all sequences that run at once, and of snapshots
    snapshots: int = 0  # so many; no bytes
    slot_bytes: int = 0  # of `states`, for one sequence
    kv_block: int  # of all layers, or one group of them; 0: there is no cache
    kv_windows: int = 0  # of the cache, for the windows of one sequence, if they release blocks
    kv_step: int = 0  # of the cache, for the tokens of one step in groups with a window
    window_groups: int = 0
    window: int = 0  # tokens
    kept_windows: str = ""  # why layers with a window release nothing; empty if they do
    block_size: int  # tokens
    kv_dtype: str
    context: int  # tokens of one sequence
    hosted: HostedEstimate | None = None  # None: all experts are on the device, if there are any
    host_table: int = 0  # of the host's memory, for a table of embeddings
    host_free: int | None = None  # bytes that the host can give; None: it is not the one at hand

    @property
    def kv_sequence(self) -> int:
        """The cache of one sequence of full length."""
        return -(-self.context // self.block_size) * self.kv_block + self.kv_windows

    @property
    def host_missing(self) -> int:
        """Bytes that the host lacks for weights that the device does not hold."""
        experts = 0 if self.hosted is None else self.hosted.host
        return 0 if self.host_free is None else max(experts + self.host_table - self.host_free, 0)

    @property
    def left_for_kv(self) -> int:
        """Bytes of the cache for sequences; negative if not even the rest fits."""
        return self.allowed - self.weights - self.activations - self.states - self.kv_step

    @property
    def longest_context(self) -> int:
        """Tokens of the longest sequence that the cache has room for; there is a cache."""
        left = max(self.left_for_kv - self.kv_windows, 0)
        return left // self.kv_block * self.block_size


@runtime_checkable
class Planning(Backend, Protocol):
    """A backend that knows what a model needs before it loads it: `rocmforge inspect --plan`."""

    def estimate(
        self, checkpoint: Checkpoint, options: LoadOptions, memory: int | None
    ) -> MemoryEstimate:
        """Returns the plan that `load` would follow; reads no weights.

        Args:
            checkpoint: the opened model.
            options: as for `load`.
            memory: free bytes of a device that is not here; None = look at the device.

        Raises:
            ModelLoadError: the model cannot be served.
            ConfigurationError: no such device.
        """
        ...


@runtime_checkable
class Rounding(Runner, Protocol):
    """A runner that can also compute as if its numbers were rounded where other backends do it.

    What that changes is what rounding explains of another backend's difference.
    """

    def rounded(self, kv_dtype: str, activation_bits: int) -> Runner:
        """Returns a runner with the same weights and a cache of its own.

        Args:
            kv_dtype: as of `RunnerInfo`: what keys and values are rounded to.
            activation_bits: as of `RunnerInfo`; all activations are rounded that are multiplied.
        """
        ...
