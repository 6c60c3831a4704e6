"""The thread that looks after devices: what it sees, tells and counts, and that it ends."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocmforge.sensors.kernel_log import KernelEvent
from rocmforge.sensors.reading import DeviceReading, ErrorCounts, read_device, remarks
from rocmforge.sensors.throttling import Throttle
from rocmforge.sensors.watch import DeviceWatch
from tests.support.files.device_tree import GIB, DeviceTree

PATIENCE_S = 60.0


@pytest.fixture
def tree(tmp_path: Path) -> DeviceTree:
    return DeviceTree(tmp_path)


@pytest.fixture
def watch(tree: DeviceTree) -> Iterator[DeviceWatch]:
    """It looks only when it is told to."""
    watch = DeviceWatch(tree.root, interval_s=3600.0, pid=100)
    watch.follow(frozenset({tree.device}))
    watch.look_soon(PATIENCE_S)
    yield watch
    watch.stop()


def test_a_reading_has_everything_that_the_driver_tells(tree: DeviceTree) -> None:
    reading = read_device(tree.root, tree.device)
    assert (reading.power_w, reading.power_cap_w, reading.default_cap_w) == (15, 303, 303)
    assert (reading.memory_total, reading.memory_used) == (24 * GIB, GIB // 2)
    assert {name: (t.now, t.critical) for name, t in reading.temperatures.items()} == {
        "edge": (45, 100),
        "junction": (52, 110),
    }
    assert reading.throttled_by == frozenset()
    assert reading.errors == ErrorCounts(corrected=0, uncorrected=0)
    assert remarks(reading) == []


def test_a_device_without_any_files_tells_nothing(tmp_path: Path) -> None:
    reading = read_device(tmp_path, "0000:03:00.0")
    told = (reading.power_w, reading.busy, reading.memory_used, reading.throttled_by)
    assert told == (None,) * 4
    assert (reading.errors, remarks(reading)) == (None, [])


def test_a_device_that_sleeps_is_let_sleep(tree: DeviceTree) -> None:
    tree.write(f"{tree.folder}/power/runtime_status", "suspended\n")
    reading = read_device(tree.root, tree.device)
    assert reading.is_asleep
    assert (reading.power_w, reading.errors) == (None, None)


def test_what_is_not_as_it_might_be_is_said(tree: DeviceTree) -> None:
    tree.tell("hwmon/hwmon3/power1_cap", 150_000_000)
    tree.tell("mem_info_vram_used", 20 * GIB)
    tree.count_errors(corrected=4, uncorrected=2)
    tree.throttle(Throttle.POWER, Throttle.TEMPERATURE)
    tree.tell("hwmon/hwmon3/temp2_input", 110_000)
    said = " ".join(remarks(read_device(tree.root, tree.device)))
    for part in (
        "at its power limit (cap 150 W)",
        "too hot (110 °C)",
        "power cap is 150 W, the default 303 W",
        "hold 20.0 GiB of its memory",
        "counted 2 errors",
    ):
        assert part in said


def test_a_hot_sensor_is_told_where_the_firmware_says_nothing_of_throttling(
    tree: DeviceTree,
) -> None:
    tree.write(f"{tree.folder}/gpu_metrics", b"")
    tree.tell("hwmon/hwmon3/temp1_input", 99_000)
    assert remarks(read_device(tree.root, tree.device)) == [
        "Its sensor edge is at 99 °C of 100 °C."
    ]


def test_a_reset_is_counted_logged_and_told_at_once(
    tree: DeviceTree, watch: DeviceWatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[tuple[str, KernelEvent]] = []
    watch.on_end = lambda *told: ended.append(told)
    before = time.time()
    tree.say("ring comp_1.0.0 timeout, signaled seq=1, emitted seq=2")
    tree.say("GPU reset begin!")
    with caplog.at_level(logging.INFO, "rocmforge.sensors.watch"):
        watch.look_soon(PATIENCE_S)
    assert [event.event for event in watch.sight.events] == [KernelEvent.TIMEOUT, KernelEvent.RESET]
    counts = dict(watch.sight.counts_of(tree.device))
    assert (counts[KernelEvent.RESET], counts[KernelEvent.LOST]) == (1, 0)
    assert ended == [(tree.device, KernelEvent.RESET)]
    assert "the kernel says of 0000:03:00.0 (reset)" in caplog.text
    account = watch.account((tree.device,), before)
    assert account.startswith(" The kernel says: amdgpu 0000:03:00.0: amdgpu: ring comp_1.0.0")
    assert watch.events((tree.device,), time.time() + 1) == []
    assert watch.events(("0000:43:00.0",), before) == []


def test_what_was_said_before_and_of_other_devices_is_left_out(tmp_path: Path) -> None:
    tree = DeviceTree(tmp_path)
    tree.say("GPU reset begin!")
    watch = DeviceWatch(tree.root, interval_s=3600.0)
    watch.follow(frozenset({tree.device, "0000:43:00.0"}))
    watch.look_soon(PATIENCE_S)
    tree.device = "0000:63:00.0"
    tree.say("GPU reset begin!")
    with (tmp_path / "dev/kmsg").open("a") as kernel:  # of which of the two?
        kernel.write("3,1,1,-;amdgpu: qcm fence wait loop timeout expired\n")
    watch.look_soon(PATIENCE_S)
    watch.stop()
    assert watch.sight.events == ()


def test_throttling_is_measured_and_told_once_except_for_the_cap(
    tree: DeviceTree, watch: DeviceWatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = tree.device, Throttle.TEMPERATURE
    with caplog.at_level(logging.INFO, "rocmforge.sensors.watch"):
        tree.throttle(Throttle.POWER)
        watch.look_soon(PATIENCE_S)
        assert not caplog.records, "a card under load is at its power cap"
        assert (
            watch.sight.throttled_s[tree.device, Throttle.POWER] > 0 == watch.sight.throttled_s[key]
        )
        tree.throttle(Throttle.TEMPERATURE)
        watch.look_soon(PATIENCE_S)
        first = watch.sight.throttled_s[key]
        watch.look_soon(PATIENCE_S)
        assert watch.sight.throttled_s[key] > first > 0
        tree.throttle()
        watch.look_soon(PATIENCE_S)
    told = [record.getMessage() for record in caplog.records]
    assert [("too hot" in line, "not throttled any more" in line) for line in told] == [
        (True, False),
        (False, True),
    ]


def test_idle_power_is_that_of_a_device_that_does_nothing(
    tree: DeviceTree, watch: DeviceWatch
) -> None:
    watch.look_soon(PATIENCE_S)
    assert watch.sight.idle_power_w == {tree.device: 15}
    tree.tell("gpu_busy_percent", 97)
    tree.tell("hwmon/hwmon3/power1_average", 290_000_000)
    watch.look_soon(PATIENCE_S)
    assert watch.sight.readings[tree.device].power_w == 290
    assert watch.sight.idle_power_w == {tree.device: 15}
    assert watch.account((tree.device,), 0) == " The device was 97% busy."


def test_new_errors_of_memory_are_logged_and_old_ones_are_not(
    tree: DeviceTree, watch: DeviceWatch, caplog: pytest.LogCaptureFixture
) -> None:
    tree.count_errors(corrected=9, uncorrected=2)
    for _ in range(2 * 12):  # counts are asked for now and then
        watch.look_soon(PATIENCE_S)
    (record,) = (r for r in caplog.records if r.levelno == logging.ERROR)
    assert "has counted 2 more errors" in record.getMessage()
    assert watch.sight.readings[tree.device].errors == ErrorCounts(corrected=9, uncorrected=2)


def test_errors_are_counted_at_once_when_the_kernel_tells_of_one(
    tree: DeviceTree, watch: DeviceWatch
) -> None:
    watch.look_soon(PATIENCE_S)
    tree.count_errors(corrected=0, uncorrected=1)
    tree.say("1 uncorrectable hardware errors detected in umc block")
    watch.look_soon(PATIENCE_S)
    assert watch.sight.readings[tree.device].errors == ErrorCounts(corrected=0, uncorrected=1)
    tree.count_errors(corrected=0, uncorrected=2)
    watch.look_soon(PATIENCE_S)
    assert watch.sight.readings[tree.device].errors == ErrorCounts(corrected=0, uncorrected=1)


def test_who_holds_memory_is_a_sentence(tree: DeviceTree, watch: DeviceWatch) -> None:
    assert watch.holders() == ""
    tree.compute(4711, "llama-server", 9 * GIB)
    tree.compute(4712, "small", 1 << 20)
    for pid in range(5000, 5006):
        tree.compute(pid, f"other-{pid}", GIB)
    said = watch.holders()
    assert "llama-server (process 4711): 9.0 GiB of 0000:03:00.0, other-" in said
    assert said.endswith(", 2 more, 2.0 GiB.")
    assert "small" not in said


def test_a_driver_that_hangs_keeps_only_the_thread_waiting(tmp_path: Path) -> None:
    tree = DeviceTree(tmp_path)
    watch = DeviceWatch(tree.root, interval_s=3600.0)
    stuck, let_go = threading.Event(), threading.Event()

    def hang(device: str, why: str) -> None:
        stuck.set()
        let_go.wait(PATIENCE_S)

    watch.on_end = hang
    watch.follow(frozenset({tree.device}))
    watch.look_soon(PATIENCE_S)
    seen = watch.sight.readings[tree.device].at
    tree.say("device lost from bus!")
    began = time.monotonic()
    watch.look_soon(0.05)
    assert stuck.wait(PATIENCE_S)
    watch.stop()
    assert time.monotonic() - began < PATIENCE_S / 2
    assert watch.sight.readings[tree.device].at == seen, "what is known grows old"
    let_go.set()


def test_devices_that_nobody_uses_any_more_are_not_looked_at(
    tree: DeviceTree, watch: DeviceWatch
) -> None:
    assert list(watch.sight.readings) == [tree.device]
    watch.follow(frozenset())
    watch.look_soon(PATIENCE_S)
    assert watch.sight.readings == {}


def test_without_a_readable_log_nothing_is_claimed_about_resets(tmp_path: Path) -> None:
    tree = DeviceTree(tmp_path)
    os.unlink(tmp_path / "dev/kmsg")
    watch = DeviceWatch(tree.root, interval_s=3600.0)
    watch.follow(frozenset({tree.device}))
    watch.look_soon(PATIENCE_S)
    watch.stop()
    assert watch.sight.counts_of(tree.device) == []
    assert watch.sight.readings[tree.device].power_w == 15


def test_a_look_that_had_begun_before_is_not_taken_for_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_slowly(*given: Any) -> DeviceReading:
        time.sleep(0.1)  # or the next look is over before anybody sees that it was not waited for
        return read_device(*given)

    tree = DeviceTree(tmp_path)
    watch = DeviceWatch(tree.root, interval_s=3600.0)
    is_looking, let_go = threading.Event(), threading.Event()

    def wait(device: str, why: str) -> None:
        is_looking.set()
        let_go.wait(PATIENCE_S)

    watch.on_end = wait
    watch.follow(frozenset({tree.device}))
    watch.look_soon(PATIENCE_S)
    tree.say("GPU reset begin!")
    watch.follow(frozenset({tree.device}))
    assert is_looking.wait(PATIENCE_S)
    tree.say("[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32769)")
    monkeypatch.setattr("rocmforge.sensors.watch.read_device", read_slowly)
    threading.Timer(0.05, let_go.set).start()
    watch.look_soon(PATIENCE_S)
    seen = watch.sight
    watch.stop()
    assert KernelEvent.PAGE_FAULT in [event.event for event in seen.events]
