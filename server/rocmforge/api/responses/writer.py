"""Says a generation in the way of /v1/responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from rocmforge.api.generate.answer import AnswerHead, Writer
from rocmforge.api.generate.generation import Piece
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.parts import AnswerParts
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import Usage
from rocmforge.api.http.errors import answer_for
from rocmforge.api.http.sse import named_event
from rocmforge.api.responses.events import (
    ErrorEvent,
    Event,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)
from rocmforge.api.responses.items import OutputItems
from rocmforge.api.responses.schema import (
    AnyText,
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ReasoningConfig,
    Response,
    ResponseError,
    ResponsesRequest,
    ResponseUsage,
    TextConfig,
)
from rocmforge.api.responses.tools import namespaces
from rocmforge.models.sampling import SamplingDefaults


class ResponsesWriter(Writer):
    """Says pieces as items, and hands the finished response to `keep`.

    Args:
        model: the model that says it.
        prepared: what was made of the request.
        request: is repeated in the answer.
        keep: called with the whole response when the answer has ended, well or not.
    """

    def __init__(
        self,
        model: RequestedModel,
        prepared: PreparedRequest,
        request: ResponsesRequest,
        keep: Callable[[Response], None],
    ) -> None:
        self.head = AnswerHead.make(model, "resp_")
        self.response = begun_response(self.head, request, model.served.sampling_defaults)
        self._parts = AnswerParts(prepared)
        functions = namespaces(request.tools or ())
        self._output = OutputItems(self._parts, model.served.tokenizer, functions)
        self._now = model.served.clock
        self._keep = keep
        self._finish_reason: str | None = None
        self._sent = 0  # events

    def opening(self) -> bytes:
        """Encodes that the response exists, and is being worked on."""
        return self._encoded(
            [ResponseCreated(response=self.response), ResponseInProgress(response=self.response)]
        )

    def events(self, piece: Piece) -> bytes:
        """Encodes what the piece adds to the output."""
        return self._encoded(self._push(piece))

    def closing(self, usage: Usage) -> bytes:
        """Encodes the whole response."""
        response = self._finished(usage)
        self._keep(response)
        if response.status == "incomplete":
            return self._encoded([ResponseIncomplete(response=response)])
        return self._encoded([ResponseCompleted(response=response)])

    def failure(self, error: Exception) -> bytes:
        """Encodes the response as far as it got."""
        return self._encoded([ResponseFailed(response=self.fail(error))])

    def body(self, pieces: list[Piece], usage: Usage) -> Response:
        """Encodes the whole response."""
        for piece in pieces:
            self._push(piece)
        return self._finished(usage)

    def ended(self, body: msgspec.Struct) -> None:
        """Keeps the whole response."""
        assert isinstance(body, Response), "it is what `body` made"
        self._keep(body)

    def fail(self, error: Exception) -> Response:
        """Ends the response as far as it got."""
        answer = answer_for(error)
        response = replace(
            self.response,
            status="failed",
            output=self._output.items,
            error=ResponseError(code=_error_code(answer.status), message=answer.detail.message),
        )
        self._keep(response)
        return response

    def _push(self, piece: Piece) -> list[Event]:
        self._finish_reason = piece.finish_reason or self._finish_reason
        return self._output.push(piece)

    def _finished(self, usage: Usage) -> Response:
        is_cut = self._finish_reason == "length"
        return replace(
            self.response,
            status="incomplete" if is_cut else "completed",
            completed_at=None if is_cut else int(self._now()),
            incomplete_details=IncompleteDetails() if is_cut else None,
            output=self._output.items,
            usage=_usage(usage, self._parts.reasoning_tokens),
        )

    def _encoded(self, events: list[Event]) -> bytes:
        encoded = []
        for event in events:
            event.sequence_number = self._sent
            self._sent += 1
            encoded.append(named_event(event))
        return b"".join(encoded)


def error_event(error: Exception) -> bytes:
    """Encodes the event of a stream that failed before there was a response."""
    detail = answer_for(error).detail
    event = ErrorEvent(code=detail.code, message=detail.message, param=detail.param)
    return named_event(event)


def begun_response(
    head: AnswerHead, request: ResponsesRequest, usual: SamplingDefaults
) -> Response:
    """Makes a response without output; repeats the request with its defaults filled in."""
    return Response(
        id=head.id,
        created_at=head.created,
        status="in_progress",
        model=head.model,
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        store=request.store is not False,
        background=bool(request.background),
        metadata=request.metadata or {},
        max_output_tokens=request.max_output_tokens,
        temperature=usual.temperature if request.temperature is None else request.temperature,
        top_p=usual.top_p if request.top_p is None else request.top_p,
        top_logprobs=request.top_logprobs or 0,
        text=TextConfig(format=(request.text and request.text.format) or AnyText()),
        reasoning=request.reasoning or ReasoningConfig(),
        tools=request.tools or [],
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        user=request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )


def _error_code(status: int) -> Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]:
    if status == 429:
        return "rate_limit_exceeded"
    return "server_error" if status >= 500 else "invalid_prompt"


def _usage(usage: Usage, reasoning_tokens: int) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=usage.total_tokens,
    )
