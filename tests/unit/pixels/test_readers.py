"""The processes that read images."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from rocmforge.errors import InvalidParameter
from rocmforge.pixels.jobs import WorkerLimits
from rocmforge.pixels.readers import ImageReaders
from tests.support.files.pictures import ONE_TILE, encoded, picture, png_of_size

pytestmark = pytest.mark.slow


PATIENCE_S = 60.0


def wait_for_input(pid: int) -> None:
    """Until something lies in the pipe that a process reads from."""
    deadline = time.monotonic() + PATIENCE_S
    with open(f"/proc/{pid}/fd/0", "rb", buffering=0) as pipe:
        while not int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
            assert time.monotonic() < deadline, "no image came"
            time.sleep(0.001)


@pytest.fixture(scope="module")
def shared() -> Iterator[ImageReaders]:
    """Readers that keep nothing, so that every image is read."""
    readers = ImageReaders(max_kept_bytes=0)
    yield readers
    readers.close()


def test_an_image_is_read_as_the_tower_takes_it(shared: ImageReaders) -> None:
    found = shared.read(encoded(picture(color=(1, 2, 3))), ONE_TILE)
    assert found.layout.num_rows == 1
    patch = ONE_TILE.patch**2
    assert found.tiles[0].patches == 4 * (b"\1" * patch + b"\2" * patch + b"\3" * patch)


def test_a_refusal_leaves_the_process_for_the_next_image(shared: ImageReaders) -> None:
    shared.read(encoded(), ONE_TILE)
    before = shared.pids
    with pytest.raises(InvalidParameter, match="damaged PNG"):
        shared.read(encoded()[:50], ONE_TILE)
    shared.read(encoded(), ONE_TILE)
    assert shared.pids == before


def test_a_bomb_is_refused_before_it_is_decoded(shared: ImageReaders) -> None:
    with pytest.raises(InvalidParameter, match="16000 x 16000 pixels"):
        shared.read(png_of_size(16_000, 16_000), ONE_TILE)


def test_memory_is_bounded_and_the_process_lives_on() -> None:
    readers = ImageReaders(WorkerLimits(memory_bytes=64 << 20))
    data = encoded(Image.new("RGB", (6_000, 6_000)))  # 144 MB in Pillow's memory
    assert len(data) < 400_000
    try:
        with pytest.raises(InvalidParameter, match="takes too much memory"):
            readers.read(data, ONE_TILE)
        before = readers.pids
        readers.read(encoded(), ONE_TILE)
        assert readers.pids == before
    finally:
        readers.close()


def test_an_image_that_takes_too_long_costs_its_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers = ImageReaders(max_kept_bytes=0)
    try:
        readers.read(encoded(), ONE_TILE)
        (pid,) = readers.pids
        os.kill(pid, signal.SIGSTOP)  # as one that hangs
        started = time.monotonic()
        with monkeypatch.context() as patch:  # a process that starts may take longer
            patch.setattr(readers, "_limits", WorkerLimits(seconds=0.5))
            with pytest.raises(InvalidParameter, match=r"takes more than 0\.5 s"):
                readers.read(encoded(), ONE_TILE)
        assert time.monotonic() - started < PATIENCE_S
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        readers.read(encoded(), ONE_TILE)
    finally:
        readers.close()


def test_a_process_that_is_killed_at_work_costs_its_request_only(shared: ImageReaders) -> None:
    shared.read(encoded(), ONE_TILE)
    pid = shared.pids[-1]
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(shared.read, encoded(), ONE_TILE)
        wait_for_input(pid)  # killed sooner, it might be replaced before it has the image
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(InvalidParameter, match="the process that read it ended"):
            reading.result(timeout=PATIENCE_S)
    assert shared.read(encoded(), ONE_TILE).layout.num_rows == 1


def test_a_process_that_died_while_it_waited_is_replaced_unnoticed(shared: ImageReaders) -> None:
    shared.read(encoded(), ONE_TILE)
    for pid in shared.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until it has ended
    assert shared.read(encoded(), ONE_TILE).layout.num_rows == 1


def test_images_are_read_side_by_side(shared: ImageReaders) -> None:
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(lambda _: shared.read(encoded(), ONE_TILE), range(8))]
    assert len(set(found)) == 1
    assert len(shared.pids) <= 3


def test_an_image_is_read_once_for_each_who_sends_it() -> None:
    readers = ImageReaders()
    try:
        first = readers.read(encoded(), ONE_TILE)
        assert readers.read(encoded(), ONE_TILE) is first
        assert readers.read(encoded(), ONE_TILE, owner=2) is not first
    finally:
        readers.close()


def test_images_are_forgotten_when_they_become_too_many_bytes() -> None:
    size = 3 * ONE_TILE.tile**2
    readers = ImageReaders(max_kept_bytes=2 * size)
    try:
        files = [encoded(picture(color=(shade, 0, 0))) for shade in (10, 20, 30)]
        first, second, _ = (readers.read(file, ONE_TILE) for file in files)
        assert readers.read(files[1], ONE_TILE) is second
        assert readers.read(files[0], ONE_TILE) is not first
    finally:
        readers.close()


def test_a_process_has_no_secrets_and_writes_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCMFORGE_API_KEY", "a-secret-of-the-operator")
    readers = ImageReaders()
    try:
        readers.read(encoded(), ONE_TILE)
        process = Path(f"/proc/{readers.pids[0]}")
        assert b"a-secret" not in (process / "environ").read_bytes()
        lines = (process / "limits").read_text(encoding="ascii").splitlines()
        limits = {line[:25].strip(): line[25:].split()[0] for line in lines}
        assert (limits["Max file size"], limits["Max core file size"]) == ("0", "0")
        assert int(limits["Max cpu time"]) < 100
        assert int(limits["Max address space"]) < 4 << 30
    finally:
        readers.close()


def test_the_processes_end_with_the_readers() -> None:
    readers = ImageReaders()
    readers.read(encoded(), ONE_TILE)
    (pid,) = readers.pids
    readers.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
