"""The common parts of all formats of tool calls."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rocmforge.text.output.grammar import Schema
from rocmforge.text.output.incoming import Incoming
from rocmforge.text.output.reasoning import Reasoning
from rocmforge.text.tokenizer.tokenizer import Tokenizer

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


Said = str | Reasoning | CallBegin | CallArguments


class CallParser(ABC):
    """Splits one answer into text and calls as it arrives. Mutable.

    What looks like a call but is none, or calls a function that was not offered, is text. White
    space next to a call is markup, but what stands before the first call has been said by then. For
    any split into pieces the texts, concatenated, and the calls are the same.

    Args:
        schemas: The functions that were offered, and the schemas of their parameters.
        max_calls: Further calls are dropped.
    """

    def __init__(self, schemas: Mapping[str, Schema], max_calls: int | None) -> None:
        self._schemas = schemas
        self._max_calls = max_calls
        self._incoming = Incoming()
        self._said: list[Said] = []
        self._has_said_text = False  # behind the last call
        self._space = ""  # behind text that stands behind a call: text, too, if more comes
        self._function = ""  # that is being called
        self._num_arguments = 0  # of it, so far
        self.num_calls = 0

    def push(self, text: str) -> list[Said]:
        """Takes more of the answer; returns what it is certain to be."""
        self._incoming.add(text)
        while self._step():
            pass
        said, self._said = self._said, []
        return said

    def finish(self) -> list[Said]:
        """Ends the answer: what was held back is text, unless it is only markup."""
        self._end()
        if self._space:
            self._said.append(self._space)
        said, self._said = self._said, []
        return said

    @abstractmethod
    def _step(self) -> bool:
        """Makes one transition; False if more text is needed."""

    @abstractmethod
    def _end(self) -> None:
        """Says what has not been understood."""

    def _skip_to(self, *marks: str) -> bool:
        """Says the text before a mark, and skips the mark; False if none has come."""
        self._say_text(self._incoming.take_until(*marks))
        return bool(self._incoming.skip_mark(*marks))

    def _open_at(self, head: re.Pattern[str]) -> bool | None:
        """Opens the call that begins here, or says what looked like one.

        Args:
            head: Ends where the arguments begin; its first group is the name.

        Returns:
            Whether there is a call; None if more text is needed.
        """
        text = self._incoming.text
        found = head.match(text, 0, LONGEST_HEAD)
        if found is None and len(text) < LONGEST_HEAD:
            return None
        if found is None or found[1] not in self._schemas:
            self._say_skipped()
            return False
        self._incoming.take(found.end())
        self._open(found[1])
        return True

    def _open(self, name: str) -> None:
        """Begins a call; what has been skipped was its markup."""
        self._incoming.forget_skipped()
        self._function = name
        self._has_said_text, self._space = False, ""
        self._num_arguments = 0
        self.num_calls += 1
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
        if self.num_calls:
            text = self._space + text if self._has_said_text else text.lstrip()
            self._space = text[len(text.rstrip()) :]
            text = text.rstrip()
        if text:
            self._said.append(text)
            self._has_said_text = True

    def _say_skipped(self) -> None:
        """Says what has been skipped: it looked like markup, but was text."""
        self._say_text(self._incoming.take_skipped())

    @property
    def _is_wanted(self) -> bool:
        return self._max_calls is None or self.num_calls <= self._max_calls


@dataclass(frozen=True, slots=True)
class Rules:
    """A grammar in Lark's notation: what an answer is, and the rules it needs for that.

    Attributes:
        start: An answer that is calls; "" = there are no functions.
        rules: The rules that the others name. `TEXT` is any text.
        before: What stands before an answer that is no call.
        opening: The text with which every call begins; "" = text may begin like one.
        opened: What follows it.
    """

    start: str
    rules: tuple[str, ...]
    before: str = ""
    opening: str = ""
    opened: str = ""


class CallFormat(Protocol):
    """The way in which a family of models writes calls."""

    @property
    def markers(self) -> Mapping[str, str]:
        """Spellings that may be control tokens: what the parser is shown of those then."""
        ...

    @property
    def splits_reasoning(self) -> bool:
        """Whether the parser takes reasoning out of an answer, whose text it alone understands."""
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


def within_string(text: str) -> str:
    """Writes a part of a string as JSON has it between the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def literal(text: str) -> str:
    """Writes a text in Lark's notation; nothing for the empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def marker(text: str, tokenizer: Tokenizer) -> str:
    """Writes a text that may be a control token of the vocabulary, in Lark's notation."""
    token_id = tokenizer.control_token(text)
    return literal(text) if token_id is None else f"<[{token_id}]>"


def repeated(call: str, separator: str, *, parallel: bool) -> str:
    """Writes one call or several, in Lark's notation."""
    if not parallel:
        return call
    return f"{call} ({literal(separator)} {call}){{0,{MAX_FORCED_CALLS - 1}}}"
