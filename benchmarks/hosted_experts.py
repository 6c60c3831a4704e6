"""Measures a model with some of its experts in the host's memory: speed, and what is read there."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.backend.step import StepCost
from rocmforge_hip.backend import create
from tests.backend.driving import Chunk, Want, make_step
from tests.support.models.loading import load_file

_DEPTH = 128  # tokens before the first that is decoded


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shares", default="1,0.5,0", help="of the experts, on the device")
    parser.add_argument("--batches", default="1,8", help="sequences at once")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--windows", type=int, default=4, help="parts that steps are shown in")
    parser.add_argument("--prefill", type=int, default=4096, help="tokens; 0 = none")
    arguments = parser.parse_args()
    batches = [int(size) for size in arguments.batches.split(",")]
    for share in map(float, arguments.shares.split(",")):
        options = LoadOptions(
            device=None,
            max_context=max(4608, arguments.steps + _DEPTH + 16),
            max_sequences=max(16, *batches),
            max_batched_tokens=4096,
            kv_blocks=None,
            kv_dtype="auto",
            memory_utilization=0.8,
            decode_variant="auto",
            device_experts=share,
        )
        started = time.perf_counter()
        with closing(load_file(create(), arguments.model, options)) as runner:
            print(f"## {share:.0%} of the experts on the device", flush=True)
            print(f"load {time.perf_counter() - started:.2f} s", *runner.info.notes, sep="\n  ")
            step_id = _prefill(runner, arguments.prefill)
            for batch in batches:
                for is_drawn in (False, True):
                    step_id = _decode(runner, batch, arguments, step_id, is_drawn=is_drawn)
    return 0


def _prefill(runner: Runner, length: int) -> int:
    """Prints the speed of a prompt; returns the number of the next step."""
    if not length:
        return 0
    tokens = np.random.default_rng(length).integers(0, runner.info.vocab_size, length).tolist()
    times = []
    for step_id in range(3):
        chunk = Chunk(tokens=tokens, blocks=range(-(-length // runner.info.block_size)))
        runner.submit(make_step(step_id, [chunk], runner.info.block_size))
        times.append(runner.collect().device_ns / 1e9)
    print(f"prefill {length}: {length / min(times):,.0f} tokens/s", flush=True)
    return 3


def _decode(
    runner: Runner, batch: int, arguments: argparse.Namespace, step_id: int, *, is_drawn: bool
) -> int:
    """Decodes with two steps in flight; tokens are random, or drawn by the model."""
    info, steps = runner.info, max(64, arguments.steps // batch)
    rng = np.random.default_rng(batch)
    per_sequence = -(-(_DEPTH + steps + 1) // info.block_size)
    costs: list[StepCost] = []
    times: list[float] = []

    def collect() -> None:
        cost = runner.collect().cost
        assert cost is not None
        costs.append(cost)
        times.append(time.perf_counter())

    started = time.perf_counter()
    for index in range(steps):
        chunks = [
            Chunk(
                tokens=[int(rng.integers(0, info.vocab_size))],
                start=_DEPTH + index,
                blocks=range(row * per_sequence, (row + 1) * per_sequence),
                sources=[row] if index and is_drawn else None,
                wants=[Want(temperature=1.0, seed=row, position=index)],
            )
            for row in range(batch)
        ]
        runner.submit(make_step(step_id, chunks, info.block_size))
        step_id += 1
        if index:
            collect()
    collect()
    what = "drawn" if is_drawn else "random"
    for part in np.array_split(np.arange(steps), arguments.windows):
        first, last = int(part[0]), int(part[-1])
        seconds = times[last] - (times[first - 1] if first else started)
        reads = sum(costs[index].expert_reads for index in part)
        host = sum(costs[index].host_expert_reads for index in part)
        swaps = sum(costs[index].expert_swaps for index in part)
        print(
            f"batch {batch}, {what} tokens, steps {first} to {last}: "
            f"{batch * len(part) / seconds:,.0f} tokens/s, {seconds / len(part) * 1e3:.2f} ms, "
            f"{host / max(reads, 1):.1%} of {reads / len(part):.0f} experts from the host, "
            f"{swaps} swaps",
            flush=True,
        )
    return step_id


if __name__ == "__main__":
    raise SystemExit(main())
