"""`rocmforge bench`: how fast a model loads, reads prompts and writes on this machine.

It drives the engine process as the server does, without HTTP. Prompts are random tokens, so no
run profits from the prefix cache of another. Timings of one run are noisy: each figure is the
median of `--repeat` runs. What follows random tokens is not what people ask for, so draft tokens
(speculative decoding) are accepted more or less often here than they will be.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rocmforge.backend.protocol import RunnerInfo
from rocmforge.commands.terminal.output import output_console
from rocmforge.commands.terminal.progress import wait_ready
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.errors import EngineError
from rocmforge.model_front import read_front
from rocmforge.settings import Settings
from rocmforge.wiring import build_engine


@dataclass(frozen=True, slots=True)
class Drafts:
    """Draft tokens in each step, by prompt lookup and by the draft model."""

    lookup: int
    model: int


NO_DRAFTS: Final = Drafts(0, 0)


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """One request, in seconds of time.perf_counter()."""

    started: float
    first: float
    finished: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One number of concurrent streams; medians over the runs."""

    streams: int
    prompt_tokens: int
    output_tokens: int
    prefill_tokens_per_s: float  # prompt tokens of all streams until the last first token
    decode_tokens_per_s: float  # tokens after the first of all streams, while any stream decodes
    ttft_ms: float  # median over the streams
    per_token_ms: float  # median over the streams, after the first token
    drafted_tokens: int  # drafts that were checked, in all runs
    accepted_tokens: int  # of those


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Everything that is shown, so that --json shows the same."""

    model: str
    runner: RunnerInfo
    start_to_ready_s: float
    engine_memory_bytes: int  # resident, after the runs
    rows: tuple[BenchRow, ...]


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Measures, then prints one table."""
    console = Console(stderr=True)
    report = asyncio.run(_measure(arguments, settings, console))
    if arguments.json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(output_console(), report)
    return 0


async def _measure(
    arguments: argparse.Namespace, settings: Settings, console: Console
) -> BenchReport:
    begin = time.perf_counter()
    front = read_front(arguments.model, settings)
    front.check_generates()
    engine = build_engine(front, settings)
    await engine.start()
    try:
        await wait_ready(engine, console, settings.log_format)
        start_to_ready_s = time.perf_counter() - begin
        runner = engine.status.runner
        assert runner is not None
        await _run_streams(engine, runner, streams=1, prompt_tokens=8, output_tokens=4)  # warm up
        drafts = Drafts(
            lookup=settings.prompt_lookup_tokens,
            model=settings.draft_tokens if front.has_drafter else 0,
        )
        rows = []
        for streams in arguments.streams:
            before = engine.status.stats
            runs = [
                await _run_streams(
                    engine,
                    runner,
                    streams=streams,
                    prompt_tokens=arguments.prompt_tokens,
                    output_tokens=arguments.output_tokens,
                    drafts=drafts,
                )
                for _ in range(arguments.repeat)
            ]
            row = _summarise(runs, arguments.prompt_tokens, arguments.output_tokens)
            rows.append(_with_drafts(row, before, engine.status.stats))
        assert engine.pid is not None
        return BenchReport(
            model=front.path.name,
            runner=runner,
            start_to_ready_s=start_to_ready_s,
            engine_memory_bytes=_resident_bytes(engine.pid),
            rows=tuple(rows),
        )
    finally:
        await engine.stop()


async def _run_streams(
    engine: AsyncEngine,
    runner: RunnerInfo,
    *,
    streams: int,
    prompt_tokens: int,
    output_tokens: int,
    drafts: Drafts = NO_DRAFTS,
) -> list[StreamTiming]:
    sampling = SamplingParams(
        max_tokens=output_tokens,
        temperature=0.0,
        ignore_eos=True,
        prompt_lookup_tokens=drafts.lookup,
        draft_model_tokens=drafts.model,
    )
    return await asyncio.gather(
        *(_run_stream(engine, runner, prompt_tokens, sampling) for _ in range(streams))
    )


async def _run_stream(
    engine: AsyncEngine, runner: RunnerInfo, prompt_tokens: int, sampling: SamplingParams
) -> StreamTiming:
    prompt = random.choices(range(runner.vocab_size), k=prompt_tokens)
    request = GenerateRequest(
        prompt=token_prompt(prompt), sampling=sampling, eos_ids=(), arrival_ns=time.monotonic_ns()
    )
    started = time.perf_counter()
    first = 0.0
    handle = engine.submit(request)
    try:
        while True:
            for event in await handle.next():
                first = first or time.perf_counter()
                if event.error is not None:
                    raise EngineError(event.error)
                if event.finish_reason is not None:
                    return StreamTiming(started, first, time.perf_counter())
    finally:
        handle.close()


def _summarise(runs: list[list[StreamTiming]], prompt_tokens: int, output_tokens: int) -> BenchRow:
    prefill, decode, ttft, per_token = [], [], [], []  # one figure per run
    for timings in runs:
        begin = min(t.started for t in timings)
        first = min(t.first for t in timings)
        last_first = max(t.first for t in timings)
        end = max(t.finished for t in timings)
        after_first = max(output_tokens - 1, 1)
        prefill.append(len(timings) * prompt_tokens / (last_first - begin))
        decode.append(len(timings) * (output_tokens - 1) / max(end - first, 1e-9))
        ttft.append(statistics.median([t.first - t.started for t in timings]))
        per_token.append(statistics.median([(t.finished - t.first) / after_first for t in timings]))
    return BenchRow(
        streams=len(runs[0]),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prefill_tokens_per_s=statistics.median(prefill),
        decode_tokens_per_s=statistics.median(decode),
        ttft_ms=1000 * statistics.median(ttft),
        per_token_ms=1000 * statistics.median(per_token),
        drafted_tokens=0,
        accepted_tokens=0,
    )


def _with_drafts(row: BenchRow, before: EngineStats, after: EngineStats) -> BenchRow:
    """Returns the row with the draft tokens of the time between two snapshots."""
    counts = zip(after.totals.draft_counts, before.totals.draft_counts, strict=True)
    drafted, accepted = (now - then for now, then in counts)
    return replace(row, drafted_tokens=drafted, accepted_tokens=accepted)


def _resident_bytes(pid: int) -> int:
    """Reads VmRSS of a process (proc(5)), in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise EngineError(f"process {pid} reports no resident memory")


def _print(console: Console, report: BenchReport) -> None:
    runner = report.runner
    console.print(
        f"{escape(report.model)} on {runner.backend}, {escape(runner.device.name)}: ready after "
        f"{report.start_to_ready_s:.1f} s, {report.engine_memory_bytes / 2**20:.0f} MiB resident",
        highlight=False,
    )
    table = Table("streams", "prompt", "output", "prefill tok/s", "decode tok/s", "TTFT", "a token")
    if any(row.drafted_tokens for row in report.rows):
        table.add_column("accepted draft tokens")
    for row in report.rows:
        table.add_row(
            str(row.streams),
            str(row.prompt_tokens),
            str(row.output_tokens),
            f"{row.prefill_tokens_per_s:.1f}",
            f"{row.decode_tokens_per_s:.1f}",
            f"{row.ttft_ms:.0f} ms",
            f"{row.per_token_ms:.1f} ms",
            *_drafts_cell(row),
        )
    console.print(table)


def _drafts_cell(row: BenchRow) -> tuple[str, ...]:
    if not row.drafted_tokens:
        return ()
    return (f"{row.accepted_tokens} of {row.drafted_tokens}",)
