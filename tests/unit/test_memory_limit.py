"""A test run fails if a process of it takes too much memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HUNGRY = """
def test_takes_a_lot():
    assert len(b"1" * (300 << 20))

def test_takes_little():
    pass
"""


# The C library keeps what is freed below memory that is in use.
FREED = """
kept = []

def test_frees_what_it_took():
    small = [b"1" * (1 << 16) for _ in range(4000)]
    kept.append(b"1" * (1 << 16))
    assert small

def test_takes_as_much_again():
    assert b"1" * (260 << 20)
"""

# While the first file has its fixture, all of this is in use, and then none of it.
HOLDS = """
import pytest

class Ring:
    def __init__(self, numbers):
        self.texts = [b"1" * (1 << 16) for _ in numbers]
        self.itself = self

@pytest.fixture(scope="module")
def ring():
    return Ring(range(4000))

def test_holds_a_lot(ring):
    pass

def test_holds_it_still(ring):
    pass
"""


def run_with_limit(limit: int, folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    for number, tests in enumerate(files):
        (folder / f"test_hungry_{number}.py").write_text(tests)
    command = (sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder))
    memory = "tests.support.processes.memory"
    plugins = ("-p", memory, "-p", "no:cacheprovider", "-p", "no:randomly")
    # Options of this run, such as CI's, are not those of the one that is tested.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(
        (*command, *plugins, "--memory-limit", str(limit), str(folder)),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize(("limit", "status"), [(200, 1), (2000, 0)])
def test_the_limit_is_held(tmp_path: Path, limit: int, status: int) -> None:
    done = run_with_limit(limit, tmp_path, HUNGRY)
    assert done.returncode == status, done.stdout
    if status:
        assert "ERROR" in done.stdout
        assert "test_takes_a_lot" in done.stdout
        assert f"where {limit} MB is allowed" in done.stdout
        assert "2 passed, 1 error" in done.stdout


def test_what_a_test_has_freed_is_given_back_before_the_next(tmp_path: Path) -> None:
    done = run_with_limit(450, tmp_path, FREED)
    assert done.returncode == 0, done.stdout


def test_what_the_fixtures_of_a_file_held_is_given_back_before_the_next(tmp_path: Path) -> None:
    done = run_with_limit(450, tmp_path, HOLDS, HUNGRY)
    assert done.returncode == 0, done.stdout
