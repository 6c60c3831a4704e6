"""Calls whose arguments stand between tags: strings as they are, everything else as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from rocmforge.text.output.grammar import Schema
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls.base import (
    LONGEST_HEAD,
    CallParser,
    Rules,
    literal,
    marker,
    repeated,
    within_string,
)
from rocmforge.text.tool_calls.parameters import (
    is_text,
    json_rule,
    ordered,
    parameter,
    takes_others,
    text_terminal,
)


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """The tags of a family, with the white space that its template puts around them.

    A call is `begin`, `name_begin` NAME `name_end`, then for each argument `key_begin` KEY
    `key_end` VALUE `value_end`, then `tail`, `end`. Models may write other white space.

    `is_list`: the marks stand around all calls, not each.
    """

    begin: str
    name_begin: str
    name_end: str
    key_begin: str
    key_end: str
    value_end: str
    tail: str
    end: str
    is_list: bool = False
    splits_reasoning = False

    @property
    def markers(self) -> Mapping[str, str]:
        return {self.begin: self.begin, self.end: self.end}

    def parser(self, schemas: Mapping[str, Schema], max_calls: int | None) -> CallParser:
        return TaggedParser(self, schemas, max_calls)

    def rules(
        self, tokenizer: Tokenizer, schemas: Mapping[str, Schema], *, parallel: bool
    ) -> Rules:
        rules: list[str] = []
        for number, (name, schema) in enumerate(schemas.items()):
            parts = [_lines(self.name_begin), _lines(name + self.name_end)]
            for place, (key, value, is_required) in enumerate(ordered(name, schema)):
                rule = f"p{number}_{place}"
                rules += self._argument(name, literal(self.key_begin + key), value, rule)
                parts.append(rule if is_required else f"{rule}?")
            if takes_others(schema):
                rules += self._argument(name, _ANY_KEY, {"type": "string"}, f"other{number}")
                parts.append(f"({literal(self.key_begin)} other{number})*")
            rules.append(f"call{number}: {' '.join(part for part in parts if part)}")
        call = "(" + " | ".join(f"call{number}" for number in range(len(schemas))) + ")"
        begin = marker(self.begin, tokenizer)
        end = f"{_lines(self.tail)} {marker(self.end, tokenizer)}"
        if self.is_list:
            one = f"{call} {_lines(self.tail)}"
            opened = f"{repeated(one, '', parallel=parallel)} {marker(self.end, tokenizer)}"
            calls = f"{begin} {opened}"
        else:
            opened = f"{call} {end}"
            calls = repeated(f"({begin} {opened})", "\n", parallel=parallel)
        return Rules(calls, tuple(rules), opening=self.begin, opened=opened)

    def _argument(self, function: str, key: str, value: Schema, rule: str) -> list[str]:
        """Rules of one argument, of which `key` is the beginning, in Lark's notation."""
        tag, space = (
            self.value_end.rstrip("\n"),
            _lines(self.value_end[len(self.value_end.rstrip("\n")) :]),
        )
        has_lines = tag.startswith("\n")  # which stand around the value, and are no part of it
        head = f"{key} {literal(self.key_end) if has_lines else _lines(self.key_end)}"
        if is_text(value):
            return [
                f"{rule}: {head} {rule.upper()} {space}",
                text_terminal(function, value, tag, rule.upper()),
            ]
        return [
            f"{rule}: {head} {rule}_json {literal(tag)} {space}",
            f"{rule}_json: {json_rule(value)}",
        ]


class _State(Enum):
    TEXT = auto()
    NAME = auto()
    KEY = auto()  # or the end of the call
    VALUE = auto()
    AFTER = auto()  # a call, within marks that stand around several


_PYTHON = {"True": "true", "False": "false", "None": "null"}


class TaggedParser(CallParser):
    """See `CallParser`. Arguments that are strings are passed on as they come."""

    def __init__(
        self, form: TaggedFormat, schemas: Mapping[str, Schema], max_calls: int | None
    ) -> None:
        super().__init__(schemas, max_calls)
        self._begin = form.begin
        self._next = form.name_begin.strip()
        self._end_mark = form.end
        self._is_list = form.is_list
        self._value_end = form.value_end.strip()
        self._has_lines = form.value_end.startswith("\n")  # around strings
        self._string_ends = (f"\n{self._value_end}", self._value_end)[not self._has_lines :]
        name_end = re.escape(form.name_end.strip()) or r"(?=[\n<])"
        self._name = re.compile(rf"{_tag(form.name_begin)}([\w.-]+)\s*{name_end}")
        self._key = re.compile(rf"{_tag(form.key_begin)}([^<>\n]*){_tag(form.key_end)}")
        tail = _tag(form.tail)
        self._call_end = re.compile(tail if form.is_list else rf"(?:{tail})?{_tag(form.end)}")
        self._state = _State.TEXT
        self._is_text = False  # the value being read
        self._is_begun = False  # whether some of it has been said

    def _step(self) -> bool:
        match self._state:
            case _State.TEXT:
                is_begun = self._skip_to(self._begin)
                self._state = _State.NAME if is_begun else _State.TEXT
                return is_begun
            case _State.NAME:
                return self._read_name()
            case _State.KEY:
                return self._read_key()
            case _State.VALUE if self._is_text:
                return self._read_string()
            case _State.VALUE:
                return self._read_value()
            case _State.AFTER:
                return self._read_after()

    def _end(self) -> None:
        match self._state:
            case _State.TEXT | _State.NAME:
                self._say_skipped()
                self._say_text(self._incoming.take())
            case _State.VALUE if self._is_text:
                self._say_string(self._incoming.take())
            case _State.AFTER if not self._end_mark.startswith(self._incoming.text):
                self._say_text(self._incoming.take())
            case _:
                pass  # the call was cut, and so are its arguments

    def _read_name(self) -> bool:
        is_call = self._open_at(self._name)
        if is_call is None:
            return False
        self._state = _State.KEY if is_call else _State.TEXT
        return True

    def _read_key(self) -> bool:
        text = self._incoming.text
        if (head := self._key.match(text, 0, LONGEST_HEAD)) is not None:
            self._incoming.take(head.end())
            self._say_key(head[1])
            self._is_text = is_text(parameter(self._schemas[self._function], head[1]))
            self._is_begun = False
            self._state = _State.VALUE
            return True
        end = self._call_end.match(text, 0, LONGEST_HEAD)
        if end is None and len(text) < LONGEST_HEAD:
            return False
        self._incoming.take(0 if end is None else end.end())
        self._close()
        self._state = _State.AFTER if self._is_list else _State.TEXT
        return True

    def _read_after(self) -> bool:
        incoming = self._incoming
        incoming.take(len(incoming.text) - len(incoming.text.lstrip()))
        if incoming.may_become(self._next, self._end_mark):
            return False
        is_call = incoming.text.startswith(self._next)
        self._state = _State.NAME if is_call else _State.TEXT
        if not is_call:
            incoming.take_mark(self._end_mark)
        return True

    def _read_string(self) -> bool:
        text = self._incoming.take_until(*self._string_ends)
        end = self._incoming.take_mark(*self._string_ends)
        if text or end:
            self._say_string(text)
        if end:
            self._say_arguments('"')
            self._state = _State.KEY
        return bool(end)

    def _say_string(self, text: str) -> None:
        opening = ""
        if not self._is_begun:
            self._is_begun, opening = True, '"'
            text = text.removeprefix("\n") if self._has_lines else text
        self._say_arguments(opening + within_string(text))

    def _read_value(self) -> bool:
        value, end, _ = self._incoming.text.partition(self._value_end)
        if not end:
            return False
        self._incoming.take(len(value) + len(end))
        self._say_arguments(_as_json(value.strip()))
        self._state = _State.KEY
        return True


_ANY_KEY = r"/[^<>\n\"]{1,64}/"


def _lines(text: str) -> str:
    """Writes tags in Lark's notation, whose line breaks models may leave out."""
    parts = [literal(part) for part in re.split(r"(\n)", text) if part]
    return " ".join('"\\n"?' if part == literal("\n") else part for part in parts)


def _tag(text: str) -> str:
    """Makes a pattern for some tags, with any white space before each of them."""
    return "".join(rf"\s*{re.escape(line)}" for line in text.split("\n") if line)


def _as_json(text: str) -> str:
    """Writes a value that is not declared a string as JSON; what is not JSON is a string."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return _PYTHON.get(text) or json.dumps(text, ensure_ascii=False)
    return text
