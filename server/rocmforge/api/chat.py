"""POST /v1/chat/completions."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.types import ASGIApp
from msgspec.structs import replace

from rocmforge.api.acquire import Models
from rocmforge.api.dependencies import ModelsDep, SettingsDep
from rocmforge.api.generate.answer import AnswerHead, Writer, collected, streamed
from rocmforge.api.generate.constraints import is_constrained
from rocmforge.api.generate.convert import prepare_chat
from rocmforge.api.generate.generation import Generation, Piece, by_choice
from rocmforge.api.generate.logprobs import chat_logprobs, vllm_prompt_logprobs
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.parts import AnswerParts, new_call_id
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    CompletionTokensDetails,
    Delta,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from rocmforge.api.generate.stream_usage import StreamUsage
from rocmforge.api.http.body import read_json
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.http.sse import DONE, TextEvent, event
from rocmforge.text.output.reasoning import Reasoning
from rocmforge.text.tool_calls import CallArguments, CallBegin, Said

_decoder = msgspec.json.Decoder(ChatRequest)


@post("/v1/chat/completions", status_code=200)
async def create_chat_completion(
    request: Request[Any, Any, Any], models: ModelsDep, api_settings: SettingsDep
) -> ASGIApp:
    """Answers a conversation."""
    wanted = await read_json(request, _decoder)
    answer = partial(_answer, request, models, api_settings, wanted)
    return await (models.keep_alive(wanted.model, answer) if wanted.stream else answer())


async def _answer(
    request: Request[Any, Any, Any], models: Models, settings: ApiSettings, wanted: ChatRequest
) -> ASGIApp:
    images = await models.read_images(wanted.model, wanted.messages)
    async with models.acquire(
        wanted.model,
        partial(prepare_chat, request=wanted, images=images, share=models.share),
        takes_long=is_constrained(wanted),
        timeout_s=wanted.timeout,
    ) as (model, prepared):
        writer = ChatWriter(model, prepared, wanted)
        generation = Generation.start(model, writer.head.id, prepared)
        if wanted.stream:
            return streamed(generation, writer, settings)
        return await collected(request, models.in_thread, generation, writer)


class ChatWriter(Writer):
    """Says pieces as chat completions."""

    def __init__(
        self, model: RequestedModel, prepared: PreparedRequest, request: ChatRequest
    ) -> None:
        self.head = AnswerHead.make(model, "chatcmpl-")
        self._common: dict[str, Any] = msgspec.structs.asdict(self.head)
        if request.service_tier is not None:
            self._common["service_tier"] = "default"
        self._tokenizer = model.served.tokenizer
        self._wants_logprobs = bool(request.logprobs)
        self._num_prompt_logprobs = request.prompt_logprobs
        self._usage = StreamUsage(request.stream_options, prepared)
        self._text_events: dict[int, TextEvent] = {}
        self._parts = AnswerParts(prepared)
        self._may_reason = prepared.may_reason

    def events(self, piece: Piece) -> bytes:
        """Chunks for what it says; before the first one the role, after the last one the end."""
        self._usage.count(piece)
        encoded = self._openings(piece.index)
        said = self._parts.split(piece)
        logprobs = self._logprobs([piece]) if piece.logprobs else None
        if logprobs is not None and not said:
            said = [""]
        for item in said:
            if isinstance(item, str) and logprobs is None:
                encoded += self._text(piece.index, item)
            else:
                encoded += self._chunk(piece.index, _delta(item), logprobs)
                logprobs = None
        if piece.finish_reason is not None:
            encoded += self._chunk(piece.index, Delta(), finish_reason=self._reason(piece))
        return encoded

    def _openings(self, index: int) -> bytes:
        """Encodes the role chunks of all choices up to `index` that have none yet.

        OpenAI's streaming helper needs choices to appear in order, whichever speaks first.
        """
        encoded = b""
        for new in range(len(self._text_events), index + 1):
            encoded += self._chunk(new, Delta(role="assistant", content=""))
            self._text_events[new] = TextEvent(partial(self._text_struct, new))
        return encoded

    def _text(self, index: int, text: str) -> bytes:
        if self._usage.is_running:
            return event(self._text_struct(index, text))
        return self._text_events[index].fill(text)

    def _text_struct(self, index: int, text: str) -> ChatChunk:
        return self._struct(index, Delta(content=text))

    def _reason(self, piece: Piece) -> str | None:
        """Returns why a choice ended, as clients know it: with calls, they are the reason."""
        has_calls = self._parts.has_calls(piece.index)
        return "tool_calls" if has_calls and piece.finish_reason == "stop" else piece.finish_reason

    def closing(self, usage: Usage) -> bytes:
        """Encodes a chunk with usage and without choices, if it was asked for, and the end."""
        if not self._usage.is_wanted:
            return DONE
        return event(ChatChunk(choices=[], usage=self._detailed(usage), **self._common)) + DONE

    def body(self, pieces: list[Piece], usage: Usage) -> ChatCompletion:
        """Encodes the whole answer."""
        sequences = by_choice(pieces)
        choices = [self._choice(index, said) for index, said in enumerate(sequences)]
        completion = ChatCompletion(choices=choices, usage=self._detailed(usage), **self._common)
        if self._num_prompt_logprobs is not None:
            completion.prompt_logprobs = vllm_prompt_logprobs(
                self._tokenizer, sequences[0][0].prompt_logprobs, self._num_prompt_logprobs
            )
        return completion

    def _detailed(self, usage: Usage) -> Usage:
        if not self._may_reason:
            return usage
        details = CompletionTokensDetails(reasoning_tokens=self._parts.reasoning_tokens)
        return replace(usage, completion_tokens_details=details)

    def _choice(self, index: int, pieces: list[Piece]) -> ChatChoice:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for item in [item for piece in pieces for item in self._parts.split(piece)]:
            match item:
                case str():
                    texts.append(item)
                case Reasoning():
                    thoughts.append(item.text)
                case CallBegin():
                    function = FunctionCall(name=item.name, arguments="")
                    calls.append(ToolCall(id=new_call_id(), function=function))
                case CallArguments():
                    calls[item.index].function.arguments += item.text
        reason = self._reason(pieces[-1])
        assert reason is not None, "a finished generation says why each choice ended"
        text = "".join(texts)
        return ChatChoice(
            index=index,
            message=AnswerMessage(
                content=None if calls and not text else text,
                reasoning_content="".join(thoughts) if thoughts else msgspec.UNSET,
                tool_calls=calls or msgspec.UNSET,
            ),
            logprobs=self._logprobs(pieces) if self._wants_logprobs else None,
            finish_reason=reason,
        )

    def _logprobs(self, pieces: list[Piece]) -> ChatLogprobs:
        return chat_logprobs(self._tokenizer, [token for p in pieces for token in p.logprobs])

    def _chunk(
        self,
        index: int,
        delta: Delta,
        logprobs: ChatLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        return event(self._struct(index, delta, logprobs, finish_reason))

    def _struct(
        self,
        index: int,
        delta: Delta,
        logprobs: ChatLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason
        )
        return ChatChunk(choices=[choice], usage=self._usage.field, **self._common)


def _delta(item: Said) -> Delta:
    match item:
        case str():
            return Delta(content=item)
        case Reasoning():
            return Delta(reasoning_content=item.text)
        case CallBegin():
            call = ToolCallDelta(
                index=item.index,
                id=new_call_id(),
                type="function",
                function=FunctionDelta(name=item.name, arguments=""),
            )
        case CallArguments():
            call = ToolCallDelta(index=item.index, function=FunctionDelta(arguments=item.text))
    return Delta(tool_calls=[call])
