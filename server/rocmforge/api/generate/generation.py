"""One request while it runs: from engine events to pieces of text, for all of its choices.

Streams and plain answers are both made from `Generation.batches`, so there is one path only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rocmforge.api.generate.logprobs import LogprobAligner, ScoredToken
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import PromptTokensDetails, Usage
from rocmforge.api.http.origin import now_ns
from rocmforge.api.metrics.request_log import RequestRecord
from rocmforge.api.metrics.requests import SequenceMetrics
from rocmforge.engine.ipc.params import (
    FinishReason,
    GenerateRequest,
    RequestTiming,
    TokenEvent,
    TokenLogprob,
)
from rocmforge.errors import DeadlineExceeded, Draining, EngineDied, EngineError
from rocmforge.fleet.entry import Engine, Handle
from rocmforge.text.output.detokenizer import DecodedText, IncrementalDetokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.text.tool_calls import spelled

RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a choice that one token event adds."""

    index: int
    text: str
    logprobs: tuple[ScoredToken, ...]  # of the tokens this text begins; () if not asked for
    # From the second token on; on the first piece only.
    prompt_logprobs: tuple[TokenLogprob | None, ...]
    finish_reason: str | None  # "stop" or "length" on a choice's last piece
    stop: str | None  # the stop string that ended it
    num_tokens: int  # of the choice, up to here
    embedding: bytes | None = None  # float32, if the request asks for one


def by_choice(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Groups pieces by choice; every choice has at least its last."""
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.index, []).append(piece)
    return [found[index] for index in sorted(found)]


class Choice:
    """One sequence in the engine and what has come of it so far."""

    def __init__(
        self,
        index: int,
        handle: Handle,
        detokenizer: IncrementalDetokenizer,
        aligner: LogprobAligner | None,
        metrics: SequenceMetrics,
        *,
        keeps_text: bool,
    ) -> None:
        self.index = index
        self.handle = handle
        self.outcome: str | None = None  # None while it runs
        self.num_tokens = 0
        self.cached_tokens = 0
        self.first_token_ns: int | None = None
        self.scheduled_ns: int | None = None  # known with the first token, or the end
        self.queue_ns: int | None = None  # as well
        self.texts: list[str] = []  # all pieces, if they are kept
        self._timing: RequestTiming | None = None  # as far as it is known
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        self._keeps_text = keeps_text
        self._detokenizer = detokenizer
        self._aligner = aligner
        self._metrics = metrics

    @property
    def is_finished(self) -> bool:
        """Whether nothing more comes."""
        return self.outcome is not None

    def take(self, events: tuple[TokenEvent, ...]) -> list[Piece]:
        """Turns what one wake-up brought into pieces, one for each event that shows anything.

        Raises:
            EngineError, CapacityError: the engine gave the sequence up.
        """
        before = self.num_tokens
        pieces = []
        for event in events:
            piece = self._piece(event)
            if piece is not None:
                pieces.append(piece)
                if self._keeps_text:
                    self.texts.append(piece.text)
            if self.is_finished:
                break
        if self.num_tokens > before:
            self.first_token_ns = self.first_token_ns or now_ns()
            self._metrics.delivered(self.num_tokens - before)
        if self.is_finished:
            self._end(event)
        return pieces

    def close(self) -> None:
        """Frees what the sequence holds. Idempotent."""
        self.handle.close()
        if not self.is_finished:
            self.outcome = "aborted"
            self._metrics.aborted()

    def _piece(self, event: TokenEvent) -> Piece | None:
        self.num_tokens += len(event.token_ids)
        if event.timing is not None:
            self._note(event.timing, event.cached_tokens)
        if event.prompt_logprobs is not None:
            self._prompt_logprobs += event.prompt_logprobs
        token_ids = event.token_ids
        if event.finish_reason is FinishReason.STOP:
            token_ids = token_ids[:-1]  # the token that ends a sequence is no part of the answer
        delta = self._detokenizer.push(token_ids)
        text = delta.text
        reason = event.finish_reason if delta.stop is None else FinishReason.STOP
        if delta.stop is None and reason is not None:
            text += self._detokenizer.finish().text
        logprobs: tuple[ScoredToken, ...] = ()
        if self._aligner is not None:
            logprobs = self._align(self._aligner, event, delta, text)
        if reason is not None:
            self.outcome = reason.value
        elif not text and not logprobs:
            return None
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, ()
        return Piece(
            index=self.index,
            text=text,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=None if reason is None else reason.value,
            stop=delta.stop,
            num_tokens=self.num_tokens,
            embedding=event.embedding,
        )

    def _note(self, timing: RequestTiming, cached_tokens: int) -> None:
        self.cached_tokens = cached_tokens
        self._timing = timing
        if timing.scheduled_ns:
            self.scheduled_ns = timing.scheduled_ns
            self.queue_ns = timing.scheduled_ns - timing.arrival_ns

    @staticmethod
    def _align(
        aligner: LogprobAligner, event: TokenEvent, delta: DecodedText, text: str
    ) -> tuple[ScoredToken, ...]:
        tokens = aligner.push(event.logprobs or (), delta.offsets, text)
        if delta.stop is None and event.finish_reason is not None:
            tokens += aligner.finish()
        return tokens

    def _end(self, last: TokenEvent) -> None:
        """Accounts for the end, and turns ends that are failures into errors."""
        reason = last.finish_reason
        if reason is None:  # a stop string: the engine does not know yet
            self.handle.close()
            self._metrics.stopped(self._timing)
            return
        self._metrics.finished(reason, last.timing)
        match reason:
            case FinishReason.ERROR:
                raise EngineError(last.error or "the engine gave no reason")
            case FinishReason.DIED:
                # Why is for the log and /health, not for clients.
                raise EngineDied("The engine ended while it worked on this request. Try again.")
            case FinishReason.DEADLINE:
                raise DeadlineExceeded(
                    "The request was not finished before its deadline.", retry_after_s=RETRY_S
                )
            case FinishReason.CANCELLED:
                raise Draining(
                    "The server ended this request before it was finished.",
                    retry_after_s=RETRY_S,
                )


class Generation:
    """All choices of one request, which keep the model loaded. Whoever starts it must close it."""

    def __init__(
        self,
        model: RequestedModel,
        request_id: str,
        prepared: PreparedRequest,
        choices: tuple[Choice, ...],
    ) -> None:
        self.prepared = prepared
        self.choices = choices
        self._model = model
        self._request_id = request_id
        self._is_closed = False

    @classmethod
    def start(cls, model: RequestedModel, request_id: str, prepared: PreparedRequest) -> Generation:
        """Submits every sequence, or none.

        Raises:
            CapacityError: the engine does not take them now, or the key has used up its share.
        """
        model.metrics.request_n.observe(prepared.n)
        number_of_choices = len(prepared.prompts) * prepared.n
        num_tokens = sum(len(prompt) for prompt in prepared.prompts)
        caller = model.origin.caller
        if caller is not None:
            caller.admit(number_of_choices, num_tokens)
            model.metrics.name_key(caller.index, caller.key.name)
        choices: list[Choice] = []
        try:
            engine = model.served.entry.enter()
            try:
                for number in range(number_of_choices):
                    choices.append(_start_choice(engine, model, prepared, number))
            except BaseException:
                for choice in choices:
                    choice.close()
                model.served.entry.leave()
                raise
        except BaseException:
            if caller is not None:
                caller.release(number_of_choices, -num_tokens)  # none of them was computed
            raise
        return cls(model, request_id, prepared, tuple(choices))

    async def batches(self) -> AsyncIterator[Sequence[Piece]]:
        """Pieces of all choices as they come, those of one wake-up together.

        Each round waits for the engine, whose news arrive through the event loop: a client that
        has left is noticed in between.
        """
        if len(self.choices) == 1:
            (choice,) = self.choices
            while not choice.is_finished:
                yield choice.take(await choice.handle.next())
            return
        waiting = {asyncio.ensure_future(c.handle.next()): c for c in self.choices}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                pieces: list[Piece] = []
                for task in done:
                    choice = waiting.pop(task)
                    pieces += choice.take(task.result())
                    if not choice.is_finished:
                        waiting[asyncio.ensure_future(choice.handle.next())] = choice
                yield pieces
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def usage(self) -> Usage:
        """Counts tokens so far: each prompt once, the completions of all choices."""
        prompt_tokens = sum(len(prompt) for prompt in self.prepared.prompts)
        completion_tokens = sum(choice.num_tokens for choice in self.choices)
        cached = sum(choice.cached_tokens for choice in self.choices[:: self.prepared.n])
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )

    def close(self) -> None:
        """Ends whatever still runs, and writes the request down. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for choice in self.choices:
            choice.close()
        self._model.served.entry.leave()
        origin, caller = self._model.origin, self._model.origin.caller
        if caller is not None:
            usage = self.usage()
            caller.release(len(self.choices), usage.completion_tokens)
            self._model.metrics.used(
                caller.key.name,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
            )
        end_ns = now_ns()
        request_log = self._model.request_log
        texts = self._texts() if request_log.with_texts else []
        request_log.write(self._record(end_ns), origin, end_ns, texts)

    def _record(self, end_ns: int) -> RequestRecord:
        usage = self.usage()
        scheduled = [c.scheduled_ns for c in self.choices if c.scheduled_ns is not None]
        queued = [c.queue_ns for c in self.choices if c.queue_ns is not None]
        first_tokens = [c.first_token_ns for c in self.choices if c.first_token_ns is not None]
        return RequestRecord.make(
            self._request_id,
            self._model.origin,
            model=self._model.answers_as,
            outcomes=[str(choice.outcome) for choice in self.choices],
            tokens=(
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
            ),
            times_ns=(
                self._model.origin.arrival_ns,
                min(scheduled, default=None),
                min(first_tokens, default=None),
                end_ns,
            ),
            queue_ns=min(queued, default=None),
            resumed=max((choice.handle.resumed for choice in self.choices), default=0),
        )

    def _texts(self) -> list[str]:
        """Prompts, then answers."""
        prompts = [
            self._model.served.tokenizer.decode(prompt.token_ids)
            for prompt in self.prepared.prompts
        ]
        return [*prompts, *(spelled("".join(choice.texts)) for choice in self.choices)]


def _start_choice(
    engine: Engine, model: RequestedModel, prepared: PreparedRequest, number: int
) -> Choice:
    prompt = prepared.prompts[number // prepared.n]
    sampling = prepared.sampling_of(number % prepared.n)
    tokenizer = model.served.tokenizer
    request = GenerateRequest(
        prompt=prompt,
        sampling=sampling,
        eos_ids=tokenizer.eos_ids,
        arrival_ns=now_ns(),
        deadline_ns=model.origin.deadline_ns(prepared.timeout_s),
        share=model.origin.share,
    )
    wants_logprobs = sampling.num_logprobs >= 0
    return Choice(
        index=number,
        handle=engine.submit(request),
        detokenizer=IncrementalDetokenizer(
            tokenizer, prepared.stop, shown=_shown(tokenizer, prepared)
        ),
        aligner=LogprobAligner() if wants_logprobs else None,
        metrics=SequenceMetrics(
            model.metrics,
            arrival_ns=model.origin.arrival_ns,
            prompt_tokens=len(prompt),
            max_tokens=sampling.max_tokens,
        ),
        keeps_text=model.request_log.with_texts,
    )


def _shown(tokenizer: Tokenizer, prepared: PreparedRequest) -> dict[int, str]:
    """Returns control tokens that mark tool calls or reasoning, and what is shown of them."""
    markers = {} if prepared.tools is None else {**prepared.tools.form.markers}
    if prepared.reasoning is not None:
        markers |= {mark: mark for mark in (prepared.marks.begin, prepared.marks.end)}
    ids = {tokenizer.control_token(marker): shown for marker, shown in markers.items()}
    return {token_id: shown for token_id, shown in ids.items() if token_id is not None}
