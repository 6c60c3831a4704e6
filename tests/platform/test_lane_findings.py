"""The host platform reports mistakes between the lanes, waves and blocks of a launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.kernels import Device, DeviceArray, KernelFault


@pytest.fixture(params=["forward", "reverse", "random"])
def any_order(
    request: pytest.FixtureRequest, host: HostPlatform, pytestconfig: pytest.Config
) -> Iterator[str]:
    """Runs the test with lanes in each order: the finding must not depend on it."""
    host.set_lane_order(request.param, seed=7)
    yield request.param
    host.set_lane_order(pytestconfig.getoption("--lane-order"))


def test_shared_array_overflow(device: Device, any_order: str) -> None:
    y = device.empty(32, np.float32)
    with pytest.raises(
        KernelFault, match=r"writes 4 bytes at offset 1\d\d of shared array .*which has 128 bytes"
    ):
        device.launch("rf_shared_overflow", y, 1, grid=1, block=32)


def test_shared_array_overflow_by_more_than_its_size(device: Device) -> None:
    y = device.empty(32, np.float32)
    with pytest.raises(KernelFault, match=r"rf_shared_overflow.*writes 4 bytes"):
        device.launch("rf_shared_overflow", y, 4000, grid=1, block=32)


def test_index_past_a_row_of_a_shared_array(device: Device) -> None:
    y = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match=r"uses index \d+ of 'float\[16\]' \(.*faulty\.hip:\d+\)"):
        device.launch("rf_shared_index", y, grid=1, block=64)


def test_dynamic_shared_memory_overflow(device: Device) -> None:
    y = device.empty(64, np.float32)
    device.launch("rf_dynamic_overflow", y, grid=1, block=64, lds_bytes=256)
    with pytest.raises(KernelFault, match=r"writes 4 bytes at offset \d+ of .*'dynamic LDS', whi"):
        device.launch("rf_dynamic_overflow", y, grid=1, block=64, lds_bytes=128)


def test_private_array_overflow(device: Device) -> None:
    y = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match=r"uses index 4 of 'float\[4\]'"):
        device.launch("rf_private_index", y, 5, grid=1, block=64)


def test_private_array_that_overflows_the_stack(device: Device) -> None:
    y = device.empty(64, np.int32)
    match = r"rf_large_private_array.*overflows the stack of a lane.*\n  at faulty\.hip:\d+"
    with pytest.raises(KernelFault, match=match):
        device.launch("rf_large_private_array", y, 1 << 17, grid=1, block=64)


def test_missing_barrier_before_a_read(device: Device, any_order: str) -> None:
    y = device.empty(256, np.float32)
    match = r"kernel rf_reverse_without_barrier, .* reads offset \d+ of shared array .*values"
    with pytest.raises(KernelFault, match=match):
        device.launch("rf_reverse_without_barrier", y, grid=1, block=256)


def test_missing_barrier_before_a_write(device: Device, any_order: str) -> None:
    y = device.empty(256, np.float32)
    match = r"reads offset \d+ of shared array .*values.*, which thread \d+ wrote without a barrier"
    with pytest.raises(KernelFault, match=match):
        device.launch("rf_overwrite_without_barrier", y, grid=1, block=256)


def test_a_missing_barrier_is_found_in_the_launches_that_are_watched(
    device: Device, host: HostPlatform
) -> None:
    y = device.empty(256, np.float32)
    found = []
    with host.watching(2):
        for _ in range(18):
            try:
                device.launch("rf_reverse_without_barrier", y, grid=1, block=256)
            except KernelFault:
                found.append(True)
            else:
                found.append(False)
    assert found == [True] * 2 + [False] * 14 + [True, False]
    with pytest.raises(KernelFault):
        device.launch("rf_reverse_without_barrier", y, grid=1, block=256)


def test_launches_in_another_shape_are_watched(device: Device, host: HostPlatform) -> None:
    y = device.empty(256, np.float32)
    with host.watching(1):
        for block in (256, 128):
            with pytest.raises(KernelFault):
                device.launch("rf_reverse_without_barrier", y, grid=1, block=block)
            device.launch("rf_reverse_without_barrier", y, grid=1, block=block)


def test_bounds_of_shared_arrays_are_those_of_all_launches(
    device: Device, host: HostPlatform
) -> None:
    y = device.empty(32, np.float32)
    with host.watching(1):
        for _ in range(2):
            device.launch("rf_shared_overflow", y, 0, grid=1, block=32)
        with pytest.raises(KernelFault, match=r"shared array .*which has 128 bytes"):
            device.launch("rf_shared_overflow", y, 1, grid=1, block=32)


def test_loads_that_reach_out_of_a_shared_array_that_was_read_before(
    device: Device, host: HostPlatform
) -> None:
    y = device.empty(32, np.float32)
    with host.watching(1):
        for second in (16, 28):  # the second launch is not watched
            device.launch("rf_shared_read_four", y, second, grid=1, block=32)
        with pytest.raises(
            KernelFault, match=r"reads 16 bytes at offset 120 .*which has 128 bytes"
        ):
            device.launch("rf_shared_read_four", y, 30, grid=1, block=32)


def test_reading_what_another_block_has_written_since_others_read_it(device: Device) -> None:
    x, y = device.upload(np.zeros(8, np.int32), "x"), device.empty(3, np.int32)
    with pytest.raises(
        KernelFault, match=r"block .2, .*reads offset 0 .*'x' .*which block 1 wrote"
    ):
        device.launch("rf_read_while_written", y, x, grid=3, block=1)


def test_overwriting_what_others_have_read(device: Device, host: HostPlatform) -> None:
    host.set_lane_order("forward")
    y = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match=r"thread .63, .*writes offset 0 .*, which other threads"):
        device.launch("rf_overwrite_first", y, grid=1, block=64)


def test_barrier_that_some_threads_skip(device: Device, any_order: str) -> None:
    y = device.empty(128, np.float32)
    with pytest.raises(KernelFault, match=r"__syncthreads\(\) at faulty\.hip:\d+, reached by 40"):
        device.launch("rf_divergent_barrier", y, 40, grid=1, block=128)


def test_threads_at_different_barriers(device: Device) -> None:
    y = device.empty(128, np.float32)
    with pytest.raises(KernelFault, match=r"reached by 64 of 128 threads; thread 64 is at __sync"):
        device.launch("rf_two_barriers", y, grid=1, block=128)


def test_shuffle_with_lanes_missing(device: Device, any_order: str) -> None:
    y = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match=r"shuffle at .*, but lane \d+ of the same wave is at"):
        device.launch("rf_shuffle_after_exit", y, 20, grid=1, block=64)


def test_shuffle_from_a_lane_that_does_not_exist(device: Device) -> None:
    y = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match=r"takes the value of lane \d+ of a wave of \d+"):
        device.launch("rf_shuffle_out_of_wave", y, grid=1, block=64)


def test_value_that_is_not_uniform(device: Device) -> None:
    y = device.empty(64, np.int32)
    with pytest.raises(KernelFault, match=r"brings \d+ to uniform\(\) .* where lane 0 brings \d+"):
        device.launch("rf_not_uniform", y, grid=1, block=64)


def test_read_of_shared_memory_that_nothing_has_written(device: Device) -> None:
    y = device.empty(64, np.float32)
    with pytest.raises(KernelFault, match=r"reads offset 28 of .*nothing in this block"):
        device.launch("rf_shared_uninitialised", y, grid=1, block=64)


def test_two_blocks_write_the_same_bytes(device: Device, any_order: str) -> None:
    y = device.empty(64, np.int32, "y")
    with pytest.raises(KernelFault, match=r"writes offset \d+ .*'y'.*which block \d wrote"):
        device.launch("rf_blocks_write_same", y, grid=2, block=64)


def test_blocks_may_write_the_same_values_if_they_say_so(device: Device, any_order: str) -> None:
    y, read = device.empty(64, np.int32), device.empty(192, np.int32)
    device.launch("rf_blocks_write_alike", y, read, 64, 0, 0, grid=3, block=64)
    np.testing.assert_array_equal(y.get(), 7 * np.arange(64))
    np.testing.assert_array_equal(read.get(), np.tile(7 * np.arange(64), 3))


@pytest.mark.parametrize(
    ("count", "others", "reads_early", "finding"),
    [
        pytest.param(
            *(64, 1, 0, r"has another value for offset \d+ .*'y'.* than another"),
            id="writes_other_values",
        ),
        pytest.param(
            *(63, 0, 0, r"writes offset 252 .*'y'.*which block \d wrote"), id="writes_more_bytes"
        ),
        pytest.param(
            *(64, 0, 1, r"reads offset \d+ .*'y'.*which block \d wrote"),
            id="reads_before_it_has_written",
        ),
    ],
)
def test_a_block_that_says_what_others_write_too_is_held_to_it(
    device: Device, any_order: str, count: int, others: int, reads_early: int, finding: str
) -> None:
    y, read = device.empty(64, np.int32, "y"), device.empty(192, np.int32)
    with pytest.raises(KernelFault, match=finding):
        device.launch(
            "rf_blocks_write_alike", y, read, count, others, reads_early, grid=3, block=64
        )


def test_waves_exchange_through_global_memory_without_a_barrier(
    device: Device, any_order: str
) -> None:
    mailbox, y = device.empty(256, np.int32, "mailbox"), device.empty(256, np.int32)
    match = r"kernel rf_waves_share_global, .* reads 4 bytes at offset \d+ of buffer .* 'mailbox'"
    with pytest.raises(KernelFault, match=match):
        device.launch("rf_waves_share_global", mailbox, y, grid=1, block=256)


def test_atomics_are_no_race(device: Device, any_order: str) -> None:
    total, in_block = device.upload(np.zeros(1, np.int32)), device.empty(3, np.int32)
    device.launch("rf_count", total, in_block, grid=3, block=128)
    assert total.get() == [384]
    np.testing.assert_array_equal(in_block.get(), [128, 128, 128])


def test_float_atomics_are_no_race(device: Device, any_order: str) -> None:
    total = device.upload(np.zeros(1, np.float32))
    device.launch("rf_count_float", total, grid=3, block=128)
    assert total.get() == [192]


def test_write_past_the_end_after_atomics(device: Device) -> None:
    total = device.upload(np.zeros(1, np.int32), "total")
    in_block = device.empty(1, np.int32, "in_block")
    with pytest.raises(KernelFault, match=r"writes 4 bytes at offset 4 of .*'in_block'"):
        device.launch("rf_count", total, in_block, grid=2, block=64)


def _sum_in_the_last_block(device: Device, mistake: int) -> DeviceArray:
    partial, total = device.empty((4, 128), np.int32, "partial"), device.empty(128, np.int32)
    arrived = device.upload(np.zeros(1, np.int32))
    device.launch("rf_last_block_sums", partial, arrived, total, mistake, grid=4, block=128)
    return total


def test_last_block_may_read_what_the_others_released(device: Device, any_order: str) -> None:
    assert (_sum_in_the_last_block(device, 0).get() == 4).all()


@pytest.mark.parametrize(
    "mistake",
    range(1, 7),
    ids=[
        "no_release",
        "release_of_one_wave",
        "release_behind_the_barrier",
        "no_arrival",
        "store_after_the_arrival",
        "no_acquire",
    ],
)
def test_last_block_reads_what_it_may_not_see(device: Device, any_order: str, mistake: int) -> None:
    with pytest.raises(
        KernelFault,
        match=r"reads .*'partial'.*(which block \d wrote|nothing has been written there)",
    ):
        _sum_in_the_last_block(device, mistake)


def test_lanes_of_a_wave_may_exchange_after_wave_sync(device: Device, any_order: str) -> None:
    y = device.empty(64, np.int32)
    device.launch("rf_wave_exchange", y, 1, grid=1, block=64)
    wave = np.arange(device.wave)[::-1]
    np.testing.assert_array_equal(y.get(), np.concatenate([wave, wave + device.wave])[:64])


def test_lanes_of_a_wave_exchange_without_wave_sync(device: Device, any_order: str) -> None:
    y = device.empty(64, np.int32)
    match = r"kernel rf_wave_exchange, .* reads offset \d+ of shared array .*values"
    with pytest.raises(KernelFault, match=match):
        device.launch("rf_wave_exchange", y, 0, grid=1, block=64)


def test_what_lanes_of_a_wave_have_read_may_change_after_wave_sync(
    device: Device, any_order: str
) -> None:
    y = device.empty(128, np.int32)
    device.launch("rf_wave_broadcast", y, 0, grid=1, block=128)
    assert set(y.get()[: device.wave]) == {3}


def test_what_another_wave_has_read_changes_after_wave_sync(device: Device, any_order: str) -> None:
    y = device.empty(128, np.int32)
    with pytest.raises(KernelFault, match=r"rf_wave_broadcast, .* without a barrier in between"):
        device.launch("rf_wave_broadcast", y, 1, grid=1, block=128)


def test_integer_division_by_zero(device: Device) -> None:
    y = device.empty(64, np.int32)
    with pytest.raises(KernelFault, match=r"divides an integer by zero \(.*faulty\.hip"):
        device.launch("rf_divide", y, 0, grid=1, block=64)


def test_a_write_65536_launches_ago_is_not_taken_for_one_of_this_launch(device: Device) -> None:
    """A byte holds 16 bits of the number of the launch that wrote it."""
    y, elsewhere = device.empty(512, np.float32), device.empty(1, np.float32)
    device.launch("rf_fill", y, 256, 256, grid=1, block=256)
    for _ in range((1 << 16) - 1):
        device.enqueue("rf_fill", elsewhere, 0, 1, grid=1, block=device.wave)
        device.synchronize()
    device.launch("rf_fill", y, 0, 512, grid=2, block=256)  # block 1 writes what block 0 wrote then
