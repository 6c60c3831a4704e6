"""A step: what a runner is given for it, and what it returns.

Symbols used in shapes: T tokens in the step, B sequences, M blocks per sequence (padded),
L rows whose logits are needed, P ranges of tokens whose hidden states are wanted, V vocabulary
size, K top_logprobs asked for, E tokens whose embeddings are given, D elements of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from rocmforge.backend.arrays import (
    BoolArray,
    Float32Array,
    Int32Array,
    Int64Array,
    UInt32Array,
    UInt64Array,
)

NO_SOURCE = -1
"""`StepInput.token_source` of a token whose id is known to the host."""
SAMPLE = -1
"""`SamplingBatch.target_ids` of a row that draws a token (others score the given one)."""
NO_ADAPTER = -1
"""`StepInput.adapters` of a sequence that the model computes as it is."""
NO_SLOT = -1
"""The state slot of a sequence that holds none, or of a model without states."""
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

    @classmethod
    def greedy(cls, rows: int) -> Self:
        """Returns rows that take the largest logit, and report no log-probability."""
        zeros, ones = np.zeros(rows, np.float32), np.ones(rows, np.float32)
        ints, offsets, none = (
            np.zeros(rows, np.int32),
            np.zeros(rows + 1, np.int32),
            np.zeros(0, np.int32),
        )
        return cls(
            temperature=zeros,
            top_k=ints,
            top_p=ones,
            min_p=zeros,
            repetition_penalty=ones,
            presence_penalty=zeros,
            frequency_penalty=zeros,
            seed=np.zeros(rows, np.uint64),
            position=ints,
            num_logprobs=ints - 1,
            target_ids=np.full(rows, SAMPLE, np.int32),
            seen_offsets=offsets,
            seen_tokens=none,
            seen_counts=none,
            bias_offsets=offsets,
            bias_tokens=none,
            bias_values=np.zeros(0, np.float32),
        )

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
    # A sequence may go on from the states that the one right before it leaves after its last token:
    # both are parts of one, computed in their `turns`, and it may write what parts before it read.
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
        counts = self.new_tokens
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
    def new_tokens(self) -> Int32Array:
        """New tokens of each sequence, int32 [B]."""
        return self.query_start[1:] - self.query_start[:-1]

    @property
    def goes_on(self) -> BoolArray:
        """Whether each sequence goes on from the states that the one before it leaves, bool [B]."""
        goes_on = np.zeros(self.num_sequences, np.bool_)
        if len(self.state_reads):
            left = self.state_writes[self.query_start[1:-1] - 1]
            goes_on[1:] = self.state_reads[1:] == left
        return goes_on

    @property
    def turns(self) -> Int32Array:
        """How many sequences right before each one leave the states that it goes on from, [B]."""
        numbers = np.arange(self.num_sequences, dtype=np.int32)
        turns: Int32Array = numbers - np.maximum.accumulate(np.where(self.goes_on, 0, numbers))
        return turns

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
        return np.repeat(self.adapters, self.new_tokens)


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
