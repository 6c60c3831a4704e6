"""Calls that are JSON objects with a name and arguments, or names before JSON objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rocmforge.text.grammar import Schema, with_bounded_whitespace
from rocmforge.text.tokenizer import Tokenizer
from rocmforge.text.tool_calls.base import (
    LONGEST_HEAD,
    CallParser,
    Rules,
    literal,
    marker,
    overlap,
    repeated,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat:
    """How a family of models writes that.

    `begin` may be empty: the whole answer is then a call, or none is.
    """

    begin: str
    end: str = ""
    is_list: bool = False  # whether the marks stand around a JSON list of all calls, or each call
    separator: str = ""  # between calls
    arguments: str = "arguments"  # the key
    name_end: str = ""  # what stands between a name and its arguments; "" = one object has both
    id_begin: str = ""  # what stands between a name and an id of the call, which may be missing

    @property
    def markers(self) -> tuple[str, ...]:
        marks = self.begin, self.id_begin, self.name_end, self.end
        return tuple(mark for mark in marks if mark)

    def parser(self, schemas: Mapping[str, Schema], max_calls: int | None) -> CallParser:
        return JsonCallParser(self, schemas, max_calls)

    def rules(
        self, tokenizer: Tokenizer, schemas: Mapping[str, Schema], *, parallel: bool
    ) -> Rules:
        rules = []
        for number, (name, schema) in enumerate(schemas.items()):
            if self.name_end:
                call_id = f"({marker(self.id_begin, tokenizer)} /[a-zA-Z0-9]{{9}}/)?"
                between = call_id if self.id_begin else ""
                head = f"{literal(name)} {between} {marker(self.name_end, tokenizer)}"
                tail = ""
            else:
                quoted = json.dumps(name, ensure_ascii=False)
                head = literal(f'{{"name": {quoted}, "{self.arguments}": ')
                tail = literal("}")
            rules.append(f"call{number}: {head} args{number} {tail}")
            rules.append(f"args{number}: %json {json.dumps(with_bounded_whitespace(schema))}")
        call = "(" + " | ".join(f"call{number}" for number in range(len(schemas))) + ")"
        begin, end = marker(self.begin, tokenizer), marker(self.end, tokenizer)
        one = call if self.is_list else f"{begin} {call} {end}"
        calls = repeated(one, self.separator, parallel=parallel)
        return Rules(f'{begin} "[" {calls} "]" {end}' if self.is_list else calls, tuple(rules))


class _State(Enum):
    TEXT = auto()
    BETWEEN = auto()  # behind a marker or a call: markers, separators, or the next call
    HEAD = auto()  # in a call, before its arguments
    ARGUMENTS = auto()
    TAIL = auto()  # behind the arguments, before the call's last brace


class JsonCallParser(CallParser):
    """See `CallParser`. Arguments are passed on as they come."""

    def __init__(
        self, form: JsonFormat, schemas: Mapping[str, Schema], max_calls: int | None
    ) -> None:
        super().__init__(schemas, max_calls)
        self._markers = tuple(mark for mark in (form.begin, form.end) if mark)
        self._begin = form.begin
        self._has_object = not form.name_end
        call_id = rf"(?:{re.escape(form.id_begin)}\w+)?" if form.id_begin else ""
        self._head = re.compile(
            r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"' + form.arguments + r'"\s*:\s*(?=\{)'
            if self._has_object
            else rf"([\w.-]+)\s*{call_id}{re.escape(form.name_end)}\s*(?=\{{)"
        )
        self._between = " \t\r\n,;[]" if self._has_object else " \t\r\n"
        self._arguments_key = form.arguments
        self._state = _State.TEXT if form.begin else _State.BETWEEN
        self._skipped = ""  # what was taken for markup, in case it was text
        self._is_marked = False  # whether a call was announced, and has not come yet
        self._scan = _ObjectScan()

    def _end(self) -> None:
        rest = self._held if self.num_calls else self._skipped + self._held
        begun = self._held.strip()
        is_markup = self._state is _State.TAIL or (
            self._state is _State.BETWEEN
            and self.num_calls > 0
            and (not begun or any(mark.startswith(begun) for mark in self._markers))
        )
        if rest and not is_markup:
            self._said.append(rest)
        self._held = self._skipped = ""

    def _step(self) -> bool:
        match self._state:
            case _State.TEXT:
                return self._read_text()
            case _State.BETWEEN:
                return self._read_between()
            case _State.HEAD if self._has_object:
                return self._read_head()
            case _State.HEAD:
                return self._read_name()
            case _State.ARGUMENTS:
                return self._read_arguments()
            case _State.TAIL:
                _, brace, rest = self._held.partition("}")
                if brace:
                    self._held, self._state = rest, _State.BETWEEN
                return bool(brace)

    def _read_text(self) -> bool:
        found = self._held.find(self._begin) if self._begin else -1
        end = found if found >= 0 else len(self._held) - overlap(self._held, self._begin)
        if end:
            self._said.append(self._held[:end])
        self._held = self._held[end:]
        if found < 0:
            return False
        self._skip(len(self._begin))
        self._state, self._is_marked = _State.BETWEEN, True
        return True

    def _read_between(self) -> bool:
        rest = self._held.lstrip(self._between)
        self._skip(len(self._held) - len(rest))
        if not rest:
            return False
        if rest[0] == "{" if self._has_object else self._is_marked:
            self._state, self._scan = _State.HEAD, _ObjectScan()
            return True
        for mark in self._markers:
            if rest.startswith(mark):
                self._skip(len(mark))
                self._is_marked = mark == self._begin
                return True
            if mark.startswith(rest):
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

    def _read_head(self) -> bool:
        head = self._head.match(self._held)
        if head is not None:
            name = _decoded(head[1])
            if name not in self._schemas:
                self._as_text()
                return True
            self._held = self._held[head.end() :]
            self._open(name)
            self._state, self._scan = _State.ARGUMENTS, _ObjectScan()
            return True
        end = self._scan.end(self._held)
        if end is None:
            return False
        call = _decoded(self._held[:end])
        name = call.get("name") if isinstance(call, dict) else None
        arguments = call.get(self._arguments_key, {}) if isinstance(call, dict) else None
        if name not in self._schemas or not isinstance(arguments, dict):
            self._as_text()
            return True
        self._held = self._held[end:]
        self._open(str(name))
        self._say_arguments(json.dumps(arguments, ensure_ascii=False))
        self._state = _State.BETWEEN
        return True

    def _read_name(self) -> bool:
        head = self._head.match(self._held, 0, LONGEST_HEAD)
        if head is not None and head[1] in self._schemas:
            self._held = self._held[head.end() :]
            self._open(head[1])
            self._state = _State.ARGUMENTS
            return True
        if head is None and len(self._held) < LONGEST_HEAD:
            return False
        self._as_text()
        return True

    def _open(self, name: str) -> None:
        self._skipped, self._is_marked = "", False
        super()._open(name)

    def _read_arguments(self) -> bool:
        end = self._scan.end(self._held)
        taken = len(self._held) if end is None else end
        self._say_arguments(self._held[:taken])
        self._held = self._held[taken:]
        self._scan.forget(taken)
        if end is None:
            return False
        self._state = _State.TAIL if self._has_object else _State.BETWEEN
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
