"""The content of a message while it grows: blocks, and the events that tell of them."""

from __future__ import annotations

import json
import uuid
from typing import Any

from rocmforge.api.generate.generation import Piece
from rocmforge.api.generate.parts import AnswerParts
from rocmforge.api.messages.schema import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    InputDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from rocmforge.text.output.reasoning import Reasoning
from rocmforge.text.tool_calls import CallArguments, CallBegin, Said


class ContentBlocks:
    """Makes blocks of the pieces of one answer. Mutable; the last block may be open.

    A plain answer is the blocks, a streamed one the events; both come from the same steps.

    Args:
        parts: takes the answer apart.
    """

    def __init__(self, parts: AnswerParts) -> None:
        self.blocks: list[Block] = []
        self._parts = parts
        self._is_open = False
        self._texts: list[str] = []  # of the open block

    def push(self, piece: Piece) -> list[Event]:
        """Takes a piece; the last one closes the last block. There is always one."""
        events: list[Event] = []
        for part in self._parts.split(piece):
            events += self._said(part)
        if piece.finish_reason is not None:
            if not self.blocks:
                events += self._open(TextBlock(text=""))
            events += self._close(is_cut=piece.finish_reason == "length")
        return events

    def _said(self, part: Said) -> list[Event]:
        match part:
            case str():
                events = self._into(TextBlock(text=""))
                delta: TextDelta | ThinkingDelta | InputDelta = TextDelta(text=part)
                text = part
            case Reasoning(text=text):
                events = self._into(ThinkingBlock(thinking=""))
                delta = ThinkingDelta(thinking=text)
            case CallBegin(name=name):
                call_id = f"toolu_{uuid.uuid4().hex[:24]}"
                return self._open(ToolUseBlock(id=call_id, name=name, input={}))
            case CallArguments(text=text):
                events = []
                delta = InputDelta(partial_json=text)
        self._texts.append(text)
        return [*events, BlockDelta(index=len(self.blocks) - 1, delta=delta)]

    def _into(self, empty: Block) -> list[Event]:
        """Makes sure that a block like this is open."""
        if self._is_open and type(self.blocks[-1]) is type(empty):
            return []
        return self._open(empty)

    def _open(self, empty: Block) -> list[Event]:
        events = self._close() if self._is_open else []
        self.blocks.append(empty)
        self._is_open, self._texts = True, []
        return [*events, BlockStart(index=len(self.blocks) - 1, content_block=empty)]

    def _close(self, *, is_cut: bool = False) -> list[Event]:
        text = "".join(self._texts)
        match self.blocks[-1]:
            case TextBlock():
                self.blocks[-1] = TextBlock(text=text)
            case ThinkingBlock():
                self.blocks[-1] = ThinkingBlock(thinking=text)
            case ToolUseBlock(id=call_id, name=name):
                arguments = _arguments(text, is_cut=is_cut or not text)
                self.blocks[-1] = ToolUseBlock(id=call_id, name=name, input=arguments)
        self._is_open = False
        return [BlockStop(index=len(self.blocks) - 1)]


def _arguments(text: str, *, is_cut: bool) -> dict[str, Any]:
    """Arguments as an object; none if the answer was cut within them.

    What is no object is shown under the name that Anthropic recommends for it.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    return {} if is_cut else {"INVALID_JSON": text}
