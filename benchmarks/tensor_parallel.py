r"""Compares a model on several GPUs with the same model on one, and measures both.

    HIP_PLATFORM=nvidia HIP_NCCL_LIBRARY=.../libnccl.so.2 \
        python -m benchmarks.tensor_parallel MODEL.gguf --devices 1,2

The first number of devices generates greedily; the others generate too, and score what the first
one generated. They add up in another order, so near ties may come out differently. Exit status 1
if a log-probability is further off than TOLERANCE, or too many tokens are others.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu_check import load_runner, measure
from rocmforge.backend.protocol import Runner
from tests.backend.driving import Chunk, Driver, Want

TOLERANCE = 0.25  # nats
LEAST_AGREEMENT = 0.95
PROMPT_TOKENS = 200
DEPTHS = (128, 4096)  # at which decode is measured


@dataclass(frozen=True)
class Answer:
    """What one number of devices gave."""

    tokens: list[int]  # generated
    forced: list[int]  # most probable after each token of the first answer
    logprobs: npt.NDArray[Any]  # of the first answer's tokens


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--devices", default="1,2", help="numbers of devices; the first is right")
    parser.add_argument("--batches", default="1,8,64", help="batch sizes to measure")
    parser.add_argument("--context", type=int, default=4608)
    parser.add_argument("--steps", type=int, default=64, help="decode steps of a measurement")
    parser.add_argument("--tokens", type=int, default=128, help="to generate and compare")
    options = parser.parse_args()
    batches = [int(size) for size in options.batches.split(",")]
    first: Answer | None = None
    is_right = True
    for devices in map(int, options.devices.split(",")):
        started = time.perf_counter()
        with closing(load_runner(options.model, max(batches), options.context, devices)) as runner:
            info = runner.info
            seconds = time.perf_counter() - started
            print(f"== {devices} x {info.device.name}: loaded in {seconds:.1f} s")
            for note in info.notes:
                print(f"   {note}")
            answer = _answer(runner, options.tokens, first)
            if first is None:
                first = answer
            else:
                is_right = _compare(answer, first) and is_right
            measure(runner, batches, (128, 4096), options.steps)
    return 0 if is_right else 1


def _answer(runner: Runner, count: int, first: Answer | None) -> Answer:
    driver = Driver(runner)
    rng = np.random.default_rng(7)
    prompt = rng.integers(3, runner.info.vocab_size, PROMPT_TOKENS).tolist()
    blocks = range(-(-(PROMPT_TOKENS + count) // runner.info.block_size))
    tokens = driver.greedy(prompt, blocks, count)
    expected = first.tokens if first else tokens
    wants = [
        Want(token=PROMPT_TOKENS - 1 + index, target=token, num_logprobs=1)
        for index, token in enumerate(expected)
    ]
    scored = driver.run(Chunk(tokens=[*prompt, *expected[:-1]], blocks=blocks, wants=wants))
    assert scored.logprobs is not None
    assert scored.top_ids is not None
    return Answer(tokens, scored.top_ids[:, 0].tolist(), scored.logprobs)


def _compare(answer: Answer, first: Answer) -> bool:
    same = np.equal(answer.tokens, first.tokens)
    until = len(same) if same.all() else int(np.argmin(same))
    agreement = float(np.mean(np.equal(answer.forced, first.forced)))
    error = np.abs(answer.logprobs - first.logprobs)
    is_right = bool(error.max() <= TOLERANCE) and agreement >= LEAST_AGREEMENT
    print(
        f"   equal tokens until {until} of {len(same)}; same top token after the same text "
        f"{agreement:.1%}; log-probabilities differ by {error.mean():.4f} on average, "
        f"{error.max():.4f} at most: {'ok' if is_right else 'WRONG'}"
    )
    return is_right


if __name__ == "__main__":
    raise SystemExit(main())
