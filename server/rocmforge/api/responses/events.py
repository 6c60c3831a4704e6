"""The wire format of a stream of /v1/responses."""

from __future__ import annotations

from rocmforge.api.generate.schema import TokenLogprobs
from rocmforge.api.http.sse import NamedEvent
from rocmforge.api.responses.schema import OutputItem, OutputText, ReasoningText, Response


class Event(NamedEvent, kw_only=True):
    """Base of all events; their number in the stream is given as they are sent."""

    sequence_number: int = 0


class ResponseCreated(Event, kw_only=True, tag="response.created"):
    """The first event."""

    response: Response


class ResponseInProgress(Event, kw_only=True, tag="response.in_progress"):
    """Work has begun."""

    response: Response


class ResponseCompleted(Event, kw_only=True, tag="response.completed"):
    """The last event of an answer that the model ended."""

    response: Response


class ResponseIncomplete(Event, kw_only=True, tag="response.incomplete"):
    """The last event of an answer that was cut."""

    response: Response


class ResponseFailed(Event, kw_only=True, tag="response.failed"):
    """The last event of an answer that went wrong."""

    response: Response


class ErrorEvent(Event, kw_only=True, tag="error"):
    """The only event of a stream that failed before there was a response."""

    code: str | None
    message: str
    param: str | None


class ItemAdded(Event, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: OutputItem


class ItemDone(Event, kw_only=True, tag="response.output_item.done"):
    """An item is complete."""

    output_index: int
    item: OutputItem


class InItem(Event, kw_only=True):
    """Base of the events within an item."""

    output_index: int
    item_id: str


class PartAdded(InItem, kw_only=True, tag="response.content_part.added"):
    """The content of an item begins; there is one part."""

    part: OutputText | ReasoningText
    content_index: int = 0


class PartDone(InItem, kw_only=True, tag="response.content_part.done"):
    """The content of an item is complete."""

    part: OutputText | ReasoningText
    content_index: int = 0


class TextDelta(InItem, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[TokenLogprobs]
    content_index: int = 0


class TextDone(InItem, kw_only=True, tag="response.output_text.done"):
    """All of the text."""

    text: str
    logprobs: list[TokenLogprobs]
    content_index: int = 0


class ReasoningDelta(InItem, kw_only=True, tag="response.reasoning_text.delta"):
    """More of what the model thinks."""

    delta: str
    content_index: int = 0


class ReasoningDone(InItem, kw_only=True, tag="response.reasoning_text.done"):
    """All of what the model thought."""

    text: str
    content_index: int = 0


class ArgumentsDelta(InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(InItem, kw_only=True, tag="response.function_call_arguments.done"):
    """All of a call's arguments."""

    name: str
    arguments: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ErrorEvent
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)
"""What a stream consists of."""
