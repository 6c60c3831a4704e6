"""Lines that amdgpu has written on people's machines, and what they mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocmforge.sensors.kernel_log import KernelEvent, KernelLog, parse_record, read_all

CARD = "amdgpu 0000:03:00.0: amdgpu: "


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (CARD + "ring gfx_0.0.0 timeout, signaled seq=7292300, emitted seq=7292304", "timeout"),
        (
            "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1",
            "timeout",
        ),
        ("amdgpu: qcm fence wait loop timeout expired", "timeout"),
        (CARD + "GPU reset begin!", "reset"),
        ("amdgpu 0000:03:00.0: GPU reset begin!. Source:  3", "reset"),
        (CARD + "GPU reset(2) succeeded!", "recovered"),
        (CARD + "GPU reset(1) failed", "reset_failed"),
        (CARD + "GPU reset end with ret = -110", "reset_failed"),
        (CARD + "device lost from bus!", "lost"),
        (CARD + "2 uncorrectable hardware errors detected in umc block", "memory_error"),
        (
            CARD + "socket: 0, die: 1, 12 new uncorrectable hardware errors detected in umc block",
            "memory_error",
        ),
        (CARD + "poison is consumed by client 12, kick off gpu reset flow", "memory_error"),
        (CARD + "[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32769)", "page_fault"),
        (CARD + "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3)", "page_fault"),
        (CARD + "ERROR: GPU over temperature range(SW CTF) detected!", "overheated"),
    ],
)
def test_a_line_of_the_driver_is_an_event(text: str, event: str) -> None:
    record = parse_record(f"3,1042,714360123,-;{text}")
    assert record is not None
    assert (record.event, record.text) == (event, text)
    assert record.seconds == pytest.approx(714.360123)
    assert record.device == ("0000:03:00.0" if "0000:03:00.0" in text else None)


@pytest.mark.parametrize(
    "line",
    [
        f"3,1,2,-;{CARD}ring gfx_0.0.0 timeout, but soft recovered",
        f"6,1,2,-;{CARD}no uncorrectable hardware errors detected in umc block",
        f"6,1,2,-;{CARD}0 uncorrectable hardware errors detected in umc block",
        f"6,1,2,-;{CARD}3 uncorrectable hardware errors detected in total in umc block",
        f"6,1,2,-;{CARD}4 correctable hardware errors detected in umc block",
        f"6,1,2,-;{CARD}GPU reset succeeded, trying to resume",  # another line tells of the end
        "6,1,2,-;nvidia 0000:01:00.0: GPU reset begin!",
        "6,1,2,-;usb 1-1: reset high-speed USB device",
        f"{CARD}GPU reset begin!",  # no record
        f"3,1,now,-;{CARD}GPU reset begin!",
        f"3,1;{CARD}GPU reset begin!",
        "",
        ";",
    ],
)
def test_other_lines_are_none(line: str) -> None:
    assert parse_record(line) is None


def test_a_long_line_is_cut_and_cannot_steer_a_terminal() -> None:
    record = parse_record(f"3,1,2,-;{CARD}GPU reset begin!\x1b[2J" + "x" * 9000)
    assert record is not None
    assert len(record.text) <= 300
    assert "\x1b" not in record.text


def test_the_log_is_read_on_from_where_it_was_even_within_a_line(tmp_path: Path) -> None:
    file = tmp_path / "kmsg"
    file.write_text(f"3,1,1,-;{CARD}GPU reset begin!\n")
    log = KernelLog(file, from_now=True)
    assert log.read(10) == []
    with file.open("a") as kernel:
        kernel.write(f"3,2,2,-;{CARD}GPU reset(1) succ")
        kernel.flush()
        assert log.read(10) == []
        kernel.write(f"eeded!\n3,3,3,-;{CARD}device lost from bus!\n")
    events = [record.event for record in log.read(10)]
    assert events == [KernelEvent.RECOVERED, KernelEvent.LOST]
    assert log.read(10) == []
    log.close()
    log.close()


def test_no_more_is_read_at_a_time_than_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "kmsg"
    line = f"3,1,1,-;{CARD}GPU reset begin!\n"
    file.write_text(line * 2000)
    log = KernelLog(file, from_now=False)
    assert 0 < len(log.read(1)) <= 8192 // len(line)
    log.close()


def test_a_pipe_that_nobody_writes_to_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    assert read_all(tmp_path / "kmsg", 10) == ([], None)


def test_a_log_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert read_all(tmp_path / "kmsg", 10) == ([], "No such file or directory")
