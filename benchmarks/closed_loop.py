"""Streams that each send their next request when the last one has ended, from several processes.

One process could not take in what 256 streams are told. Times are seconds of time.perf_counter(),
which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final, Self

import numpy as np
import uvloop

from benchmarks.http_load import Connection, Stream
from benchmarks.waits import quantile, without_collections

KEPT_S: Final = 2.0
"""A server closes a connection on which nothing is asked for a little longer than this."""
_POLL_S: Final = 0.01
_ORDINARY: Final = 256  # smaller token ids are bytes or control tokens in many vocabularies
_LAST: Final = 16  # and so are some of the largest ones


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        port: of a server on this machine.
        prompt: tokens.
        answer: tokens, whatever they are.
        known: the number of a prompt that is always the same; None = one that nobody has sent.
        pause_s: what passes before it is sent.
    """

    port: int
    prompt: int
    answer: int
    known: int | None = None
    pause_s: float = 0.0


Turn = tuple[Ask, ...]
"""What a stream asks, one after the other, for one answer: its client sees no difference."""


@dataclass
class Followed(Stream):
    """What a stream saw in one turn."""

    wanted: int = 0  # tokens
    ended: float = float("inf")


@dataclass(frozen=True, slots=True)
class Summary:
    """What some streams saw in a stretch of time. Waits are seconds."""

    tokens_per_s: float
    turns_per_s: float
    first: list[float] = field(repr=False)  # each turn's wait for its first token
    between: list[float] = field(repr=False)  # waits for each of the others
    unseen: float  # share of the tokens that clients were told nothing of: they had no text

    @property
    def waits_ms(self) -> tuple[float, float, float, float, float]:
        """First token, median and p99; between tokens, median, p99 and longest."""
        first = (quantile(self.first, share) for share in (0.5, 0.99))
        between = (quantile(self.between, share) for share in (0.5, 0.99, 1.0))
        a, b, c, d, e = (1e3 * wait for wait in (*first, *between))
        return a, b, c, d, e


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement: what each stream saw, and the stretch of time that counts."""

    turns: list[list[Followed]]  # by stream
    begin: float
    end: float
    begun: int  # streams that had a token before

    def summary(self, streams: slice = slice(None)) -> Summary:
        """Returns what these streams saw between begin and end."""
        return summarise(list(chain(*self.turns[streams])), self.begin, self.end)


def summarise(turns: Sequence[Followed], begin: float, end: float) -> Summary:
    """Returns rates and waits; what counts is what came in that time, whenever it was asked for."""
    first, between, tokens = [], [], 0
    ended = [turn for turn in turns if begin < turn.ended <= end]
    for turn in turns:
        times = [at for at, number in turn.arrivals for _ in range(number)]
        tokens += sum(begin < at <= end for at in times)
        if times and begin < times[0] <= end:
            first.append(times[0] - turn.started)
        between += [later - earlier for earlier, later in pairwise(times) if begin < later <= end]
    seen, wanted = sum(turn.tokens for turn in ended), sum(turn.wanted for turn in ended)
    return Summary(
        tokens_per_s=tokens / (end - begin),
        turns_per_s=len(ended) / (end - begin),
        first=first,
        between=between,
        unseen=1 - seen / wanted if wanted else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What one process does in a measurement."""

    model: str
    vocab_size: int
    seed: int
    turns: list[tuple[int, Turn, Turn]]  # number of the stream, its first turn, all others


class Clients:
    """Processes that follow streams. Use it as a context manager.

    Args:
        model: its name at the servers.
        vocab_size: of the model.
        processes: how many there are.
    """

    def __init__(self, model: str, vocab_size: int, processes: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self._model = model
        self._vocab_size = vocab_size
        self._seeds = count(1)
        self._begun = context.Value("i", 0)
        self._end = context.Value("d", 0.0)
        self._pipes: list[Pipe] = []
        self._processes = []
        for _ in range(processes or max(1, min(16, (os.cpu_count() or 1) // 4))):
            ours, theirs = context.Pipe()
            arguments = (theirs, self._begun, self._end)
            self._processes.append(context.Process(target=_client, args=arguments, daemon=True))
            self._pipes.append(ours)

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def measure(
        self, turns: Sequence[Turn], *, warm_up_s: float, most_warm_up_s: float, seconds: float
    ) -> Measured:
        """Follows streams for a time, and breaks them off.

        The first answer of each is shorter than the others, each by another length. Otherwise all
        of them would end at once, again and again.

        Args:
            turns: what each stream asks, again and again.
            warm_up_s: what passes at least before anything counts.
            most_warm_up_s: what passes at most before that, while streams have no token yet.
            seconds: the time that counts.

        Raises:
            RuntimeError: A request failed.
        """
        self._begun.value, self._end.value = 0, 0.0
        seed = next(self._seeds)
        work = [
            (number, _shortened(turn, (number + 1) / len(turns)), turn)
            for number, turn in enumerate(turns)
        ]
        used = self._pipes[: len(work)]
        for index, pipe in enumerate(used):
            mine = work[index :: len(used)]
            pipe.send(_Work(self._model, self._vocab_size, seed, mine))
        start = time.perf_counter()
        while (now := time.perf_counter()) < start + most_warm_up_s:
            if now >= start + warm_up_s and self._begun.value == len(turns):
                break
            if any(pipe.poll() for pipe in used):  # it failed
                break
            time.sleep(_POLL_S)
        begin, begun = time.perf_counter(), self._begun.value
        self._end.value = begin + seconds
        found: dict[int, list[Followed]] = {}
        for pipe in used:
            result = pipe.recv()
            if isinstance(result, str):
                raise RuntimeError(result)
            found |= result
        return Measured(
            [found[number] for number in range(len(turns))], begin, begin + seconds, begun
        )


def _shortened(turn: Turn, share: float) -> Turn:
    *others, last = turn
    return (*others, replace(last, answer=max(1, round(share * last.answer))))


def prompt_of(ask: Ask, vocab_size: int, *seeds: int) -> list[int]:
    """Returns the token ids of a request.

    Args:
        ask: the request.
        vocab_size: of the model.
        seeds: what tells it from all others, unless its prompt is a known one.
    """
    rng = np.random.default_rng((0, ask.known) if ask.known is not None else seeds)
    found: list[int] = rng.integers(_ORDINARY, vocab_size - _LAST, ask.prompt).tolist()
    return found


def body_of(ask: Ask, model: str, prompt: list[int]) -> dict[str, object]:
    """Returns the body of a request at /v1/completions."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": ask.answer,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }


class _Follower:
    """One stream, with a connection to each server that it asks."""

    def __init__(self, work: _Work, number: int) -> None:
        self._work = work
        self._number = number
        self._connections: dict[int, tuple[Connection, float]] = {}  # when it was used last
        self._turns = count()
        self.seen: list[Followed] = []

    @property
    def has_begun(self) -> bool:
        """Whether it has got a token."""
        return bool(self.seen and self.seen[0].arrivals)

    async def follow(self, first: Turn, then: Turn) -> None:
        """Asks again and again, until it is cancelled."""
        try:
            await self._ask(first)
            while True:
                await self._ask(then)
        finally:
            for connection, _ in self._connections.values():
                connection.writer.transport.abort()

    async def _ask(self, turn: Turn) -> None:
        work, number = self._work, next(self._turns)
        seen: Followed | None = None
        for ask in turn:
            prompt = prompt_of(ask, work.vocab_size, work.seed, self._number, number)
            body = body_of(ask, work.model, prompt)
            await asyncio.sleep(ask.pause_s)
            connection = await self._connect(ask.port)
            if seen is None:
                wanted = sum(ask.answer for ask in turn)
                seen = Followed(started=time.perf_counter(), wanted=wanted)
                self.seen.append(seen)
            await connection.stream(body, None, seen)
            self._connections[ask.port] = connection, time.perf_counter()
        assert seen is not None, "a turn without a request"
        seen.ended = time.perf_counter()

    async def _connect(self, port: int) -> Connection:
        connection, used = self._connections.get(port, (None, 0.0))
        if connection is not None and time.perf_counter() < used + KEPT_S:
            return connection
        if connection is not None:
            connection.writer.close()
        opened = await Connection.open("127.0.0.1", port)
        self._connections[port] = opened, time.perf_counter()
        return opened


def _client(pipe: Pipe, begun: Any, end: Any) -> None:
    """Follows the streams that it is told to, until the process is ended."""
    while True:
        work = pipe.recv()
        try:
            with without_collections():
                pipe.send(uvloop.run(_follow(work, begun, end)))
        except (RuntimeError, OSError, EOFError) as error:
            pipe.send(f"{type(error).__name__}: {error}")


async def _follow(work: _Work, begun: Any, end: Any) -> dict[int, list[Followed]]:
    followers = {number: _Follower(work, number) for number, _, _ in work.turns}
    tasks = [
        asyncio.create_task(followers[number].follow(first, then))
        for number, first, then in work.turns
    ]
    told = 0
    while not end.value or time.perf_counter() < end.value:
        await asyncio.sleep(_POLL_S)
        if told < len(tasks):
            before, told = told, sum(follower.has_begun for follower in followers.values())
            with begun.get_lock():
                begun.value += told - before
        for task in tasks:
            if task.done():
                task.result()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {number: follower.seen for number, follower in followers.items()}
