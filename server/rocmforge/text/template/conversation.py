"""Messages, put into the form that a chat template wants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rocmforge.errors import InvalidParameter, UnsupportedFeature

Message = dict[str, Any]

# The first is the name that templates read; some read the second, some clients write the third.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

# Follows the text to continue. The space shows whether the template strips what it is given.
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "


def with_reasoning(message: Message) -> Message:
    """Returns a message with its reasoning under the names that templates look for."""
    given = (message[name] for name in _REASONING_FIELDS if message.get(name) is not None)
    reasoning = next(given, None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def flattened(parts: list[Any]) -> str:
    """Joins text parts by newlines.

    Raises:
        UnsupportedFeature: a part is something else.
    """
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise UnsupportedFeature(
                f"This model takes text only, but the content has a part of type {kind!r}.",
                param="messages",
            )
        texts.append(text)
    return "\n".join(texts)


def with_parsed_arguments(message: Message) -> Message:
    """Returns a message with the arguments of tool calls as objects, where they are JSON text."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    parsed = []
    for call in calls:
        match call:
            case {"function": {"arguments": str(text)} as function}:
                try:
                    arguments = json.loads(text or "{}")
                except (ValueError, RecursionError):
                    arguments = text  # not ours to judge: a model may have written it
                parsed.append({**call, "function": {**function, "arguments": arguments}})
            case _:
                parsed.append(call)
    return {**message, "tool_calls": parsed}


def mark_end(message: Message) -> None:
    """Mark where the last text of a message ends, in place.

    Raises:
        InvalidParameter: the message has no text.
    """
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CONTINUE_HERE
        return
    if isinstance(content, list):
        for index in range(len(content) - 1, -1, -1):
            part = content[index]
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                marked = {**part, "text": part["text"] + _CONTINUE_HERE}
                message["content"] = [*content[:index], marked, *content[index + 1 :]]
                return
    raise InvalidParameter(
        "continue_final_message is set, but the final message has no text to continue.",
        param="messages",
    )


def cut_at_mark(rendered: str) -> str:
    """Cut at the mark. Where the template has stripped the text, its end is stripped too.

    Raises:
        InvalidParameter: the mark is not there.
    """
    position = rendered.rfind(_CONTINUE_HERE.rstrip())
    if position < 0:
        raise InvalidParameter(
            "continue_final_message is set, but the chat template leaves out or changes the end "
            "of the final message.",
            param="continue_final_message",
        )
    kept = rendered[:position]
    return kept if rendered.startswith(_CONTINUE_HERE, position) else kept.rstrip()
