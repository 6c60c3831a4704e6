"""Runs one logits processor on one row, as a test writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.step import ProcessorBatch
from rocmforge.logits.host import apply_processors
from rocmforge.logits.processor import LogitsProcessor, uniform_number


def process(
    processor: LogitsProcessor,
    logits: Float32Array,
    *,
    history: Sequence[int] = (),
    prompt_length: int = 0,
    seed: int = 0,
    position: int = 0,
    **settings: Any,
) -> Float32Array:
    """The new logits; `settings` are parameters, a token set as a list of ids."""
    changed = logits.copy()
    batch = one_use(
        processor,
        len(logits),
        history=history,
        prompt_length=prompt_length,
        seed=seed,
        position=position,
        **settings,
    )
    apply_processors({processor.name: processor}, batch, 0, changed, -1, position)
    return changed


def one_use(
    processor: LogitsProcessor,
    vocab: int,
    *,
    history: Sequence[int] = (),
    prompt_length: int = 0,
    seed: int = 0,
    position: int = 0,
    **settings: Any,
) -> ProcessorBatch:
    """One processor for one row."""
    holds = np.zeros(-(-vocab // 32) * 32, np.bool_)
    if processor.token_set is not None:
        holds[np.array(settings.get(processor.token_set.name, []), int)] = True
    numbers = [settings.get(each.name, each.default) for each in processor.numbers]
    window = len(history)
    if processor.history is not None:
        wanted = int(settings.get(processor.history, len(history)))
        window = window if wanted < 0 else min(wanted, window)
    return ProcessorBatch(
        names=(processor.name,),
        rows=np.zeros(1, np.int32),
        numbers=np.array([numbers], np.float32).reshape(1, -1),
        token_sets=np.packbits(holds, bitorder="little").view(np.uint32)[None],
        windows=np.array([window], np.int32),
        uniforms=np.array([uniform_number(seed, position, processor.name)], np.float32),
        history_offsets=np.array([0, len(history)], np.int32),
        history=np.array(history, np.int32),
        prompt_lengths=np.array([prompt_length], np.int32),
    )
