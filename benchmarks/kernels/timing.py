"""What the benchmarks of kernels share: the GPU, a stopwatch and the bandwidth of a copy."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rocm.bindings import hip as _hip_bindings

from tests.support.launches.kernels import Device, KernelFault, PlatformOptions, select_platform

hip: Any = _hip_bindings  # compiled from C, without types

_COPY_BYTES = 1 << 30
_REPLAYS = 8


@dataclass(frozen=True, slots=True)
class Measurement:
    """The best time of one case."""

    seconds: float
    geometry: str


class Stopwatch:
    """Times graphs of kernel launches on one stream."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.ok(hip.hipStreamCreate(), "hipStreamCreate")
        self._start = device.ok(hip.hipEventCreate(), "hipEventCreate")
        self._stop = device.ok(hip.hipEventCreate(), "hipEventCreate")

    def seconds(self, enqueue: Callable[[], None], repeats: int) -> float:
        """Time of one repeat, where `enqueue` launches `repeats` of them: the median replay."""
        ok, stream = self.device.ok, self.stream
        enqueue()  # loads the modules, which capturing would not allow
        ok(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")
        mode = hip.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
        ok(hip.hipStreamBeginCapture(stream, mode), "hipStreamBeginCapture")
        enqueue()
        graph = ok(hip.hipStreamEndCapture(stream), "hipStreamEndCapture")
        replay = ok(hip.hipGraphInstantiate(graph, 0), "hipGraphInstantiate")[0]
        seconds = self.median_of(lambda: ok(hip.hipGraphLaunch(replay, stream), "hipGraphLaunch"))
        ok(hip.hipGraphExecDestroy(replay), "hipGraphExecDestroy")
        ok(hip.hipGraphDestroy(graph), "hipGraphDestroy")
        return seconds / repeats

    def median_of(self, enqueue: Callable[[], None]) -> float:
        """Median time of what `enqueue` puts on the stream, in seconds, after a warm-up."""
        ok, stream = self.device.ok, self.stream
        times = []
        for _ in range(_REPLAYS):
            ok(hip.hipEventRecord(self._start, stream), "hipEventRecord")
            enqueue()
            ok(hip.hipEventRecord(self._stop, stream), "hipEventRecord")
            ok(hip.hipEventSynchronize(self._stop), "hipEventSynchronize")
            elapsed = ok(hip.hipEventElapsedTime(self._start, self._stop), "hipEventElapsedTime")
            times.append(elapsed * 1e-3)
        return float(np.median(times[1:]))


def copy_bandwidth(watch: Stopwatch) -> float:
    """Bytes a second that a copy on the device reads and writes.

    Not from a graph: CUDA leaves large copies in graphs to a copy engine, which reaches two thirds
    of what kernels do.
    """
    source = watch.device.empty(_COPY_BYTES, np.uint8)
    target = watch.device.empty(_COPY_BYTES, np.uint8)
    kind = hip.hipMemcpyKind.hipMemcpyDeviceToDevice

    def enqueue() -> None:
        call = hip.hipMemcpyAsync(
            ctypes.c_void_p(target.pointer),
            ctypes.c_void_p(source.pointer),
            _COPY_BYTES,
            kind,
            watch.stream,
        )
        watch.device.ok(call, "hipMemcpyAsync")

    seconds = watch.median_of(enqueue)
    watch.device.release()
    return 2 * _COPY_BYTES / seconds


def open_gpu(platform: str) -> Device:
    """The GPU of a platform; exits with a message where there is none."""
    select_platform(platform)
    try:
        return Device(PlatformOptions(platform, 32, "forward"))
    except (KernelFault, RuntimeError) as error:
        sys.exit(f"Measuring kernels needs a GPU, and HIP ({platform}) offers none here: {error}")
