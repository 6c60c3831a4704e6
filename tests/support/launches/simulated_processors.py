"""Runs kernels of logits processors in numba's CUDA simulator and compares them with NumPy.

For a process of its own, since the simulator is chosen when numba is imported:

    NUMBA_ENABLE_CUDASIM=1 python -m tests.support.launches.simulated_processors

Prints a line of JSON for each case: its name, whether the row changed, the largest difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.step import ProcessorBatch
from rocmforge.logits import LogitsProcessor, Parameter, logits_processor, reduction, where
from rocmforge.logits.builtin import dry, typical_p, xtc
from rocmforge.logits.host import apply_processors
from rocmforge_hip.jit.source import ARGUMENTS, MAX_SCRATCH_ROWS, kernel_source
from rocmforge_hip.jit.worker import build_kernel
from tests.support.launches.processors import one_use

VOCAB = 45
THREADS = 8
POSITION = 30
cuda: Any = import_module("numba.cuda")


@reduction(over="history", by="sum", per_token=True)
def count(index: Any, prompt_length: Any) -> Any:
    return 1.0 if index >= prompt_length else 0.0


@reduction(over="vocabulary", by="min")
def lowest(logit: Any) -> Any:
    return logit


@reduction(over="history", by="max")
def latest(history: Any, index: Any, length: Any) -> Any:
    return history[index] if index == length - 1 else -1


@logits_processor(
    "total",  # names of users may be those of the kernel's own variables
    parameters=(Parameter("row", 0.5), Parameter("use", 3)),
    needs=(count, lowest, latest),
)
def total(
    logit: Any, token: Any, count: Any, lowest: Any, latest: Any, row: Any, use: Any, position: Any
) -> Any:
    moved = logit - row * count - lowest
    return where(token == latest, position, moved) + use


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row for one processor."""

    name: str
    processor: LogitsProcessor
    settings: dict[str, Any] = field(default_factory=dict)
    history: tuple[int, ...] = ()
    prompt_length: int = 0
    pending: int | None = None
    forbidden: int = 0  # tokens at the end that have minus infinity


def cases() -> Iterator[Case]:
    """Cases by the loops of the kernels: pieces of the history, ragged ends, empty ones."""
    rng = np.random.default_rng(3)
    for length in (0, 1, 7, 8, 9, 30):
        history = tuple(rng.integers(0, 2, length).tolist())
        yield Case(
            name=f"dry, {length} tokens",
            processor=dry,
            settings={"multiplier": 1.0, "penalty_last_n": -1, "allowed_length": 1},
            history=history,
        )
        yield Case(name=f"own, {length} tokens", processor=total, history=history, prompt_length=4)
    window = {"multiplier": 1.0, "penalty_last_n": 11, "allowed_length": 1}
    repeated = (5, 6, 7) * 9
    yield Case(name="dry, window", processor=dry, settings=window, history=repeated)
    yield Case(name="dry, pending", processor=dry, settings=window, history=repeated, pending=7)
    for share in (0.0, 0.3, 0.9, 1.0):
        yield Case(name=f"typical {share}", processor=typical_p, settings={"p": share})
    yield Case(name="typical, forbidden", processor=typical_p, settings={"p": 0.5}, forbidden=20)
    on = {"probability": 1.0, "threshold": 0.02}
    yield Case(name="xtc", processor=xtc, settings=on)
    yield Case(name="xtc, forbidden", processor=xtc, settings=on, forbidden=20)
    yield Case(name="xtc, never", processor=xtc, settings={"probability": 0.0})


def run_kernel(
    processor: LogitsProcessor, batch: ProcessorBatch, logits: Float32Array, pending: int
) -> Float32Array:
    """The kernel's result for a row that stands between two others."""
    kernel = build_kernel(
        kernel_source(processor),
        cuda,
        lambda function: cuda.jit(function, device=True),
        lambda array, start: array[start:],
        threads=THREADS,
        replaced={},
    )
    scores = np.concatenate((np.full(VOCAB, 1.0), logits, np.full(VOCAB, 2.0))).astype(np.float32)
    length = len(batch.history)
    scratch = cuda.to_device(np.full(MAX_SCRATCH_ROWS * VOCAB, np.nan, np.float32))
    values = {
        "scores": scores,
        "order": np.array([7, 0], np.int32),
        "rows": np.array([1], np.int32),
        "numbers": batch.numbers.reshape(-1),
        "token_sets": batch.token_sets.reshape(-1),
        "windows": batch.windows,
        "uniforms": batch.uniforms,
        "positions": np.array([0, POSITION, 0], np.int32),
        "history_offsets": np.array([0, 0, length, length], np.int32),
        "histories": batch.history.copy(),
        "prompt_lengths": np.array([0, batch.prompt_lengths[0], 0], np.int32),
        "row_source": np.array([-1, 2, -1], np.int32),
        "sampled": np.array([-1, -1, pending], np.int32),
        "scratch": scratch,
        "scratch_bits": type(scratch)(scratch._ary.view(np.int32)),
        "vocab": np.int32(VOCAB),
        "first": np.int32(1),
        "num_numbers": np.int32(batch.numbers.shape[1]),
        "num_words": np.int32(batch.token_sets.shape[1]),
    }
    cuda.jit(kernel)[1, THREADS](*(values[name] for name, _ in ARGUMENTS))
    assert (scores[:VOCAB] == 1).all(), "the row before was written to"
    assert (scores[2 * VOCAB :] == 2).all(), "the row behind was written to"
    return scores[VOCAB : 2 * VOCAB]


def compare(case: Case) -> dict[str, Any]:
    """What is printed of a case."""
    rng = np.random.default_rng(len(case.name))
    logits = rng.normal(0, 2, VOCAB).astype(np.float32)
    logits[VOCAB - case.forbidden :] = -np.inf
    history = list(case.history)
    if case.pending is not None:
        history[-1] = -1
    batch = one_use(
        case.processor,
        VOCAB,
        history=history,
        prompt_length=case.prompt_length,
        position=POSITION,
        **case.settings,
    )
    pending = -1 if case.pending is None else case.pending
    expected = logits.copy()
    apply_processors({case.processor.name: case.processor}, batch, 0, expected, pending, POSITION)
    got = run_kernel(case.processor, batch, logits, pending)
    same_infinities = bool((np.isinf(got) == np.isinf(expected)).all())
    finite = np.isfinite(expected) & np.isfinite(got)
    difference = float(np.abs(got[finite] - expected[finite]).max(initial=0))
    return {
        "name": case.name,
        "changed": bool((expected != logits).any()),
        "difference": difference if same_infinities else None,
    }


if __name__ == "__main__":
    for case in cases():
        print(json.dumps(compare(case)))
