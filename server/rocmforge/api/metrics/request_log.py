"""One line for each request: who asked, how much, how long it took, and how it ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from rocmforge.api.http.origin import Origin
from rocmforge.logs import FIELDS, SUMMARY

log = logging.getLogger("rocmforge.request")

_LONGEST = 200
_SERVER_ERROR = 500


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one request. Times are in seconds; None = it did not come so far."""

    request_id: str
    given_id: str | None  # that it came with; see `Origin`
    path: str
    model: str  # as in the answer
    key: str | None  # its name
    finish_reason: str  # of each choice, joined by commas
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float | None  # in the engine's queue, without the loading of a model
    scheduled_s: float | None  # from arrival, with all that
    first_token_s: float | None
    total_s: float
    tokens_per_s: float | None  # after the first
    resumed: int  # times that another engine process went on with it

    @classmethod
    def make(
        cls,
        request_id: str,
        origin: Origin,
        *,
        model: str,
        outcomes: list[str],
        tokens: tuple[int, int, int],
        times_ns: tuple[int, int | None, int | None, int],
        queue_ns: int | None,
        resumed: int,
    ) -> RequestRecord:
        """Makes a record from counts and moments.

        Args:
            request_id: as in the answer.
            origin: who asked.
            model: who answered.
            outcomes: how each choice ended.
            tokens: in the prompt, of these cached, generated.
            times_ns: arrival, first scheduled, first token, end.
            queue_ns: in the engine's queue.
            resumed: times that another engine process went on with it.
        """
        arrival, scheduled, first, end = times_ns
        decoding_s = 0.0 if first is None else (end - first) * 1e-9
        return cls(
            request_id=request_id,
            given_id=origin.given_id,
            path=origin.path,
            model=model,
            key=None if origin.caller is None else origin.caller.key.name,
            finish_reason=",".join(outcomes),
            prompt_tokens=tokens[0],
            cached_tokens=tokens[1],
            output_tokens=tokens[2],
            queue_s=None if queue_ns is None else _seconds(queue_ns),
            scheduled_s=None if scheduled is None else _seconds(scheduled - arrival),
            first_token_s=None if first is None else _seconds(first - arrival),
            total_s=_seconds(end - arrival),
            tokens_per_s=round((tokens[2] - 1) / decoding_s, 1)
            if decoding_s > 0 and tokens[2] > 1
            else None,
            resumed=resumed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLog:
    """The operator's log of requests: a line for each."""

    slow_s: float = 60.0  # requests that take longer are warnings
    with_texts: bool = False  # log prompts and answers, too
    trace: Callable[[RequestRecord, Origin, int], None] | None = None  # see `api.metrics.tracing`

    def write(self, record: RequestRecord, origin: Origin, end_ns: int, texts: list[str]) -> None:
        """Logs a request that has ended.

        Args:
            record: what became of it.
            origin: who asked.
            end_ns: when it ended, on time.monotonic_ns()'s clock.
            texts: prompts and answers; only if `with_texts`.
        """
        fields = msgspec.structs.asdict(record)
        if self.with_texts:
            fields["texts"] = texts
        is_slow = record.total_s > self.slow_s
        message = "slow request" if is_slow else "request"
        summary = f"{message} {_summary(record)}"
        if self.with_texts:
            summary += f" texts={json.dumps(texts)}"
        log.log(
            logging.WARNING if is_slow else logging.INFO,
            message,
            extra={FIELDS: fields, SUMMARY: summary},
        )
        if self.trace is not None:
            self.trace(record, origin, end_ns)


def log_refusal(
    *,
    method: str,
    path: str,
    status: int,
    code: str | None,
    param: str | None = None,
    key: str | None = None,
    given_id: str | None = None,
) -> None:
    """Logs a request that is answered with an error, without what it says: that is private.

    Args:
        method: of the request.
        path: as the client wrote it.
        status: of the answer.
        code: of the error, for programs.
        param: the field that is wrong.
        key: the name of the API key.
        given_id: the id that the request came with.
    """
    fields = {"method": method, "path": path[:_LONGEST], "status": status, "code": code}
    fields |= {"param": param and param[:_LONGEST], "key": key, "given_id": given_id}
    level = logging.WARNING if status >= _SERVER_ERROR else logging.INFO
    text = "request refused" if level == logging.INFO else "request failed"
    log.log(level, text, extra={FIELDS: fields})


def _summary(record: RequestRecord) -> str:
    """Says of a request what people look for, shorter than three rows of a terminal."""
    key = "" if record.key is None else f" by {record.key}"
    resumed = "" if not record.resumed else f", resumed {record.resumed}x"
    given = "" if record.given_id is None else f" given_id={json.dumps(record.given_id)}"
    cached = f" ({record.cached_tokens} cached)" if record.cached_tokens else ""
    first = "" if record.first_token_s is None else f", first after {record.first_token_s:.3g} s"
    rate = "" if record.tokens_per_s is None else f", {record.tokens_per_s:.4g} tokens/s"
    return (
        f"{record.request_id} {record.path} {record.model}{key}: {record.finish_reason}, "
        f"{record.prompt_tokens}{cached} + {record.output_tokens} tokens "
        f"in {record.total_s:.3g} s{first}{rate}{resumed}{given}"
    )


def _seconds(duration_ns: int) -> float:
    return round(duration_ns * 1e-9, 6)
