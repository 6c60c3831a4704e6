"""One rank of a group on the host platform: `python -m tests.platform.rank JSON`.

Says on its standard output, as JSON, what its buffer held in the end and what the library found.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from rocmforge.errors import BackendError
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.device.memory import Memory, spec
from rocmforge_hip.ops.collective import Communicator
from rocmforge_hip.weights.shard import Shard
from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.kernels import PlatformOptions


def run(
    answer: dict[str, Any],
    *,
    group: str,
    rank: int,
    device: int,
    counts: list[int],
    gathers: bool,
    writes: bool,
    captures: bool,
) -> None:
    """Adds up so many elements of a buffer, one count after the other, and gathers the last one.

    The buffer of rank r starts as r + 1, r + 2, ...; what is captured is launched twice.
    """
    driver = Driver(device)
    stream, memory = driver.create_stream(), Memory(driver)
    communicator = Communicator(bytes.fromhex(group), Shard(rank, 2), stream)
    here = memory.pinned(max(counts) * 4, "values")
    here.bytes.view(np.float32)[:] = rank + 1 + np.arange(max(counts))
    buffer = memory.device(spec((max(counts),), "f4"), "buffer").array
    gathered = memory.device(spec((2 * counts[-1],), "f4"), "gathered")
    gathered.fill(0, stream)
    result = memory.pinned(gathered.nbytes, "result")
    if writes:
        driver.copy_to_device(buffer.address, here.address, buffer.nbytes, stream)
    if captures:
        driver.begin_capture(stream)
    for count in counts:
        communicator.all_reduce(buffer.first(count))
    if gathers:
        communicator.all_gather(buffer.first(counts[-1]), gathered.array)
    if captures:
        graph = driver.end_capture(stream)
        driver.launch_graph(graph, stream)
        driver.launch_graph(graph, stream)
    driver.copy_to_host(result.address, gathered.array.address, gathered.nbytes, stream)
    driver.synchronize_stream(stream)
    answer["values"] = result.bytes.view(np.float32).tolist()
    communicator.close()


def main() -> None:
    """Runs the rank and reports."""
    host = HostPlatform.start(PlatformOptions(platform="host", wave=32, lane_order="forward"))
    answer: dict[str, Any] = {"values": None, "error": ""}
    try:
        task = json.loads(sys.argv[1])
        os.environ["ROCM_PATH"] = task.pop("libraries")
        run(answer, **task)
    except BackendError as error:
        answer["error"] = error.message
    print(json.dumps(answer | {"finding": host.take_finding()}))


if __name__ == "__main__":
    main()
