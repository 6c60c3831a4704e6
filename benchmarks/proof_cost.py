"""Measures what it costs to have a share of the answers computed again (`--verify-rate`).

    HIP_PLATFORM=nvidia python -m benchmarks.proof_cost MODEL.gguf --rate 1
    HIP_PLATFORM=nvidia python -m benchmarks.proof_cost MODEL.gguf --rate 0.01 --rounds 20

Two servers on one device, with and without a verifier, are asked in turns by N streams, each again
when its last answer has ended; the other server and its verifier stand still meanwhile. Settings of
both follow `--`.

A stretch of 128 steps is drawn with the probability of the rate. So at 0.01 it takes 12,800 steps
to see one on average, and 38,400 to see one in 95 of 100 runs; `steps` says how many there were.
With a rate of 1 the first steps are drawn at once, and from then on as many samples wait as may:
the verifier computes as long as it may, and whenever it has done with a sample, another request is
recorded. No smaller rate can cost more, so what a rate of 1 costs is a bound.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.closed_loop import Ask, Clients, Summary
from benchmarks.serving import NAME, Metrics, Served, serve, split_arguments
from benchmarks.soak import child_of, idle
from rocmforge.engine.client.verifier import REASONS
from rocmforge.engine.proof.recorder import STRETCH
from rocmforge.opening import describe
from tests.support.processes.server import LiveServer

_OPEN_S: Final = 400.0  # the verifier reads a model with one thread that gives way to all others
_COLUMNS: Final = (
    *("tokens/s", "first p50", "p99", "between p50", "p99", "longest"),
    *("steps", "samples", "tokens", "core s", "dropped"),
)


def main() -> None:
    """Prints a line for each turn as soon as it is there, and what verification cost."""
    options = _parse()
    config = describe(options.model).config
    if config is None:
        raise SystemExit(f"{options.model} has no configuration that is known")
    context = options.prompt + options.answer + 1
    served = Served(options.model, options.backend, options.streams, context, options.settings)
    verify = ["--verify-rate", str(options.rate), "--verify-seconds", str(options.verify_seconds)]
    own = [["--memory-utilization", str(options.memory), *more] for more in ([], verify)]
    with (
        Clients(NAME, config.vocab_size, options.processes) as clients,
        serve(served, own, at_once=False) as (without, verified),
    ):
        verifier = _verifier_of(verified)
        print(f"{'ms':<10}" + "".join(f"{column:>12}" for column in _COLUMNS), flush=True)
        rates: dict[str, list[float]] = {"without": [], "verified": []}
        steps = 0
        for number in range(options.rounds):
            turns = [("without", without), ("verified", verified)]
            for name, server in turns if number % 2 == 0 else reversed(turns):
                if name == "without":
                    with _stopped(verifier):
                        seen, _ = _measure(options, clients, name, server, None)
                else:
                    seen, more = _measure(options, clients, name, server, verifier)
                    steps += more
                rates[name].append(seen.tokens_per_s)
    slow, fast = median(rates["verified"]), median(rates["without"])
    print(
        f"medians: {fast:,.0f} tokens/s without, {slow:,.0f} verified: {1 - slow / fast:+.2%} lost"
    )
    print(f"{steps} steps: {options.rate * steps / STRETCH:.1f} stretches are drawn on average")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend", default="hip")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--verify-seconds", type=float, default=20.0, help="of each minute")
    parser.add_argument("--memory", type=float, default=0.4, help="share of each server")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32, help="tokens")
    parser.add_argument("--answer", type=int, default=256, help="tokens")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--warm-up", type=float, default=1.5, help="seconds before each turn")
    parser.add_argument("--processes", type=int, default=0, help="of clients; 0 = by processors")
    ours, settings = split_arguments(sys.argv[1:])
    options = parser.parse_args(ours)
    options.settings = settings
    return options


def _verifier_of(server: LiveServer) -> int:
    """Returns the verifier's process, once it has loaded the model."""
    deadline = time.monotonic() + _OPEN_S
    while time.monotonic() < deadline:
        if Metrics.of(server).value("verify_running"):
            return child_of(server.process.pid, "rocmforge.engine.proof.process")
        if problem := server.get("/health").json()["models"][0]["proof"]["problem"]:
            raise SystemExit(problem)
        time.sleep(0.5)
    raise SystemExit(f"the verifier has not loaded the model within {_OPEN_S:.0f} s")


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Has a process stand still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _measure(
    options: argparse.Namespace,
    clients: Clients,
    name: str,
    server: LiveServer,
    verifier: int | None,
) -> tuple[Summary, int]:
    """Asks one server; prints what came of it, and returns it with the number of steps."""
    before, core_s = Metrics.of(server), _core_s(verifier)
    measured = clients.measure(
        [(Ask(server.port, options.prompt, options.answer),)] * options.streams,
        warm_up_s=options.warm_up,
        most_warm_up_s=4 * options.warm_up,
        seconds=options.seconds,
    )
    core_s = _core_s(verifier) - core_s
    after = Metrics.of(server)
    seen = measured.summary()

    def grown(metric: str, **labels: str) -> int:
        metric = f"{metric}_total"
        return round(after.value(metric, **labels) - before.value(metric, **labels))

    steps = grown("engine_steps")
    cells = [f"{seen.tokens_per_s:,.0f}", *(f"{wait:,.1f}" for wait in seen.waits_ms), str(steps)]
    if verifier is not None:
        cells += [str(grown("verify_samples")), str(grown("verify_tokens")), f"{core_s:.1f}"]
        dropped = {each: grown("verify_dropped_samples", reason=each) for each in REASONS}
        cells.append(", ".join(f"{count} {each}" for each, count in dropped.items() if count))
    print(f"{name:<10}" + "".join(f"{cell:>12}" for cell in cells), flush=True)
    if left := asyncio.run(idle(server.url)):
        raise RuntimeError(f"the server does not come to rest: {left}")
    return seen, steps


def _core_s(pid: int | None) -> float:
    """Returns the processor time that a process has used."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
