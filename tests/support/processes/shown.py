"""The commands that pages show, taken apart as a shell would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.processes.pages import PAGES, ROOT

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}.*\n(?:\n(?= {4}))?)+", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELLS = ("sh", "bash", "console")
_MAP = "ARCHITECTURE.md"  # its indented blocks are lists of folders


@dataclass(frozen=True, slots=True)
class Shown:
    """A simple command: the words between two operators of a shell."""

    page: str
    words: tuple[str, ...]  # without assignments before it and files that it is redirected to

    @property
    def program(self) -> str:
        """The name of what is run; "" for a mere assignment."""
        return self.words[0].rpartition("/")[2] if self.words else ""


def sent_by_curl(words: Sequence[str]) -> httpx.Request:
    """The request that curl would send with these arguments."""
    given: dict[str, list[str]] = {"-X": [], "-H": [], "-d": [], "": []}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word in given:
            given[word].append(waiting.pop(0))
        else:
            given[""].append(word)
    (url,) = given[""]
    headers = dict(header.split(": ", 1) for header in given["-H"])
    (method,) = given["-X"] or ["POST" if given["-d"] else "GET"]
    return httpx.Request(method, url, headers=headers, content="".join(given["-d"]))


def fences(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    return [block for language, block in _FENCE.findall(_read(page)) if language in languages]


def shell_blocks(page: Path) -> list[str]:
    """The fenced blocks in a shell's language, and the indented ones outside of lists."""
    if page.name == _MAP:
        return []
    text = _FENCE.sub("", _read(page))
    indented = [
        re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in _INDENTED.findall(text)
    ]
    return fences(page, *_SHELLS) + indented


def shown_commands(pages: tuple[Path, ...] = PAGES) -> Iterator[Shown]:
    """All commands in the blocks of these pages."""
    for page in pages:
        name = str(page.relative_to(ROOT))
        for block in shell_blocks(page):
            for statement in _statements(block):
                for words in _simple(statement):
                    yield Shown(name, words)


def _statements(block: str) -> Iterator[list[str]]:
    """The words of each line, or of several if a quotation or a backslash joins them."""
    waiting = ""
    for line in block.splitlines():
        waiting += line + "\n"
        if waiting.endswith("\\\n"):
            continue
        try:
            words = _words(waiting)
        except ValueError:  # a quotation is open
            continue
        yield words
        waiting = ""
    assert not waiting, f"no end of: {waiting}"


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    return list(lexer)


def _simple(words: list[str]) -> Iterator[tuple[str, ...]]:
    """The commands of a statement."""
    command: list[str] = []
    is_file = False
    for word in [*words, ";"]:
        if is_file:
            is_file = False
        elif set(word) <= set("<>"):
            is_file = True
        elif set(word) <= set("&|;"):
            if command:
                yield tuple(command)
            command = []
        elif command or not _ASSIGNMENT.match(word):
            command.append(word)


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")
