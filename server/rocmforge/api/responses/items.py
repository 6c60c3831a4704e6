"""The output of a response while it grows: items, and the events that tell of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rocmforge.api.generate.generation import Piece
from rocmforge.api.generate.logprobs import ScoredToken, chat_logprobs
from rocmforge.api.generate.parts import AnswerParts, new_call_id
from rocmforge.api.generate.schema import TokenLogprobs
from rocmforge.api.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from rocmforge.api.responses.schema import (
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from rocmforge.text.output.reasoning import Reasoning
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls import CallArguments, CallBegin, Said


class OutputItems:
    """Makes items of the pieces of one answer. Mutable; the last item may be open.

    A plain answer is the items, a streamed one the events; both come from the same steps.

    Args:
        parts: takes the answer apart.
        tokenizer: spells tokens in log-probabilities.
        namespaces: namespace and name of functions, by what the model calls them.
    """

    def __init__(
        self,
        parts: AnswerParts,
        tokenizer: Tokenizer,
        namespaces: Mapping[str, tuple[str, str]],
    ) -> None:
        self.items: list[OutputItem] = []
        self._parts = parts
        self._tokenizer = tokenizer
        self._namespaces = namespaces
        self._is_open = False
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[TokenLogprobs] = []  # of the open item

    def push(self, piece: Piece) -> list[Event]:
        """Takes a piece; the last one closes the last item. There is always one."""
        events: list[Event] = []
        scores: Sequence[ScoredToken] = piece.logprobs
        for part in self._parts.split(piece):
            events += self._said(part, scores)
            scores = ()
        if piece.finish_reason is not None:
            if not self.items:
                events += self._open(_new_message())
            is_cut = piece.finish_reason == "length"
            events += self._close("incomplete" if is_cut else "completed")
        return events

    def _said(self, part: Said, scores: Sequence[ScoredToken]) -> list[Event]:
        match part:
            case str():
                events = self._into(MessageItem, _new_message)
                logprobs = chat_logprobs(self._tokenizer, scores).content
                self._logprobs += logprobs
                self._texts.append(part)
                return [*events, TextDelta(delta=part, logprobs=logprobs, **self._place)]
            case Reasoning(text=text):
                events = self._into(ReasoningItem, _new_reasoning)
                self._texts.append(text)
                return [*events, ReasoningDelta(delta=text, **self._place)]
            case CallBegin(name=name):
                return self._open(_new_call(*self._namespaces.get(name, (UNSET, name))))
            case CallArguments(text=text):
                self._texts.append(text)
                return [ArgumentsDelta(delta=text, **self._place)]

    def _into(self, kind: type[OutputItem], make: Callable[[], OutputItem]) -> list[Event]:
        """Makes sure that an item of this kind is open."""
        if self._is_open and isinstance(self.items[-1], kind):
            return []
        return self._open(make())

    def _open(self, item: OutputItem) -> list[Event]:
        events = self._close("completed") if self._is_open else []
        self.items.append(item)
        self._is_open, self._texts, self._logprobs = True, [], []
        events.append(ItemAdded(output_index=len(self.items) - 1, item=item))
        match item:
            case MessageItem():
                events.append(PartAdded(part=OutputText(text="", logprobs=[]), **self._place))
            case ReasoningItem():
                events.append(PartAdded(part=ReasoningText(text=""), **self._place))
        return events

    def _close(self, status: Literal["completed", "incomplete"]) -> list[Event]:
        text = "".join(self._texts)
        place = self._place
        events: list[Event]
        item: OutputItem
        match self.items[-1]:
            case MessageItem() as message:
                said = OutputText(text=text, logprobs=self._logprobs)
                item = replace(message, content=[said], status=status)
                events = [
                    TextDone(text=text, logprobs=self._logprobs, **place),
                    PartDone(part=said, **place),
                ]
            case ReasoningItem() as reasoning:
                thought = ReasoningText(text=text)
                item = replace(reasoning, content=[thought], status=status)
                events = [ReasoningDone(text=text, **place), PartDone(part=thought, **place)]
            case FunctionCallItem() as call:
                item = replace(call, arguments=text, status=status)
                events = [ArgumentsDone(name=call.name, arguments=text, **place)]
        self.items[-1] = item
        self._is_open = False
        return [*events, ItemDone(output_index=len(self.items) - 1, item=item)]

    @property
    def _place(self) -> Place:
        return {"output_index": len(self.items) - 1, "item_id": self.items[-1].id}


class Place(TypedDict):
    """The place of an event in the output."""

    output_index: int
    item_id: str


def _new_message() -> MessageItem:
    return MessageItem(id=f"msg_{uuid.uuid4().hex}", status="in_progress", content=[])


def _new_reasoning() -> ReasoningItem:
    return ReasoningItem(id=f"rs_{uuid.uuid4().hex}", status="in_progress", content=[])


def _new_call(namespace: str | UnsetType, name: str) -> FunctionCallItem:
    return FunctionCallItem(
        id=f"fc_{uuid.uuid4().hex}",
        call_id=new_call_id(),
        name=name,
        namespace=namespace,
        arguments="",
        status="in_progress",
    )
