"""Computes a text again: what a runner finds probable at some of its places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from rocmforge.backend.arrays import Int32Array
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
from rocmforge.engine.ipc.params import TokenLogprob

CHUNK: Final = 64
"""Tokens of a step: logits of all of them take 33 MB with 128,000 tokens in the vocabulary."""


class Scorer:
    """Scores one text after the other on a runner, which nothing else uses.

    Args:
        runner: was loaded for one sequence at least, and for steps of `chunk` tokens.
        chunk: tokens of a step; 1 = as they are generated, one after the other.
    """

    def __init__(self, runner: Runner, chunk: int = CHUNK) -> None:
        self._runner = runner
        self._chunk = chunk
        self._next_step = 0

    def score(
        self, tokens: Sequence[int], places: range, num_top: int, adapter: int = NO_ADAPTER
    ) -> list[TokenLogprob]:
        """Returns the log-probability of the token at each place, and the most probable ones.

        A place behind the last token has the most probable one. A place where the model's output
        holds a NaN has the token -1, without others.

        Args:
            tokens: the text from its beginning, at least one.
            places: of the tokens asked for, ascending, from 1 to `len(tokens)`.
            num_top: how many of the most probable tokens.
            adapter: as `StepInput` numbers them.

        Raises:
            EngineError: the runner failed.
        """
        ids = np.array(tokens, np.int32)
        found: list[TokenLogprob] = []
        for start in range(0, places.stop - 1, self._chunk):
            stop = min(start + self._chunk, places.stop - 1)
            wanted = range(max(places.start, start + 1), stop + 1)
            self._runner.submit(self._step(ids, start, stop, wanted, num_top, adapter))
            found += _read(self._runner.collect(), len(wanted))
        return found

    def _step(
        self, ids: Int32Array, start: int, stop: int, wanted: range, num_top: int, adapter: int
    ) -> StepInput:
        """Lays out a step of the tokens `start..stop`: one sequence, in the first blocks."""
        info, count = self._runner.info, stop - start
        blocks = -(-stop // info.block_size)
        targets = [int(ids[place]) if place < len(ids) else SAMPLE for place in wanted]
        states = np.full(count if info.state_slots else 0, NO_SLOT, np.int32)
        states[-1:] = 0
        self._next_step += 1
        return StepInput(
            step_id=self._next_step - 1,
            token_ids=ids[start:stop],
            token_source=np.full(count, NO_SOURCE, np.int32),
            positions=np.arange(start, stop, dtype=np.int32),
            slot_mapping=np.arange(start, stop, dtype=np.int64),
            query_start=np.array([0, count], np.int32),
            context_len=np.array([stop], np.int32),
            block_table=np.arange(blocks, dtype=np.int32)[None],
            logit_rows=np.array(wanted, np.int32) - 1 - start,
            sampling=_scoring(targets, wanted, num_top),
            adapters=np.array([adapter] if adapter != NO_ADAPTER else [], np.int32),
            state_reads=np.zeros(min(info.state_slots, 1), np.int32),
            state_writes=states,
        )


def _scoring(targets: list[int], places: range, num_top: int) -> SamplingBatch:
    """Returns the parameters of rows that score tokens, or draw greedily."""
    return replace(
        SamplingBatch.greedy(len(targets)),
        position=np.array(places, np.int32),
        num_logprobs=np.full(len(targets), num_top, np.int32),
        target_ids=np.array(targets, np.int32),
    )


def _read(output: StepOutput, rows: int) -> list[TokenLogprob]:
    """Returns what a step found at each of its rows."""
    if not rows:
        return []
    assert output.logprobs is not None, "log-probabilities were asked for"
    assert output.top_ids is not None, "the most probable tokens were asked for"
    assert output.top_logprobs is not None, "the most probable tokens were asked for"
    found = []
    for row in range(rows):
        top = zip(output.top_ids[row].tolist(), output.top_logprobs[row].tolist(), strict=True)
        found.append(
            TokenLogprob(
                token_id=int(output.token_ids[row]),
                logprob=float(output.logprobs[row]),
                top=tuple(each for each in top if each[0] >= 0),
            )
        )
    return found
