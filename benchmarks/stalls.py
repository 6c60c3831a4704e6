"""Shows how long tokens wait for prompts: simulated, or of a server that runs.

    python -m benchmarks.stalls
    python -m benchmarks.stalls --load MODEL.gguf --waits 5
    rocmforge serve MODEL --port 8000 --max-stall 0 &
    python -m benchmarks.stalls --port 8000 --model NAME

Without a port, the engine core runs on the clock of a virtual device, or in this process with a
model on a GPU; with `--waits`, the longest waits for a token follow, and the steps in them.
The scheduler is the one that serves. The device is a law, fitted to what an H200 took for
Llama-8B Q4_K_M (docs/benchmarks.md): decode by batch and depth, prompts by depth. Each row has the
scheduler without a limit on time, and with `--max-stall`. With a port, the same requests are sent
when they are due, with prompts of random tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.gpu_check import load_runner
from benchmarks.http_load import Connection
from benchmarks.step_trace import TracedRunner, TracedStep, describe_waits
from benchmarks.waits import quantile, without_collections
from rocmforge.backend.protocol import Runner
from rocmforge.backend.step import StepInput
from rocmforge.engine.core import EngineCore
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.support.fakes.virtual_device import Arrival, Seen, VirtualClock, VirtualDevice, drive


@dataclass(frozen=True)
class H200:
    """The seconds that a step takes.

    Args:
        prompt_speed: how much faster prompts are than in docs/benchmarks.md.
        decode_speed: the same for decodes.
        noise: standard deviation of a step's time, as a share of it.
    """

    prompt_speed: float = 1.0
    decode_speed: float = 1.0
    noise: float = 0.02
    seed: int = 0

    # 456, 813, 1,977, 4,016, 8,048 and 9,488 tokens/s at batch 1, 2, 8, 16, 64 and 128.
    DECODE = ((1, 2.19), (2, 2.46), (8, 4.05), (16, 3.98), (64, 7.95), (128, 13.5))
    # 16,595 tokens/s for 4,096 tokens and 10,870 for 32,768 give the last point and PAIR_NS;
    # about 14,500 for 512 is what the matrix products of this type leave of the 12,619 of IQ2_XXS.
    PROMPT = (
        (1, 2.19),
        (16, 3.98),
        (64, 7.5),
        (128, 12.0),
        (512, 35.0),
        (2048, 114.0),
        (4096, 228.5),
    )
    PAIR_NS = 2.21
    # 3,887 tokens/s at batch 64 and depth 4,096; 306 at batch 1 and depth 32,000.
    CONTEXT_NS = 33.0

    def __call__(self, step: StepInput) -> float:
        """Returns the seconds of this step."""
        counts = np.diff(step.query_start).astype(np.int64)
        starts = step.context_len - counts
        is_prompt = counts > 1
        n = counts[is_prompt]
        pairs = float((n * starts[is_prompt] + n * (n + 1) / 2).sum())
        curve, speed = (
            (self.PROMPT, self.prompt_speed) if len(n) else (self.DECODE, self.decode_speed)
        )
        sizes, times = zip(*curve, strict=True)
        ms = float(np.interp(step.num_tokens, sizes, times)) / speed
        ns = 1e6 * ms + self.PAIR_NS / self.prompt_speed * pairs
        ns += self.CONTEXT_NS / self.decode_speed * float(step.context_len[~is_prompt].sum())
        return 1e-9 * ns * max(0.5, Random(self.seed + step.step_id).gauss(1.0, self.noise))


def beside_a_long_prompt() -> list[Arrival]:
    """16 streams, and a prompt of 32,000 tokens when they run."""
    streams = [Arrival(0.001 * number, 64, 1300) for number in range(16)]
    return [*streams, Arrival(1.0, 32_000, 16)]


def poisson(rate: float, seconds: float = 15.0, seed: int = 0) -> list[Arrival]:
    """Prompts of 512 tokens and answers of 128, `rate` of them a second."""
    return [Arrival(at, 512, 128) for at in _times(rate, seconds, seed)]


def mixed(rate: float = 10.0, seconds: float = 15.0) -> list[Arrival]:
    """Prompts of 512 tokens, and one of 16,000 tokens every five seconds."""
    long = [Arrival(2.0 + 5.0 * number, 16_000, 128) for number in range(int(seconds // 5))]
    return [*poisson(rate, seconds), *long]


def _times(rate: float, seconds: float, seed: int) -> Iterator[float]:
    random, now = Random(seed), 0.0
    while (now := now + random.expovariate(rate)) < seconds:
        yield now


async def ask_server(port: int, model: str, arrivals: Sequence[Arrival]) -> list[Seen]:
    """Sends each request when it is due, on a connection of its own; returns what they saw."""
    begin = time.perf_counter() + 0.5

    async def ask(number: int, arrival: Arrival) -> Seen:
        random = Random(number)
        body: dict[str, object] = {
            "model": model,
            "prompt": [random.randrange(1000, 30_000) for _ in range(arrival.num_prompt)],
            "max_tokens": arrival.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        due = begin + arrival.at_s
        # Not much earlier: a server closes connections that nothing is asked on.
        await asyncio.sleep(due - 0.2 - time.perf_counter())
        connection = await Connection.open("127.0.0.1", port)
        await asyncio.sleep(due - time.perf_counter())
        stream = await connection.stream(body, None)
        connection.writer.close()
        times = [at - begin for at, count in stream.arrivals for _ in range(count)]
        return Seen(arrival, times)

    return await asyncio.gather(*map(ask, range(len(arrivals)), arrivals))


def serve_alone(
    runner: Runner,
    limits: SchedulerLimits,
    arrivals: Sequence[Arrival],
    clock: Callable[[], int],
    wait_until: Callable[[int], None],
) -> tuple[list[Seen], list[TracedStep]]:
    """Has an engine in this process serve the requests when they are due, without any server."""
    traced = TracedRunner(runner, clock)
    core = EngineCore(traced, limits, clock)
    seen, _ = drive(core, clock, arrivals, wait_until, traced.watch)
    return seen, traced.steps


def simulate(
    law: H200, limits: SchedulerLimits, arrivals: Sequence[Arrival]
) -> tuple[list[Seen], list[TracedStep]]:
    """Serves the requests on a device that is only a law."""
    clock = VirtualClock()
    return serve_alone(VirtualDevice(law, clock), limits, arrivals, clock, clock.wait_until)


def measure(
    runner: Runner, limits: SchedulerLimits, arrivals: Sequence[Arrival]
) -> tuple[list[Seen], list[TracedStep]]:
    """Serves the requests on a device."""
    begin = time.monotonic_ns()

    def clock() -> int:
        return time.monotonic_ns() - begin

    def wait_until(ns: int) -> None:
        time.sleep(max(0, ns - clock()) / 1e9)

    return serve_alone(runner, limits, arrivals, clock, wait_until)


def print_row(name: str, run: Sequence[Seen], *, first: Sequence[float]) -> None:
    """Prints one line of the table; times in ms."""
    gaps = [1e3 * gap for seen in run for _, gap in seen.gaps]
    span = max(seen.tokens_at[-1] for seen in run)
    tokens = sum(len(seen.tokens_at) for seen in run)
    values = (
        *(1e3 * quantile(first, 0.5), 1e3 * quantile(first, 0.99)),
        *(quantile(gaps, 0.5), quantile(gaps, 0.99), max(gaps), tokens / span),
    )
    print(f"{name:<44}" + "".join(f"{value:>10,.1f}" for value in values), flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-stall", type=float, default=30.0, help="milliseconds")
    parser.add_argument("--max-sequences", type=int, default=64)
    parser.add_argument("--max-batched-tokens", type=int, default=2048)
    parser.add_argument("--prompt-speed", type=float, default=1.0, help="of the simulated device")
    parser.add_argument("--decode-speed", type=float, default=1.0, help="of the simulated device")
    parser.add_argument("--load", type=Path, help="a model, for an engine in this process")
    parser.add_argument("--waits", type=int, default=0, help="of the longest ones to describe")
    parser.add_argument("--port", type=int, help="of a server to send the requests to")
    parser.add_argument("--model", default="", help="its name there")
    parser.add_argument("--rows", default="", help="only those with this in their name")
    options = parser.parse_args()
    if options.waits and options.port:
        parser.error("--waits: of a server, nobody here knows the steps; see --load")
    runner = load_runner(options.load, options.max_sequences, 34_000) if options.load else None
    law = H200(options.prompt_speed, options.decode_speed)
    columns = ("first p50", "p99", "gap p50", "p99", "longest", "tokens/s")
    print(f"{'ms':<44}" + "".join(f"{column:>10}" for column in columns))
    rows = {
        "16 streams and a prompt of 32,000": beside_a_long_prompt(),
        **{f"512 in, 128 out, {rate} a second": poisson(rate) for rate in (10, 20, 30, 45)},
        "10 a second, and 16,000 every 5 s": mixed(),
    }
    for name, arrivals in rows.items():
        if options.rows not in name:
            continue
        longest = max(arrival.num_prompt for arrival in arrivals)
        of = longest if name.startswith("16 streams") else 512
        runs: dict[str, tuple[list[Seen], list[TracedStep]]] = {}
        with without_collections():
            if options.port:
                seen = asyncio.run(ask_server(options.port, options.model, arrivals))
                runs[name] = seen, []
            for stall in () if options.port else (0.0, options.max_stall):
                limits = SchedulerLimits(
                    max_sequences=options.max_sequences,
                    max_batched_tokens=options.max_batched_tokens,
                    max_waiting=100_000,
                    max_stall_ns=round(1e6 * stall),
                )
                label = f"{name}{f', {stall:g} ms' if stall else ''}"
                runs[label] = (
                    measure(runner, limits, arrivals)
                    if runner is not None
                    else simulate(law, limits, arrivals)
                )
        for label, (seen, steps) in runs.items():
            first = [each.first_token_s for each in seen if each.arrival.num_prompt == of]
            print_row(label, seen, first=first)
            for line in describe_waits(seen, steps, options.waits):
                print(line)


if __name__ == "__main__":
    main()
