"""`rocmforge run`: what it takes as a question, shows of an answer and keeps of both."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocmforge.commands.run import Conversation, Options, Printer
from rocmforge.commands.terminal.questions import answer_to_command, whole_prompt
from rocmforge.errors import ConfigurationError
from rocmforge.gguf.tokenizer import read_templates, read_tokenizer
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls import Said
from tests.api import tiny
from tests.api.fake_engine import FakeEngine, make_model, requested, say, tiny_text
from tests.support.speaking import write_speaking

pytestmark = pytest.mark.slow

OPTIONS = Options(system=None, temperature=0.0, seed=None, max_tokens=None)


def conversation(engine: FakeEngine, *, thinks: bool = False) -> Conversation:
    data = tiny.thinking_metadata() if thinks else tiny.metadata()
    tokenizer = Tokenizer(read_tokenizer(data))
    templates = ChatTemplates.compile(read_templates(data), tokenizer)
    model = make_model(engine, tokenizer=tokenizer, templates=templates)
    return Conversation(requested(model), OPTIONS)


def kept(talk: Conversation) -> list[tuple[str, object]]:
    return [(message.role, message.content) for message in talk.messages]


def tokens(text: str) -> Sequence[int]:
    return tiny_text()[0].encode(text, parse_special=False)


def test_thoughts_are_neither_printed_as_the_answer_nor_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = FakeEngine(script=say(tokens("hmm"), (999,), tokens("hello"), [tiny.IM_END]))
    talk = conversation(engine, thinks=True)
    asyncio.run(talk.ask("well?"))
    shown = capsys.readouterr()
    assert shown.out == "hello\n"
    assert shown.err == "hmm\n"
    assert kept(talk) == [("user", "well?"), ("assistant", "hello")]


def test_an_interrupted_answer_stays_in_the_conversation_as_far_as_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Impatient(Printer):
        """A reader who stops the answer behind its first part."""

        def show(self, part: Said) -> None:
            super().show(part)
            raise asyncio.CancelledError

    monkeypatch.setattr("rocmforge.commands.run.Printer", Impatient)
    talk = conversation(FakeEngine(script=say(tokens("hello"), tokens(" world"), [tiny.IM_END])))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(talk.ask("well?"))
    assert kept(talk) == [("user", "well?"), ("assistant", "hello")]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes a pipe with that text standard input."""
    with ExitStack() as stack:

        def pipe(text: str) -> None:
            read_end, write_end = os.pipe()
            with os.fdopen(write_end, "w") as writing:
                writing.write(text)
            monkeypatch.setattr(sys, "stdin", stack.enter_context(os.fdopen(read_end)))

        yield pipe


def test_standard_input_is_a_part_of_the_prompt(piped: Callable[[str], None]) -> None:
    piped("a\nlong\ntext\n")
    assert whole_prompt("Summarise this:") == "Summarise this:\n\na\nlong\ntext\n"


def test_piped_lines_are_one_question(piped: Callable[[str], None]) -> None:
    piped("one\ntwo\n")
    assert whole_prompt(None) == "one\ntwo\n"


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_prompt_stands_alone_beside_an_empty_pipe(
    text: str, piped: Callable[[str], None]
) -> None:
    piped(text)
    assert whole_prompt("Hello") == "Hello"


def test_nothing_at_all_is_refused(piped: Callable[[str], None]) -> None:
    piped("")
    with pytest.raises(ConfigurationError, match="standard input is empty"):
        whole_prompt(None)


def test_a_pipe_that_does_not_end_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rocmforge.commands.terminal.questions._PATIENCE_S", 0.01)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as reading:
        monkeypatch.setattr(sys, "stdin", reading)
        asyncio.run(_write_later(write_end))
    assert "waiting for the end of standard input" in capsys.readouterr().err


async def _write_later(write_end: int) -> None:
    reading = asyncio.create_task(asyncio.to_thread(whole_prompt, "Hello"))
    await asyncio.sleep(0.2)
    os.close(write_end)
    await reading


@pytest.mark.parametrize("message", ["/help", "/clear", "/quit now", "/"])
def test_commands_do_not_go_to_the_model(message: str) -> None:
    reply = answer_to_command(message)
    assert reply is not None
    assert "/help shows this" in reply
    assert ("is not a command" in reply) == (message != "/help")


@pytest.mark.parametrize("message", ["hello", " /help", "/etc/passwd has which users?", "1/2"])
def test_other_messages_do(message: str) -> None:
    assert answer_to_command(message) is None


def test_a_model_without_a_template_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    model = write_speaking(tmp_path, "llama", template=None)
    backend = "tests.support.fake_backend:create_stuck_load"
    done = subprocess.run(
        [sys.executable, "-m", "rocmforge", "run", str(model), "--backend", backend, "Hello"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "has no chat template" in done.stderr
