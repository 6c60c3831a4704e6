"""Runs the unit tests in as many processes as there are processors, each with files of its own.

Their tests take two milliseconds each. pytest-xdist would collect all of them in every worker and
send three reports of each: a third of the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-m", "not slow and not model"),
    *("--hypothesis-profile", "fast", "--randomly-dont-reset-seed"),
    *("-p", "no:anyio", "-p", "no:faker"),  # plugins of others' that only take time to import
)


def deal(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Deals files to so many parts, the largest first, to the part that has least."""
    parts: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        min(parts, key=lambda part: sum(sizes[other] for other in part)).append(name)
    return [part for part in parts if part]


def status_of(statuses: Sequence[int]) -> int:
    """The exit status of all parts: those that `-k` has left no test say nothing."""
    told = [status for status in statuses if status != pytest.ExitCode.NO_TESTS_COLLECTED]
    return max(told, default=int(pytest.ExitCode.NO_TESTS_COLLECTED))


def main(arguments: Sequence[str]) -> int:
    files = (ROOT / "tests/unit").rglob("test_*.py")
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in files}
    running = []
    for part in deal(sizes, len(os.sched_getaffinity(0))):
        output = tempfile.TemporaryFile()  # noqa: SIM115
        command = (*PYTEST, *arguments, *part)
        running.append((subprocess.Popen(command, cwd=ROOT, stdout=output), output))
    statuses = []
    for process, output in running:
        statuses.append(process.wait())
        output.seek(0)
        sys.stdout.buffer.write(output.read())
    return status_of(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
