"""The host platform reports streams, copies, frees and graphs out of order, and wrong calls."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kernels.builder import ROOT
from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.kernels import Device, DeviceArray, KernelFault, hip

NON_BLOCKING = 1
TO_HOST = hip.hipMemcpyKind.hipMemcpyDeviceToHost
TO_DEVICE = hip.hipMemcpyKind.hipMemcpyHostToDevice
Status = hip.hipError_t


def stream_of(device: Device) -> Any:
    return device.ok(hip.hipStreamCreateWithFlags(NON_BLOCKING), "hipStreamCreateWithFlags")


def event_of(device: Device) -> Any:
    return device.ok(hip.hipEventCreate(), "hipEventCreate")


def fill(device: Device, y: DeviceArray, stream: object) -> None:
    """Enqueues y[:] = 1."""
    count = y.shape[0]
    device.enqueue("rf_fill", y, 0, count, grid=(count + 255) // 256, block=256, stream=stream)


def address(array: DeviceArray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.pointer)


# --- what is read or changed too early --------------------------------------------------------


def test_result_read_before_it_is_there(device: Device) -> None:
    stream, y, result = stream_of(device), device.empty(256, np.float32), np.zeros(256, np.float32)
    fill(device, y, stream)
    device.ok(hip.hipMemcpyAsync(result, address(y), 1024, TO_HOST, stream), "hipMemcpyAsync")
    assert np.isnan(result).all()
    device.ok(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")
    assert (result == 1).all()


def test_source_changed_before_it_is_copied(device: Device) -> None:
    stream, y, source = stream_of(device), device.empty(64, np.int32), np.ones(64, np.int32)
    device.ok(hip.hipMemcpyAsync(address(y), source, 256, TO_DEVICE, stream), "hipMemcpyAsync")
    source[:] = 7
    device.ok(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")
    assert (y.get() == 7).all()


def test_polling_comes_to_an_end(device: Device) -> None:
    stream, event, y = stream_of(device), event_of(device), device.empty(64, np.float32)
    fill(device, y, stream)
    device.ok(hip.hipEventRecord(event, stream), "hipEventRecord")
    answers = [hip.hipEventQuery(event)[0] for _ in range(3)]
    assert answers == [Status.hipErrorNotReady, Status.hipErrorNotReady, Status.hipSuccess]


# --- streams ----------------------------------------------------------------------------------


def test_missing_event_between_two_streams(device: Device) -> None:
    first, second, y = stream_of(device), stream_of(device), device.empty(64, np.float32, "y")
    fill(device, y, first)
    device.enqueue(
        "rf_read", device.empty(64, np.float32), y, 0, 64, grid=1, block=64, stream=second
    )
    with pytest.raises(KernelFault, match=r"rf_read.*'y'.*nothing has been written there"):
        device.synchronize()


def test_missing_event_where_the_data_happens_to_be_there(device: Device) -> None:
    first, second, y = stream_of(device), stream_of(device), device.upload(np.zeros(64), "y")
    device.ok(hip.hipMemsetAsync(address(y), 0, 512, first), "hipMemsetAsync")
    device.ok(hip.hipMemsetAsync(address(y), 1, 512, second), "hipMemsetAsync")
    match = r"a memset on stream \d+ writes offset 0 of .*'y'.*no event orders the two"
    with pytest.raises(KernelFault, match=match):
        device.synchronize()


def test_missing_event_behind_a_kernel_that_reads(device: Device) -> None:
    first, second = stream_of(device), stream_of(device)
    x, y = device.upload(np.zeros(64, np.float32), "x"), device.empty(64, np.float32)
    device.enqueue("rf_read", y, x, 0, 64, grid=1, block=64, stream=first)
    fill(device, x, second)
    match = r"(rf_fill on stream \d+ writes offset 0|rf_read on stream \d+ reads offset 0) of .*'x'"
    with pytest.raises(KernelFault, match=match):
        device.synchronize()


def test_event_orders_two_streams(device: Device) -> None:
    first, second, event = stream_of(device), stream_of(device), event_of(device)
    x, y = device.empty(64, np.float32), device.empty(64, np.float32)
    fill(device, x, first)
    device.ok(hip.hipEventRecord(event, first), "hipEventRecord")
    device.ok(hip.hipStreamWaitEvent(second, event, 0), "hipStreamWaitEvent")
    device.enqueue("rf_read", y, x, 0, 64, grid=1, block=64, stream=second)
    device.ok(hip.hipStreamSynchronize(second), "hipStreamSynchronize")
    assert (y.get() == 1).all()


def test_waiting_on_the_host_orders_two_streams(device: Device) -> None:
    first, second = stream_of(device), stream_of(device)
    x, y = device.empty(64, np.float32), device.empty(64, np.float32)
    fill(device, x, first)
    device.ok(hip.hipStreamSynchronize(first), "hipStreamSynchronize")
    device.enqueue("rf_read", y, x, 0, 64, grid=1, block=64, stream=second)
    assert (y.get() == 1).all()


def test_streams_may_use_different_parts_of_one_buffer(device: Device) -> None:
    first, second, pool = stream_of(device), stream_of(device), device.empty(128, np.float32)
    device.enqueue("rf_fill", pool, 0, 64, grid=1, block=64, stream=first)
    device.enqueue("rf_fill", pool, 64, 64, grid=1, block=64, stream=second)
    assert (pool.get() == 1).all()


def test_null_stream_waits_for_blocking_streams(device: Device) -> None:
    stream = device.ok(hip.hipStreamCreate(), "hipStreamCreate")
    x, y = device.empty(64, np.float32), device.empty(64, np.float32)
    fill(device, x, stream)
    device.enqueue("rf_read", y, x, 0, 64, grid=1, block=64)
    assert (y.get() == 1).all()


# --- lifetime ---------------------------------------------------------------------------------


def test_free_of_a_buffer_in_use(device: Device) -> None:
    stream = stream_of(device)
    pointer = device.ok(hip.hipMalloc(1024), "hipMalloc")
    copy = hip.hipMemsetAsync(pointer, 0, 1024, stream)
    device.ok(copy, "hipMemsetAsync")
    with pytest.raises(KernelFault, match=r"hipFree of offset 0 .*1 queued operations still use"):
        device.ok(hip.hipFree(pointer), "hipFree")


def test_launch_with_a_freed_buffer(device: Device) -> None:
    y = device.empty(64, np.float32)
    y.free()
    with pytest.raises(KernelFault, match="rf_fill: argument 0 points to offset 0 of freed buffer"):
        fill(device, y, None)


def test_double_free(device: Device) -> None:
    pointer = int(device.ok(hip.hipMalloc(64), "hipMalloc"))
    device.ok(hip.hipFree(ctypes.c_void_p(pointer)), "hipFree")
    with pytest.raises(KernelFault, match="hipFree of offset 0 of freed buffer"):
        device.ok(hip.hipFree(ctypes.c_void_p(pointer)), "hipFree")


def test_free_of_a_pointer_into_a_buffer(device: Device) -> None:
    y = device.empty(64, np.float32, "y")
    with pytest.raises(KernelFault, match=r"hipFree of offset 16 of buffer .*'y'"):
        device.ok(hip.hipFree(ctypes.c_void_p(y.pointer + 16)), "hipFree")


def test_asynchronous_free_on_the_wrong_stream(device: Device) -> None:
    first, second = stream_of(device), stream_of(device)
    pointer = device.ok(hip.hipMallocAsync(1024, first), "hipMallocAsync")
    device.ok(hip.hipMemsetAsync(pointer, 0, 1024, first), "hipMemsetAsync")
    device.ok(hip.hipFreeAsync(pointer, second), "hipFreeAsync")
    device.ok(hip.hipStreamSynchronize(first), "hipStreamSynchronize")
    with pytest.raises(KernelFault, match=r"hipFreeAsync on stream \d+ writes .*no event orders"):
        device.ok(hip.hipStreamSynchronize(second), "hipStreamSynchronize")


def test_use_after_an_asynchronous_free(device: Device) -> None:
    stream = stream_of(device)
    pointer = device.ok(hip.hipMallocAsync(1024, stream), "hipMallocAsync")
    device.ok(hip.hipFreeAsync(pointer, stream), "hipFreeAsync")
    with pytest.raises(KernelFault, match="memset of 1024 bytes at offset 0 of freed buffer"):
        device.ok(hip.hipMemsetAsync(pointer, 0, 1024, stream), "hipMemsetAsync")


def test_unloading_a_module_in_use(device: Device) -> None:
    image = next((ROOT / "build/kernels").glob(f"{device.target.name}/faulty-*/faulty.so"))
    module = device.ok(hip.hipModuleLoadData(image.read_bytes()), "hipModuleLoadData")
    function = device.ok(hip.hipModuleGetFunction(module, b"rf_fill"), "hipModuleGetFunction")
    y = device.empty(64, np.float32)
    args = (address(y), ctypes.c_int(0), ctypes.c_int(64))
    launch = hip.hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, None, None, args)
    device.ok(launch, "hipModuleLaunchKernel")
    device.ok(hip.hipModuleUnload(module), "hipModuleUnload")
    assert device.host is not None
    assert "hipModuleUnload with 1 launches" in device.host.take_finding()


def test_leak_is_reported_at_exit(device: Device) -> None:
    script = "from hip import hip; hip.hipMalloc(1000); hip.hipFree(hip.hipMalloc(10)[1])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"RF_HOST_LEAKS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 buffers (1000 bytes) were never freed" in done.stderr


def test_live_bytes_count_what_is_allocated(device: Device, host: HostPlatform) -> None:
    before = host.live_bytes
    y = device.empty(1000, np.uint8)
    assert host.live_bytes == before + 1000
    y.free()
    assert host.live_bytes == before


# --- arguments and shapes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "size"),
    [
        pytest.param((), 8, id="missing"),
        pytest.param((ctypes.c_int(0),), 12, id="one_missing"),
        pytest.param((0, ctypes.c_int(1)), 20, id="python_int_is_eight_bytes"),
    ],
)
def test_arguments_of_the_wrong_size(device: Device, tail: tuple[Any, ...], size: int) -> None:
    y = device.empty(64, np.float32)
    function = device.function("rf_fill")
    launch = hip.hipModuleLaunchKernel(
        function, 1, 1, 1, 64, 1, 1, 0, None, None, (address(y), *tail)
    )
    match = f"rf_fill: the argument buffer has {size} bytes, 3 arguments take 16"
    with pytest.raises(KernelFault, match=match):
        device.ok(launch, "hipModuleLaunchKernel")


def test_more_threads_than_the_launch_bounds(device: Device) -> None:
    y = device.empty(512, np.float32)
    with pytest.raises(KernelFault, match="blocks of 512 threads, its launch bounds say 256"):
        device.launch("rf_fill", y, 0, 512, grid=1, block=512)


@pytest.mark.parametrize(("grid", "block"), [(0, 64), ((1, 70000), 64), (1, 2048)])
def test_shape_that_no_device_runs(device: Device, grid: int | tuple[int, int], block: int) -> None:
    y = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match="no device runs a grid of"):
        device.launch("rf_fill", y, 0, 64, grid=grid, block=block)


def test_more_dynamic_lds_than_there_is(device: Device) -> None:
    y = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match="65552 bytes of dynamic LDS, there are 65536"):
        device.launch("rf_dynamic_overflow", y, grid=1, block=64, lds_bytes=65552)


# --- capture and graphs -----------------------------------------------------------------------


def begin_capture(device: Device, stream: object, mode: str = "ThreadLocal") -> None:
    value = getattr(hip.hipStreamCaptureMode, f"hipStreamCaptureMode{mode}")
    device.ok(hip.hipStreamBeginCapture(stream, value), "hipStreamBeginCapture")


def end_capture(device: Device, stream: object) -> Any:
    graph = device.ok(hip.hipStreamEndCapture(stream), "hipStreamEndCapture")
    executable = device.ok(hip.hipGraphInstantiate(graph, 0), "hipGraphInstantiate")
    return executable[0] if isinstance(executable, list) else executable


def test_graph_runs_what_was_captured_at_each_launch(device: Device) -> None:
    stream, total = stream_of(device), device.upload(np.zeros(1, np.int32))
    in_block = device.empty(1, np.int32)
    begin_capture(device, stream)
    device.enqueue("rf_count", total, in_block, grid=1, block=64, stream=stream)
    executable = end_capture(device, stream)
    assert total.get() == [0]
    for _ in range(3):
        device.ok(hip.hipGraphLaunch(executable, stream), "hipGraphLaunch")
    device.ok(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")
    assert total.get() == [192]


@pytest.mark.parametrize(("start", "is_found"), [(64, False), (136, True)])
def test_what_lies_between_the_parts_that_a_graph_uses_is_free(
    device: Device, start: int, is_found: bool
) -> None:
    first, second, pool = stream_of(device), stream_of(device), device.empty(200, np.float32)
    begin_capture(device, first)
    for part in (0, 136):
        device.enqueue("rf_fill", pool, part, 64, grid=1, block=64, stream=first)
    executable = end_capture(device, first)
    device.ok(hip.hipGraphLaunch(executable, first), "hipGraphLaunch")
    device.enqueue("rf_fill", pool, start, 64, grid=1, block=64, stream=second)
    if is_found:
        with pytest.raises(KernelFault, match="no event orders the two"):
            device.synchronize()
    else:
        device.synchronize()


def test_graph_with_a_freed_buffer(device: Device) -> None:
    stream, y = stream_of(device), device.empty(64, np.float32, "arena")
    begin_capture(device, stream)
    fill(device, y, stream)
    executable = end_capture(device, stream)
    y.free()
    with pytest.raises(KernelFault, match=r"kernel rf_fill in the graph uses .*freed .*'arena'"):
        device.ok(hip.hipGraphLaunch(executable, stream), "hipGraphLaunch")


def test_malloc_spoils_a_capture_in_global_mode(device: Device) -> None:
    stream = stream_of(device)
    begin_capture(device, stream, "Global")
    assert hip.hipMalloc(64)[0] == Status.hipErrorStreamCaptureUnsupported
    assert hip.hipStreamEndCapture(stream)[0] == Status.hipErrorStreamCaptureInvalidated
    assert device.host is not None
    assert "hipMalloc while a stream is capturing" in device.host.take_finding()


def test_synchronising_a_stream_that_captures(device: Device) -> None:
    stream = stream_of(device)
    begin_capture(device, stream)
    with pytest.raises(KernelFault, match="hipStreamSynchronize on a stream that is capturing"):
        device.ok(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")
    assert hip.hipStreamEndCapture(stream)[0] == Status.hipErrorStreamCaptureInvalidated


def test_second_stream_joins_a_capture_through_an_event(device: Device) -> None:
    first, second, event = stream_of(device), stream_of(device), event_of(device)
    y = device.empty(64, np.float32)
    begin_capture(device, first)
    device.ok(hip.hipEventRecord(event, first), "hipEventRecord")
    device.ok(hip.hipStreamWaitEvent(second, event, 0), "hipStreamWaitEvent")
    fill(device, y, second)
    executable = end_capture(device, first)
    device.ok(hip.hipGraphLaunch(executable, first), "hipGraphLaunch")
    device.ok(hip.hipStreamSynchronize(first), "hipStreamSynchronize")
    assert (y.get() == 1).all()
