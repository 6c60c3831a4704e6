"""Measures copies of KV blocks, and first tokens of prompts whose blocks come back.

    HIP_PLATFORM=nvidia python -m benchmarks.cache_tiers MODEL.gguf --folder /dev/shm/cache

Prompts are computed one after the other, of which the device holds one, and come again: from the
host's memory, which then holds all, and from files, if there is a folder, while the host's memory
holds one.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from rocmforge.backend.protocol import CopiesBlocks, LoadOptions, Runner
from rocmforge.engine.cache.tiers.block_file import FileKey, read_entry, write_entry
from rocmforge.engine.cache.tiers.folder import CacheFolder
from rocmforge.engine.cache.tiers.tiers import CacheTiers
from rocmforge.engine.core import EngineCore
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge_hip.backend import create
from rocmforge_hip.run import block_copies
from tests.backend.driving import Chunk, Driver
from tests.support.engine.core import submits
from tests.support.models.loading import load_file

OPTIONS = LoadOptions(
    device=None,
    max_context=8192,
    max_sequences=16,
    max_batched_tokens=2048,
    kv_blocks=320,
    kv_dtype="auto",
    memory_utilization=0.8,
    graphs="auto",
    decode_variant="auto",
)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--folder", type=Path, help="where files go; deleted before and after")
    parser.add_argument("--grids", default="16,32,64,128", help="thread blocks of a copy, to try")
    parser.add_argument("--kv-dtype", choices=("auto", "f16", "int8"), default="auto")
    args = parser.parse_args()
    options = replace(OPTIONS, kv_dtype=args.kv_dtype)
    for grid in args.grids.split(","):
        with (
            patch.object(block_copies, "_GRID", int(grid)),
            closing(load_file(create(), args.model, options)) as runner,
        ):
            copies(runner, int(grid))
    if args.folder is not None:
        reads(args.folder)
    for slots, folder in ((8 * args.tokens // 32, None), (args.tokens // 32 + 8, args.folder)):
        few = replace(options, kv_blocks=args.tokens // 32 + 24, max_context=args.tokens + 512)
        with closing(load_file(create(), args.model, few)) as runner:
            first_tokens(runner, args.tokens, slots, folder)


def copies(runner: Runner, grid: int) -> None:
    """Prints how fast 128 blocks go to the host and back, alone and beside decodes."""
    assert isinstance(runner, CopiesBlocks)
    count = 128
    runner.open_host_blocks(count)
    chosen = np.random.default_rng(1).permutation(runner.info.num_blocks - 16)[:count] + 16
    blocks, slots = chosen.astype(np.int32), np.arange(count, dtype=np.int32)
    total = count * runner.info.block_bytes
    driver = Driver(runner)
    driver.run(Chunk(tokens=[1, 2, 3], blocks=[0]))
    alone = step_ms(driver, 20)
    for name, copy in (("save", runner.save_blocks), ("restore", runner.restore_blocks)):
        for _ in range(3):
            copy(blocks, slots)
            took = wait(runner)
        copy(blocks, slots)
        beside = step_ms(driver, 3)
        wait(runner)
        print(
            f"grid {grid}: {name} {total / took:.1f} GB/s ({took / 1e6:.2f} ms for "
            f"{total / 2**20:.0f} MiB); a decode step {alone:.3f} ms alone, {beside:.3f} beside",
            flush=True,
        )


def wait(runner: CopiesBlocks) -> int:
    """Nanoseconds of the copy that runs."""
    while not (found := runner.finished_copies()):
        pass
    return found[0]


def step_ms(driver: Driver, count: int) -> float:
    """Milliseconds on the device of a decode step of one sequence."""
    times = [driver.run(Chunk(tokens=[4], start=3, blocks=[0])).device_ns for _ in range(count)]
    return float(np.median(times)) / 1e6


def first_tokens(runner: Runner, tokens: int, slots: int, folder: Path | None) -> None:
    """Prints times to the first token, computed and from a tier; the device holds one prompt."""
    assert isinstance(runner, CopiesBlocks)
    random = np.random.default_rng(2)
    prompts = [random.integers(5, 30000, tokens).tolist() for _ in range(5)]
    totals = Totals()
    files = None
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        files = CacheFolder(folder, bytes(32), 64 << 30)
    started = time.perf_counter()
    tiers = CacheTiers(runner, slots, files, totals)
    seconds = time.perf_counter() - started
    print(f"{tiers.note}; pinned in {seconds:.2f} s", flush=True)
    limits = SchedulerLimits(
        max_sequences=16, max_batched_tokens=2048, max_waiting=100, max_stall_ns=30_000_000
    )
    core = EngineCore(runner, limits, time.monotonic_ns, totals, tiers=tiers)
    answers: dict[int, tuple[int, ...]] = {}
    for number in (*range(5), *range(5), 4):
        before = totals.tier_restored_blocks, totals.tier_read_blocks
        took, answer, cached = first_token(core, prompts[number])
        assert answers.setdefault(number, answer) == answer, "another answer"
        restored, read = totals.tier_restored_blocks, totals.tier_read_blocks
        print(
            f"prompt {number}: {1e3 * took:.1f} ms, {cached} tokens cached, "
            f"{restored - before[0]} blocks restored, {read - before[1]} of them read",
            flush=True,
        )
        while core.tend():
            time.sleep(0.001)
    tiers.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def reads(folder: Path) -> None:
    """Prints how fast files of 4 MiB are written and read, by one thread and by four."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    keys = [FileKey.of(bytes(32), bytes([i] * 16)) for i in range(128)]
    memory = np.random.default_rng(1).integers(0, 256, (128, 4 << 20), np.uint8)

    def timed(what: str, work: Callable[[int], object], threads: int) -> None:
        started = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(128)))
        speed = memory.nbytes / 1e9 / (time.perf_counter() - started)
        print(f"{what} by {threads} threads: {speed:.2f} GB/s", flush=True)

    timed("write", lambda i: write_entry(folder, keys[i], memory[i]), 1)
    for threads in (1, 4, 8):
        timed("read", lambda i: read_entry(folder, keys[i], memory[i]), threads)
    shutil.rmtree(folder, ignore_errors=True)


def first_token(core: EngineCore, prompt: Sequence[int]) -> tuple[float, tuple[int, ...], int]:
    """Seconds to the first token of a prompt, its answer, and how many tokens were found."""
    (request,) = submits([(prompt, SamplingParams(max_tokens=4, temperature=0.0))])
    started, first, cached = time.perf_counter(), 0.0, 0
    tokens: list[int] = []
    report = core.step([request])
    while True:
        for event in report.events:
            assert event.error is None, event.error
            tokens += event.token_ids
            first = first or time.perf_counter() - started
            cached = event.cached_tokens
        if not core.has_work:
            return first, tuple(tokens), cached
        report = core.step()


if __name__ == "__main__":
    main()
