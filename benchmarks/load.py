"""Measures how fast a model reaches a GPU, and what could be reached.

    HIP_PLATFORM=nvidia python -m benchmarks.load MODEL.gguf

Four rates, each the best of several runs: copies from pinned memory to the device, reads of the
file into pinned memory (from the page cache, after the first run), the loading of all weights, and
the share of the first that the last one is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from rocmforge.backend.protocol import LoadOptions
from rocmforge.checkpoint.file_reads import FileRead
from rocmforge.checkpoint.locator import FilePart
from rocmforge_hip.backend import create
from rocmforge_hip.device.discovery import choose_device, find_devices
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import Memory, spec
from rocmforge_hip.device.platform import select_platform
from rocmforge_hip.weights.staging import RING
from tests.support.models.loading import load_file

CHUNK: Final = 8 << 20


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--context", type=int, default=1024)
    options = parser.parse_args()
    found = choose_device(find_devices(select_platform()), options.device)
    print(f"{found.info.name} ({found.info.target}), {options.model.name}")
    index = found.properties.index
    copies = _copy_rate(index, options.runs)
    print(f"copies from pinned memory: {copies / 1e9:.1f} GB/s")
    reads = max(_read_rate(options.model, index) for _ in range(options.runs))
    print(f"reads of {RING} places:        {reads / 1e9:.1f} GB/s")
    rates, seconds = [], []
    for _ in range(options.runs):
        rate, total = _load_rate(options.model, options.device, options.context)
        rates.append(rate)
        seconds.append(total)
    print(f"weights:                   {max(rates) / 1e9:.1f} GB/s, {max(rates) / copies:.0%}")
    print(f"the whole load:            {min(seconds):.2f} s (first {seconds[0]:.2f} s)")


def _copy_rate(index: int, runs: int) -> float:
    """Bytes per second of copies from a pinned ring."""
    driver = Driver(index)
    memory, stream = Memory(driver), driver.create_stream()
    hosts = [memory.pinned(CHUNK, "copies") for _ in range(RING)]
    there = memory.device(spec((CHUNK,), "u1"), "copies")
    for host in hosts:
        host.bytes[:] = 1
    copies = 64

    def copy() -> None:
        for number in range(copies):
            host = hosts[number % len(hosts)]
            driver.copy_to_device(there.array.address, host.address, CHUNK, stream)
        driver.synchronize_stream(stream)

    best = min(_seconds(copy) for _ in range(runs + 1))
    for buffer in memory.release():
        buffer.free()
    driver.destroy_stream(stream)
    return copies * CHUNK / best


def _read_rate(model: Path, index: int) -> float:
    """Bytes per second of reading the file, as the loader reads it."""
    size = model.stat().st_size
    memory = Memory(Driver(index))
    places = [(FileRead(), memory.pinned(CHUNK, "reads")) for _ in range(RING)]

    def read() -> None:
        for number, start in enumerate(range(0, size, CHUNK)):
            reading, place = places[number % RING]
            reading.wait()
            reading.start(FilePart(model, start), place.address, min(CHUNK, size - start))
        for reading, _ in places:
            reading.wait()

    seconds = _seconds(read)
    for reading, _ in places:
        reading.close()
    for buffer in memory.release():
        buffer.free()
    return size / seconds


def _load_rate(model: Path, device: str | None, context: int) -> tuple[float, float]:
    """Bytes per second from the first weight's reading to the last one's arrival; total seconds."""
    times: list[float] = []

    def note(stage: str, share: float) -> None:
        if stage == "loading weights":
            times.append(time.perf_counter())

    options = LoadOptions(
        device=device,
        max_context=context,
        max_sequences=4,
        max_batched_tokens=256,
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.8,
    )
    started = time.perf_counter()
    with closing(load_file(create(), model, options, note)) as runner:
        total = time.perf_counter() - started
        return runner.info.weights_bytes / (times[-1] - times[0]), total


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
