"""Time to the first token of each turn of a conversation, with and without snapshots of states.

    HIP_PLATFORM=nvidia python -m benchmarks.conversation MODEL.gguf

The first prompt is long; each turn adds the answer and a message. Models without states find their
blocks in both cases.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge_hip.backend import create
from tests.support.models.loading import load_file

_STEP_TOKENS = 2048


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--first", type=int, default=4096, help="tokens of the first prompt")
    parser.add_argument("--message", type=int, default=256, help="tokens that a turn adds")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    for snapshots in (0, None):
        print(f"snapshots: {'as by default' if snapshots is None else snapshots}", flush=True)
        _talk(options, snapshots)


def _talk(options: argparse.Namespace, snapshots: int | None) -> None:
    sequences = 4
    longest = options.first + options.turns * (options.message + options.answer)
    load = LoadOptions(
        device=None,
        max_context=longest,
        max_sequences=sequences,
        max_batched_tokens=_STEP_TOKENS,
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.8,
        state_snapshots=snapshots,
    )
    limits = SchedulerLimits(
        max_sequences=sequences, max_batched_tokens=_STEP_TOKENS, max_waiting=sequences
    )
    with closing(load_file(create(), options.model, load)) as runner:
        print(f"{runner.info.state_bytes / 2**20:.1f} MiB of states", flush=True)
        core = EngineCore(runner, limits, time.monotonic_ns)
        random, vocab_size = np.random.default_rng(3), runner.info.vocab_size

        def words(count: int) -> list[int]:
            found: list[int] = random.integers(10, vocab_size, count).tolist()
            return found

        _ask(core, 0, words(options.first + 1), 4)  # what is compiled or captured at first use
        text = words(options.first)
        for turn in range(options.turns):
            answer, cached, milliseconds, rate = _ask(core, turn + 1, text, options.answer)
            print(
                f"{len(text):6} tokens, {cached:6} found: "
                f"first token after {milliseconds:7.2f} ms, then {rate:6.1f} tokens/s",
                flush=True,
            )
            text = [*text, *answer, *words(options.message)]


def _ask(
    core: EngineCore, number: int, prompt: list[int], count: int
) -> tuple[list[int], int, float, float]:
    """Returns the answer, tokens found, milliseconds to the first token, tokens a second then."""
    request = GenerateRequest(
        request_id=number,
        prompt=token_prompt(prompt),
        sampling=SamplingParams(max_tokens=count, temperature=0, ignore_eos=True),
        eos_ids=(),
        arrival_ns=time.monotonic_ns(),
    )
    commands, answer, cached, first = [request], list[int](), 0, 0.0
    started = time.perf_counter()
    while commands or core.has_work:
        report = core.step(commands)
        commands = []
        for event in report.events:
            answer.extend(event.token_ids)
            first = first or time.perf_counter() - started
            cached = event.cached_tokens
    took = time.perf_counter() - started
    return answer, cached, first * 1e3, (count - 1) / (took - first)


if __name__ == "__main__":
    main()
