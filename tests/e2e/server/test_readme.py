"""What README tells people to type first, with the demo model: the answer is the one it shows."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.support.processes.pages import ROOT
from tests.support.processes.server import LiveServer
from tests.support.processes.shown import sent_by_curl, shown_commands

pytestmark = [pytest.mark.slow, pytest.mark.model]

README = ROOT / "README.md"


def test_the_first_answer_is_the_one_that_is_shown(smollm2_path: Path, tmp_path: Path) -> None:
    shown = list(shown_commands((README,)))
    serve = next(each.words[1:] for each in shown if each.program == "rocmforge")
    assert serve == ("serve", "smollm2")
    question = next(each.words[1:] for each in shown if each.program == "curl")
    (answer,) = re.findall(r'"content":"The .*?"', README.read_text(encoding="utf-8"))
    command = ("-m", "rocmforge", *serve, "--port", "{port}", "--max-context", "2048")
    with LiveServer(command, tmp_path / "log") as server, httpx.Client(timeout=120) as client:
        words = [word.replace("http://127.0.0.1:8000", server.url) for word in question]
        response = client.send(sent_by_curl(words))
    assert answer in response.text


def test_the_first_command_installs_no_development_packages() -> None:
    installs = [each for each in shown_commands((README,)) if each.program in ("uv", "pip")]
    assert len(installs) >= 3
    assert [each for each in installs if {"dev", "docs"} & {*each.words}] == []
