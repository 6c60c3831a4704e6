"""Builds steps for a `Runner` from what a test wants to say: chunks of sequences, wanted rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

import numpy as np

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.backend.protocol import Runner
from rocmforge.backend.step import (
    NO_ADAPTER,
    NO_SLOT,
    NO_SOURCE,
    SAMPLE,
    SamplingBatch,
    StepInput,
    StepOutput,
)
from rocmforge.backend.windows import with_windows


@dataclass(frozen=True, kw_only=True)
class Want:
    """A row of logits and what to do with it; defaults draw greedily."""

    token: int = -1  # of the chunk, counted from its end if negative
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    position: int = 0
    num_logprobs: int = -1
    target: int = SAMPLE
    seen: Mapping[int, int] = field(default_factory=dict)  # token -> times in the output
    bias: Mapping[int, float] = field(default_factory=dict)


GREEDY = (Want(),)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some consecutive tokens of one sequence."""

    tokens: Sequence[int]
    start: int = 0  # position of the first
    blocks: Sequence[int]  # of the whole sequence, in order
    wants: Sequence[Want] = GREEDY
    sources: Sequence[int] | None = None  # rows of the last output, instead of token ids
    adapter: int = NO_ADAPTER
    # For models with states; else they do not count.
    state_slot: int = 0  # of the last states, and of those before, unless there is another
    state_read: int | None = None
    kept_states: Mapping[int, int] = field(default_factory=dict)  # after other tokens: slots


class Driver:
    """Sends steps to a runner, numbered as the engine would."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._next_step = 0

    def run(self, *chunks: Chunk) -> StepOutput:
        """One step, from submission to its result."""
        self.runner.submit(self._make_step(chunks))
        self._next_step += 1
        return self.runner.collect()

    def guess(self, chunk: Chunk) -> StepOutput:
        """One step of the model's predictor."""
        self.runner.submit(replace(self._make_step([chunk]), predicts=True))
        self._next_step += 1
        return self.runner.collect()

    def _make_step(self, chunks: Sequence[Chunk]) -> StepInput:
        info = self.runner.info
        step = with_windows(make_step(self._next_step, chunks, info.block_size), info)
        return with_states(step, chunks) if info.state_slots else step

    def logprobs(self, chunk: Chunk, rows: Sequence[int]) -> Float32Array:
        """Log-probabilities of the whole vocabulary after some tokens: [rows, V]."""
        vocab = self.runner.info.vocab_size
        wants = [
            Want(token=row, target=target, num_logprobs=0)
            for row in rows
            for target in range(vocab)
        ]
        output = self.run(replace(chunk, wants=wants))
        assert output.logprobs is not None
        return output.logprobs.reshape(len(rows), vocab)

    def greedy(self, prompt: Sequence[int], blocks: Sequence[int], count: int) -> list[int]:
        """The greedy continuation of a prompt that is computed in one step."""
        tokens = [int(self.run(Chunk(tokens=prompt, blocks=blocks)).token_ids[0])]
        while len(tokens) < count:
            start = len(prompt) + len(tokens) - 1
            chunk = Chunk(tokens=tokens[-1:], start=start, blocks=blocks)
            tokens.append(int(self.run(chunk).token_ids[0]))
        return tokens


def make_step(step_id: int, chunks: Sequence[Chunk], block_size: int) -> StepInput:
    """The flat arrays of a step."""
    lengths = [len(chunk.sources or chunk.tokens) for chunk in chunks]
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    positions = [
        np.arange(chunk.start, chunk.start + length)
        for chunk, length in zip(chunks, lengths, strict=True)
    ]
    slots = [
        np.asarray(chunk.blocks)[where // block_size] * block_size + where % block_size
        for chunk, where in zip(chunks, positions, strict=True)
    ]
    table = np.zeros((len(chunks), max(len(chunk.blocks) for chunk in chunks)), np.int32)
    for row, chunk in zip(table, chunks, strict=True):
        row[: len(chunk.blocks)] = chunk.blocks
    logit_rows = [
        start + want.token % length
        for chunk, start, length in zip(chunks, starts, lengths, strict=False)
        for want in chunk.wants
    ]
    known = [
        chunk.tokens if chunk.sources is None else [0] * len(chunk.sources) for chunk in chunks
    ]
    sources = [chunk.sources or [NO_SOURCE] * len(chunk.tokens) for chunk in chunks]
    return StepInput(
        step_id=step_id,
        token_ids=np.fromiter(chain.from_iterable(known), np.int32),
        token_source=np.fromiter(chain.from_iterable(sources), np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots).astype(np.int64),
        query_start=starts,
        context_len=np.array(
            [chunk.start + length for chunk, length in zip(chunks, lengths, strict=True)], np.int32
        ),
        block_table=table,
        logit_rows=np.array(logit_rows, np.int32),
        sampling=make_sampling([want for chunk in chunks for want in chunk.wants]),
        adapters=_adapters(chunks),
    )


def with_states(step: StepInput, chunks: Sequence[Chunk]) -> StepInput:
    """The same step, of a model with states."""
    reads = [chunk.state_slot if chunk.state_read is None else chunk.state_read for chunk in chunks]
    writes = np.full(step.num_tokens, NO_SLOT, np.int32)
    for chunk, (start, end) in zip(chunks, pairwise(step.query_start.tolist()), strict=True):
        for token, slot in chunk.kept_states.items():
            writes[start + token] = slot
        writes[end - 1] = chunk.state_slot
    return replace(step, state_reads=np.array(reads, np.int32), state_writes=writes)


def _adapters(chunks: Sequence[Chunk]) -> Int32Array:
    adapters = np.array([chunk.adapter for chunk in chunks], np.int32)
    return adapters if (adapters != NO_ADAPTER).any() else adapters[:0]


def make_sampling(wants: Sequence[Want]) -> SamplingBatch:
    """The structure of arrays of these rows."""
    return SamplingBatch(
        temperature=np.array([want.temperature for want in wants], np.float32),
        top_k=np.array([want.top_k for want in wants], np.int32),
        top_p=np.array([want.top_p for want in wants], np.float32),
        min_p=np.array([want.min_p for want in wants], np.float32),
        repetition_penalty=np.array([want.repetition_penalty for want in wants], np.float32),
        presence_penalty=np.array([want.presence_penalty for want in wants], np.float32),
        frequency_penalty=np.array([want.frequency_penalty for want in wants], np.float32),
        seed=np.array([want.seed for want in wants], np.uint64),
        position=np.array([want.position for want in wants], np.int32),
        num_logprobs=np.array([want.num_logprobs for want in wants], np.int32),
        target_ids=np.array([want.target for want in wants], np.int32),
        seen_offsets=_offsets(want.seen for want in wants),
        seen_tokens=np.fromiter(chain.from_iterable(want.seen for want in wants), np.int32),
        seen_counts=np.fromiter(
            chain.from_iterable(want.seen.values() for want in wants), np.int32
        ),
        bias_offsets=_offsets(want.bias for want in wants),
        bias_tokens=np.fromiter(chain.from_iterable(want.bias for want in wants), np.int32),
        bias_values=np.fromiter(
            chain.from_iterable(want.bias.values() for want in wants), np.float32
        ),
    )


def _offsets(rows: Iterable[Mapping[int, object]]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
