"""Loads a model as on a card with less memory, and runs as many sequences as the planner promises.

    HIP_PLATFORM=nvidia python -m benchmarks.capacity MODEL.gguf --memory 24GiB --context 4096

All sequences reach their full length in nearly the same step. As many as are planned must run
without preemption; one more must wait until another has ended, or be preempted: exit status 1 if
not. Decode steps in front of the full length are timed, and compared with what reading their bytes
takes (docs/reference/capacity.md).
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.engine.context import most_sequences
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine_options import load_options
from rocmforge.opening import open_checkpoint
from rocmforge.settings import Settings
from rocmforge.sizes import parse_size
from rocmforge_hip.backend import HipBackend, create
from rocmforge_hip.device.discovery import choose_device, find_devices
from rocmforge_hip.device.platform import select_platform
from rocmforge_hip.load.loading import plan_reads
from tests.support.models.loading import estimate_file, load_file

_MARGIN: Final = 64
"""Tokens that a sequence decodes at least, half of which are timed."""
_MOST: Final = 1024


class Run(NamedTuple):
    """What came of so many sequences."""

    blocks: int  # of the cache
    preemptions: int
    at_once: bool  # all had begun before the first ended
    ended: int  # sequences that reached their full length
    step_s: float  # of a step that decodes all of them, near their full length; the median
    copy_bandwidth: float

    @property
    def fits(self) -> bool:
        """Whether the cache had room for all."""
        return self.at_once and not self.preemptions


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--memory", default="24GiB", help="of the card")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--kv-dtype", choices=("f16", "int8"), default="f16")
    asked = parser.parse_args()
    backend, memory = create(), parse_size(asked.memory)
    usual = load_options(Settings(kv_dtype=asked.kv_dtype), asked.context, causal=True)
    options = replace(usual, least_context=None, device_experts=1.0, state_snapshots=0)

    def spare(count: int) -> int:
        estimate = estimate_file(backend, asked.model, _with(options, count), memory)
        return estimate.left_for_kv - count * estimate.kv_sequence

    planned = most_sequences(spare, _MOST)
    print(f"{asked.model.name}, {asked.memory}: {planned} sequences of {asked.context} tokens")
    if not planned:
        return 1
    total = choose_device(find_devices(select_platform()), None).info.memory_total
    options = replace(options, memory_share=memory / total)
    with open_checkpoint(asked.model) as checkpoint:
        reads = plan_reads(checkpoint, options)
    alone = _run(backend, asked.model, options, 1)
    full = _run(backend, asked.model, options, planned)
    more = _run(backend, asked.model, options, planned + 1)
    for count, run in ((1, alone), (planned, full), (planned + 1, more)):
        print(
            f"{count} sequences: {run.blocks} blocks, {run.ended} reached their full length, "
            f"{'all at once' if run.at_once else 'not at once'}, {run.preemptions} preemptions, "
            f"a step of all {run.step_s * 1e3:.2f} ms, {count / run.step_s:,.0f} tokens/s"
        )
    for count, run in ((1, alone), (planned, full)):
        bytes_read = reads.of_decode(count, asked.context)
        if run.copy_bandwidth:
            reading = bytes_read / run.copy_bandwidth
            print(
                f"{count} sequences: a step reads {bytes_read / 1e9:.2f} GB, {reading * 1e3:.2f} "
                f"ms as fast as copies; it takes {run.step_s / reading:.2f} times as long"
            )
    is_right = full.fits and full.ended == planned and not more.fits
    print("as planned" if is_right else "NOT as planned")
    return 0 if is_right else 1


def _with(options: LoadOptions, count: int) -> LoadOptions:
    return replace(
        options,
        max_sequences=count,
        max_batched_tokens=max(options.max_batched_tokens, count),
    )


def _run(backend: HipBackend, model: Path, options: LoadOptions, count: int) -> Run:
    """Has so many sequences run at once until they are full."""
    with closing(load_file(backend, model, _with(options, count))) as runner:
        return run_full(runner, options.max_batched_tokens, count, _MARGIN)


def run_full(runner: Runner, step_tokens: int, count: int, decoded: int) -> Run:
    """Runs sequences of random tokens to their full length, all at once.

    Args:
        runner: of a model that was loaded for as many sequences.
        step_tokens: the token budget of a step.
        count: of sequences.
        decoded: tokens that each decodes at least. More than a block: as many have to be free for
            each that runs when another one begins.
    """
    context, totals = runner.info.max_context, Totals()
    limits = SchedulerLimits(
        max_sequences=count, max_batched_tokens=step_tokens, max_waiting=0, prefix_cache=False
    )
    core = EngineCore(runner, limits, time.monotonic_ns, totals)
    delays = [number * context // step_tokens for number in range(count)]
    shortest = context - decoded - delays[-1]
    assert shortest > context // 2, "the first sequences would end before the last ones begin"
    rng = np.random.default_rng(0)
    # Who comes later has fewer tokens to decode, so that all are full at the same time.
    lengths = [shortest + delay for delay in delays]
    commands = [
        GenerateRequest(
            prompt=token_prompt(rng.integers(0, runner.info.vocab_size, length).tolist()),
            sampling=SamplingParams(max_tokens=context - length, temperature=0.0, ignore_eos=True),
            eos_ids=(),
            arrival_ns=time.monotonic_ns(),
            request_id=number,
        )
        for number, length in enumerate(lengths)
    ]
    started, ended, at_once, times = set[int](), 0, False, []
    while commands or core.has_work:
        before = totals.device_ns
        events = core.step(commands).events
        commands = []
        started |= {event.request_id for event in events if event.token_ids}
        finished = {e.request_id for e in events if e.finish_reason is FinishReason.LENGTH}
        ended += len(finished)
        if len(started) == count and not ended:
            at_once = True
            times.append((totals.device_ns - before) / 1e9)
    info = runner.info
    return Run(
        blocks=info.num_blocks,
        preemptions=totals.preemptions,
        at_once=at_once,
        ended=ended,
        step_s=median(times[len(times) // 2 :] or [float("nan")]),
        copy_bandwidth=info.copy_bandwidth,
    )


if __name__ == "__main__":
    raise SystemExit(main())
