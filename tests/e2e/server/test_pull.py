"""The commands that fetch, list and delete models, against a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocmforge.library.catalogue import read_catalogue
from tests.support.models.speaking import write_speaking
from tests.support.processes.hub import FakeHub

pytestmark = pytest.mark.slow

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fake(tmp_path: Path) -> FakeHub:
    model = write_speaking(tmp_path, "llama").read_bytes()
    short = {read_catalogue()["qwen3-0.6b"].repository: {"Qwen3-0.6B-Q8_0.gguf": model}}
    return FakeHub({"org/tiny-GGUF": {"tiny-F32.gguf": model}, **short})


@pytest.fixture
def rocmforge(fake: FakeHub, tmp_path: Path) -> Iterator[Command]:
    """Runs a command of somebody whose home is empty."""
    with fake.serve() as address:

        def run(*arguments: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
            environment = {
                "HOME": str(tmp_path / "home"),
                "HF_HOME": str(tmp_path / "hf"),
                "HF_ENDPOINT": address,
                "HF_HUB_OFFLINE": str(int(offline)),
            }
            return subprocess.run(
                (sys.executable, "-m", "rocmforge", *arguments),
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )

        yield run


def test_a_model_is_fetched_by_name_used_offline_and_deleted(rocmforge: Command) -> None:
    asked = ("run", "org/tiny-GGUF", "a", "--max-context", "64", "--max-tokens", "4")
    away = rocmforge(*asked, offline=True)
    assert away.returncode == 1
    assert "HF_HUB_OFFLINE forbids to fetch it" in away.stderr
    first = rocmforge(*asked, "--temperature", "0")
    assert first.returncode == 0, first.stderr
    assert "fetching tiny-F32.gguf: 100%" in first.stderr
    again = rocmforge(*asked, "--temperature", "0", offline=True)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    (model,) = (
        row
        for row in json.loads(rocmforge("list", "--json").stdout)
        if "package" not in row["origin"]
    )
    assert (model["name"], model["origin"]) == ("org/tiny-GGUF:F32", "Hugging Face")
    assert rocmforge("rm", "org/tiny-GGUF").stdout.startswith("org/tiny-GGUF:F32: ")
    assert not Path(model["path"]).exists()
    assert rocmforge("rm", "org/tiny-GGUF").returncode == 2


def test_a_pull_says_where_the_model_is_or_why_it_is_not(rocmforge: Command) -> None:
    done = rocmforge("pull", "org/tiny-GGUF:F32")
    assert Path(done.stdout.strip()).name == "tiny-F32.gguf", done.stderr
    short = rocmforge("pull", "qwen3-0.6b", "--backend", "reference")
    assert Path(short.stdout.strip()).name == "Qwen3-0.6B-Q8_0.gguf", short.stderr
    missing = rocmforge("pull", "org/other")
    assert missing.returncode == 1
    assert "has no model org/other, or it is private" in missing.stderr
    assert "Traceback" not in missing.stderr
    assert rocmforge("pull", "other").returncode == 2
