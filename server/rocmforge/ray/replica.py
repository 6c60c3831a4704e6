"""A replica: the whole server but its sockets. Models, engines and every endpoint.

Ray Serve starts, watches, drains and ends it. It is asked through one method, in ASGI's terms, so
that each endpoint streams through unchanged.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

from ray import serve

from rocmforge.api.http.keys import Keyring
from rocmforge.api.http.origin import Origin
from rocmforge.api.metrics.request_log import RequestLog, RequestRecord
from rocmforge.commands.obtain import obtained
from rocmforge.errors import EngineError
from rocmforge.fleet.entry import ModelState
from rocmforge.logs import set_up_logging
from rocmforge.ray.messages import Begun
from rocmforge.ray.prefixes import Prefixes
from rocmforge.ray.routing import Hint
from rocmforge.served_models import served_models
from rocmforge.settings import Settings
from rocmforge.wiring import build_fleet, build_request_log, build_web_app, read_all_keys

WINDOW_S: Final = 30.0
"""So long the time to a first token counts for autoscaling."""
_AHEAD: Final = 64
"""Messages that an answer may be ahead of whoever reads it."""
_OK: Final = 200


class Replica:
    """Serves the models of `settings`; made by Ray Serve in a process of its own.

    Raises:
        RocmForgeError: a model cannot be served. Ray Serve shows it as the deployment's status.
    """

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]
        set_up_logging(settings.log_level, settings.log_format)
        self._id = serve.get_replica_context().replica_id.unique_id
        self._settings = settings
        self._prefixes = Prefixes()
        self._lives: tuple[int, ...] = ()
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=1000)
        self._keys = Keyring(read_all_keys(settings))
        models = [obtained(model) for model in served_models((), settings)]
        self._fleet = build_fleet(models, settings)
        log = _also(build_request_log(settings), self._first_tokens)
        self._app = build_web_app(self._fleet, settings, self._keys, log)
        self._closing = AsyncExitStack()
        self._closing.push_async_callback(self._fleet.stop)
        try:
            await self._closing.enter_async_context(self._app.lifespan())
            for model in self._fleet.models:
                if model.entry.is_new:
                    await self._fleet.load_first(model.entry)
        except BaseException:
            await self._closing.aclose()
            raise

    async def __del__(self) -> None:
        """Ends the engines; Ray Serve calls it once what ran has ended, or had its time."""
        if hasattr(self, "_closing"):
            await self._closing.aclose()

    def reconfigure(self, user_config: Any) -> None:
        """Reads the keys again, whenever `user_config` of the Serve config changes."""
        self._keys.replace(read_all_keys(self._settings))

    # --- what Ray Serve asks ---

    def check_health(self) -> None:
        """Raises EngineError if only a new process can help; a restarting engine needs none."""
        for model in self._fleet.models:
            status = model.entry.status
            if status.is_wedged:
                raise EngineError(f"The engine of {model.name} was killed and does not end.")
            if model.entry.state is ModelState.STOPPED:
                raise EngineError(f"The engine of {model.name} has stopped: {status.last_error}.")

    def record_routing_stats(self) -> dict[str, Any]:
        """Returns what `PrefixRouter` wants to know; see `candidate_of` there."""
        self._forget_if_new()
        up = [model for model in self._fleet.models if model.entry.is_up]
        return {
            "keys": self._prefixes.published(),
            "models": sorted(name for model in up for name in model.names),
            "ready": self._fleet.is_ready,
            "load": sum(_load(model.entry.status.stats) for model in up),
        }

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns what `FirstTokenPolicy` wants to know: seconds to first tokens of late."""
        since = time.monotonic() - WINDOW_S
        recent = sorted(seconds for at, seconds in self._first_tokens if at >= since)
        return {"first_token_s": recent[len(recent) * 9 // 10] if recent else 0.0}

    # --- requests ---

    async def answer(
        self, hint: Hint, scope: dict[str, Any], body: bytes
    ) -> AsyncGenerator[Begun | bytes]:
        """Answers one request: yields how it begins, then parts of the body as they come.

        Args:
            hint: of the request.
            scope: ASGI's, of HTTP.
            body: all of it.
        """
        messages: asyncio.Queue[Any] = asyncio.Queue(_AHEAD)
        asked = asyncio.Event()
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if not asked.is_set():
                asked.set()
                return {"type": "http.request", "body": body, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if not left.is_set():
                await messages.put(message)

        async def run() -> None:
            try:
                await self._app({**scope, "state": {}}, receive, send)  # type: ignore[arg-type]
            finally:
                await messages.put(None)

        running = asyncio.create_task(run(), name=f"answer {scope['path']}")
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    if message["status"] == _OK:
                        self._note(hint)
                    headers = [(bytes(name), bytes(value)) for name, value in message["headers"]]
                    yield Begun(replica=self._id, status=message["status"], headers=headers)
                elif parts := [message["body"], *_waiting(messages)]:
                    yield b"".join(parts)
            await running  # raises what went wrong
        finally:
            left.set()
            while not messages.empty():  # whoever waits for room goes on, and sees the client gone
                messages.get_nowait()
            if not running.done():
                await asyncio.wait((running,), timeout=1.0)
                running.cancel()

    def _note(self, hint: Hint) -> None:
        self._forget_if_new()
        infos = [model.entry.status.runner for model in self._fleet.models]
        room = sum(info.num_blocks * info.block_size for info in infos if info is not None)
        self._prefixes.add(hint.keys, room)

    def _forget_if_new(self) -> None:
        """Forgets prefixes if an engine began anew since: its cache is empty."""
        lives = tuple(
            model.entry.status.restarts + model.entry.counts.total() for model in self._fleet.models
        )
        if lives != self._lives:
            self._lives = lives
            self._prefixes.clear()


def _waiting(messages: asyncio.Queue[Any]) -> list[bytes]:
    """Takes the parts of a body that are there already: they leave together."""
    parts = []
    while not messages.empty():
        message = messages.get_nowait()
        if message is None:
            messages.put_nowait(None)
            break
        parts.append(message["body"])
    return parts


def _also(log: RequestLog, first_tokens: deque[tuple[float, float]]) -> RequestLog:
    """Returns a log that also notes, of each request, when it ended and its first token's time."""

    def trace(record: RequestRecord, origin: Origin, end_ns: int) -> None:
        if record.first_token_s is not None:
            first_tokens.append((time.monotonic(), record.first_token_s))
        if log.trace is not None:
            log.trace(record, origin, end_ns)

    return replace(log, trace=trace)


def _load(stats: Any) -> int:
    return int(stats.running + stats.waiting)
