"""Says a generation in the way of Anthropic's /v1/messages."""

from __future__ import annotations

from rocmforge.api.generate import schema
from rocmforge.api.generate.answer import AnswerHead, Writer
from rocmforge.api.generate.generation import Piece
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.parts import AnswerParts
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.http.sse import named_event
from rocmforge.api.messages.blocks import ContentBlocks
from rocmforge.api.messages.errors import anthropic_error
from rocmforge.api.messages.schema import (
    Ending,
    Event,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    Ping,
    StopReason,
    Usage,
)


class MessagesWriter(Writer):
    """Says pieces as blocks of content.

    Args:
        model: the model that says it.
        prepared: what is generated.
        max_tokens: that the client has allowed; the context may end before.
    """

    def __init__(self, model: RequestedModel, prepared: PreparedRequest, max_tokens: int) -> None:
        self.head = AnswerHead.make(model, "msg_")
        self._prompt_tokens = sum(map(len, prepared.prompts))
        self._fills_context = prepared.sampling.max_tokens < max_tokens
        self._parts = AnswerParts(prepared)
        self._content = ContentBlocks(self._parts)
        self._last: Piece | None = None

    def opening(self) -> bytes:
        """Encodes a message without content."""
        usage = Usage(input_tokens=self._prompt_tokens, output_tokens=0, cache_read_input_tokens=0)
        message = Message(
            id=self.head.id,
            model=self.head.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
        )
        return _encoded([MessageStart(message=message), Ping()])

    def events(self, piece: Piece) -> bytes:
        """Encodes what the piece adds to the content."""
        self._last = piece
        return _encoded(self._content.push(piece))

    def closing(self, usage: schema.Usage) -> bytes:
        """Encodes why it ended, and what it took."""
        return _encoded([MessageDelta(delta=self._ending(), usage=_usage(usage)), MessageStop()])

    def failure(self, error: Exception) -> bytes:
        """Encodes the error."""
        return _encoded([anthropic_error(error)])

    def body(self, pieces: list[Piece], usage: schema.Usage) -> Message:
        """Encodes the whole message."""
        for piece in pieces:
            self._content.push(piece)
        self._last = pieces[-1]
        ending = self._ending()
        return Message(
            id=self.head.id,
            model=self.head.model,
            content=self._content.blocks,
            stop_reason=ending.stop_reason,
            stop_sequence=ending.stop_sequence,
            usage=_usage(usage),
        )

    def _ending(self) -> Ending:
        assert self._last is not None, "a generation that ended well has a last piece"
        return Ending(stop_reason=self._stop_reason(self._last), stop_sequence=self._last.stop)

    def _stop_reason(self, last: Piece) -> StopReason:
        if last.finish_reason == "length":
            return "model_context_window_exceeded" if self._fills_context else "max_tokens"
        if last.stop is not None:
            return "stop_sequence"
        return "tool_use" if self._parts.has_calls(last.index) else "end_turn"


def _encoded(events: list[Event]) -> bytes:
    return b"".join([named_event(event) for event in events])


def _usage(usage: schema.Usage) -> Usage:
    cached = usage.cached_tokens
    return Usage(
        input_tokens=usage.prompt_tokens - cached,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=cached,
    )
