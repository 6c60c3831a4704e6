"""Steps that a model is tried with at load: nobody asked for what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.backend.step import NO_SLOT, NO_SOURCE, SAMPLE, SamplingBatch, StepInput, StepOutput
from rocmforge.backend.windows import with_windows
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.shapes import MIN_GRAPH_BLOCKS, PROMPT_SIZES, graph_sizes
from rocmforge_hip.weights.formats import ceil_div

TURNS: Final = 3
"""Different steps of each case."""
_TOP_LOGPROBS: Final = 1  # with the chosen token's, this depends on every logit of the row
_PROMPTS: Final = 2  # sizes: products of few rows, and of more
_SEEN: Final = 4  # tokens of a row that has a penalty


class TrialCase(NamedTuple):
    """The values that decide as which graph a step runs."""

    sequences: int
    blocks: int  # own blocks of the longest sequence, but for the last
    sampling: str
    has_adapters: bool
    all_long: bool = False  # or one of them, another in each turn
    has_teams: bool = False  # if the runner has them: sequences read together what they share
    prompt: int = 0  # new tokens of its one sequence, if it is a prompt

    def __str__(self) -> str:
        if self.prompt:
            return f"a prompt of {self.prompt} tokens"
        adapters = " with adapters" if self.has_adapters else ""
        teams = " in teams" if self.has_teams else ""
        return (
            f"{self.sequences} sequences{adapters}{teams}, up to "
            f"{(self.blocks + 1) * BLOCK_TOKENS} tokens of context, {self.sampling} sampling"
        )


class TrialSteps:
    """Steps of decodes on blocks of the cache that share their beginnings.

    The first blocks hold a prompt, which this computes. Each sequence has a block of its own behind
    them, with one more token in every turn. Whatever a kernel reads differs between turns: tokens,
    positions, slots, block tables, lengths, adapters, and what is drawn from. States go on from
    turn to turn, so that a run of turns needs a step before them that makes states: `beginning`.
    """

    def __init__(self, runner: HipRunner, limits: StepLimits) -> None:
        info = runner.info
        self._runner = runner
        self._info = info
        self._limits = limits
        # A block is of one group of layers: what has a place in all of them takes as many.
        self._num_blocks = info.num_blocks // (1 + info.window_groups)
        self._block_size = info.block_size
        self._parts = info.block_size // BLOCK_TOKENS
        self._most = min((limits.context - TURNS) // self._block_size, self._num_blocks - 1)
        self._shared = min(2, self._most)
        end = self._shared * self._block_size
        for first in range(0, end, limits.tokens):
            runner.submit(self.prompt(first, min(first + limits.tokens, end)))
            runner.collect()

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sequences that graphs have room for and there are blocks for, ascending."""
        room = self._num_blocks - self._shared
        if self._info.state_slots:
            room = min(room, self._info.state_slots)
        return tuple({min(size, room): None for size in graph_sizes(self._limits.sequences)})

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt that a step computes and there are blocks for."""
        room = self._num_blocks * self._block_size
        return min(self._limits.tokens, self._limits.context, room)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Own blocks of a short context and, if there may be such, of the longest."""
        shared, most = self._shared * self._parts, self._most * self._parts
        return (shared, most) if most >= MIN_GRAPH_BLOCKS else (shared,)

    def cases(self) -> Iterator[TrialCase]:
        """Yields the cases, small batches first."""
        info, lengths = self._info, self.lengths
        for number, count in enumerate(self.batch_sizes):
            kinds = ("filtered",) if number else ("greedy", "drawn", "filtered", "penalised")
            for blocks, adapted in product(lengths, {False, bool(info.adapters)}):
                yield from (TrialCase(count, blocks, kind, adapted) for kind in kinds)
            if self._reads_together(count):
                yield TrialCase(count, lengths[-1], kinds[-1], False, all_long=True, has_teams=True)
        for size in PROMPT_SIZES[:_PROMPTS]:
            if self._has_room(size):
                yield TrialCase(1, ceil_div(size, BLOCK_TOKENS), "greedy", False, prompt=size)

    def _has_room(self, prompt: int) -> bool:
        """Returns whether such a prompt fits behind the shared blocks, in others in each turn."""
        blocks = self._shared + TURNS + ceil_div(prompt, self._block_size)
        fits = self._shared * self._block_size + prompt <= self._limits.context
        return fits and blocks <= self._num_blocks and prompt <= self._limits.tokens

    def _reads_together(self, count: int) -> bool:
        """Returns whether so many sequences of the longest kind read what they share once."""
        case = TrialCase(count, self.lengths[-1], "greedy", has_adapters=False, all_long=True)
        return self._runner.reads_together(self.step(case, 0))

    def beginning(self, case: TrialCase) -> StepInput | None:
        """Returns a first token for each sequence of a case, or None of a model without states."""
        if not self._info.state_slots:
            return None
        rows = np.arange(case.sequences, dtype=np.int32)
        zeros, own = np.zeros_like(rows), self._shared + rows
        trial = StepInput(
            step_id=0,
            token_ids=1 + rows % np.int32(self._info.vocab_size - 1),
            token_source=np.full_like(rows, NO_SOURCE),
            positions=zeros,
            slot_mapping=own.astype(np.int64) * self._block_size,
            query_start=np.arange(case.sequences + 1, dtype=np.int32),
            context_len=zeros + 1,
            block_table=own[:, None].astype(np.int32),
            logit_rows=zeros[:0],
            sampling=self._sampling("greedy", zeros[:0], 0, np.random.default_rng(0)),
            state_reads=rows,
            state_writes=rows,
        )
        return with_windows(trial, self._info)

    def step(self, case: TrialCase, turn: int) -> StepInput:
        """Makes a step, the same one for the same arguments."""
        if case.prompt:
            first = turn % (self._shared + 1)  # behind so many of the shared blocks
            end = first * self._block_size + case.prompt - turn
            blocks = np.arange(ceil_div(end, self._block_size))
            blocks[first:] += self._shared - first + turn
            return self.prompt(first * self._block_size, end, draws=True, blocks=blocks)
        count, shared, longest = case.sequences, self._shared, case.blocks // self._parts
        rng = np.random.default_rng((count, case.blocks, turn))
        rows = np.arange(count)
        is_long = case.all_long | (rows == turn % count)
        last = np.where(is_long, longest, shared)
        positions = (last * self._block_size + turn).astype(np.int32)
        columns = np.arange(longest + 1)
        table = (columns + rows[:, None] + turn) % max(shared, 1)
        table[rows, last] = own = shared + (rows + turn) % count
        sources = np.where((turn > 0) & (rows % 2 == 0), rows, NO_SOURCE)
        states = self._states((rows + turn) % count)
        adapters = (rows + turn) % len(self._info.adapters) if case.has_adapters else rows[:0]
        trial = StepInput(
            step_id=turn,
            token_ids=rng.integers(0, self._info.vocab_size, count, np.int32),
            token_source=sources.astype(np.int32),
            positions=positions,
            slot_mapping=own.astype(np.int64) * self._block_size + turn,
            query_start=np.arange(count + 1, dtype=np.int32),
            context_len=positions + 1,
            block_table=table.astype(np.int32),
            logit_rows=rows.astype(np.int32),
            sampling=self._sampling(case.sampling, positions, turn, rng),
            adapters=adapters.astype(np.int32),
            state_reads=states,
            state_writes=states,
        )
        return with_windows(trial, self._info)

    def prompt(
        self,
        first: int,
        end: int,
        *,
        draws: bool = False,
        blocks: npt.NDArray[np.int_] | None = None,
    ) -> StepInput:
        """Makes a step of a prompt's tokens from `first` to `end`.

        Args:
            first: The first of them.
            end: Behind the last.
            draws: Whether the next token is drawn.
            blocks: Of the cache, if they are not the first ones.
        """
        tokens = np.arange(first, end, dtype=np.int32)
        drawn = tokens[len(tokens) - draws :]
        if blocks is None:
            blocks = np.arange(ceil_div(end, self._block_size))
        slots = blocks[tokens // self._block_size] * self._block_size + tokens % self._block_size
        trial = StepInput(
            step_id=0,
            token_ids=tokens % np.int32(self._info.vocab_size),
            token_source=np.full(len(tokens), NO_SOURCE, np.int32),
            positions=tokens,
            slot_mapping=slots.astype(np.int64),
            query_start=np.array([0, len(tokens)], np.int32),
            context_len=np.array([end], np.int32),
            block_table=blocks[None].astype(np.int32),
            logit_rows=drawn - first,
            sampling=self._sampling("greedy", drawn, 0, np.random.default_rng(0)),
            state_reads=self._states(np.zeros(1, int)),
            state_writes=self._states(np.where(tokens == end - 1, 0, NO_SLOT)),
        )
        return with_windows(trial, self._info)

    def _states(self, slots: npt.NDArray[np.int_]) -> Int32Array:
        """Returns the slots of states, or none for a model without states."""
        return slots[: len(slots) * bool(self._info.state_slots)].astype(np.int32)

    def _sampling(
        self, kind: str, positions: Int32Array, turn: int, rng: np.random.Generator
    ) -> SamplingBatch:
        count, vocab = len(positions), self._info.vocab_size
        rows = np.arange(count)
        draws = (rows % 3 != 2) & (kind in ("drawn", "filtered"))
        filters, penalised = kind == "filtered", kind == "penalised"
        per_row = _SEEN * penalised
        first = rng.integers(0, vocab - _SEEN, (count, 1))
        scored = (rows + turn) % 2 == 1
        seen = (first + np.arange(per_row)).astype(np.int32).reshape(-1)

        def floats(low: float, high: float, *, used: bool, off: float = 0.0) -> Float32Array:
            values = rng.uniform(low, high, count).astype(np.float32)
            return values if used else np.full(count, off, np.float32)

        return replace(
            SamplingBatch.greedy(count),
            temperature=np.where(draws, rng.uniform(0.5, 1.5, count), 0).astype(np.float32),
            top_k=(rng.integers(20, 60, count) * filters).astype(np.int32),
            top_p=floats(0.8, 0.99, used=filters, off=1.0),
            min_p=floats(0.0, 0.02, used=filters),
            repetition_penalty=floats(1.05, 1.5, used=penalised, off=1.0),
            presence_penalty=floats(0.1, 0.5, used=penalised),
            frequency_penalty=floats(0.1, 0.5, used=penalised),
            seed=rng.integers(0, 1 << 63, count, np.uint64),
            position=positions + 1,
            num_logprobs=np.full(count, _TOP_LOGPROBS, np.int32),
            target_ids=np.where(scored, first[:, 0], SAMPLE).astype(np.int32),
            seen_offsets=(np.arange(count + 1) * per_row).astype(np.int32),
            seen_tokens=seen,
            seen_counts=np.ones(len(seen), np.int32),
        )


def difference_of(wanted: StepOutput, got: StepOutput) -> str:
    """Returns which of the results of two runs of a step differ first, "" if none does."""
    # Bytes, as NaN is right where it is wanted.
    results = ("token_ids", "logprobs", "top_ids", "top_logprobs")
    differs = (w for w in results if getattr(wanted, w).tobytes() != getattr(got, w).tobytes())
    return next(differs, "")
