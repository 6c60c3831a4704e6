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


@pytest.mark.parametrize(("limit", "status"), [(200, 1), (2000, 0)])
def test_the_limit_is_held(tmp_path: Path, limit: int, status: int) -> None:
    hungry = tmp_path / "test_hungry.py"
    hungry.write_text(HUNGRY)
    command = (sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(tmp_path))
    plugins = ("-p", "tests.support.memory", "-p", "no:cacheprovider", "-p", "no:randomly")
    limits = ("--memory-limit", str(limit))
    # Options of this run, such as CI's, are not those of the one that is tested.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        (*command, *plugins, *limits, str(hungry)),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == status, done.stdout
    if status:
        assert "ERROR" in done.stdout
        assert "test_takes_a_lot" in done.stdout
        assert f"where {limit} MB is allowed" in done.stdout
        assert "2 passed, 1 error" in done.stdout
