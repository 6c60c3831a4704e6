"""The boundary between the engine and a device: what goes in, what comes out.

A `Backend` finds devices and loads a model onto one; the `Runner` it returns executes steps.
A runner knows nothing about requests. It sees flat token batches, a block table and sampling
parameters, and everything it needs for a step is in the `StepInput`. Preemption, cancellation
and prefix reuse are bookkeeping on the engine's side of this boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from rocmforge.backend.arrays import Int32Array, UInt8Array, UInt32Array
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.checkpoint.cache_types import KvDtype
from rocmforge.choices import ActivationBits, DecodeVariant, Switch
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import AdapterSpec
from rocmforge.models.vision.config import ProcessorConfig

_MOST_SNAPSHOTS = 64
_SNAPSHOT_SHARE = 8
_DRAFTING_AT_ONCE = 4
"""Sequences with states whose draft tokens can be checked in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device a backend could use, as `rocmforge backends` shows it."""

    index: int
    name: str
    target: str  # "gfx1100", "x86_64", ...
    memory_total: int  # bytes
    memory_free: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The devices that a backend found. None is not an error: `reason` says why."""

    devices: tuple[DeviceInfo, ...]
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Limits that the operator chose for one loaded model."""

    device: str | None  # index, name or bus id (several: with commas); None = the backend's best
    max_context: int  # tokens; never above the model's own limit
    max_sequences: int  # largest B of a step
    max_batched_tokens: int  # largest T of a step
    kv_blocks: int | None  # size of the cache; None = as many as fit
    kv_dtype: Literal["auto", KvDtype]
    memory_utilization: float  # share of the device memory to use, 0..1
    tensor_parallel: int = 1  # devices that share each layer; `device` then lists as many
    adapters: tuple[AdapterSpec, ...] = ()
    memory_share: float = 1.0  # of the device's whole memory; other models may have the rest
    activation_bits: ActivationBits = "auto"
    draft_tokens: int = 0  # that a step checks of one sequence, as a rule: room for their speed
    # Captured graphs of decode steps, where there are any; auto = if a check at load allows it.
    graphs: Switch = "on"
    # To which `max_context` may be lowered if it does not fit; None = it may not. A backend sees
    # None: `engine.context` settles it before.
    least_context: int | None = None
    decode_variant: DecodeVariant = "plain"
    # Whether decodes that share the first blocks of the cache read them once; auto = where a step
    # then reads at most half as much of the cache.
    shared_prefix: Switch = "off"
    # Share of each layer's experts that the device holds, while all are in the host's memory;
    # None = all of them if they fit, or else as many as do.
    device_experts: float | None = None

    # Snapshots of states that there is room for, beside the states of all sequences; None = as many
    # as `snapshots_within` says.
    state_snapshots: int | None = 0
    # Whether layers with a window give up blocks that it has left behind: `plan_windows`.
    releases_windows: bool = False

    def running_slots(self, config: ModelConfig) -> int:
        """Returns the state slots of sequences that run, and of the draft tokens of a few."""
        if not config.has_states:
            return 0
        return self.max_sequences + min(self.max_sequences, _DRAFTING_AT_ONCE) * self.draft_tokens

    def snapshots_within(self, left: int, state_bytes: int) -> int:
        """Returns how many snapshots of states there are.

        Args:
            left: bytes for them and the KV cache; an eighth of them is taken at most.
            state_bytes: of one sequence; 0 = there are none.
        """
        if not state_bytes:
            return 0
        if self.state_snapshots is not None:
            return self.state_snapshots
        return min(_MOST_SNAPSHOTS, max(left, 0) // (_SNAPSHOT_SHARE * state_bytes))

    def memory_of(self, device: DeviceInfo) -> int:
        """Returns the free bytes of a device that this model may count on."""
        return min(device.memory_free, int(device.memory_total * self.memory_share))

    def context_of(self, config: ModelConfig) -> int:
        """Returns the tokens that a sequence may have; one step computes them unless causal."""
        context = min(config.max_context, self.max_context)
        return context if config.causal else min(context, self.max_batched_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """The facts of a loaded model."""

    backend: str
    device: DeviceInfo
    block_size: int  # tokens per KV block
    num_blocks: int
    max_context: int  # tokens one sequence may have
    vocab_size: int
    pipeline_depth: int  # steps that may be submitted before the first is collected: 1 or 2
    weights_bytes: int
    kv_bytes: int
    kv_dtype: str
    copy_bandwidth: float = 0.0  # bytes a second read and written in a copy; 0 = not measured
    bus_ids: tuple[str, ...] = ()  # PCI addresses of its devices, "0000:03:00.0"
    # Decode steps are replayed from graphs (checked at load, or not), or are not (as the operator
    # or the check wants it); none = the backend has no graphs for this model.
    graphs: Literal["checked", "unchecked", "off", "failed", "none"] = "none"
    notes: tuple[str, ...]  # anything an operator should know, shown at start and in /health
    hidden_size: int = 0  # width of the hidden states it can return; 0 = it cannot
    embedding_size: int = 0  # width of `StepInput.embedding_rows`; 0 = it takes none
    masks_tokens: bool = False  # whether sampling honours `SamplingBatch.allowed`
    logits_processors: tuple[str, ...] = ()  # names that sampling honours
    adapters: tuple[str, ...] = ()  # names of those that were loaded, as `StepInput` numbers them
    adapter_bytes: int = 0  # of all of them
    # False: its steps have no logit rows, only hidden ranges, and each holds whole prompts, which
    # attend to all of themselves. There is no cache: `num_blocks` is 0, `block_table` has no
    # columns, and `slot_mapping` means nothing. `hidden_size` is the number of scores if the model
    # ranks.
    causal: bool = True
    # Sequences, draft tokens and snapshots whose states there is room for, and the bytes of all; 0:
    # the model has no states.
    state_slots: int = 0
    state_bytes: int = 0
    snapshots: int = 0  # of `state_slots`; the others are for `LoadOptions.running_slots`
    # Groups of layers that release what their window has left behind; 0: there are none. Then each
    # block is one of a group, or of the layers without a window.
    window_groups: int = 0
    window: int = 0  # tokens that are kept in these groups, up to the one that is computed
    # To which activations are rounded where they meet quantised weights in decode steps; 32: not.
    activation_bits: int = 32
    # Whether it computes steps with `StepInput.predicts`, and fills the predictor's cache in all.
    predicts: bool = False
    # How images are prepared for the tower beside the model; None: it takes none. The engine says
    # it, which loads both.
    images: ProcessorConfig | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of a KV block, of all layers or one group of them; 0 without a cache."""
        return self.kv_bytes // self.num_blocks if self.num_blocks else 0

    @property
    def slot_bytes(self) -> int:
        """Bytes of a state slot, of all layers; 0 without states."""
        return self.state_bytes // self.state_slots if self.state_slots else 0


ProgressCallback = Callable[[str, float], None]
"""Called while loading with what is being done and the share of it done, 0..1."""


class Runner(Protocol):
    """A model on a device. Used by one thread only.

    Steps run in the order of submission, so a block freed by the engine when it schedules a
    step may be written by that step although the step before it still reads it. Within a step,
    a layer stores the keys and values of all tokens before any of them attends: sequences may
    share blocks that one of them fills in the same step.
    After any call has raised, only `close` may be called.
    """

    @property
    def info(self) -> RunnerInfo:
        """Constant facts."""
        ...

    def submit(self, step: StepInput) -> None:
        """Starts a step. At most `info.pipeline_depth` may be submitted and not yet collected.

        Raises:
            EngineError: the device failed.
        """
        ...

    def collect(self) -> StepOutput:
        """Waits for the oldest step not yet collected and returns its result.

        Raises:
            EngineError: the device failed.
        """
        ...

    def close(self) -> None:
        """Frees everything. Idempotent; works after an error."""
        ...


@runtime_checkable
class MasksLate(Runner, Protocol):
    """A runner of depth 2 that takes the masks of a step while it computes that step.

    What a row may draw can depend on the token before it, which the step before draws. With this
    the forward pass needs not wait for the host to know that token.
    """

    def constrain(self, allowed: UInt32Array) -> None:
        """Brings the masks of the step submitted last, which waits for them before it samples.

        Called once for each step that `is_masked_later`, when the step before it has been
        collected, and before another is submitted.

        Args:
            allowed: `SamplingBatch.allowed` of that step, [L, ceil(V / 32)].

        Raises:
            EngineError: the device failed.
        """
        ...


@runtime_checkable
class CopiesBlocks(Runner, Protocol):
    """A runner that copies blocks and states to the host's memory and back, beside its steps.

    The copies of one runner take place one after another, in the order of the calls. Each begins
    when all steps submitted before the call have ended. A step submitted after the call finds
    blocks and states as if the copy had been made at the call: what it reads has been restored,
    and what it overwrites has been saved.
    """

    def open_host_blocks(self, count: int) -> UInt8Array:
        """Returns new memory of the host for so many blocks; called once, before any copy.

        It lies in slots of `RunnerInfo.block_bytes`, [count, block_bytes], and lives as long as
        the runner. A slot belongs to the runner from the call that names it until that copy has
        been reported by `finished_copies`.

        Raises:
            OutOfMemory: there is not that much that the device could copy from.
        """
        ...

    def save_blocks(self, blocks: Int32Array, slots: Int32Array) -> None:
        """Starts copying blocks to slots, [N] each, N at least 1; no slot is named twice.

        Raises:
            EngineError: the device failed.
        """
        ...

    def restore_blocks(self, blocks: Int32Array, slots: Int32Array) -> None:
        """Starts copying slots to blocks, [N] each, N at least 1; no block is named twice.

        Raises:
            EngineError: the device failed.
        """
        ...

    def open_host_states(self, count: int) -> UInt8Array:
        """Returns new memory of the host for so many state slots, as `open_host_blocks` does.

        It has the shape [count, slot_bytes]. Only of a model with states, and after that call.

        Raises:
            OutOfMemory: there is not that much that the device could copy from.
        """
        ...

    def save_states(self, states: Int32Array, slots: Int32Array) -> None:
        """Starts copying state slots to slots of the host's memory, as `save_blocks` does.

        Raises:
            EngineError: the device failed.
        """
        ...

    def restore_states(self, states: Int32Array, slots: Int32Array) -> None:
        """Starts copying slots of the host's memory to state slots, as `restore_blocks` does.

        Raises:
            EngineError: the device failed.
        """
        ...

    def finished_copies(self) -> list[int]:
        """Returns the nanoseconds of each call that has ended since this was asked; never waits.

        Raises:
            EngineError: the device failed.
        """
        ...


class Backend(Protocol):
    """A plugin, found through the entry point group `rocmforge.backends`."""

    @property
    def name(self) -> str:
        """The name users give to `--backend`."""
        ...

    def probe(self) -> ProbeResult:
        """Looks for devices without touching their memory. Never raises for a missing driver."""
        ...

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> Runner:
        """Loads a model onto a device.

        Args:
            checkpoint: The opened model, with its adapters. It may be closed afterwards.
            options: Limits.
            progress: Called while loading.

        Raises:
            ModelLoadError: the model cannot be served.
            OutOfMemory: it does not fit; the message says what would.
            ConfigurationError: no such device.
        """
        ...
