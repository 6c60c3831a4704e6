"""Calls that are JSON objects with a name and arguments, or names before JSON objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rocmforge.text.output.grammar import Schema, embedded_schema
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls.base import CallParser, Rules, literal, marker, repeated

_SPACE = r"/[ \n]{0,2}/"  # as templates have it between a mark and a call


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat:
    """The way in which a family of models writes JSON calls.

    `begin` may be empty: the whole answer is then a call, or none is.
    """

    begin: str
    end: str = ""
    is_list: bool = False  # whether the marks stand around a JSON list of all calls, or each call
    separator: str = ""  # between calls
    arguments: str = "arguments"  # the key
    name_end: str = ""  # what stands between a name and its arguments; "" = one object has both
    id_begin: str = ""  # what stands between a name and an id of the call, which may be missing
    splits_reasoning = False

    @property
    def markers(self) -> Mapping[str, str]:
        marks = self.begin, self.id_begin, self.name_end, self.end
        return {mark: mark for mark in marks if mark}

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
            rules.append(f"args{number}: %json {json.dumps(embedded_schema(schema))}")
        call = "(" + " | ".join(f"call{number}" for number in range(len(schemas))) + ")"
        begin, end = marker(self.begin, tokenizer), marker(self.end, tokenizer)
        one = call if self.is_list else f"{begin} {call} {end}"
        calls = repeated(one, self.separator, parallel=parallel)
        listed = f'"[" {calls} "]" {end}'
        return Rules(
            start=f"{begin} {listed}" if self.is_list else calls,
            rules=tuple(rules),
            opening="" if self.begin.isalpha() else self.begin,  # a word may stand in any text
            opened=f"{_SPACE} {listed}" if self.is_list else f"{_SPACE} {call} {_SPACE} {end}",
        )


class _State(Enum):
    TEXT = auto()
    BETWEEN = auto()  # behind a mark or a call: marks, separators, or the next call
    HEAD = auto()  # in a call, before its arguments
    ARGUMENTS = auto()
    TAIL = auto()  # behind the arguments, before the call's last brace


class JsonCallParser(CallParser):
    """See `CallParser`. Arguments are passed on as they come."""

    def __init__(
        self, form: JsonFormat, schemas: Mapping[str, Schema], max_calls: int | None
    ) -> None:
        super().__init__(schemas, max_calls)
        self._begin = (form.begin,) if form.begin else ()
        self._marks = tuple(mark for mark in (form.begin, form.end) if mark)
        self._has_object = not form.name_end
        call_id = rf"(?:{re.escape(form.id_begin)}\w+)?" if form.id_begin else ""
        self._head = re.compile(
            r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"' + form.arguments + r'"\s*:\s*(?=\{)'
            if self._has_object
            else rf"([\w.-]+)\s*{call_id}{re.escape(form.name_end)}\s*(?=\{{)"
        )
        self._separators = " \t\r\n,;[]" if self._has_object else " \t\r\n"
        self._arguments_key = form.arguments
        self._state = _State.TEXT if form.begin else _State.BETWEEN
        self._is_announced = False  # whether a marker stands before what comes now
        self._scan = _ObjectScan()

    def _step(self) -> bool:
        match self._state:
            case _State.TEXT:
                return self._read_text()
            case _State.BETWEEN:
                return self._read_between()
            case _State.HEAD if self._has_object:
                return self._read_object()
            case _State.HEAD:
                return self._read_name()
            case _State.ARGUMENTS:
                return self._read_arguments()
            case _State.TAIL:
                return self._read_tail()

    def _end(self) -> None:
        incoming = self._incoming
        is_between = self._state is _State.BETWEEN and self.num_calls > 0
        is_markup = is_between and (not incoming.text or incoming.may_become(*self._marks))
        if not is_markup and self._state is not _State.TAIL:
            self._say_skipped()
            self._say_text(incoming.take())

    def _read_text(self) -> bool:
        if not self._skip_to(*self._begin):
            return False
        self._state, self._is_announced = _State.BETWEEN, True
        return True

    def _read_between(self) -> bool:
        incoming = self._incoming
        incoming.skip_space(self._separators)
        if self.num_calls and not self._is_announced:
            incoming.forget_skipped()  # whatever comes, it stands behind a call
        if not incoming.text:
            return False
        if incoming.text[0] == "{" if self._has_object else self._is_announced:
            self._state, self._scan = _State.HEAD, _ObjectScan()
        elif mark := incoming.skip_mark(*self._marks):
            self._is_announced = mark in self._begin
        elif incoming.may_become(*self._marks):
            return False
        else:
            self._give_up()
        return True

    def _read_object(self) -> bool:
        text = self._incoming.text
        head = self._head.match(text)
        if head is not None and (name := _decoded(head[1])) in self._schemas:
            self._incoming.take(head.end())
            self._open(name)
            self._state, self._scan = _State.ARGUMENTS, _ObjectScan()
            return True
        if head is not None:
            self._give_up()
            return True
        end = self._scan.end(text)
        if end is None:
            return False
        call = _decoded(text[:end])
        name = call.get("name") if isinstance(call, dict) else None
        arguments = call.get(self._arguments_key, {}) if isinstance(call, dict) else None
        if isinstance(name, str) and name in self._schemas and isinstance(arguments, dict):
            self._incoming.take(end)
            self._open(name)
            self._say_arguments(json.dumps(arguments, ensure_ascii=False))
            self._state = _State.BETWEEN
        else:
            self._give_up()
        return True

    def _read_name(self) -> bool:
        is_call = self._open_at(self._head)
        if is_call is None:
            return False
        self._state = _State.ARGUMENTS if is_call else _State.TEXT
        self._is_announced = False
        return True

    def _read_arguments(self) -> bool:
        end = self._scan.end(self._incoming.text)
        arguments = self._incoming.take(end)
        self._say_arguments(arguments)
        self._scan.forget(len(arguments))
        if end is None:
            return False
        self._state = _State.TAIL if self._has_object else _State.BETWEEN
        return True

    def _read_tail(self) -> bool:
        self._incoming.take_until("}")
        if not self._incoming.take_mark("}"):
            return False
        self._state = _State.BETWEEN
        return True

    def _open(self, name: str) -> None:
        self._is_announced = False
        super()._open(name)

    def _give_up(self) -> None:
        """Gives up what has been announced, or looked like a call, as none."""
        self._say_skipped()
        self._state, self._is_announced = _State.TEXT, False


class _ObjectScan:
    """Finds the brace that ends a JSON object, in text that only grows at its end."""

    _SPECIAL = re.compile(r'["\\{}]')

    def __init__(self) -> None:
        self._position = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Returns the place behind the brace; None if it is yet to come."""
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
        """Forgets the first `count` characters, which have been taken away."""
        self._position -= count


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
