"""Lays out the logits processors of a step's rows for the backend."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Int32Array
from rocmforge.backend.step import NO_SOURCE, ProcessorBatch
from rocmforge.engine.ipc.params import ProcessorUse
from rocmforge.engine.schedule.chunks import Chunk
from rocmforge.logits.processor import uniform_number

T = TypeVar("T", bound=np.generic)
UNKNOWN = -1
"""The token in a history that is still on the device."""


def build_processors(chunks: list[Chunk], drawn: Int32Array) -> ProcessorBatch | None:
    """Lays out the uses of the rows that draw a token; None if there are none.

    Args:
        chunks: of the step.
        drawn: position of the token drawn by each logit row, [L].
    """
    uses: list[ProcessorUse] = []
    rows: list[int] = []
    windows: list[int] = []
    histories: list[Int32Array] = []
    lengths, prompt_lengths = np.zeros((2, len(drawn)), np.int32)
    for chunk in chunks:
        processors = chunk.sequence.sampling.processors
        if not processors or not chunk.samples:
            continue
        row = chunk.first_row + chunk.num_scores
        seen = chunk.sequence.history(int(drawn[row]))
        used = [_window(use, len(seen)) for use in processors]
        history = seen[len(seen) - max(used) :].copy()
        if chunk.source_row != NO_SOURCE:
            history[-1:] = UNKNOWN
        uses += processors
        rows += [row] * len(processors)
        histories.append(history)
        lengths[row] = len(history)
        generated = int(drawn[row]) - chunk.sequence.num_prompt
        prompt_lengths[row] = max(len(history) - generated, 0)
        windows += used
    if not uses:
        return None
    seeds = {chunk.first_row + chunk.num_scores: chunk.sequence.sampling.seed for chunk in chunks}
    places = list(zip(uses, rows, strict=True))
    return ProcessorBatch(
        names=tuple([use.name for use in uses]),
        rows=np.array(rows, np.int32),
        numbers=_padded([np.array(use.numbers, np.float32) for use in uses]),
        token_sets=_padded([np.frombuffer(use.token_set, np.uint32) for use in uses]),
        windows=np.array(windows, np.int32),
        uniforms=np.array(
            [uniform_number(seeds[row], int(drawn[row]), use.name) for use, row in places],
            np.float32,
        ),
        history_offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        history=np.concatenate(histories),
        prompt_lengths=prompt_lengths,
    )


def _window(use: ProcessorUse, length: int) -> int:
    return length if use.window < 0 else min(use.window, length)


def _padded(rows: list[npt.NDArray[T]]) -> npt.NDArray[T]:
    """Stacks rows of different lengths into a matrix, with zeros behind them."""
    padded = np.zeros((len(rows), max(map(len, rows))), rows[0].dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
