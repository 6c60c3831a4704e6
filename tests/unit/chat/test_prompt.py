"""The prompt that is not typed: command line, files, a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocmforge.commands.chat.prompt import whole_prompt
from rocmforge.errors import ConfigurationError


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


def test_files_stand_under_their_names_between_prompt_and_pipe(
    piped: Callable[[str], None], tmp_path: Path
) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text(f"text of {path.stem}")
    piped("piped")
    assert whole_prompt("Compare:", paths) == (
        "Compare:\n\na.txt:\n\ntext of a\n\nb.txt:\n\ntext of b\n\npiped"
    )


@pytest.mark.parametrize(
    ("content", "what"), [(None, "cannot be read: No such"), (b"ab\xff", "byte 2 cannot be one")]
)
def test_a_file_that_is_no_text_is_refused(
    piped: Callable[[str], None], tmp_path: Path, content: bytes | None, what: str
) -> None:
    path = tmp_path / "image.png"
    if content is not None:
        path.write_bytes(content)
    piped("")
    with pytest.raises(ConfigurationError, match=what):
        whole_prompt("What is this?", [path])


def test_a_pipe_that_does_not_end_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rocmforge.commands.chat.prompt._PATIENCE_S", 0.01)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as reading:
        monkeypatch.setattr(sys, "stdin", reading)
        asyncio.run(_end_once_it_is_said(write_end, lambda: capsys.readouterr().err))


async def _end_once_it_is_said(write_end: int, more: Callable[[], str]) -> None:
    reading, said = asyncio.create_task(asyncio.to_thread(whole_prompt, "Hello")), ""
    try:
        async with asyncio.timeout(60):
            while "waiting for the end of standard input" not in said:
                await asyncio.sleep(0.005)
                said += more()
    finally:
        os.close(write_end)
        await reading
