"""Workers of a test run begin with the files that take long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MANY = """
import pytest

@pytest.mark.parametrize("number", range(9))
def test_quick(number):
    pass
"""
LATE = """
import pytest

@pytest.mark.late
@pytest.mark.parametrize("number", range(99))
def test_late(number):
    pass
"""
LARGE = """
import pytest

@pytest.mark.large
@pytest.mark.parametrize("number", range(5))
def test_large(number):
    pass
"""
FEW = """
import pytest

@pytest.mark.slow
def test_slow():
    pass
"""


def test_files_with_large_and_slow_tests_come_first_and_those_with_late_ones_last(
    tmp_path: Path,
) -> None:
    """However many tests they have."""
    (tmp_path / "test_many.py").write_text(MANY)
    (tmp_path / "test_late.py").write_text(LATE)
    (tmp_path / "test_few.py").write_text(FEW)
    (tmp_path / "test_large.py").write_text(LARGE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        (
            *(sys.executable, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile"),
            *("-c", "/dev/null", "--rootdir", str(tmp_path)),
            *("-p", "tests.conftest", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)),
        ),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if "PASSED" in line]
    files = [line.partition(".py::")[0].rpartition("test_")[2] for line in lines]
    assert list(dict.fromkeys(files)) == ["large", "few", "many", "late"]
