"""`rocmforge run` in a real terminal, in pipes, and with a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from tests.support.models.speaking import write_speaking
from tests.support.processes.canned_server import STOP, canned_server, delta, events
from tests.support.processes.server import LiveServer
from tests.support.processes.terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    HOME,
    LEFT,
    PROMPT,
    UP,
    Terminal,
    heed_interrupts,
    pasted,
)

pytestmark = pytest.mark.slow

BEGIN = "/help shows commands."
FAST = ("--backend", "tests.support.fakes.fake_backend:create")
SLOW = ("--backend", "tests.support.fakes.fake_backend:create_slow")
LONG = ("--seed", "6")
"""With this seed the fake model has more to say than anybody waits for."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that chats."""
    return write_speaking(tmp_path_factory.mktemp("chat"), "llama")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without a chat template."""
    folder = tmp_path_factory.mktemp("base")
    return write_speaking(folder, "llama", template=None).rename(folder / "base.gguf")


@pytest.fixture
def home(tmp_path: Path) -> Mapping[str, str]:
    """Variables with which history goes to a folder of the test."""
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def say(terminal: Terminal, keys: str, expected: str) -> str:
    """Types keys and Enter at the prompt; returns what is shown before what is expected."""
    terminal.wait_for(PROMPT)
    terminal.type(keys + "\r")
    return terminal.wait_for(expected)


def test_a_conversation_as_people_have_it(
    model: Path, base_model: Path, tmp_path: Path, home: Mapping[str, str]
) -> None:
    saved = tmp_path / "talk.json"
    arguments = ("run", model, *FAST, "--max-tokens", "4", "--max-context", "160")
    with Terminal(*arguments, environment=home) as terminal:
        terminal.wait_for(BEGIN)
        say(terminal, "hello", "tokens/s")  # streamed, and then how fast it was
        say(terminal, "/sy\t", "There is no system message")
        # Editing: what is missing is put in where the cursor has been moved to.
        say(terminal, f"e kind.{LEFT * 6}{HOME}/system b", "System message: be kind.")
        say(terminal, f"/system One{ALT_ENTER}two", "System message: One\r\ntwo")
        say(terminal, '/system """', "\n.")  # Enter sends nothing before the quotes are closed
        terminal.type("Two\r")
        terminal.wait_for("\n.")
        terminal.type('lines"""\r')
        terminal.wait_for("System message: Two\r\nlines")
        # A pasted text is one message, whose first line is no command of its own.
        say(terminal, pasted("/paste is a line\nof a pasted text"), "/paste is not a command.")
        say(terminal, UP * 3, "System message: Two")  # out of the history
        say(terminal, "/set temperature 0", "temperature         0.0\r\n")
        say(terminal, "/hlep", "Did you mean /help?")
        say(terminal, f"/save {saved}", "Saved: ")
        messages = json.loads(saved.read_text())["messages"]
        assert [each["role"] for each in messages] == ["system", "user", "assistant"]
        assert messages[1]["content"] == "hello"
        say(terminal, "/clear", "begins anew")
        (tmp_path / "bad.json").write_text("{}")
        say(terminal, f"/load {tmp_path}/bad.json", "not a conversation that /save has written")
        say(terminal, f"/load {saved}", "Loaded: 1 questions")
        say(terminal, "hello " * 30, "tokens/s")
        say(terminal, "hello " * 50, "the model no longer sees the oldest")
        terminal.wait_for("tokens/s")
        say(terminal, f"/model {tmp_path}", "is a folder without config.json")
        say(terminal, f"/model {base_model}", "base answers from now on.")
        say(terminal, "/set", "seed")
        terminal.wait_for(PROMPT)
        terminal.type("/bye\r")
        terminal.ends_well()
    history = tmp_path / "state/rocmforge/history"
    assert "+/system be kind." in history.read_text().splitlines()
    assert history.stat().st_mode & 0o777 == 0o600


def test_interrupts_stop_the_answer_then_leave(model: Path, home: Mapping[str, str]) -> None:
    arguments = ("run", model, *SLOW, *LONG, "--max-context", "4096", "--no-history")
    with Terminal(*arguments, environment=home) as terminal:
        terminal.wait_for(BEGIN)
        say(terminal, "tell me", "word")
        terminal.type(CTRL_C)
        terminal.wait_for("(stopped)")
        say(terminal, "/save /dev/null/x", "cannot be")  # it is still there, and listens
        terminal.wait_for(PROMPT)
        terminal.type(f"half a line{CTRL_C}")
        terminal.type("/set seed 1\r")
        terminal.wait_for("seed                1\r\n")  # that line is gone
        terminal.wait_for(PROMPT)
        terminal.process.send_signal(signal.SIGINT)  # as `kill` does, which types no key
        terminal.wait_for("^C again")
        say(terminal, "/set seed 2", "seed                2\r\n")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_C)
        terminal.wait_for("^C again")
        terminal.type(CTRL_C)  # a key or a signal, as the terminal is by now
        terminal.ends_well()
    assert not Path(home["XDG_STATE_HOME"]).exists()


def rocmforge(
    *arguments: str | Path, environment: Mapping[str, str], piped: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a command without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "rocmforge", *map(str, arguments)],
        input=piped,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_base_model_completes_what_comes_through_a_pipe(
    base_model: Path, home: Mapping[str, str]
) -> None:
    done = rocmforge(
        *("run", base_model, *FAST, "hello", "--max-tokens", "4", "--quiet"),
        environment=home,
        piped="hello\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    assert "\x1b" not in done.stdout


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with one model and a key."""
    arguments = ("serve", str(model), *SLOW, "--port", "{port}", "--api-key", "a-long-key")
    limits = ("--max-context", "160", "--served-model-name", "tiny")
    log = tmp_path_factory.mktemp("log") / "server.log"
    with LiveServer(("-m", "rocmforge", *arguments, *limits), log) as started:
        yield started


def test_a_conversation_with_a_server(server: LiveServer, home: Mapping[str, str]) -> None:
    arguments = ("run", "--url", server.url, "--api-key", "a-long-key", *LONG)
    with Terminal(*arguments, environment=home) as terminal:
        terminal.wait_for(f"tiny. {BEGIN}")
        say(terminal, "hello", "word")
        terminal.type(CTRL_C)
        terminal.wait_for("(stopped)")
        say(terminal, "/set max_tokens 8", "max_tokens          8\r\n")
        say(terminal, "hello " * 36, "tokens/s")
        say(terminal, "hello " * 36, "the model no longer sees")
        terminal.wait_for("tokens/s")
        say(terminal, "/model", "* tiny")
        say(terminal, "/model tini", "Did you mean tiny?")
        terminal.wait_for(PROMPT)
        terminal.type(CTRL_D)
        terminal.ends_well()


def test_one_answer_of_a_server_for_a_program(server: LiveServer, home: Mapping[str, str]) -> None:
    asked = ("run", "--url", server.url, "hello", "--max-tokens", "3")
    key = {**home, "ROCMFORGE_API_KEY": "a-long-key"}
    done = rocmforge(*asked, environment=key)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    command = [sys.executable, "-m", "rocmforge", *asked[:-2]]
    with subprocess.Popen(
        command,
        stdout=PIPE,
        stdin=DEVNULL,
        env={**os.environ, **key},
        preexec_fn=heed_interrupts,
    ) as begun:
        assert begun.stdout is not None
        begun.stdout.read(1)
        begun.send_signal(signal.SIGINT)
        assert begun.wait(60) == 130
    refused = rocmforge(*asked, environment=home)
    assert refused.returncode == 1
    assert "status 401" in refused.stderr
    useless = rocmforge(*asked, "--max-context", "64", environment=key)
    assert useless.returncode == 2
    assert "--max-context is for a model on this machine" in useless.stderr


ATTACKS = ("\x1b]0;title\x07", "\x1b[2J", "\x9b31m")


def test_nothing_of_a_server_drives_the_terminal(home: Mapping[str, str]) -> None:
    attack = "".join(ATTACKS)
    answers = {
        "/v1/models": (200, json.dumps({"data": [{"id": f"{attack}model"}]}).encode()),
        "/v1/chat/completions": events(
            delta(reasoning_content=f"{attack}hm"), delta(content=f"{attack}answer"), STOP
        ),
    }
    with (
        canned_server(answers, []) as url,
        Terminal("run", "--url", url, "--no-history", environment=home) as terminal,
    ):
        terminal.wait_for(BEGIN)
        say(terminal, "hello", "answer")
        say(terminal, "/model", "model")
        answers["/v1/chat/completions"] = (500, f'{{"error": "{attack}failed"}}'.encode())
        say(terminal, "hello", "failed")
        answers["/v1/chat/completions"] = (500, f"{attack}broken".encode())
        say(terminal, "hello", "broken")
        terminal.wait_for(PROMPT)
        shown = terminal.raw.decode()
    assert [text for text in ATTACKS if text in shown] == []
    assert "\u241b]0;title\u2407" in shown
