"""OpenAI's harmony: every answer is a row of messages with a channel, calls among them.

`<|channel|>analysis<|message|>TEXT<|end|><|start|>assistant<|channel|>final<|message|>TEXT` is
reasoning, then the answer. A message that names a recipient, `to=functions.NAME`, is a call; the
recipient stands before or behind the channel. Of the others, `analysis` is reasoning, `final` is
text, and so is `commentary`: what a model says before it calls. See https://github.com/openai/harmony.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from rocmforge.text.output.grammar import Schema, embedded_schema
from rocmforge.text.output.reasoning import Reasoning
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls.base import (
    LONGEST_HEAD,
    CallParser,
    CannotEnforce,
    Rules,
    literal,
    marker,
)

# Lone surrogates: no text of a model or a client can hold them, however it spells the tokens.
_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _CALL, _RETURN = map(chr, range(0xDC00, 0xDC07))
MARKS: Final[Mapping[str, str]] = {
    "<|start|>": _START,
    "<|channel|>": _CHANNEL,
    "<|constrain|>": _CONSTRAIN,
    "<|message|>": _MESSAGE,
    "<|end|>": _END,
    "<|call|>": _CALL,
    "<|return|>": _RETURN,
}
_ALL_MARKS = tuple(MARKS.values())
_WITHOUT_MARKS: Final = str.maketrans(dict.fromkeys(_ALL_MARKS))
_SPELLED: Final = str.maketrans({mark: spelling for spelling, mark in MARKS.items()})
_ROLE = "assistant"
_BETWEEN = "\n\n"  # messages that become one text
_NAMESPACE = "functions."


@dataclass(frozen=True, slots=True)
class HarmonyFormat:
    """The format of gpt-oss. All its marks must be control tokens of the vocabulary."""

    thinking_budget: int | None = None  # tokens of reasoning that grammars allow
    splits_reasoning = True

    @property
    def markers(self) -> Mapping[str, str]:
        return MARKS

    def parser(self, schemas: Mapping[str, Schema], max_calls: int | None) -> CallParser:
        return HarmonyParser(schemas, max_calls)

    def rules(
        self, tokenizer: Tokenizer, schemas: Mapping[str, Schema], *, parallel: bool
    ) -> Rules:
        """Makes one call behind any reasoning: `<|call|>` ends the answer, so that is all."""
        mark = {spelling: marker(spelling, tokenizer) for spelling in MARKS}
        channel, message = mark["<|channel|>"], mark["<|message|>"]
        commentary = literal("commentary")
        next_message = f"{mark['<|end|>']} {mark['<|start|>']} {literal(_ROLE)}"
        # With a budget, all reasoning is in one message.
        before = "(thought | preamble)*" if self.thinking_budget is None else "thought? preamble*"
        if self.thinking_budget == 0:
            before = "preamble*"
        limit = f"[max_tokens={self.thinking_budget}]" if self.thinking_budget else ""
        rules = [
            f"thought: {channel} {literal('analysis')} {message} thinking {next_message}",
            f"thinking{limit}: TEXT",
            f"preamble: {channel} {commentary} {message} TEXT {next_message}",
        ]
        for number, (name, schema) in enumerate(schemas.items()):
            if re.search(r"\s", name):
                raise CannotEnforce(name, "a name with white space is not possible here")
            to = literal(f" to={_NAMESPACE}{name}")
            kind = f'((" "? {mark["<|constrain|>"]} | " ") "json")?'
            rules += [
                f"call{number}: ({to} {channel} {commentary} | {channel} {commentary} {to}) "
                f"{kind} {message} args{number}",
                f"args{number}: %json {json.dumps(embedded_schema(schema))}",
            ]
        calls = " | ".join(f"call{number}" for number in range(len(schemas)))
        return Rules(
            start=f"{before} ({calls})" if calls else "",
            rules=tuple(rules),
            before=f"{before} {channel} {literal('final')} {message}",
        )


class _State(Enum):
    HEAD = auto()  # of a message, or what has no head at all
    REASONING = auto()
    TEXT = auto()
    CALL = auto()


_RECIPIENT = re.compile(rf"(?:^|[\s{_CHANNEL}])to=([^\s{''.join(_ALL_MARKS)}]+)")
_CHANNEL_NAME = re.compile(rf"{_CHANNEL}\s*(\w+)")
_CUT_HEAD = re.compile(r"\s*(?:to=.*)?", re.DOTALL)


class HarmonyParser(CallParser):
    """See `CallParser`. Its text has the marks of `MARKS`; reasoning is taken out of it too.

    What has no head is text: a model that does not write harmony is still understood.
    """

    def __init__(self, schemas: Mapping[str, Schema], max_calls: int | None) -> None:
        super().__init__(schemas, max_calls)
        self._state = _State.HEAD
        self._head = ""
        self._has_spoken: set[_State] = set()
        self._held = ""  # stands before what the message says, if it says something

    def _step(self) -> bool:
        text = self._incoming.take_until(*_ALL_MARKS)
        mark = self._incoming.take_mark(*_ALL_MARKS)
        if self._state is _State.HEAD:
            self._head += text
            if len(self._head) > LONGEST_HEAD:
                self._give_head_up()
            elif mark == _MESSAGE:
                self._open_message()
            elif mark in (_CHANNEL, _CONSTRAIN):
                self._head += mark
                return True
        else:
            self._say(text)
        if mark not in ("", _MESSAGE, _CONSTRAIN):
            self._close_message()
            self._head = mark if mark in (_START, _CHANNEL) else ""
        return bool(mark)

    def _end(self) -> None:
        head = self._head.removeprefix(_ROLE)
        is_markup = head != head.translate(_WITHOUT_MARKS) or _CUT_HEAD.fullmatch(head)
        if self._state is _State.HEAD and not is_markup:
            self._give_head_up()
        self._close_message()

    def _give_head_up(self) -> None:
        """Says what was taken for a head, and is none."""
        self._state = _State.TEXT
        self._say(self._head.removeprefix(_ROLE).translate(_WITHOUT_MARKS))

    def _open_message(self) -> None:
        recipient = _RECIPIENT.search(self._head)
        channel = _CHANNEL_NAME.search(self._head)
        name = "" if recipient is None else recipient[1].removeprefix(_NAMESPACE)
        self._held = ""
        if name in self._schemas:
            self._state = _State.CALL
            self._open(name)
            return
        is_analysis = channel is not None and channel[1] == "analysis"
        self._state = _State.REASONING if is_analysis else _State.TEXT
        self._held = _BETWEEN if self._state in self._has_spoken else ""

    def _close_message(self) -> None:
        if self._state is _State.CALL and not self._num_arguments:
            self._say_arguments("{}")
        self._state = _State.HEAD

    def _say(self, text: str) -> None:
        if not text:
            return
        text, self._held = self._held + text, ""
        match self._state:
            case _State.CALL if not self._num_arguments and not text.strip():
                self._held = text
                return
            case _State.CALL:
                self._num_arguments = 1  # an object with all of them
                self._say_arguments(text)
            case _State.REASONING:
                self._said.append(Reasoning(text))
            case _:
                self._say_text(text)
        self._has_spoken.add(self._state)


def spelled(text: str) -> str:
    """Returns an answer as a person may read it, with the marks spelled out."""
    return text.translate(_SPELLED)


def begun(tokenizer: Tokenizer, prompt: Sequence[int]) -> str:
    """Returns what the prompt has written of the answer, as the parser is to be shown it.

    That is the head of a message, and for an answer that is continued some of its text.
    """
    marks = {tokenizer.control_token(spelling): mark for spelling, mark in MARKS.items()}
    text = ""
    for token in reversed(prompt):
        mark = marks.get(token)
        if mark == _MESSAGE:
            text = ""  # what the message says so far is not the head's
        if mark == _START:
            break
        text = (tokenizer.decode([token]) if mark is None else mark) + text
        if mark == _END:
            break
    return text


def begins_message(begun: str) -> bool:
    """Returns whether the answer begins with the head of a message, after its role."""
    return begun == _ROLE
