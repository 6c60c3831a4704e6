"""What the kernel says of the host's memory, and what a container may have of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmforge.backend.host_memory import host_memory

KIB, GIB = 1 << 10, 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with 64 GiB, of which 48 can be had."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    kibibytes = {"MemTotal": 64 * GIB // KIB, "MemFree": 7, "MemAvailable": 48 * GIB // KIB}
    lines = [f"{key}:   {value} kB\n" for key, value in kibibytes.items()]
    (tmp_path / "proc/meminfo").write_text("".join(lines))
    return tmp_path


def limit(root: Path, most: object, used: int, files: int) -> None:
    group = root / "sys/fs/cgroup"
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon {used - files}\ninactive_file {files}\n")


def test_a_host_of_its_own_gives_what_is_available(root: Path) -> None:
    assert host_memory(root) == (64 * GIB, 48 * GIB)


def test_a_group_without_a_limit_changes_nothing(root: Path) -> None:
    limit(root, "max", used=GIB, files=0)
    assert host_memory(root) == (64 * GIB, 48 * GIB)


def test_a_container_gives_what_its_limit_leaves(root: Path) -> None:
    limit(root, 16 * GIB, used=6 * GIB, files=0)
    assert host_memory(root) == (16 * GIB, 10 * GIB)


def test_files_that_a_container_has_read_count_as_free(root: Path) -> None:
    limit(root, 16 * GIB, used=6 * GIB, files=5 * GIB)
    assert host_memory(root) == (16 * GIB, 15 * GIB)


def test_a_limit_above_what_the_host_has_gives_no_more(root: Path) -> None:
    limit(root, 60 * GIB, used=GIB, files=0)
    assert host_memory(root) == (60 * GIB, 48 * GIB)


def test_the_host_of_this_test_has_memory() -> None:
    total, free = host_memory()
    assert 0 < free <= total
