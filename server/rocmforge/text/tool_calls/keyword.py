"""Calls written like those of a programming language: NAME(KEY=VALUE, ...)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rocmforge.text.output.grammar import Schema
from rocmforge.text.output.incoming import overlap
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
    is_native,
    is_text,
    json_rule,
    ordered,
    takes_others,
    text_terminal,
)


@dataclass(frozen=True, slots=True)
class KeywordFormat:
    """The spelling of one family: `name_begin` NAME `open` KEY `assign` VALUE, ... `close`."""

    begin: str
    end: str
    is_list: bool  # whether the answer is one list of calls, or each call is marked by itself
    name_begin: str
    open: str
    assign: str
    close: str
    quote: str = ""  # around strings; "" = as in Python or JSON
    # Around all calls behind one mark; "" = a mark begins one call.
    list_begin: str = ""
    list_end: str = ""
    splits_reasoning = False

    @property
    def markers(self) -> Mapping[str, str]:
        marks = () if self.is_list else (self.begin, self.end, self.quote)
        return {mark: mark for mark in marks if mark}

    def parser(self, schemas: Mapping[str, Schema], max_calls: int | None) -> CallParser:
        return KeywordParser(self, schemas, max_calls)

    def rules(
        self, tokenizer: Tokenizer, schemas: Mapping[str, Schema], *, parallel: bool
    ) -> Rules:
        rules: list[str] = []
        for number, (name, schema) in enumerate(schemas.items()):
            arguments = []
            for place, (key, value, is_required) in enumerate(ordered(name, schema)):
                rule = f"p{number}_{place}"
                rules += self._argument(tokenizer, name, key, value, rule)
                arguments.append((rule, is_required))
            head, tail = literal(self.name_begin + name + self.open), literal(self.close)
            inner = _with_commas(arguments)
            if not arguments and takes_others(schema):
                other = f"other{number}"
                rules.append(f"{other}: /[A-Za-z_][A-Za-z0-9_.-]{{0,63}}/ {other}_value")
                rules += self._argument(tokenizer, name, "", {}, f"{other}_value")
                inner = f"({other} ({_COMMA} {other})*)?"
            rules.append(f"call{number}: {head} {inner} {tail}")
        call = "(" + " | ".join(f"call{number}" for number in range(len(schemas))) + ")"
        begin, end = marker(self.begin, tokenizer), marker(self.end, tokenizer)
        if self.is_list:
            calls = f"{begin} {repeated(call, ', ', parallel=parallel)} {end}"
            return Rules(calls, tuple(rules))
        if self.list_begin:
            calls = repeated(call, ", ", parallel=parallel)
            opened = f"{literal(self.list_begin)} {calls} {literal(self.list_end)} {end}"
            return Rules(f"{begin} {opened}", tuple(rules), opening=self.begin, opened=opened)
        return Rules(
            start=repeated(f"({begin} {call} {end})", "", parallel=parallel),
            rules=tuple(rules),
            opening=self.begin,
            opened=f"{call} {end}",
        )

    def _argument(
        self, tokenizer: Tokenizer, function: str, key: str, schema: Schema, rule: str
    ) -> list[str]:
        head = literal(key + self.assign)
        value, rules = f"{rule}_json", [f"{rule}_json: {json_rule(schema)}"]
        if self.quote and is_native(schema):
            value, rules = self._native(tokenizer, function, schema, f"{rule}_v")
        return [f"{rule}: {head} {value}", *rules]

    def _native(
        self, tokenizer: Tokenizer, function: str, schema: Schema, rule: str
    ) -> tuple[str, list[str]]:
        """Writes a value with the format's own quotes and bare keys: it, and rules it needs."""
        if is_text(schema):
            quote = marker(self.quote, tokenizer)
            is_control = tokenizer.control_token(self.quote) is not None
            text = text_terminal(
                function, schema, self.quote, rule.upper(), takes_end=not is_control
            )
            return f"{quote} {rule.upper()} {quote if is_control else ''}", [text]
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind == "array" and isinstance(schema, dict):
            item, rules = self._native(tokenizer, function, schema["items"], f"{rule}_i")
            return f'"[" ({item} ({_COMMA} {item})*)? "]"', rules
        if kind == "object":
            rules, arguments = [], []
            for place, (key, value, is_required) in enumerate(ordered(function, schema)):
                name = f"{rule}_{place}"
                written, needed = self._native(tokenizer, function, value, f"{name}_v")
                rules += [f"{name}: {literal(key + self.assign)} {written}", *needed]
                arguments.append((name, is_required))
            return f'"{{" {_with_commas(arguments)} "}}"', rules
        return rule, [f"{rule}: {json_rule(schema)}"]


_COMMA = '"," " "?'


def _with_commas(arguments: list[tuple[str, bool]]) -> str:
    """Rules of arguments, of which some are required, with commas between those that are there."""
    required = [rule for rule, is_required in arguments if is_required]
    optional = [rule for rule, is_required in arguments if not is_required]
    further = [f"({_COMMA} {rule})?" for rule in optional]
    if required:
        return " ".join([f" {_COMMA} ".join(required), *further])
    first = [" ".join([rule, *further[i + 1 :]]) for i, rule in enumerate(optional)]
    return f"({' | '.join(first)})?" if first else ""


class _State(Enum):
    START = auto()  # of an answer that may be a list of calls
    TEXT = auto()
    NAME = auto()
    ARGUMENT = auto()  # or the end of the call
    STRING = auto()  # in the format's own quotes
    AFTER = auto()


class KeywordParser(CallParser):
    """See `CallParser`.

    Arguments are passed on one at a time. Strings in the format's own quotes, in which nothing is
    escaped, are passed on as they come: a file that a model writes may take it minutes.
    """

    def __init__(
        self, form: KeywordFormat, schemas: Mapping[str, Schema], max_calls: int | None
    ) -> None:
        super().__init__(schemas, max_calls)
        self._form = form
        self._begin = () if form.is_list else (form.begin + form.list_begin,)  # within text
        self._end_mark = form.list_end + form.end
        self._has_list = form.is_list or bool(form.list_begin)
        name = rf"\s*{re.escape(form.name_begin)}([\w.-]+)\s*{re.escape(form.open)}"
        self._name = re.compile(name)
        self._key = re.compile(rf"\s*([\w.-]+)\s*{re.escape(form.assign)}(.*)", re.DOTALL)
        self._string = re.compile(
            rf"\s*([\w.-]+)\s*{re.escape(form.assign)}\s*{re.escape(form.quote)}"
        )
        self._scan = _ArgumentScan(form.quote)
        self._state = _State.START if form.is_list else _State.TEXT

    def _step(self) -> bool:
        match self._state:
            case _State.START:
                return self._read_start()
            case _State.TEXT:
                is_begun = self._skip_to(*self._begin)
                self._state = _State.NAME if is_begun else _State.TEXT
                return is_begun
            case _State.NAME:
                return self._read_name()
            case _State.ARGUMENT:
                return self._read_argument()
            case _State.STRING:
                return self._read_string()
            case _State.AFTER:
                return self._read_after()

    def _end(self) -> None:
        rest = self._incoming.text.strip()
        match self._state:
            case _State.ARGUMENT:
                pass  # the call was cut, and so are its arguments
            case _State.STRING:
                self._say_arguments(within_string(self._incoming.take()))
            case _State.NAME | _State.AFTER if self.num_calls and self._end_mark.startswith(rest):
                pass  # the list was cut, or what marks the call's end
            case _:
                self._say_skipped()
                self._say_text(self._incoming.take())

    def _read_start(self) -> bool:
        self._incoming.skip_space()
        if self._incoming.may_become(self._form.begin):
            return False
        if self._incoming.skip_mark(self._form.begin):
            self._state = _State.NAME
        else:
            self._give_up()
        return True

    def _read_name(self) -> bool:
        is_call = self._open_at(self._name)
        if is_call is None:
            return False
        self._state = _State.ARGUMENT if is_call else _State.TEXT
        self._scan = _ArgumentScan(self._form.quote)
        return True

    def _read_argument(self) -> bool:
        string = self._string.match(self._incoming.text, 0, LONGEST_HEAD)
        if self._form.quote and string is not None:
            self._incoming.take(string.end())
            self._say_key(string[1])
            self._say_arguments('"')
            self._state = _State.STRING
            return True
        end = self._scan.end(self._incoming.text)
        if end is None:
            return False
        argument, closing = self._incoming.take(end), self._incoming.take(1)
        self._scan = _ArgumentScan(self._form.quote)
        if (found := self._key.fullmatch(argument)) is not None:
            self._say_key(found[1])
            self._say_arguments(_as_json(found[2].strip(), self._form.quote))
        if closing != ",":
            self._close()
            self._state = _State.AFTER
        return True

    def _read_string(self) -> bool:
        text = self._incoming.take_until(self._form.quote)
        self._say_arguments(within_string(text))
        if not self._incoming.take_mark(self._form.quote):
            return False
        self._say_arguments('"')
        self._scan = _ArgumentScan(self._form.quote)
        self._state = _State.ARGUMENT  # with nothing left of it but its end
        return True

    def _read_after(self) -> bool:
        self._incoming.skip_space()
        if self._incoming.may_become(self._end_mark):
            return False
        if self._incoming.take_mark(self._end_mark):
            self._incoming.forget_skipped()
            self._state = _State.TEXT
        elif self._has_list and self._incoming.skip_mark(","):
            self._state = _State.NAME
        else:
            self._give_up()
        return True

    def _give_up(self) -> None:
        """Gives up what looked like a call as none."""
        self._say_skipped()
        self._state = _State.TEXT


class _ArgumentScan:
    """Finds the comma or bracket behind an argument, in text that only grows at its end."""

    def __init__(self, quote: str) -> None:
        quotes = [re.escape(quote), '"'] if quote else ['"', "'"]
        self._special = re.compile("|".join([*quotes, r"\\", r"[()\[\]{},]"]))
        self._quote_mark = quote
        self._position = 0
        self._depth = 0
        self._quote = ""  # that is open

    def end(self, text: str) -> int | None:
        """Returns the place of what ends the argument; None if it is yet to come."""
        stop = len(text) - (overlap(text, self._quote_mark) if self._quote_mark else 0)
        while (found := self._special.search(text, self._position, stop)) is not None:
            mark = found[0]
            if mark == "\\" and self._quote in ("'", '"'):
                if found.end() == len(text):
                    return None  # what it escapes is yet to come
                self._position = found.end() + 1
                continue
            self._position = found.end()
            if self._quote:
                self._quote = "" if mark == self._quote else self._quote
            elif mark in ('"', "'", self._quote_mark):
                self._quote = mark
            elif mark in "([{":
                self._depth += 1
            elif self._depth == 0 and mark in ",)]}":
                return found.start()
            elif mark in ")]}":
                self._depth -= 1
        self._position = max(self._position, stop)
        return None


_CONSTANTS = {"true": True, "false": False, "null": None}


def _as_json(text: str, quote: str) -> str:
    """Writes a value as JSON; what cannot be read is a string."""
    for candidate in (text, _unquoted(text, quote)) if quote else (text,):
        try:
            json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return candidate
    try:
        return json.dumps(_value(ast.parse(text, mode="eval").body), ensure_ascii=False)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return json.dumps(text, ensure_ascii=False)


def _unquoted(text: str, quote: str) -> str:
    """Converts values with the format's quotes and bare keys to JSON."""
    parts = text.split(quote)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = json.dumps(part, ensure_ascii=False)
        else:
            parts[i] = re.sub(r"([A-Za-z_][\w.-]*)\s*:", r'"\1":', part)
    return "".join(parts)


def _value(node: ast.expr) -> Any:
    """Evaluates a Python expression of literals; JSON's constants count as such.

    Raises:
        ValueError: it is something else.
    """
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case _:
            raise ValueError(ast.dump(node))


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("keys of JSON are strings")
