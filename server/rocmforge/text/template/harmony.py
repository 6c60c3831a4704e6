"""Conversations for gpt-oss' template, which takes less than clients send.

It knows one instruction, at the beginning, one call in a message, and either reasoning or text
beside it. It refuses answers that spell marks out, which are mere text here (see `tracked`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

Message = dict[str, Any]

_CHANNEL = "<|channel|>"
_HIDDEN_CHANNEL = "\udc01"  # as no text can have it
_BETWEEN = "\n\n"

# Efforts that gpt-oss was not trained for, as the nearest that it was.
_EFFORTS: Final[Mapping[Any, str]] = {
    "none": "low",
    "minimal": "low",
    "xhigh": "high",
    "max": "high",
}


def writes_harmony(template: str) -> bool:
    """Returns whether a chat template writes messages with channels."""
    return _CHANNEL in template


def known_effort(variables: dict[str, Any]) -> dict[str, Any]:
    """Returns the variables with an effort that the model knows."""
    effort = variables.get("reasoning_effort")
    if not isinstance(effort, str):
        return variables
    return {**variables, "reasoning_effort": _EFFORTS.get(effort, effort)}


def for_harmony(messages: Sequence[Message]) -> list[Message]:
    """Returns the conversation as the template can render all of it."""
    instructions = [m for m in messages if m.get("role") in ("system", "developer")]
    rest = [_hidden(m) for m in messages if m.get("role") not in ("system", "developer")]
    result: list[Message] = []
    if instructions:
        text = _BETWEEN.join(str(m.get("content") or "") for m in instructions)
        result.append({**instructions[0], "content": text})
    skipped = 0
    for number, message in enumerate(rest):
        if skipped:
            skipped -= 1
        elif message.get("tool_calls"):
            results = [*takewhile(lambda m: m.get("role") == "tool", rest[number + 1 :])]
            result += _one_call_each(message, results)
            skipped = len(results)
        else:
            result.append(message)
    return result


def restored(rendered: str) -> str:
    """Returns a rendered conversation with what answers spelled out; it stays mere text."""
    return rendered.replace(_HIDDEN_CHANNEL, _CHANNEL)


def _hidden(message: Message) -> Message:
    """Hides the marks that the template looks for from it."""
    if message.get("role") != "assistant":
        return message
    return {
        name: value.replace(_CHANNEL, _HIDDEN_CHANNEL) if isinstance(value, str) else value
        for name, value in message.items()
        if name != "role"
    } | {"role": message["role"]}


def _one_call_each(message: Message, results: Sequence[Message]) -> list[Message]:
    """Cuts a message with calls up, and puts the result of each call behind it."""
    said = [message.get("thinking"), message.get("content")]
    thought = _BETWEEN.join(text for text in said if text)
    first = {**message, "content": "", "thinking": thought, "reasoning_content": thought}
    further = {**message, "content": "", "thinking": "", "reasoning_content": ""}
    calls = message["tool_calls"]
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in calls]
    cut: list[Message] = []
    for number, (call, call_id) in enumerate(zip(calls, ids, strict=True)):
        is_last = number == len(calls) - 1
        cut.append({**(further if number else first), "tool_calls": [call]})
        cut += [
            result
            for result in results
            if result.get("tool_call_id") == call_id
            or (is_last and result.get("tool_call_id") not in ids)
        ]
    return cut
