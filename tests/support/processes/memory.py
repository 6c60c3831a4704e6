"""A pytest plugin: how much memory a process that runs tests may take.

The suite has to pass on a laptop, beside a browser. Without a limit a process once reached 11.7 GB,
and nobody saw it on a large machine.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_MB = 2048
MUCH = 64 << 20
"""Bytes that tests may leave behind before it is asked whether they are in use: asking is slow."""


def held_memory() -> int:
    """Reads how much memory this process holds, in bytes."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


def peak_memory() -> int:
    """Reads the most memory that this process has held, in bytes."""
    status = Path("/proc/self/status").read_bytes()
    return int(status.partition(b"VmHWM:")[2].split(maxsplit=1)[0]) << 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that moves the limit."""
    parser.addoption(
        "--memory-limit",
        type=int,
        default=LIMIT_MB,
        metavar="MB",
        help="the most memory that a process of the test run may take, %(default)s by default",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watches this process, which is one worker if there are several."""
    config.pluginmanager.register(_Guard(config.getoption("--memory-limit") << 20))


def give_back_freed_memory() -> None:
    """Returns to the system what Python and the C library have freed but keep for later."""
    gc.collect()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc has it
        library.malloc_trim(0)


class _Guard:
    """Fails the test during which the process first takes more than it may."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failed = False
        self._in_use = 0  # when it was last known
        self._in_use_by_all = 0  # the same between two files, whose fixtures may hold a model
        self._file: Path | None = None

    def pytest_collection_finish(self) -> None:
        """Starts from what the process holds when it has imported the tests."""
        self._in_use = self._in_use_by_all = held_memory()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Sees to it that no test loads a model beside what is left of the one before."""
        new_file, self._file = item.path != self._file, item.path
        if new_file:
            self._in_use = self._in_use_by_all
        if held_memory() > self._in_use + MUCH:
            give_back_freed_memory()
            self._in_use = held_memory()
        if new_file:
            self._in_use_by_all = self._in_use

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        before = held_memory()
        yield
        peak = peak_memory()
        if peak > self._limit and not self._failed:
            self._failed = True  # the peak stays: later tests are not to blame
            pytest.fail(
                f"this process has taken {peak >> 20} MB, where {self._limit >> 20} MB is allowed; "
                f"it held {before >> 20} MB at the end of this test",
                pytrace=False,
            )
