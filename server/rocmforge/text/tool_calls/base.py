"""What all formats of tool calls have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rocmforge.text.grammar import Schema
from rocmforge.text.tokenizer import Tokenizer

MAX_FORCED_CALLS = 16
LONGEST_HEAD = 512  # characters, of what stands before a value or a call's first argument


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a function; its arguments follow."""

    index: int  # of the call in its answer
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Said = str | CallBegin | CallArguments


class CallParser(ABC):
    """Splits one answer into text and calls as it arrives. Mutable.

    What looks like a call but is none, or calls a function that was not offered, is text. For any
    split into pieces the texts, concatenated, and the calls are the same.

    Args:
        schemas: The functions that were offered, and the schemas of their parameters.
        max_calls: Further calls are dropped.
    """

    def __init__(self, schemas: Mapping[str, Schema], max_calls: int | None) -> None:
        self._schemas = schemas
        self._max_calls = max_calls
        self._held = ""
        self._said: list[Said] = []
        self._num_arguments = 0  # of the call being read
        self.num_calls = 0

    def push(self, text: str) -> list[Said]:
        """Takes more of the answer; returns what it is certain to be."""
        self._held += text
        while self._step():
            pass
        said, self._said = self._said, []
        return said

    def finish(self) -> list[Said]:
        """The end of the answer: what was held back is text, unless it is only markup."""
        self._end()
        said, self._said = self._said, []
        return said

    @abstractmethod
    def _step(self) -> bool:
        """Makes one transition; False if more text is needed."""

    @abstractmethod
    def _end(self) -> None:
        """Says what is still held."""

    def _open(self, name: str) -> None:
        self.num_calls += 1
        self._num_arguments = 0
        if self._is_wanted:
            self._said.append(CallBegin(self.num_calls - 1, name))

    def _say_arguments(self, text: str) -> None:
        if text and self._is_wanted:
            self._said.append(CallArguments(self.num_calls - 1, text))

    def _say_key(self, key: str) -> None:
        separator = ", " if self._num_arguments else "{"
        self._say_arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        self._num_arguments += 1

    def _close(self) -> None:
        self._say_arguments("}" if self._num_arguments else "{}")

    def _say_text(self, text: str) -> None:
        if text and not (self.num_calls and text.isspace()):  # that is markup
            self._said.append(text)

    @property
    def _is_wanted(self) -> bool:
        return self._max_calls is None or self.num_calls <= self._max_calls


@dataclass(frozen=True, slots=True)
class Rules:
    """A grammar in Lark's notation: what an answer is, and the rules it needs for that."""

    start: str
    rules: tuple[str, ...]


class CallFormat(Protocol):
    """How a family of models writes calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Spellings that may be control tokens, and have to be shown to the parser then."""
        ...

    def parser(self, schemas: Mapping[str, Schema], max_calls: int | None) -> CallParser:
        """Reads one answer."""
        ...

    def rules(
        self, tokenizer: Tokenizer, schemas: Mapping[str, Schema], *, parallel: bool
    ) -> Rules:
        """Answers that are one call, or several, of functions with these parameters.

        Args:
            tokenizer: Knows the markers that are control tokens.
            schemas: Parameters by function name; each is known to compile.
            parallel: Whether there may be several calls.

        Raises:
            CannotEnforce: a schema has what this format cannot express.
        """
        ...


class CannotEnforce(Exception):
    """A function's parameters cannot be held to their schema in some format."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(reason)
        self.function = function
        self.reason = reason


def literal(text: str) -> str:
    """A text in Lark's notation; nothing for the empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def marker(text: str, tokenizer: Tokenizer) -> str:
    """A text that may be a control token of the vocabulary, in Lark's notation."""
    token_id = tokenizer.control_token(text)
    return literal(text) if token_id is None else f"<[{token_id}]>"


def repeated(call: str, separator: str, *, parallel: bool) -> str:
    """A call, or several, in Lark's notation."""
    if not parallel:
        return call
    return f"{call} ({literal(separator)} {call}){{0,{MAX_FORCED_CALLS - 1}}}"


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of the text could become the mark."""
    longest = min(len(mark) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
