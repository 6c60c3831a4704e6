"""The host platform reports kernels that touch memory they must not touch."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from rocm.bindings import hip as _hip_bindings

from tests.support.launches.host_platform import Access, HostPlatform
from tests.support.launches.kernels import Device, KernelFault, check, hip
from tests.support.processes.memory import held_memory


def test_right_kernel_is_let_through(device: Device) -> None:
    y = device.empty(1000, np.float32)
    device.launch("rf_fill", y, 0, 1000, grid=4, block=256)
    np.testing.assert_array_equal(y.get(), np.ones(1000, np.float32))


def test_write_one_element_past_the_end(device: Device) -> None:
    y = device.empty(250, np.float32, "scores")
    with pytest.raises(KernelFault, match=r"rf_fill.*thread \(250.*writes 4 bytes at offset 1000 "):
        device.launch("rf_fill", y, 0, 251, grid=1, block=256)


def test_report_names_the_buffer(device: Device) -> None:
    y = device.empty(250, np.float32, "scores")
    with pytest.raises(KernelFault, match=r"buffer #\d+ 'scores', which has 1000 bytes"):
        device.launch("rf_fill", y, 0, 251, grid=1, block=256)


def test_report_names_the_line_and_its_callers(device: Device) -> None:
    x, y = device.upload(np.zeros(3, np.float32)), device.empty(4, np.float32)
    with pytest.raises(KernelFault, match=r"at common\.h:\d+\n  at faulty\.hip:\d+"):
        device.launch("rf_load_vector", y, x, grid=1, block=1)


def test_write_far_past_the_end(device: Device) -> None:
    y = device.empty(256, np.float32)
    with pytest.raises(KernelFault, match=r"writes 4 bytes at offset 104\d+ of buffer"):
        device.launch("rf_fill", y, 1 << 18, 256 + 1, grid=2, block=256)


def test_write_before_the_start(device: Device) -> None:
    y = device.empty(256, np.float32)
    with pytest.raises(KernelFault, match=r"rf_fill.*writes 4 bytes at"):
        device.launch("rf_fill", y, -1, 1, grid=1, block=64)


def test_read_past_the_end(device: Device) -> None:
    x, y = device.upload(np.zeros(100, np.float32), "x"), device.empty(100, np.float32)
    with pytest.raises(KernelFault, match=r"reads 4 bytes at offset 400 of buffer #\d+ 'x'"):
        device.launch("rf_read", y, x, 1, 100, grid=1, block=128)


def test_write_into_the_neighbouring_block_of_a_pool(device: Device, host: HostPlatform) -> None:
    pool = device.empty((8, 64), np.float32, "kv pool")
    host.protect(pool.pointer, pool.nbytes, Access.NONE)
    host.protect(pool.pointer + 2 * 256, 256, Access.READ_WRITE)
    host.label(pool.pointer + 3 * 256, 256, "block 3")
    device.launch("rf_fill", pool, 2 * 64, 64, grid=1, block=256)
    with pytest.raises(
        KernelFault, match=r"writes 4 bytes at offset 768.*'block 3'.*closed to kernels"
    ):
        device.launch("rf_fill", pool, 2 * 64, 65, grid=1, block=256)


def test_write_to_a_read_only_range(device: Device, host: HostPlatform) -> None:
    shared_prefix = device.upload(np.zeros(64, np.float32))
    host.protect(shared_prefix.pointer, 256, Access.READ)
    with pytest.raises(KernelFault, match=r"writes 4 bytes at offset 0 .*closed to kernels"):
        device.launch("rf_fill", shared_prefix, 0, 1, grid=1, block=64)


def test_read_of_what_nothing_has_written(device: Device) -> None:
    x, y = device.empty(64, np.float32, "x"), device.empty(64, np.float32)
    device.launch("rf_fill", x, 0, 63, grid=1, block=64)
    device.launch("rf_read", y, x, 0, 63, grid=1, block=64)
    with pytest.raises(KernelFault, match=r"at offset 252 .*'x'.*nothing has been written there"):
        device.launch("rf_read", y, x, 0, 64, grid=1, block=64)


def test_load_that_reaches_out_of_what_was_read_before(device: Device) -> None:
    x, y = device.empty(64, np.float32, "x"), device.empty(64, np.float32)
    device.launch("rf_fill", x, 0, 9, grid=1, block=64)
    device.launch("rf_read_four", y, x, 4, grid=1, block=1)
    with pytest.raises(KernelFault, match=r"16 bytes that reach offset 36 of .*nothing has been"):
        device.launch("rf_read_four", y, x, 6, grid=1, block=1)


def test_allowed_read_of_what_nothing_has_written(device: Device, host: HostPlatform) -> None:
    x, y = device.empty(64, np.float32), device.empty(64, np.float32)
    host.mark_initialised(x.pointer, x.nbytes)
    device.launch("rf_read", y, x, 0, 64, grid=1, block=64)
    check(y.get(), np.full(64, np.nan))


def test_copies_carry_along_what_is_initialised(device: Device) -> None:
    x, y = device.empty(64, np.float32), device.empty(64, np.float32)
    kind = hip.hipMemcpyKind.hipMemcpyDeviceToDevice
    device.ok(hip.hipMemcpy(ctypes.c_void_p(x.pointer), ctypes.c_void_p(y.pointer), 256, kind), "")
    with pytest.raises(KernelFault, match=r"rf_read.* offset \d+ of buffer .*: nothing has been"):
        device.launch("rf_read", y, x, 0, 64, grid=1, block=64)


def test_null_pointer(device: Device) -> None:
    with pytest.raises(KernelFault, match=r"rf_fill.*null pointer|no memory of the device"):
        device.launch("rf_fill", None, 0, 1, grid=1, block=64)


def test_host_pointer_as_an_argument(device: Device) -> None:
    values = np.zeros(64, np.float32)
    args = (ctypes.c_void_p(values.ctypes.data), ctypes.c_int(0), ctypes.c_int(64))
    status = hip.hipModuleLaunchKernel(
        device.function("rf_fill"), 1, 1, 1, 64, 1, 1, 0, None, None, args
    )[0]
    assert status == _hip_bindings.hipError_t.hipErrorIllegalAddress
    with pytest.raises(KernelFault, match="rf_fill: argument 0 points to host memory"):
        device.synchronize()


def test_unaligned_vector_load(device: Device) -> None:
    x, y = device.upload(np.zeros(8, np.float32)), device.empty(4, np.float32)
    with pytest.raises(KernelFault, match=r"offset 4 of .*must be a multiple of 16.*common\.h"):
        device.launch("rf_misaligned", y, x, grid=1, block=1)


def test_copy_past_the_end(device: Device) -> None:
    x = device.upload(np.zeros(250, np.float32), "x")
    host_copy = np.empty(1024, np.uint8)
    kind = hip.hipMemcpyKind.hipMemcpyDeviceToHost
    call = hip.hipMemcpy(host_copy, ctypes.c_void_p(x.pointer), 1024, kind)
    with pytest.raises(KernelFault, match=r"copy of 1024 bytes: the source is .*'x' of 1000 bytes"):
        device.ok(call, "hipMemcpy")


def test_copy_of_the_wrong_kind(device: Device) -> None:
    x = device.upload(np.zeros(64, np.float32))
    kind = hip.hipMemcpyKind.hipMemcpyHostToDevice
    call = hip.hipMemcpy(np.empty(64, np.float32), ctypes.c_void_p(x.pointer), 256, kind)
    with pytest.raises(KernelFault, match="the destination is host memory"):
        device.ok(call, "hipMemcpy")


def test_memset_past_the_end(device: Device) -> None:
    x = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match="memset of 257 bytes at offset 0"):
        device.ok(hip.hipMemset(ctypes.c_void_p(x.pointer), 0, 257), "hipMemset")


def test_out_of_memory_is_an_error_and_no_fault(device: Device) -> None:
    assert hip.hipMalloc(1 << 42)[0] == _hip_bindings.hipError_t.hipErrorOutOfMemory
    device.synchronize()


def test_fault_answers_every_later_call(device: Device, host: HostPlatform) -> None:
    device.enqueue("rf_fill", device.empty(1, np.float32), 1, 1, grid=1, block=64)
    illegal = _hip_bindings.hipError_t.hipErrorIllegalAddress
    assert hip.hipDeviceSynchronize()[0] == illegal
    assert hip.hipMalloc(16)[0] == illegal
    host.clear()
    device.synchronize()


def test_a_reset_takes_all_memory_back(device: Device, host: HostPlatform) -> None:
    assert hip.hipMalloc(64)[0] == _hip_bindings.hipError_t.hipSuccess
    assert host.live_bytes >= 64
    host.reset()
    assert host.live_bytes == 0


def test_freed_memory_is_given_back(device: Device) -> None:
    """With what was known of each byte, which weighs nine times as much.

    Many times, as the system counts what a process has to within some MB if there are many cores.
    """
    elements, times = 1 << 18, 32

    def use_and_free() -> None:
        device.launch(
            "rf_fill", device.empty(elements, np.float32), 0, elements, grid=1024, block=256
        )
        device.release()

    use_and_free()
    before = held_memory()
    for _ in range(times):
        use_and_free()
    assert held_memory() - before < times * elements  # four times as much are the buffers alone


def test_who_wrote_what_is_forgotten_between_launches_before_it_takes_much(device: Device) -> None:
    """It weighs eight times as much as what was written: 100 MB of weights would be 800."""
    part, parts = 1 << 18, 48
    weights = device.empty(part * parts, np.float32)
    before = held_memory()
    for index in range(parts):
        device.launch("rf_fill", weights, index * part, part, grid=part // 256, block=256)
    assert held_memory() - before < 300 << 20  # 384 MiB otherwise
