"""POST /v1/completions."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.types import ASGIApp

from rocmforge.api.acquire import Models
from rocmforge.api.dependencies import ModelsDep, SettingsDep
from rocmforge.api.generate.answer import AnswerHead, Writer, collected, streamed
from rocmforge.api.generate.constraints import is_constrained
from rocmforge.api.generate.convert_completion import prepare_completion
from rocmforge.api.generate.generation import Generation, Piece, by_choice
from rocmforge.api.generate.logprobs import (
    echoed_logprobs,
    joined,
    legacy_logprobs,
    vllm_prompt_logprobs,
)
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import (
    Completion,
    CompletionChoice,
    CompletionRequest,
    LegacyLogprobs,
    Usage,
)
from rocmforge.api.generate.stream_usage import StreamUsage
from rocmforge.api.http.body import read_json
from rocmforge.api.http.settings import ApiSettings
from rocmforge.api.http.sse import DONE, TextEvent, event
from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.fleet.model import ServedModel

_decoder = msgspec.json.Decoder(CompletionRequest)


@post("/v1/completions", status_code=200)
async def create_completion(
    request: Request[Any, Any, Any], models: ModelsDep, api_settings: SettingsDep
) -> ASGIApp:
    """Continues one or more prompts."""
    wanted = await read_json(request, _decoder)
    answer = partial(_answer, request, models, api_settings, wanted)
    return await (models.keep_alive(wanted.model, answer) if wanted.stream else answer())


async def _answer(
    request: Request[Any, Any, Any],
    models: Models,
    settings: ApiSettings,
    wanted: CompletionRequest,
) -> ASGIApp:
    async with models.acquire(
        wanted.model,
        partial(prepare_completion, request=wanted),
        takes_long=is_constrained(wanted),
        timeout_s=wanted.timeout,
    ) as (model, prepared):
        writer = CompletionWriter(model, prepared, wanted)
        generation = Generation.start(model, writer.head.id, prepared)
        if wanted.stream:
            return streamed(generation, writer, settings)
        return await collected(request, models.in_thread, generation, writer)


class CompletionWriter(Writer):
    """Says pieces as text completions."""

    def __init__(
        self, model: RequestedModel, prepared: PreparedRequest, request: CompletionRequest
    ) -> None:
        self.head = AnswerHead.make(model, "cmpl-")
        self._common = msgspec.structs.asdict(self.head)
        self._tokenizer = model.served.tokenizer
        self._prepared = prepared
        self._echoes = _echoes(model.served, prepared, request) if request.echo else None
        self._n = request.n or 1
        self._num_logprobs = request.logprobs
        self._num_prompt_logprobs = request.prompt_logprobs
        self._usage = StreamUsage(request.stream_options, prepared)
        self._text_events: dict[int, TextEvent] = {}
        self._scores: dict[int, tuple[TokenLogprob | None, ...]] = {}  # of prompts, by number
        self._early: list[Piece] = []  # of choices that repeat scores which are still to come

    def events(self, piece: Piece) -> bytes:
        """Encodes a chunk for the text: the echo before the first one, the end after the last."""
        if self._echoes is None or self._num_logprobs is None:
            return self._events(piece)
        number, rank = divmod(piece.index, self._prepared.n)
        if number in self._scores:
            return self._events(piece)
        if rank > 0:
            self._early.append(piece)
            return b""
        self._scores[number] = piece.prompt_logprobs
        ready = [each for each in self._early if each.index // self._prepared.n == number]
        self._early = [each for each in self._early if each.index // self._prepared.n != number]
        return b"".join(map(self._events, (piece, *ready)))

    def _events(self, piece: Piece) -> bytes:
        self._usage.count(piece)
        index = piece.index
        text_event = self._text_events.get(index)
        encoded = b""
        if text_event is None:
            if self._echoes is not None:
                encoded = self._chunk(index, self._echo(index), self._prompt_logprobs(index))
            text_event = TextEvent(lambda text: self._struct(index, text))
            self._text_events[index] = text_event
        if piece.logprobs:
            encoded += self._chunk(index, piece.text, self._logprobs([piece]))
        elif piece.text and self._usage.is_running:
            encoded += self._chunk(index, piece.text)
        elif piece.text:
            encoded += text_event.fill(piece.text)
        if piece.finish_reason is not None:
            encoded += self._chunk(index, "", finish_reason=piece.finish_reason)
        return encoded

    def closing(self, usage: Usage) -> bytes:
        """Encodes a chunk with usage and without choices, if it was asked for, and the end."""
        if not self._usage.is_wanted:
            return DONE
        return event(Completion(choices=[], usage=usage, **self._common)) + DONE

    def body(self, pieces: list[Piece], usage: Usage) -> Completion:
        """Encodes the whole answer."""
        sequences = by_choice(pieces)
        for number in range(len(self._prepared.prompts)):
            self._scores[number] = sequences[number * self._prepared.n][0].prompt_logprobs
        best = self._best(sequences)
        choices = [self._choice(index, said) for index, said in enumerate(best)]
        return Completion(choices=choices, usage=usage, **self._common)

    def _best(self, choices: list[list[Piece]]) -> list[list[Piece]]:
        """Selects the sequences to show: for each prompt, the most probable ones."""
        best = []
        for first in range(0, len(choices), self._prepared.n):
            sequences = choices[first : first + self._prepared.n]
            if self._n < self._prepared.n:
                sequences.sort(key=_mean_logprob, reverse=True)
            best += sequences[: self._n]
        return best

    def _choice(self, index: int, pieces: list[Piece]) -> CompletionChoice:
        logprobs = None if self._num_logprobs is None else self._logprobs(pieces)
        number = pieces[0].index // self._prepared.n
        prompt = self._prompt_logprobs(pieces[0].index)
        if logprobs is not None and prompt is not None:
            logprobs = joined(prompt, logprobs)
        choice = CompletionChoice(
            index=index,
            text=self._echo(pieces[0].index) + "".join([piece.text for piece in pieces]),
            logprobs=logprobs,
            finish_reason=pieces[-1].finish_reason,
        )
        if self._num_prompt_logprobs is not None:
            choice.prompt_logprobs = vllm_prompt_logprobs(
                self._tokenizer, self._scores[number], self._num_prompt_logprobs
            )
        return choice

    def _echo(self, index: int) -> str:
        return "" if self._echoes is None else self._echoes[index // self._prepared.n]

    def _prompt_logprobs(self, index: int) -> LegacyLogprobs | None:
        if self._echoes is None or self._num_logprobs is None:
            return None
        number = index // self._prepared.n
        return echoed_logprobs(
            self._tokenizer,
            self._prepared.prompts[number].token_ids,
            self._echo(index),
            self._scores[number],
            self._num_logprobs,
        )

    def _logprobs(self, pieces: list[Piece]) -> LegacyLogprobs:
        tokens = [token for piece in pieces for token in piece.logprobs]
        start = len(self._echo(pieces[0].index))
        return legacy_logprobs(self._tokenizer, tokens, start=start)

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: LegacyLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        return event(self._struct(index, text, logprobs, finish_reason))

    def _struct(
        self,
        index: int,
        text: str,
        logprobs: LegacyLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> Completion:
        choice = CompletionChoice(
            index=index, text=text, logprobs=logprobs, finish_reason=finish_reason
        )
        return Completion(choices=[choice], usage=self._usage.field, **self._common)


def _echoes(model: ServedModel, prepared: PreparedRequest, request: CompletionRequest) -> list[str]:
    """Returns each prompt as text: as it came, or spelled out from token ids."""
    given = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    texts = [entry for entry in given if isinstance(entry, str)]
    return texts or [model.tokenizer.decode(prompt.token_ids) for prompt in prepared.prompts]


def _mean_logprob(pieces: list[Piece]) -> float:
    """Returns the mean over a sequence's tokens; that of an empty sequence could not be better."""
    logprobs = [token.score.logprob for piece in pieces for token in piece.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else 0.0
