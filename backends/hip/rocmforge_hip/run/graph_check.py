"""Compares replays of graphs with plain launches of the same steps, on the loaded model.

Open reports say that replays read what the one before them was given, on some cards and versions
of ROCm: `REPORTS`. A step that reads the positions or blocks of another gives wrong answers, and
may write into the cache of another sequence, so this is looked for before there are requests. It
is done at load, not when a graph is first used: then no request waits for it, all ranks take part
at the same point, and what to say of the device is known when the server starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from rocmforge.backend.protocol import (
    NO_SOURCE,
    SAMPLE,
    Float32Array,
    Int32Array,
    SamplingBatch,
    StepInput,
    StepOutput,
)
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.run.runner import MIN_GRAPH_BLOCKS, HipRunner, graph_sizes

REPORTS: Final = (
    "https://github.com/ROCm/hip/issues/3887",  # gfx1201, graphs of about 200 kernels or more
    "https://github.com/ROCm/hip/issues/3902",  # gfx950, an input copied just before the replay
    "https://github.com/ROCm/clr/issues/279",  # gfx942, in one of five processes
)
MOST_SECONDS: Final = 10.0
"""After which no further graph is checked."""

_TURNS: Final = 3
"""Steps in a row of each graph, all with other inputs; two are in flight, as when serving."""
_TOP_LOGPROBS: Final = 1  # with the chosen token's, this depends on every logit of the row
_SEEN: Final = 4  # tokens of a row that has a penalty

Agree = Callable[[Sequence[bool]], Sequence[bool]]
"""Returns which of these is true on any rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCheck:
    """The result. `str()` is for people."""

    checked: int  # graphs
    planned: int
    seconds: float
    difference: str  # the first one; "" = replays are right

    def __str__(self) -> str:
        if self.difference:
            return f"not used: {self.difference}"
        return (
            f"{self.checked} of {self.planned} checked in {self.seconds:.1f} s: replays are "
            "equal to plain launches"
        )


class _Case(NamedTuple):
    """A graph to check: the values that decide which one a step runs as."""

    sequences: int
    blocks: int  # of the longest sequence, but for the last
    sampling: str
    has_adapters: bool

    def __str__(self) -> str:
        adapters = " with adapters" if self.has_adapters else ""
        return (
            f"{self.sequences} sequences{adapters}, up to {(self.blocks + 1) * BLOCK_TOKENS} "
            f"tokens of context, {self.sampling} sampling"
        )


def check_graphs(
    runner: HipRunner, limits: StepLimits, agree: Agree, progress: Callable[[float], None]
) -> GraphCheck:
    """Captures graphs and replays them: every batch size, short and long contexts.

    With the smallest batch also every kind of sampling, which adds its own kernels; the others
    have the kind with the most. Takes at most `MOST_SECONDS` and a case.

    The steps write into blocks of the cache, which nobody has been given yet. What they leave
    there is never read: a block belongs to a sequence once it has been written for that.

    Args:
        runner: Of a causal model; computes and has nothing in flight.
        limits: Of its steps.
        agree: Between the ranks, which all check at the same time.
        progress: Is told the share that is done.

    Raises:
        EngineError: The device failed.
    """
    steps = _Steps(runner, limits)
    cases = list(steps.cases())
    started, difference = time.perf_counter(), ""
    checked = 0
    for checked, case in enumerate(cases, 1):
        progress((checked - 1) / len(cases))
        plain, replayed = (_run(runner, steps, case, replays=replays) for replays in (False, True))
        difference = _difference(case, plain, replayed)
        is_late = time.perf_counter() - started > MOST_SECONDS
        differs, ends = agree((bool(difference), is_late))
        if differs:
            difference = difference or f"of {case}, on another device of the group"
        if differs or ends:
            break
    return GraphCheck(
        checked=checked,
        planned=len(cases),
        seconds=time.perf_counter() - started,
        difference=difference,
    )


def _run(runner: HipRunner, steps: _Steps, case: _Case, *, replays: bool) -> list[StepOutput]:
    runner.replays = replays
    outputs = []
    for turn in range(_TURNS):
        runner.submit(steps.step(case, turn))
        if turn:
            outputs.append(runner.collect())
    return [*outputs, runner.collect()]


def _difference(case: _Case, plain: Sequence[StepOutput], replayed: Sequence[StepOutput]) -> str:
    for turn, (wanted, got) in enumerate(zip(plain, replayed, strict=True), 1):
        for what in ("token_ids", "logprobs", "top_ids", "top_logprobs"):
            # Bytes, as NaN is right where plain launches give it.
            if getattr(wanted, what).tobytes() != getattr(got, what).tobytes():
                return f"{what} of {case} differ in replay {turn}"
    return ""


class _Steps:
    """Steps of decodes on blocks of the cache that share their beginnings.

    The first blocks hold a prompt, which this computes. Each sequence has a block of its own behind
    them, with one more token in every turn. Whatever a kernel reads differs between turns: tokens,
    positions, slots, block tables, lengths, adapters, and what is drawn from.
    """

    def __init__(self, runner: HipRunner, limits: StepLimits) -> None:
        info = runner.info
        self._info = info
        self._limits = limits
        self._most = min((limits.context - _TURNS) // BLOCK_TOKENS, info.num_blocks - 1)
        self._shared = min(2, self._most)
        end = self._shared * BLOCK_TOKENS
        for first in range(0, end, limits.tokens):
            runner.submit(self._prompt(first, min(first + limits.tokens, end)))
            runner.collect()

    def cases(self) -> Iterator[_Case]:
        """Yields the cases, small batches first."""
        info, limits = self._info, self._limits
        room = info.num_blocks - self._shared
        counts = dict.fromkeys(min(size, room) for size in graph_sizes(limits.sequences))
        has_long = self._most >= MIN_GRAPH_BLOCKS
        lengths = [self._shared, self._most] if has_long else [self._shared]
        for number, count in enumerate(counts):
            kinds = ("filtered",) if number else ("greedy", "drawn", "filtered", "penalised")
            for blocks, adapted in product(lengths, {False, bool(info.adapters)}):
                yield from (_Case(count, blocks, kind, adapted) for kind in kinds)

    def step(self, case: _Case, turn: int) -> StepInput:
        """Makes a step, the same one for the same arguments."""
        count, shared = case.sequences, self._shared
        rng = np.random.default_rng((count, case.blocks, turn))
        rows = np.arange(count)
        last = np.where(rows == turn % count, case.blocks, shared)  # one sequence is long
        positions = (last * BLOCK_TOKENS + turn).astype(np.int32)
        columns = np.arange(case.blocks + 1)
        table = (columns + rows[:, None] + turn) % max(shared, 1)
        table[rows, last] = own = shared + (rows + turn) % count
        sources = np.where((turn > 0) & (rows % 2 == 0), rows, NO_SOURCE)
        adapters = (rows + turn) % len(self._info.adapters) if case.has_adapters else rows[:0]
        return StepInput(
            step_id=turn,
            token_ids=rng.integers(0, self._info.vocab_size, count, np.int32),
            token_source=sources.astype(np.int32),
            positions=positions,
            slot_mapping=own.astype(np.int64) * BLOCK_TOKENS + turn,
            query_start=np.arange(count + 1, dtype=np.int32),
            context_len=positions + 1,
            block_table=table.astype(np.int32),
            logit_rows=rows.astype(np.int32),
            sampling=self._sampling(case.sampling, positions, turn, rng),
            adapters=adapters.astype(np.int32),
        )

    def _prompt(self, first: int, end: int) -> StepInput:
        tokens = np.arange(first, end, dtype=np.int32)
        return StepInput(
            step_id=0,
            token_ids=tokens % np.int32(self._info.vocab_size),
            token_source=np.full(len(tokens), NO_SOURCE, np.int32),
            positions=tokens,
            slot_mapping=tokens.astype(np.int64),
            query_start=np.array([0, len(tokens)], np.int32),
            context_len=np.array([end], np.int32),
            block_table=np.arange(self._shared, dtype=np.int32)[None],
            logit_rows=np.zeros(0, np.int32),
            sampling=self._sampling("greedy", tokens[:0], 0, np.random.default_rng(0)),
        )

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

        return SamplingBatch(
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
            bias_offsets=np.zeros(count + 1, np.int32),
            bias_tokens=np.zeros(0, np.int32),
            bias_values=np.zeros(0, np.float32),
        )
