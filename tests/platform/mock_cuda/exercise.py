"""Drives the NVIDIA platform through hip-python; run by test_nvidia.py with a mock CUDA driver."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rocm.bindings import hip as _hip_bindings

hip: Any = _hip_bindings
OK = hip.hipError_t.hipSuccess
KIND = hip.hipMemcpyKind
COUNT = 100


def ok(result: tuple[Any, ...]) -> Any:
    assert result[0] == OK, result
    return result[1] if len(result) == 2 else result[1:]


def properties() -> None:
    p = ok(hip.hipGetDeviceProperties(0))
    assert p.gcnArchName == "sm_90"
    assert p.name == "mock GPU"
    assert p.warpSize == 32
    assert hip.hipSetDevice(1)[0] == hip.hipError_t.hipErrorInvalidDevice
    free, total = ok(hip.hipMemGetInfo())
    assert 0 < int(free) <= int(total)


def memory() -> None:
    source, result = np.arange(COUNT, dtype=np.int32), np.zeros(COUNT, np.int32)
    first, second = ok(hip.hipMalloc(4 * COUNT)), ok(hip.hipMalloc(4 * COUNT))
    ok(hip.hipMemcpy(first, source, source.nbytes, KIND.hipMemcpyHostToDevice))
    ok(hip.hipMemcpy(second, first, source.nbytes, KIND.hipMemcpyDeviceToDevice))
    ok(hip.hipMemcpy(result, second, source.nbytes, KIND.hipMemcpyDeviceToHost))
    np.testing.assert_array_equal(result, source)
    stream = ok(hip.hipStreamCreate())
    ok(hip.hipMemsetAsync(first, 1, 4 * COUNT, stream))
    ok(hip.hipStreamSynchronize(stream))
    ok(hip.hipMemcpy(result, first, source.nbytes, KIND.hipMemcpyDeviceToHost))
    assert (result == 0x01010101).all()
    wrong = hip.hipMemcpy(result, result, source.nbytes, KIND.hipMemcpyHostToHost)
    assert wrong[0] == hip.hipError_t.hipErrorInvalidMemcpyDirection
    pinned = ok(hip.hipHostMalloc(4 * COUNT, 0))
    ok(hip.hipMemcpyAsync(pinned, first, 4 * COUNT, KIND.hipMemcpyDeviceToHost, stream))
    ok(hip.hipStreamSynchronize(stream))
    assert hip.hipMalloc(0) == (OK, None)
    for buffer in (first, second):
        ok(hip.hipFree(buffer))
    ok(hip.hipHostFree(pinned))
    assert hip.hipMalloc(1 << 50)[0] == hip.hipError_t.hipErrorOutOfMemory


def launches(image: bytes) -> None:
    assert hip.hipModuleLoadData(b".version 8.0\0")[0] == hip.hipError_t.hipErrorInvalidImage
    module = ok(hip.hipModuleLoadData(image))
    function = ok(hip.hipModuleGetFunction(module, b"rf_fill"))
    assert hip.hipModuleGetFunction(module, b"no")[0] == hip.hipError_t.hipErrorNotFound
    assert ok(hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(function, 128, 0)) == 3
    y, result = ok(hip.hipMalloc(4 * COUNT)), np.zeros(COUNT, np.float32)

    def launch(stream: object, *args: Any, lds_bytes: int = 0) -> Any:
        return hip.hipModuleLaunchKernel(
            function, 1, 1, 1, 128, 1, 1, lds_bytes, stream, None, args
        )[0]

    right = (ctypes.c_void_p(int(y)), ctypes.c_int(0), ctypes.c_int(COUNT))
    stream, other = ok(hip.hipStreamCreateWithFlags(1)), ok(hip.hipStreamCreateWithFlags(1))
    start, stop = ok(hip.hipEventCreate()), ok(hip.hipEventCreateWithFlags(0))
    ok(hip.hipEventRecord(start, stream))
    assert launch(stream, *right) == OK
    ok(hip.hipEventRecord(stop, stream))
    ok(hip.hipStreamWaitEvent(other, stop, 0))
    ok(hip.hipMemcpyAsync(result, y, result.nbytes, KIND.hipMemcpyDeviceToHost, other))
    ok(hip.hipStreamSynchronize(other))
    assert (result == 1).all()
    assert hip.hipEventQuery(stop)[0] == hip.hipError_t.hipSuccess
    assert ok(hip.hipEventElapsedTime(start, stop)) >= 0

    # More than CUDA gives kernels that do not ask.
    assert launch(stream, *right, lds_bytes=60 << 10) == OK

    # Argument buffers of the wrong size: too few, and a Python int, which takes eight bytes.
    wrong = hip.hipError_t.hipErrorInvalidValue
    assert launch(stream, *right[:2]) == wrong
    assert launch(stream, right[0], 0, right[2]) == wrong

    ok(hip.hipMemsetAsync(y, 0, 4 * COUNT, stream))
    ok(hip.hipDeviceSynchronize())
    ok(hip.hipStreamBeginCapture(stream, hip.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal))
    assert launch(stream, *right) == OK
    graph = ok(hip.hipStreamEndCapture(stream))
    executable = ok(hip.hipGraphInstantiate(graph, 0))
    executable = executable[0] if isinstance(executable, list | tuple) else executable
    ok(hip.hipGraphLaunch(executable, stream))
    ok(hip.hipStreamSynchronize(stream))
    ok(hip.hipMemcpy(result, y, result.nbytes, KIND.hipMemcpyDeviceToHost))
    assert (result == 1).all()
    ok(hip.hipGraphExecDestroy(executable))
    ok(hip.hipGraphDestroy(graph))
    ok(hip.hipFree(y))
    ok(hip.hipModuleUnload(module))


properties()
memory()
launches(Path(sys.argv[1]).read_bytes())
print("kernels that wait:", file=sys.stderr, flush=True)
launches(b"griddepcontrol.wait\0" + Path(sys.argv[1]).read_bytes())
print("other kernels:", file=sys.stderr, flush=True)
launches(Path(sys.argv[1]).read_bytes())
print("done")
