"""Reads by the threads of the C library: what they bring, and what is said if they cannot."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rocmforge.checkpoint.file_reads import PARTS, THREADS, FileRead
from rocmforge.checkpoint.locator import FilePart
from rocmforge.errors import ModelLoadError
from tests.support.models.loading import open_files


@pytest.fixture
def read() -> Iterator[FileRead]:
    read = FileRead()
    yield read
    read.close()


def test_parts_of_files_are_read_one_after_the_other(read: FileRead, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for value, path in enumerate(paths):
        path.write_bytes(bytes(range(value, value + 200)))
    target = np.zeros(100, np.uint8)
    for value, path, offset in ((0, paths[0], 0), (0, paths[0], 100), (1, paths[1], 50)):
        read.start(FilePart(path, offset), target.ctypes.data, 100)
        read.wait()
        assert target.tolist() == list(range(value + offset, value + offset + 100))


@pytest.mark.parametrize("nbytes", [(1 << 20) + 1, 4 << 20, (9 << 20) + 4095])
def test_a_long_read_is_read_in_parts(read: FileRead, tmp_path: Path, nbytes: int) -> None:
    path, first = tmp_path / "long", 77
    content = np.random.default_rng(0).integers(0, 256, first + nbytes, np.uint8)
    path.write_bytes(content.tobytes())
    target = np.zeros(nbytes + 1, np.uint8)
    read.start(FilePart(path, first), target.ctypes.data, nbytes)
    descriptors = [link for link in Path("/proc/self/fd").iterdir() if link.resolve() == path]
    assert 2 <= len(descriptors) <= PARTS  # each part has its own
    read.wait()
    np.testing.assert_array_equal(target[:-1], content[first:])
    assert target[-1] == 0


def test_reads_run_beside_each_other(tmp_path: Path) -> None:
    """More than the C library has threads for."""
    path, count = tmp_path / "file", 50
    content = np.random.default_rng(0).integers(0, 256, (count, 4096), np.uint8)
    path.write_bytes(content.tobytes())
    target, reads = np.zeros_like(content), [FileRead() for _ in range(count)]
    for number, read in enumerate(reads):
        read.start(FilePart(path, 4096 * number), target[number].ctypes.data, 4096)
    for read in reversed(reads):
        read.wait()
        read.close()
    np.testing.assert_array_equal(target, content)
    assert str(path) not in open_files()


_MANY_READS = """
import os, sys
from pathlib import Path
from rocmforge.checkpoint.file_reads import FileRead
from rocmforge.checkpoint.locator import FilePart
path, memory = Path(sys.argv[1]), bytearray(1)
pipe = os.open(path, os.O_RDWR)  # from which nothing comes
before = len(os.listdir("/proc/self/task"))
reads = [FileRead() for _ in range(20)]
for read in reads:
    read.start(FilePart(path, 0), id(memory), 1)
print(len(os.listdir("/proc/self/task")) - before, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have no such limit")
def test_only_some_reads_run_at_a_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", _MANY_READS, str(tmp_path / "pipe")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{THREADS}\n"


_THREADS_FIRST = """
import os, sys
from rocmforge.checkpoint.file_reads import start_threads
before = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
start_threads()
print(len(os.listdir("/proc/self/task")) - before[0], len(os.listdir("/proc/self/fd")) - before[1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have a thread for each read")
def test_threads_are_there_before_the_first_read() -> None:
    command = [sys.executable, "-c", _THREADS_FIRST]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{THREADS} 0\n"


_MUCH_ROOM = """
import os
from rocmforge.checkpoint.file_reads import reserve_descriptors
def count():
    return len(os.listdir("/proc/self/fd"))
def room():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("FDSize")]
    return int(line.split()[1])
before = room(), count()
reserve_descriptors().join()
print(before[0] < 512 <= room(), before[1] == count())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say how much there is")
def test_room_for_descriptors_is_made_before_they_are_needed() -> None:
    """In a child of a shell: one of this process would have as much room as this one needs."""
    command = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, _MUCH_ROOM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True True\n"


def test_what_arrives_in_parts_is_read_to_its_end(read: FileRead, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    pipe, target = os.open(path, os.O_RDWR), np.zeros(8, np.uint8)
    os.write(pipe, b"begin")
    read.start(FilePart(path, 0), target.ctypes.data, 8)
    rest = threading.Thread(target=os.write, args=(pipe, b"end"))
    rest.start()
    read.wait()
    rest.join()
    os.close(pipe)
    assert target.tobytes() == b"beginend"


@pytest.mark.parametrize(("size", "nbytes"), [(100, 60), (5 << 20, 4 << 20)])
def test_a_file_that_became_shorter_is_named(
    read: FileRead, tmp_path: Path, size: int, nbytes: int
) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(size))
    target = np.zeros(nbytes, np.uint8)
    read.start(FilePart(path, size - nbytes + 1), target.ctypes.data, nbytes)
    with pytest.raises(ModelLoadError, match="short became shorter while it was read"):
        read.wait()


def test_what_the_system_says_of_a_file_is_raised(read: FileRead, tmp_path: Path) -> None:
    target = np.zeros(8, np.uint8)
    with pytest.raises(FileNotFoundError, match="missing"):
        read.start(FilePart(tmp_path / "missing", 0), target.ctypes.data, 8)
    read.start(FilePart(tmp_path, 0), target.ctypes.data, 8)
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        read.wait()


def test_no_memory_is_written_to_once_a_read_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    pipe, target = os.open(path, os.O_RDWR), np.zeros(1, np.uint8)
    read = FileRead()
    read.start(FilePart(path, 0), target.ctypes.data, 1)
    time.sleep(0.2)  # until a thread has begun: what none has is cancelled at once
    closes, written = threading.Event(), threading.Event()

    def write() -> None:
        closes.wait()
        written.set()
        os.write(pipe, b"x")

    writer = threading.Thread(target=write)
    writer.start()
    closes.set()
    read.close()
    assert written.is_set()
    writer.join()
    os.close(pipe)
    assert str(path) not in open_files()
