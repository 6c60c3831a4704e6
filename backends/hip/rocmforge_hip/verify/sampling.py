"""Checks of the way from logits to tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.backend.step import SamplingBatch
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.step.output import OutputLayout
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error
from rocmforge_hip.verify.workbench import Recipe, Workbench
from rocmforge_hip.weights.formats import ceil_div

_VOCAB: Final = 5003
_ROWS: Final = 6
_TOP_LOGPROBS: Final = 5
_NEAR_TIE: Final = 1e-4  # nats, by which the chosen token may be short of the best
_NATS: Final = 1e-5

Logits = npt.NDArray[np.float32]


def groups() -> Iterator[Group]:
    """Yields all settings of sampling, on a vocabulary that several blocks share."""
    cases = [
        Case(f"sample: {name}", f"{_ROWS} rows", _NEAR_TIE, partial(_sample, settings=settings))
        for name, settings in _settings().items()
    ]
    cases.append(Case("logprobs", f"{_TOP_LOGPROBS} top_logprobs", _NATS, _logprobs))
    yield Group(Recipe(hidden_size=32, vocab=_VOCAB), tuple(cases))


def _settings() -> dict[str, dict[str, Any]]:
    """Returns the columns of the `SamplingBatch` that differ from a greedy one's."""
    rng = np.random.default_rng(6)
    drawing: dict[str, Any] = {
        "temperature": np.array([0.0, 0.3, 0.7, 1.0, 1.5, 3.0], np.float32),
        "seed": rng.integers(0, 2**63, _ROWS).astype(np.uint64),
        "position": rng.integers(0, 1000, _ROWS).astype(np.int32),
    }
    filters = {
        "min_p": np.array([0, 0, 0.05, 0, 0.01, 0], np.float32),
        "top_k": np.array([0, 40, 0, 7, 100, 1], np.int32),
        "top_p": np.array([1, 1, 1, 0.9, 0.5, 0.95], np.float32),
    }
    per_row = 30
    offsets = np.arange(0, (_ROWS + 1) * per_row, per_row, dtype=np.int32)
    tokens = np.concatenate([rng.permutation(_VOCAB)[:per_row] for _ in range(_ROWS)])
    lists = {
        "repetition_penalty": np.array([1.3, 1, 0.8, 1, 2, 1], np.float32),
        "presence_penalty": np.array([0, 0.5, 0, -0.5, 1, 0], np.float32),
        "frequency_penalty": np.array([0, 0.2, 0.1, 0, -0.3, 0], np.float32),
        "seen_offsets": offsets,
        "seen_tokens": tokens.astype(np.int32),
        "seen_counts": rng.integers(0, 4, len(tokens)).astype(np.int32),
        "bias_offsets": offsets,
        "bias_tokens": np.roll(tokens, per_row).astype(np.int32),
        "bias_values": rng.uniform(-2, 8, len(tokens)).astype(np.float32),
    }
    words = (_ROWS, ceil_div(_VOCAB, 32))
    masks = {"allowed": rng.integers(0, 2**32, words, dtype=np.uint32) & np.uint32(0x11111111)}
    return {
        "greedy": {},
        "draw": drawing,
        "top-k, top-p, min-p": drawing | filters,
        "penalties and bias": lists,
        "mask": drawing | masks,
    }


def _make_logits(bench: Workbench) -> tuple[Logits, Activation]:
    values = 2 * np.random.default_rng(7).standard_normal((_ROWS, _VOCAB)).astype(np.float32)
    return values, bench.activation(bench.model.arena.logits, values)


def _run(bench: Workbench, batch: SamplingBatch, logits: Activation) -> None:
    chunks = [(1, 1, [row]) for row in range(_ROWS)]
    step = bench.step(chunks, rows=range(_ROWS), sampling=batch)
    bench.sampler.sample(step, logits)
    bench.sampler.take_logprobs(step, logits)


def _sample(bench: Workbench, settings: dict[str, Any]) -> float:
    """Returns how far the scores of the chosen tokens are below the best ones."""
    batch = replace(SamplingBatch.greedy(_ROWS), **settings)
    values, logits = _make_logits(bench)
    unlikely = np.array([1, 2, 3, 4, 5, 6], np.int32)  # what a kernel that does nothing leaves
    bench.put(unlikely, bench.sampler.tokens)
    _run(bench, batch, logits)
    tokens = bench.get(bench.sampler.tokens.first(_ROWS))
    if not ((tokens >= 0) & (tokens < _VOCAB)).all():
        return float("inf")
    wanted = oracle.final_scores(values.astype(np.float64), batch)
    return max(
        float(scores.max() - scores[token]) for scores, token in zip(wanted, tokens, strict=True)
    )


def _logprobs(bench: Workbench) -> float:
    targets = np.array([-1, 17, -1, 4000, -1, 5002], np.int32)
    asked = np.full(_ROWS, _TOP_LOGPROBS, np.int32)
    values, logits = _make_logits(bench)
    _run(
        bench, replace(SamplingBatch.greedy(_ROWS), num_logprobs=asked, target_ids=targets), logits
    )
    layout = OutputLayout(_ROWS, True, _TOP_LOGPROBS)
    raw = bench.get(bench.sampler.tokens.first(ceil_div(layout.nbytes, 4)))
    tokens, logprobs, top_ids, top_logprobs = layout.read(raw.view(np.uint8), _ROWS)
    wanted = oracle.log_softmax(values.astype(np.float64))
    best = np.argsort(-wanted, axis=1, kind="stable")[:, :_TOP_LOGPROBS]
    chosen = np.where(targets >= 0, targets, best[:, 0])
    if (tokens != chosen).any() or (top_ids != best).any():
        return float("inf")
    return max(
        error(logprobs, np.take_along_axis(wanted, chosen[:, None], 1)[:, 0]),
        error(top_logprobs, np.take_along_axis(wanted, best, 1)),
    )
