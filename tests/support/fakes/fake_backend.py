"""A backend that answers at once, and notices what an engine does wrong.

Its "model" hashes the whole context of a token, which it reads back through the block table from
a paged cache of token ids. A wrong token, position, slot, block or source row changes what
follows, and `continuation` (`fake_model`) says what should have followed. What can be checked
within a step is checked there; `FakeMistake` names what is wrong.

For `--backend`: `tests.support.fakes.fake_backend:create`, or one of

    create_pipelined            two steps in flight, masks follow while a step runs
    create_slow                 20 ms a step
    create_very_slow            700 ms a step
    create_watched              20 ms a step, on a device with an address
    create_slow_load            five seconds to load
    create_stuck_load           an hour to load
    create_unloadable           the file is refused
    create_told_how_to_load     a file beside the model's, which ends in .told, has a word for
                                each load: serve, hang or die
    create_tiny                 twelve blocks of four tokens
    create_failing_submit_<k>   `submit` raises at its k-th call, counted from 0
    create_failing_collect_<k>  the same for `collect`
    create_hanging_<k>          `collect` never returns from its k-th call
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array, UInt8Array, UInt32Array, UInt64Array
from rocmforge.backend.protocol import (
    DeviceInfo,
    LoadOptions,
    ProbeResult,
    ProgressCallback,
    RunnerInfo,
)
from rocmforge.backend.step import (
    NO_ADAPTER,
    NO_SLOT,
    NO_SOURCE,
    SAMPLE,
    StepCost,
    StepInput,
    StepOutput,
)
from rocmforge.errors import BackendError, UnsupportedArchitecture
from rocmforge.models.checkpoint import Checkpoint
from tests.support.fakes.fake_model import (
    HIDDEN_SIZE,
    NO_TOKEN,
    adapter_seeds,
    context_sums,
    hidden_of,
    logprob,
    mix,
    numbers_of,
)

BUS_ID = "0000:03:00.0"
DEVICE = DeviceInfo(
    index=0, name="fake device", target="fake", memory_total=1 << 30, memory_free=1 << 30
)
STATE_BYTES = 16
"""Of a state: the number of its tokens and their checksum."""


class FakeMistake(AssertionError):
    """The engine submitted a step that contradicts itself or what is in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeConfig:
    """How the fake behaves."""

    pipeline_depth: int = 1
    block_size: int = 16
    num_blocks: int = 4096
    max_context: int = 32768
    vocab_size: int = 1000
    step_s: float = 0.0
    load_s: float = 0.0
    is_told_how_to_load: bool = False
    refuse: bool = False
    fail_submit: int | None = None
    fail_collect: int | None = None
    hang_collect: int | None = None
    nan_token: int | None = None  # the last token of a context that gives a NaN
    masks_late: bool = False  # whether the runner is a `MasksLate`; with a depth of 2
    adapters: tuple[str, ...] = ("fake-0", "fake-1")
    wrong_one_in: int | None = None  # contexts after which it draws something else than it should
    step_ns: int = 1000  # what it says that a step takes
    token_ns: int = 0  # what a token adds to that
    num_slots: int = 0  # state slots of sequences; 0: the "model" has no states
    snapshots: int = 0  # more slots
    window_groups: int = 0  # groups of layers that release what a window has left behind
    window: int = 0  # tokens
    copy_ns: int = 1  # what it says that copying blocks to the host or back takes
    is_measured: bool = False  # whether steps say what they cost, and the device how fast it copies


@dataclass(frozen=True, slots=True)
class _Copy:
    steps: int  # that were submitted before
    is_restore: bool
    places: Int32Array
    slots: Int32Array
    copy_one: Callable[[int, int, bool], None]


class FakeRunner:
    """Keeps token ids and positions by slot, and computes a step when it is collected."""

    def __init__(self, config: FakeConfig, max_context: int, max_sequences: int, max_tokens: int):
        self._config = config
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens
        num_slots = config.num_blocks * config.block_size
        self._tokens = np.full(num_slots, -1, np.int32)
        self._positions = np.full(num_slots, -1, np.int32)
        self._adapters = np.full(num_slots, -1, np.int32)
        self._groups = np.zeros(num_slots, np.int32)  # that wrote it last
        # Of each state slot: how many tokens went into its state, and their checksum.
        self._states = [(-1, 0)] * (config.num_slots + config.snapshots)
        self._queue: deque[StepInput] = deque()
        self._copies: deque[_Copy] = deque()
        self._host_blocks: UInt8Array = np.zeros((0, 0), np.uint8)
        self._host_states: UInt8Array = np.zeros((0, 0), np.uint8)
        self._num_copied = 0
        self._previous = np.zeros(0, np.int32)
        self._submits = 0
        self._collects = 0
        self.closed = False
        self.info = RunnerInfo(
            backend="fake",
            device=DEVICE,
            block_size=config.block_size,
            num_blocks=config.num_blocks,
            max_context=min(config.max_context, max_context),
            vocab_size=config.vocab_size,
            pipeline_depth=config.pipeline_depth,
            weights_bytes=0,
            kv_bytes=num_slots * 16,
            kv_dtype="tokens",
            copy_bandwidth=1e9 if config.is_measured else 0.0,
            bus_ids=(BUS_ID,) if config.is_measured else (),
            hidden_size=HIDDEN_SIZE,
            embedding_size=HIDDEN_SIZE,
            masks_tokens=True,
            adapters=config.adapters,
            state_slots=config.num_slots + config.snapshots,
            state_bytes=(config.num_slots + config.snapshots) * STATE_BYTES,
            snapshots=config.snapshots,
            window_groups=config.window_groups,
            window=config.window,
            notes=("This backend makes tokens up.",),
        )

    def submit(self, step: StepInput) -> None:
        """Checks the step's own logic and queues it."""
        self._require(not self.closed, "submit after close")
        if self._submits == self._config.fail_submit:
            raise BackendError("fake submit", f"planted at call {self._submits}")
        self._require(step.step_id == self._submits, "step ids count up by one")
        self._submits += 1
        self._check_shapes(step)
        self._require(
            not any(queued.sampling.is_masked_later for queued in self._queue),
            "a step follows one that waits for its masks",
        )
        self._queue.append(step)
        self._require(len(self._queue) <= self._config.pipeline_depth, "too many steps in flight")

    def collect(self) -> StepOutput:
        """Computes the oldest step."""
        self._require(bool(self._queue), "collect without a step")
        if self._collects == self._config.fail_collect:
            raise BackendError("fake collect", f"planted at call {self._collects}")
        if self._collects == self._config.hang_collect:
            time.sleep(3600)
        self._collects += 1
        if self._config.step_s:
            time.sleep(self._config.step_s)
        self._copy(self._collects - 1)
        step = self._queue.popleft()
        self._require(not step.sampling.is_masked_later, "no masks came for a step")
        output = self._compute(step)
        self._previous = output.token_ids
        return output

    def open_host_blocks(self, count: int) -> UInt8Array:
        """Memory that begins with what nobody has written."""
        self._host_blocks = np.full((count, self.info.block_bytes), 0xEE, np.uint8)
        return self._host_blocks

    def open_host_states(self, count: int) -> UInt8Array:
        """Memory that begins with what nobody has written."""
        self._host_states = np.full((count, STATE_BYTES), 0xEE, np.uint8)
        return self._host_states

    def save_blocks(self, blocks: Int32Array, slots: Int32Array) -> None:
        """Queues the copy behind the steps that were submitted."""
        self._queue_copy(self._copy_block, (blocks, slots), is_restore=False)

    def restore_blocks(self, blocks: Int32Array, slots: Int32Array) -> None:
        """Queues the copy behind the steps that were submitted."""
        self._queue_copy(self._copy_block, (blocks, slots), is_restore=True)

    def save_states(self, states: Int32Array, slots: Int32Array) -> None:
        """Queues the copy behind the steps that were submitted."""
        self._queue_copy(self._copy_state, (states, slots), is_restore=False)

    def restore_states(self, states: Int32Array, slots: Int32Array) -> None:
        """Queues the copy behind the steps that were submitted."""
        self._queue_copy(self._copy_state, (states, slots), is_restore=True)

    def finished_copies(self) -> list[int]:
        """Copies end late: one each time, or when a step comes that may depend on them."""
        if self._copies and not self._num_copied:
            self._copy(self._collects, most=1)
        copied, self._num_copied = self._num_copied, 0
        return [self._config.copy_ns] * copied

    def _queue_copy(
        self,
        copy: Callable[[int, int, bool], None],
        pairs: tuple[Int32Array, Int32Array],
        *,
        is_restore: bool,
    ) -> None:
        places, slots = pairs
        self._require(0 < len(places) == len(slots), "places and slots of a copy")
        targets = (places if is_restore else slots).tolist()
        self._require(len(set(targets)) == len(targets), "copied to one place twice")
        of_blocks = copy == self._copy_block
        count = self._config.num_blocks if of_blocks else len(self._states)
        self._require(bool((places < count).all()), "no such place")
        host = self._host_blocks if of_blocks else self._host_states
        self._require(bool((slots < len(host)).all()), "no such slot")
        self._copies.append(_Copy(self._submits, is_restore, places.copy(), slots.copy(), copy))

    def _copy(self, steps: int, most: int | None = None) -> None:
        """Makes copies that were asked for before so many steps had been submitted."""
        while self._copies and self._copies[0].steps <= steps and most != 0:
            copy = self._copies.popleft()
            for place, slot in zip(copy.places.tolist(), copy.slots.tolist(), strict=True):
                copy.copy_one(place, slot, copy.is_restore)
            self._num_copied += 1
            most = None if most is None else most - 1

    def _copy_block(self, block: int, slot: int, is_restore: bool) -> None:
        size = self._config.block_size
        host = self._host_blocks[slot].view(np.int32).reshape(4, size)
        arrays = self._tokens, self._positions, self._adapters, self._groups
        for i, array in enumerate(arrays):
            device = array[block * size : (block + 1) * size]
            source, target = (host[i], device) if is_restore else (device, host[i])
            target[:] = source

    def _copy_state(self, place: int, slot: int, is_restore: bool) -> None:
        host = self._host_states[slot].view(np.uint64)
        if is_restore:
            self._states[place] = int(host[0]), int(host[1])
        else:
            host[:] = self._states[place]

    def close(self) -> None:
        """Nothing to free."""
        self.closed = True

    @staticmethod
    def _require(condition: bool, what: str) -> None:
        if not condition:
            raise FakeMistake(what)

    def _check_shapes(self, step: StepInput) -> None:
        size = self._config.block_size
        starts, counts = step.query_start[:-1], np.diff(step.query_start)
        self._require(0 < step.num_tokens <= self._max_tokens, "tokens per step")
        self._require(step.num_sequences <= self._max_sequences, "sequences per step")
        self._require(bool((counts > 0).all()), "a sequence without tokens")
        self._require(int(step.query_start[-1]) == step.num_tokens, "query_start")
        owner = np.repeat(np.arange(step.num_sequences), counts)
        first = (step.context_len - counts)[owner]
        place = np.arange(step.num_tokens) - starts[owner]
        self._require(bool((step.positions == first + place).all()), "positions")
        self._require(int(step.context_len.max()) <= self.info.max_context, "context too long")
        blocks = step.block_table[owner, step.positions // size].astype(np.int64)
        slots = blocks * size + step.positions % size
        self._require(bool((step.slot_mapping == slots).all()), "slots not those of the table")
        groups = self._config.window_groups
        self._require(len(step.window_tables) == len(step.window_slots) == groups, "groups")
        if groups:
            blocks = step.window_tables[:, owner, step.positions // size].astype(np.int64)
            of_groups = blocks * size + step.positions % size
            self._require(bool((step.window_slots == of_groups).all()), "slots of a window")
            slots = np.concatenate([slots, *step.window_slots])
        self._require(len(np.unique(slots)) == len(slots), "a slot is written twice")
        self._require(bool((step.logit_rows < step.num_tokens).all()), "logit rows")
        rows = step.sampling
        self._require(len(step.logit_rows) == rows.num_rows, "number of logit rows")
        adapters = self._adapters_of(step)
        self._require(len(adapters) == step.num_sequences, "number of adapters")
        self._require(bool((adapters < len(self._config.adapters)).all()), "unknown adapter")
        self._check_embeddings(step)
        self._require(len(step.seen_ends) in (0, step.num_tokens), "where tokens see to")
        if len(step.seen_ends):
            is_there = step.seen_ends <= step.context_len[owner]
            self._require(bool(is_there.all()), "a token sees what is not there yet")
            is_behind = step.seen_ends > step.positions
            self._require(bool(is_behind.all()), "a token does not see itself")
        self._check_slots(step, owner)
        drawn = step.positions[step.logit_rows] + 1
        self._require(bool((rows.position == drawn).all()), "position of the drawn token")

    def _check_slots(self, step: StepInput, owner: npt.NDArray[np.intp]) -> None:
        """Who writes a state slot is alone in it; it may have been read before its first token.

        Of parts of one sequence, each reads what the one before it leaves, and may write what those
        before it read.
        """
        reads, writes = step.state_reads, step.state_writes
        self._require(len(reads) == (step.num_sequences if self._states else 0), "state slots")
        if not self._states:
            return
        kept = np.flatnonzero(writes != NO_SLOT)
        self._require(len(np.unique(writes[kept])) == len(kept), "a state slot is held twice")
        for slots in (reads, writes[kept]):
            known = (slots >= 0) & (slots < len(self._states))
            self._require(bool(known.all()), "no such slot")
        readers, writers = np.arange(len(reads)), owner[kept, None]
        begins = readers - step.turns  # the first parts of their sequences
        others = (writes[kept, None] == reads) & (writers != readers)
        is_last = kept == step.query_start[owner[kept] + 1] - 1
        is_next = is_last[:, None] & (writers + 1 == readers)
        is_before = (begins[writers] == begins) & (readers < writers)
        others &= ~(is_next | is_before)
        self._require(not others.any(), "a state slot is read by one and written by another")

    def _check_embeddings(self, step: StepInput) -> None:
        tokens, pieces = step.embedding_tokens, step.embedding_rows
        self._require(bool((np.diff(tokens) > 0).all()), "embedded tokens ascend")
        self._require(bool((tokens < step.num_tokens).all()), "embedded tokens of the step")
        self._require(sum(map(len, pieces)) == len(tokens), "a row for each embedded token")
        width = self.info.embedding_size
        self._require(all(rows.shape[1] == width for rows in pieces), "rows of embeddings")
        self._require(bool((step.token_source[tokens] == NO_SOURCE).all()), "embedding and token")
        placeholders = step.token_ids[tokens]
        known = (placeholders >= 0) & (placeholders < self.info.vocab_size)
        self._require(bool(known.all()), "placeholders are in the vocabulary")

    def _compute(self, step: StepInput) -> StepOutput:
        known = step.token_source == NO_SOURCE
        token_ids = step.token_ids.copy()
        # After a NaN the source is -1: any token will do, the engine drops what comes of it.
        token_ids[~known] = np.maximum(self._previous[step.token_source[~known]], 0)
        self._require(bool(((token_ids >= 0) & (token_ids < NO_TOKEN)).all()), "token ids")
        for tokens, pieces in step.embedded:
            token_ids[tokens] = numbers_of(pieces)
        adapters = np.repeat(self._adapters_of(step), np.diff(step.query_start))
        for group, written in enumerate((step.slot_mapping, *step.window_slots)):
            self._tokens[written] = token_ids
            self._positions[written] = step.positions
            self._adapters[written] = adapters
            self._groups[written] = group
        context = self._read_cache(step)
        self._check_windows(step, context)
        rows = step.sampling
        sums = context_sums(context)
        self._advance_states(step, sums)
        owners = np.searchsorted(step.query_start, step.logit_rows, side="right") - 1
        states = mix(sums[owners, step.positions[step.logit_rows]])
        ids = np.where(rows.target_ids == SAMPLE, self._draw(step, states), rows.target_ids)
        self._check_seen(step, known, context, owners)
        if self._config.nan_token is not None:
            ids[token_ids[step.logit_rows] == self._config.nan_token] = -1
        num_top = int(rows.num_logprobs.max(initial=-1))
        ranks = np.arange(max(num_top, 0), dtype=np.int32)
        tops: Int32Array = (ids[:, None] + ranks) % np.int32(self._config.vocab_size)
        return StepOutput(
            step_id=step.step_id,
            token_ids=ids,
            logprobs=logprob(states, ids) if num_top >= 0 else None,
            top_ids=tops if num_top > 0 else None,
            top_logprobs=logprob(states[:, None], tops) if num_top > 0 else None,
            device_ns=self._config.step_ns + step.num_tokens * self._config.token_ns,
            cost=self._cost(step),
            hidden=self._sum_hidden(step, sums),
        )

    def _advance_states(self, step: StepInput, sums: UInt64Array) -> None:
        """Takes the tokens of the step into the states, after a check of what is in them."""
        for row, slot in enumerate(step.state_reads.tolist()):
            first, stop = step.query_start[row : row + 2].tolist()
            start = int(step.positions[first])
            if start:
                expected = start, int(sums[row, start - 1])
                self._require(self._states[slot] == expected, f"the state in slot {slot}")
            for token in np.flatnonzero(step.state_writes[first:stop] != NO_SLOT).tolist():
                end = start + token + 1
                self._states[int(step.state_writes[first + token])] = end, int(sums[row, end - 1])

    def _cost(self, step: StepInput) -> StepCost | None:
        if not self._config.is_measured:
            return None
        return StepCost(bytes_read=1000 * int(step.context_len.sum()), launches=7, gap_ns=100)

    def _sum_hidden(self, step: StepInput, sums: UInt64Array) -> Float32Array | None:
        """Sums of the hidden states of each range, [P, HIDDEN_SIZE]; whole numbers."""
        if not len(step.hidden_ranges):
            return None
        owners = np.searchsorted(step.query_start, step.hidden_ranges, side="right") - 1
        self._require(len(np.unique(owners[:, 0])) == len(owners), "two ranges of one sequence")
        totals = []
        for owner, (first, end) in zip(owners[:, 0], step.hidden_ranges, strict=True):
            self._require(first < end <= step.query_start[owner + 1], "a range of one sequence")
            states = hidden_of(mix(sums[owner, step.positions[first:end]]))
            totals.append(states.sum(axis=0))
        return np.stack(totals)

    @staticmethod
    def _adapters_of(step: StepInput) -> Int32Array:
        """The adapter of each sequence, [B]."""
        nobody = np.full(step.num_sequences, NO_ADAPTER, np.int32)
        return step.adapters if len(step.adapters) else nobody

    def _read_cache(self, step: StepInput) -> Int32Array:
        """Tokens of all contexts, [B, longest], after a check that each slot is in its place."""
        size = self._config.block_size
        longest = int(step.context_len.max())
        places = np.arange(longest)
        slots = step.block_table[:, places // size].astype(np.int64) * size + places % size
        wrong = (self._positions[slots] != places) | (self._groups[slots] != 0)
        wrong &= places < step.context_len[:, None]
        if wrong.any():
            sequence, place = np.argwhere(wrong)[0]
            raise FakeMistake(f"sequence {sequence}: the cache does not hold position {place}")
        other = self._adapters[slots] != self._adapters_of(step)[:, None]
        self._require(
            not (other & (places < step.context_len[:, None])).any(),
            "the cache was filled under another adapter",
        )
        context: Int32Array = self._tokens[slots]
        return context

    def _check_windows(self, step: StepInput, context: Int32Array) -> None:
        """Each group holds what the tokens of the step see through their window."""
        firsts = step.positions[step.query_start[:-1]] - self._config.window + 1
        for group, tables in enumerate(step.window_tables, start=1):
            for row, (first, end) in enumerate(zip(firsts, step.context_len, strict=True)):
                places = np.arange(max(0, first), end)
                size = self._config.block_size
                slots = tables[row, places // size].astype(np.int64) * size + places % size
                held = (
                    (self._positions[slots] == places)
                    & (self._tokens[slots] == context[row, places])
                    & (self._adapters[slots] == self._adapters_of(step)[row])
                    & (self._groups[slots] == group)
                )
                self._require(bool(held.all()), f"sequence {row}: the window of group {group}")

    def _draw(self, step: StepInput, states: UInt64Array) -> Int32Array:
        """A token for each row, [L]."""
        rows, vocab_size = step.sampling, self._config.vocab_size
        seeds = np.where(rows.temperature > 0, rows.seed, np.uint64(0))
        owners = np.searchsorted(step.query_start, step.logit_rows, side="right") - 1
        seeds ^= adapter_seeds(self._adapters_of(step)[owners])
        drawn = (mix(states ^ seeds) % np.uint64(vocab_size)).astype(np.int32)
        if self._config.wrong_one_in is not None:
            wrong = states % np.uint64(self._config.wrong_one_in) == 0
            drawn[wrong] = (drawn[wrong] + 1) % vocab_size
        for row in np.flatnonzero(np.diff(rows.bias_offsets)).tolist():
            bias = slice(rows.bias_offsets[row], rows.bias_offsets[row + 1])
            forbidden = rows.bias_tokens[bias][np.isneginf(rows.bias_values[bias])]
            while drawn[row] in forbidden:
                drawn[row] = (drawn[row] + 1) % vocab_size
        if rows.allowed is not None:
            self._require(rows.allowed.shape == (rows.num_rows, -(-vocab_size // 32)), "masks")
            bits = np.unpackbits(rows.allowed.view(np.uint8), axis=1, bitorder="little")
            for row in np.flatnonzero(bits[np.arange(len(drawn)), drawn] == 0).tolist():
                choices = np.flatnonzero(bits[row, :vocab_size])
                drawn[row] = choices[drawn[row] % len(choices)] if len(choices) else -1
        return drawn

    def _check_seen(
        self,
        step: StepInput,
        known: npt.NDArray[np.bool_],
        context: Int32Array,
        owners: npt.NDArray[np.signedinteger],
    ) -> None:
        """Rows with seen tokens name exactly the context, but for a token still on the device."""
        rows = step.sampling
        for row in np.flatnonzero(np.diff(rows.seen_offsets)).tolist():
            length = int(rows.position[row]) - int(not known[step.logit_rows[row]])
            expected = {
                token for token in context[owners[row], :length].tolist() if token < NO_TOKEN
            }
            seen = rows.seen_tokens[rows.seen_offsets[row] : rows.seen_offsets[row + 1]].tolist()
            self._require(sorted(expected) == sorted(seen), f"seen tokens of row {row}")


class LateMaskingRunner(FakeRunner):
    """Takes masks while a step runs."""

    def constrain(self, allowed: UInt32Array) -> None:
        """Completes the step submitted last."""
        self._require(len(self._queue) == 1, "the step before is collected first")
        step = self._queue.pop()
        self._require(step.sampling.is_masked_later, "masks for a step that does not wait for any")
        room = step.sampling.allowed
        self._require(room is not None and room.shape == allowed.shape, "room for masks")
        sampling = replace(step.sampling, allowed=allowed, is_masked_later=False)
        self._queue.append(replace(step, sampling=sampling))


def make_runner(
    config: FakeConfig, max_context: int, max_sequences: int, max_tokens: int
) -> FakeRunner:
    """A runner of the kind that the configuration asks for."""
    kind = LateMaskingRunner if config.masks_late else FakeRunner
    return kind(config, max_context, max_sequences, max_tokens)


class FakeBackend:
    """The plugin."""

    name = "fake"

    def __init__(self, config: FakeConfig | None = None) -> None:
        self._config = config or FakeConfig()

    def probe(self) -> ProbeResult:
        """There is always one device."""
        return ProbeResult(devices=(DEVICE,), reason=None)

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> FakeRunner:
        """Takes any model, and does not look into it. One called draft says what the others say,
        but for one token in four."""
        progress("making weights up", 0.0)
        if self._config.load_s:
            time.sleep(self._config.load_s)
        if self._config.is_told_how_to_load:
            _load_as_told(checkpoint.path.with_suffix(".told"))
        if self._config.refuse:
            raise UnsupportedArchitecture("fake", ("llama", "qwen3"))
        progress("making weights up", 1.0)
        config = self._config
        if checkpoint.path.stem == "draft":
            config = replace(config, wrong_one_in=4)
        return make_runner(
            config, options.max_context, options.max_sequences, options.max_batched_tokens
        )


def _load_as_told(words: Path) -> None:
    word, _, rest = words.read_text(encoding="ascii").partition(" ")
    words.write_text(rest, encoding="ascii")
    match word:
        case "hang":
            time.sleep(3600.0)
        case "die":
            os._exit(3)
        case _:
            assert word == "serve", word


def create() -> FakeBackend:
    """Answers at once, one step in flight."""
    return FakeBackend()


_VARIANTS = {
    "create_measured": FakeConfig(pipeline_depth=2, is_measured=True),
    "create_pipelined": FakeConfig(pipeline_depth=2, masks_late=True),
    # So that drafting pays, however busy the machine is.
    "create_costly": FakeConfig(pipeline_depth=2, masks_late=True, step_ns=10**12),
    "create_slow": FakeConfig(step_s=0.02),
    "create_very_slow": FakeConfig(step_s=0.7),
    "create_watched": FakeConfig(step_s=0.02, is_measured=True),
    "create_slow_load": FakeConfig(load_s=5.0),
    "create_stuck_load": FakeConfig(load_s=3600.0),
    "create_unloadable": FakeConfig(refuse=True),
    "create_told_how_to_load": FakeConfig(is_told_how_to_load=True, step_s=0.02),
    "create_huge": FakeConfig(num_blocks=1 << 44),
    "create_tiny": FakeConfig(block_size=4, num_blocks=12, max_context=48),
}


def __getattr__(name: str) -> Callable[[], FakeBackend]:
    config = _VARIANTS.get(name)
    prefix, _, call = name.rpartition("_")
    if config is None and call.isdigit():
        number, slow = int(call), FakeConfig(step_s=0.02, pipeline_depth=2)
        planted = {  # steps take time, in which all requests of a test arrive
            "create_failing_submit": replace(slow, fail_submit=number),
            "create_failing_collect": replace(slow, fail_collect=number),
            "create_hanging": replace(slow, hang_collect=number),
        }
        config = planted.get(prefix)
    if config is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return lambda: FakeBackend(config)
