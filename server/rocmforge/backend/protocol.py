"""The boundary between the engine and a device: what goes in, what comes out.

A `Backend` finds devices and loads a model onto one; the `Runner` it returns executes steps.
A runner knows nothing about requests. It sees flat token batches, a block table and sampling
parameters, and everything it needs for a step is in the `StepInput`. Preemption, cancellation
and prefix reuse are bookkeeping on the engine's side of this boundary.

Symbols used in shapes: T tokens in the step, B sequences, M blocks per sequence (padded),
L rows whose logits are needed, P ranges of tokens whose hidden states are wanted, V vocabulary
size, K top_logprobs asked for, E tokens whose embeddings are given, D elements of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.cache_types import KvDtype
from rocmforge.choices import ActivationBits, DecodeVariant, Switch
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import AdapterSpec
from rocmforge.models.vision.config import ProcessorConfig

UInt8Array = npt.NDArray[np.uint8]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]
Float32Array = npt.NDArray[np.float32]

NO_SOURCE = -1
"""`StepInput.token_source` of a token whose id is known to the host."""
SAMPLE = -1
"""`SamplingBatch.target_ids` of a row that draws a token (others score the given one)."""
NO_ADAPTER = -1
"""`StepInput.adapters` of a sequence that the model computes as it is."""
NO_SLOT = -1
"""The state slot of a sequence that holds none, or of a model without states."""
_MOST_SNAPSHOTS = 64
_SNAPSHOT_SHARE = 8
_DRAFTING_AT_ONCE = 4
"""Sequences with states whose draft tokens can be checked in one step."""
MAX_KEPT_STATES = 47
"""New tokens that a sequence may have in a step that keeps states between them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProcessorBatch:
    """Uses of logits processors (`rocmforge.logits`): U of them, those of a row in their order.

    The history of a row is what its widest window needs of its tokens, prompt and output, without
    the placeholders of embeddings; rows without processors have none. The token that is still on
    the device (see `StepInput.token_source`) stands there as -1: the backend fills it in.
    """

    names: tuple[str, ...]  # [U]
    rows: Int32Array  # [U], ascending
    numbers: Float32Array  # [U, N], the numeric parameters, in the order of their declaration
    token_sets: UInt32Array  # [U, W], bit t % 32 of word t // 32; W is 0 if no use has a set
    windows: Int32Array  # [U], how many of the last tokens of the history to look at
    uniforms: Float32Array  # [U], a random number in [0, 1)
    history_offsets: Int32Array  # [L + 1]
    history: Int32Array  # [history_offsets[-1]]
    prompt_lengths: Int32Array  # [L], index in the row's history of its first generated token


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SamplingBatch:
    """The sampling parameters of the L logit rows: a structure of arrays, one entry a row.

    The order of operations, the same in every backend (see docs in `sampling` of the reference):
    repetition, presence and frequency penalties; logit bias; `allowed`; `processors`; temperature;
    min-p; top-k; top-p; draw. Temperature 0 means greedy: the smallest token id among the largest
    logits.
    Log-probabilities are those of the model, before any of this.

    The draw is the Gumbel-max trick with Philox4x32-10 noise keyed by (`seed`, `position`,
    token id), so it does not depend on the batch, on other rows, or on the backend.
    """

    temperature: Float32Array  # [L], 0 = greedy
    top_k: Int32Array  # [L], 0 = off
    top_p: Float32Array  # [L], 1 = off
    min_p: Float32Array  # [L], 0 = off
    repetition_penalty: Float32Array  # [L], 1 = off
    presence_penalty: Float32Array  # [L], 0 = off
    frequency_penalty: Float32Array  # [L], 0 = off
    seed: UInt64Array  # [L]
    position: Int32Array  # [L], index in its sequence of the token being drawn
    num_logprobs: Int32Array  # [L], top_logprobs to report; -1 = not even the chosen one's
    target_ids: Int32Array  # [L], SAMPLE, or the token to score instead of drawing

    # Tokens seen so far, for rows with a penalty only (others have an empty range): compressed
    # rows. A count of 0 is a token that stands in the prompt but not in the output. The token
    # that is still on the device (see StepInput.token_source) is not in here: the backend adds it.
    seen_offsets: Int32Array  # [L + 1]
    seen_tokens: Int32Array  # [seen_offsets[-1]]
    seen_counts: Int32Array  # [seen_offsets[-1]], times in the output

    # Logit bias, compressed rows; minus infinity forbids a token.
    bias_offsets: Int32Array  # [L + 1]
    bias_tokens: Int32Array  # [bias_offsets[-1]]
    bias_values: Float32Array  # [bias_offsets[-1]]

    # Bit t % 32 of word t // 32 says whether token t may be drawn; None if no row is constrained.
    # Only for backends with `RunnerInfo.masks_tokens`.
    allowed: UInt32Array | None = None  # [L, ceil(V / 32)]

    # None if no row has any. Only those that `RunnerInfo.logits_processors` names.
    processors: ProcessorBatch | None = None
    # `allowed` is only room for masks, which come with `MasksLate.constrain`. Only for runners that
    # have that.
    is_masked_later: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of logits, L."""
        return len(self.temperature)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepInput:
    """One forward pass over a flat batch of tokens of several sequences.

    Sequence b owns tokens `query_start[b]:query_start[b+1]`; prefill chunks and decodes mix
    freely. The keys and values of token t go to slot `slot_mapping[t]` of the cache
    (`block * block_size + offset`), and t attends to positions `0..positions[t]` of its
    sequence, found through the block table.
    """

    step_id: int  # counts up by one from 0
    token_ids: Int32Array  # [T]; undefined where token_source is set
    token_source: Int32Array  # [T]; NO_SOURCE, or the row of the previous step's output
    positions: Int32Array  # [T]
    slot_mapping: Int64Array  # [T]
    query_start: Int32Array  # [B + 1]
    context_len: Int32Array  # [B], tokens in the cache once this step has run
    block_table: Int32Array  # [B, M], padded with 0
    logit_rows: Int32Array  # [L], indices into the T tokens; may be empty
    sampling: SamplingBatch  # of L rows
    # The predictor computes it, which guesses what the model would draw: one token of each
    # sequence, at most one behind those that were computed before. Only for runners whose
    # `RunnerInfo.predicts`.
    predicts: bool = False
    # Index in `LoadOptions.adapters` of each sequence's, or NO_ADAPTER; empty if none has one.
    adapters: Int32Array = field(default_factory=lambda: np.zeros(0, np.int32))  # [B]
    # Of a model with `RunnerInfo.state_slots`, else empty: where the states of each sequence before
    # its first token of the step are, which are zero without a token before, whatever that slot
    # holds; and the slots for the states after each token, or NO_SLOT where they are not kept.
    # Those after the last token of a sequence are kept, perhaps in the slot they were read from.
    # No other slot that is read changes, and none is written twice.
    state_reads: Int32Array = field(default_factory=lambda: np.zeros(0, np.int32))  # [B]
    state_writes: Int32Array = field(default_factory=lambda: np.zeros(0, np.int32))  # [T]
    # Of a model with `RunnerInfo.window_groups`, G, else empty: what `block_table` and
    # `slot_mapping` are to layers without a window, for each group of those with one. Columns whose
    # tokens no token of the step sees mean nothing.
    window_tables: Int32Array = field(  # [G, B, M]
        default_factory=lambda: np.zeros((0, 0, 0), np.int32)
    )
    window_slots: Int64Array = field(  # [G, T]
        default_factory=lambda: np.zeros((0, 0), np.int64)
    )
    # First token, and the one behind the last, of ranges whose hidden states after the last norm
    # are wanted as a sum; at most one range of a sequence. Only for backends with
    # `RunnerInfo.hidden_size`.
    hidden_ranges: Int32Array = field(default_factory=lambda: np.zeros((0, 2), np.int32))  # [P, 2]
    # Tokens, in ascending order, and the embeddings to compute on instead of the table's rows for
    # them. Nothing scales these rows. The ids of these tokens are placeholders, which are in the
    # vocabulary. Only for backends with `RunnerInfo.embedding_size`, which is D. Behind a row there
    # may be others, which are added to the hidden state behind the first layers, one for each.
    embedding_tokens: Int32Array = field(default_factory=lambda: np.zeros(0, np.int32))  # [E]
    # They are in pieces, so that nobody copies rows of images to put them together: the pieces
    # below each other are those of all tokens. Where one has fewer parts, the others are zeros.
    embedding_rows: tuple[Float32Array, ...] = ()  # [e, parts * D] each
    # Position behind the last token that each token sees, where some see others behind them: rows
    # of an image, whose whole span is in the cache once the step has run. Empty: each sees itself
    # and what is before it. Windows begin where they do otherwise.
    seen_ends: Int32Array = field(default_factory=lambda: np.zeros(0, np.int32))  # [T], ascending
    # Positions that queries and keys rotate by, of a model whose positions have axes: time, row and
    # column, or of a tower row and column. Empty: all are `positions`.
    axis_positions: Int32Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # [T, A]
    # Of a tower, the patch at each token, whose id is its place in its tile. Hidden ranges are the
    # patches of each row of embeddings, one range after the other: several of a sequence.
    patches: Float32Array = field(  # [T, ModelConfig.patch_features]; [0, 0] of other models
        default_factory=lambda: np.zeros((0, 0), np.float32)
    )
    # Of a tower with windows of a tile, the first token of each and the one behind the last: one
    # sequence, whose tokens are in their order. Else empty.
    tile_windows: Int32Array = field(default_factory=lambda: np.zeros(0, np.int32))  # [windows + 1]
    # Of a tower with a table for places of its own, the four rows of it between which each patch
    # lies, and how much of each is taken; else empty.
    place_ids: Int32Array = field(default_factory=lambda: np.zeros((0, 4), np.int32))  # [T, 4]
    place_shares: Float32Array = field(  # [T, 4]
        default_factory=lambda: np.zeros((0, 4), np.float32)
    )

    def __post_init__(self) -> None:
        """Asserts what kernels rely on about states."""
        if not len(self.state_reads):
            assert not len(self.state_writes), "states are written, but not read"
            return
        assert len(self.state_reads) == self.num_sequences, "a slot to read for each sequence"
        assert len(self.state_writes) == self.num_tokens, "a slot to write, or none, for each token"
        last = self.query_start[1:] - 1
        assert (self.state_writes[last] >= 0).all(), "the last states of a sequence are not kept"
        if self.num_tokens > self.num_sequences:
            self._check_states_between(last)

    def _check_states_between(self, last: Int32Array) -> None:
        """Asserts that states before those of the last tokens are where kernels can write them."""
        kept = self.state_writes >= 0
        kept[last] = False
        counts = np.diff(self.query_start)
        owners = np.repeat(np.arange(self.num_sequences), counts)[kept]
        assert counts[owners].max(initial=0) <= MAX_KEPT_STATES, "states kept between many tokens"
        written = self.state_writes[kept]
        assert (written != self.state_reads[owners]).all(), "a slot is written before it is read"

    @property
    def num_tokens(self) -> int:
        """Tokens, T."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """Sequences, B."""
        return len(self.context_len)

    @property
    def embedded(self) -> Iterator[tuple[Int32Array, Float32Array]]:
        """Yields the tokens of each piece of `embedding_rows`, [e], and the piece."""
        start = 0
        for rows in self.embedding_rows:
            yield self.embedding_tokens[start : start + len(rows)], rows
            start += len(rows)

    @property
    def token_adapters(self) -> Int32Array:
        """The adapter of each token's sequence, [T]; empty if none has one."""
        if not len(self.adapters):
            return self.adapters
        return np.repeat(self.adapters, np.diff(self.query_start))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The costs of a step besides time. With tensor parallelism: on the first device."""

    bytes_read: int  # of weights, KV cache and states, each once: the least there is to read
    launches: int  # calls that started kernels since the step before was collected
    gap_ns: int  # device time from the end of the step before to the start of this one
    # Of a model some of whose experts are on the host alone: experts read, each once in a layer,
    # those of them that were read from there, and those that came to the device before the step.
    expert_reads: int = 0
    host_expert_reads: int = 0
    expert_swaps: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StepOutput:
    """The results of a step, one entry for each of its L logit rows.

    A row whose model output holds a NaN gives token -1: the engine ends that sequence with an
    error instead of sending nonsense. With two steps in flight the next step may already name
    that row as a `token_source`; the backend then computes any valid token (say 0) in its place,
    and the engine drops the result.
    """

    step_id: int
    token_ids: Int32Array  # [L], drawn or given
    logprobs: Float32Array | None  # [L], of token_ids; None if no row asked
    top_ids: Int32Array | None  # [L, K], most probable first; None if no row asked
    top_logprobs: Float32Array | None  # [L, K]
    device_ns: int  # time the device spent on the step
    hidden: Float32Array | None = None  # [P, hidden_size], sums; None if there is no range
    host_processed_rows: int = 0  # whose logits went to the host, for want of a compiled processor
    cost: StepCost | None = None  # None = the backend does not measure it


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
