"""Tool calls as models write them: how each family spells them, and how to read that as it comes.

All formats here are JSON objects with a name and arguments, between markers of the family.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rocmforge.text.grammar import Schema, with_bounded_whitespace
from rocmforge.text.tokenizer import Tokenizer

MAX_FORCED_CALLS = 16


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls.

    `begin` may be empty: the whole answer is then a call, or none is.
    """

    begin: str
    end: str
    list_begin: str  # around all calls of an answer
    list_end: str
    separator: str
    arguments: str  # the key


FORMATS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat("<tool_call>", "</tool_call>", "", "", "\n", "arguments"),
    "mistral": ToolFormat("[TOOL_CALLS]", "", "[", "]", ", ", "arguments"),
    "llama3": ToolFormat("", "", "", "", "; ", "parameters"),
}

# What a chat template contains if its model writes that format; the first that matches.
_SIGNS = (
    ("hermes", "<tool_call>"),
    ("mistral", "[TOOL_CALLS]"),
    ("llama3", '"parameters"'),
)


def format_for(template: str) -> ToolFormat:
    """The format that a chat template speaks of; Hermes for one that knows no tools."""
    return FORMATS[next((name for name, sign in _SIGNS if sign in template), "hermes")]


def tools_as_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """What to tell a model whose template knows no tools."""
    return (
        "You may call these functions:\n"
        + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        + '\nTo call one, answer with <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.'
    )


def tool_grammar(
    form: ToolFormat,
    tokenizer: Tokenizer,
    parameters: Mapping[str, Schema],
    *,
    parallel: bool,
) -> str:
    """Answers that are one call, or several, of functions with these parameters.

    Args:
        form: How calls are written.
        tokenizer: Knows the markers that are control tokens.
        parameters: Schemas by function name, each known to compile.
        parallel: Whether there may be several calls.
    """
    rules = []
    for number, (name, schema) in enumerate(parameters.items()):
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{form.arguments}": '
        rules.append(f"call{number}: {_literal(head)} args{number} {_literal('}')}")
        rules.append(f"args{number}: %json {json.dumps(with_bounded_whitespace(schema))}")
    begin, end = _marker(form.begin, tokenizer), _marker(form.end, tokenizer)
    call = "(" + " | ".join(f"call{number}" for number in range(len(parameters))) + ")"
    one = f"{begin} {call} {end}" if form.end else call
    more = f" ({_literal(form.separator)} {one}){{0,{MAX_FORCED_CALLS - 1}}}" if parallel else ""
    around = "" if form.end else begin
    start = f"{around} {_literal(form.list_begin)} {one}{more} {_literal(form.list_end)}"
    lark = "\n".join([f"start: {start}", *rules])
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _marker(text: str, tokenizer: Tokenizer) -> str:
    token_id = tokenizer.control_token(text)
    return _literal(text) if token_id is None else f"<[{token_id}]>"


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


class _State(Enum):
    TEXT = auto()
    BETWEEN = auto()  # behind a marker or a call: markers, separators, or the next call
    HEAD = auto()  # in a call, before its arguments
    ARGUMENTS = auto()
    TAIL = auto()  # behind the arguments, before the call's last brace


_BETWEEN = " \t\r\n,;[]"


class ToolCallParser:
    """Splits one answer into text and calls as it arrives. Mutable.

    What looks like a call but is none, or calls a function that was not offered, is text. For any
    split into pieces the texts, concatenated, and the calls are the same.

    Args:
        form: How calls are written.
        names: Functions that were offered.
        max_calls: Further calls are dropped.
    """

    def __init__(self, form: ToolFormat, names: Collection[str], max_calls: int | None) -> None:
        self._markers = tuple(marker for marker in (form.begin, form.end) if marker)
        self._begin = form.begin
        self._names = names
        self._max_calls = max_calls
        self._head = re.compile(
            r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"' + form.arguments + r'"\s*:\s*(?=\{)'
        )
        self._arguments_key = form.arguments
        self._state = _State.TEXT if form.begin else _State.BETWEEN
        self._held = ""
        self._skipped = ""  # what was taken for markup, in case it was text
        self._scan = _ObjectScan()
        self.num_calls = 0

    def push(self, text: str) -> list[Said]:
        """Takes more of the answer; returns what it is certain to be."""
        self._held += text
        said: list[Said] = []
        while self._step(said):
            pass
        return said

    def finish(self) -> list[Said]:
        """The end of the answer: what was held back is text, unless it is only markup."""
        rest = self._held if self.num_calls else self._skipped + self._held
        begun = self._held.strip()
        is_markup = self._state is _State.TAIL or (
            self._state is _State.BETWEEN
            and self.num_calls > 0
            and (not begun or any(marker.startswith(begun) for marker in self._markers))
        )
        self._held = self._skipped = ""
        return [rest] if rest and not is_markup else []

    def _step(self, said: list[Said]) -> bool:
        """Makes one transition; False if more text is needed."""
        match self._state:
            case _State.TEXT:
                return self._read_text(said)
            case _State.BETWEEN:
                return self._read_between()
            case _State.HEAD:
                return self._read_head(said)
            case _State.ARGUMENTS:
                return self._read_arguments(said)
            case _State.TAIL:
                _, brace, rest = self._held.partition("}")
                if brace:
                    self._held, self._state = rest, _State.BETWEEN
                return bool(brace)

    def _read_text(self, said: list[Said]) -> bool:
        found = self._held.find(self._begin) if self._begin else -1
        end = found if found >= 0 else len(self._held) - self._overlap()
        if end:
            said.append(self._held[:end])
        self._held = self._held[end:]
        if found < 0:
            return False
        self._skip(len(self._begin))
        self._state = _State.BETWEEN
        return True

    def _overlap(self) -> int:
        """How much of the held text's end could become the opening marker."""
        longest = min(len(self._begin) - 1, len(self._held))
        return next(
            (n for n in range(longest, 0, -1) if self._begin.startswith(self._held[-n:])), 0
        )

    def _read_between(self) -> bool:
        rest = self._held.lstrip(_BETWEEN)
        self._skip(len(self._held) - len(rest))
        if not rest:
            return False
        if rest[0] == "{":
            self._state, self._scan = _State.HEAD, _ObjectScan()
            return True
        for marker in self._markers:
            if rest.startswith(marker):
                self._skip(len(marker))
                return True
            if marker.startswith(rest):
                return False
        self._as_text()
        return True

    def _skip(self, count: int) -> None:
        self._skipped += self._held[:count]
        self._held = self._held[count:]

    def _as_text(self) -> None:
        """Gives up on a call. Markup behind an earlier call is not worth showing."""
        self._held = ("" if self.num_calls else self._skipped) + self._held
        self._skipped = ""
        self._state = _State.TEXT
        # The marker that has misled is not to be found again.
        if self._begin and self._held.startswith(self._begin):
            self._begin = ""

    def _read_head(self, said: list[Said]) -> bool:
        head = self._head.match(self._held)
        if head is not None:
            name = _decoded(head[1])
            if name not in self._names:
                self._as_text()
                return True
            self._held = self._held[head.end() :]
            self._open(name, said)
            self._state, self._scan = _State.ARGUMENTS, _ObjectScan()
            return True
        end = self._scan.end(self._held)
        if end is None:
            return False
        call = _decoded(self._held[:end])
        name = call.get("name") if isinstance(call, dict) else None
        arguments = call.get(self._arguments_key, {}) if isinstance(call, dict) else None
        if name not in self._names or not isinstance(arguments, dict):
            self._as_text()
            return True
        self._held = self._held[end:]
        self._open(str(name), said)
        self._say_arguments(json.dumps(arguments, ensure_ascii=False), said)
        self._state = _State.BETWEEN
        return True

    def _open(self, name: str, said: list[Said]) -> None:
        self._skipped = ""
        self.num_calls += 1
        if self._is_wanted:
            said.append(CallBegin(self.num_calls - 1, name))

    @property
    def _is_wanted(self) -> bool:
        return self._max_calls is None or self.num_calls <= self._max_calls

    def _say_arguments(self, text: str, said: list[Said]) -> None:
        if text and self._is_wanted:
            said.append(CallArguments(self.num_calls - 1, text))

    def _read_arguments(self, said: list[Said]) -> bool:
        end = self._scan.end(self._held)
        taken = len(self._held) if end is None else end
        self._say_arguments(self._held[:taken], said)
        self._held = self._held[taken:]
        self._scan.forget(taken)
        if end is None:
            return False
        self._state = _State.TAIL
        return True


class _ObjectScan:
    """Finds the brace that ends a JSON object, in text that only grows at its end."""

    _SPECIAL = re.compile(r'["\\{}]')

    def __init__(self) -> None:
        self._position = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """The place behind the brace; None if it is yet to come."""
        if self._escaped and self._position < len(text):
            self._position += 1
            self._escaped = False
        while (found := self._SPECIAL.search(text, self._position)) is not None:
            self._position = found.end()
            match found[0]:
                case "\\" if self._in_string:
                    self._escaped = self._position == len(text)  # what it escapes is yet to come
                    self._position += not self._escaped
                case '"':
                    self._in_string = not self._in_string
                case "{" if not self._in_string:
                    self._depth += 1
                case "}" if not self._in_string:
                    self._depth -= 1
                    if self._depth == 0:
                        return self._position
        self._position = len(text)
        return None

    def forget(self, count: int) -> None:
        """The first `count` characters have been taken away."""
        self._position -= count


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
