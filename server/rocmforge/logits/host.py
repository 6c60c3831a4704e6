"""Runs processors in NumPy: what they mean, for every backend, and how the host does it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.backend.step import ProcessorBatch
from rocmforge.logits.processor import Function, LogitsProcessor, Nucleus, Reduction, arguments_of

logger = logging.getLogger(__name__)

_COMBINE: Mapping[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_NOTHING = {"sum": 0.0, "max": -np.inf, "min": np.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowContext:
    """The inputs of a row's processors besides its logits."""

    position: int  # of the token to be drawn
    history: Int32Array  # token ids, the latest last
    prompt_length: int  # index in the history of the first generated token


def apply_processors(
    processors: Mapping[str, LogitsProcessor],
    batch: ProcessorBatch,
    row: int,
    logits: Float32Array,
    pending: int,
    position: int,
) -> None:
    """Changes the logits [V] of a row by all of its processors, in their order.

    A processor that raises is logged and leaves NaN behind, so that its row alone gives no token.

    Args:
        processors: by name.
        batch: the uses of all rows.
        row: which one this is.
        logits: overwritten.
        pending: the token at the end of the history that the batch does not know.
        position: of the token to be drawn.
    """
    tokens = slice(batch.history_offsets[row], batch.history_offsets[row + 1])
    history = batch.history[tokens].copy()
    if len(history) and history[-1] < 0:
        history[-1] = max(pending, 0)
    context = RowContext(
        position=position, history=history, prompt_length=int(batch.prompt_lengths[row])
    )
    for use in np.flatnonzero(batch.rows == row).tolist():
        name = batch.names[use]
        try:
            apply_processor(processors[name], batch, use, logits, context)
        except Exception:
            logger.exception("the logits processor %r failed", name)
            logits.fill(np.nan)
            return


def apply_processor(
    processor: LogitsProcessor,
    batch: ProcessorBatch,
    use: int,
    logits: Float32Array,
    context: RowContext,
) -> None:
    """Changes the logits [V] of a row by one processor. A NaN stays."""
    values = _values(processor, batch, use, logits, context)
    with np.errstate(all="ignore"):
        for need in processor.needs:
            values[need.name] = _reduce(need, values)
        changed = np.asarray(_call(processor.function, values), np.float32)
    np.copyto(logits, changed, where=~np.isnan(logits))


def _values(
    processor: LogitsProcessor,
    batch: ProcessorBatch,
    use: int,
    logits: Float32Array,
    context: RowContext,
) -> dict[str, Any]:
    window = min(int(batch.windows[use]), len(context.history))
    dropped = len(context.history) - window
    values: dict[str, Any] = {
        "logit": logits,
        "token": np.arange(len(logits), dtype=np.int32),
        "vocab": len(logits),
        "position": context.position,
        "uniform": batch.uniforms[use],
        "history": context.history[dropped:].tolist(),
        "length": window,
        "prompt_length": max(context.prompt_length - dropped, 0),
    }
    for parameter, number in zip(processor.numbers, batch.numbers[use], strict=False):
        is_int = isinstance(parameter.default, int)
        values[parameter.name] = int(number) if is_int else number
    if processor.token_set is not None:
        values[processor.token_set.name] = batch.token_sets[use]
    return values


def _call(function: Function, values: Mapping[str, Any]) -> Any:
    return function(**{name: values[name] for name in arguments_of(function)})


def _reduce(need: Reduction | Nucleus, values: dict[str, Any]) -> Any:
    if isinstance(need, Nucleus):
        score, weight = _call(need.function, values)
        return _nucleus(score, weight, values[need.share])
    if need.over == "history":
        return _over_history(need, values)
    terms = np.broadcast_to(_call(need.function, values), values["logit"].shape)
    if need.by == "sum":
        return np.float32(terms.sum(dtype=np.float64))
    return np.float32(terms.max() if need.by == "max" else terms.min())


def _over_history(need: Reduction, values: dict[str, Any]) -> Any:
    history = values["history"]
    terms = np.array(
        [_call(need.function, values | {"index": index}) for index in range(len(history))],
        np.float32,
    )
    combine = _COMBINE[need.by]
    if not need.per_token:
        return np.float32(combine.reduce(terms, initial=_NOTHING[need.by]))
    results = np.full(values["vocab"], _NOTHING[need.by], np.float32)
    combine.at(results, history, terms)
    is_missing = np.ones(values["vocab"], np.bool_)
    is_missing[history] = False
    results[is_missing] = need.missing
    return results


def _nucleus(score: Float32Array, weight: Float32Array, share: float) -> npt.NDArray[np.bool_]:
    score = score.astype(np.float32)
    order = np.argsort(score)
    is_enough = np.cumsum(weight[order], dtype=np.float64) > share
    limit = score[order[is_enough.argmax()]] if is_enough[-1] else np.inf
    return np.less_equal(score, limit)
