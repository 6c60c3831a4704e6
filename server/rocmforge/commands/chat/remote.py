"""Answers from a server with OpenAI's API: ours, or another."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from rocmforge.commands.chat.conversation import Turn
from rocmforge.commands.chat.responder import Ended, Part
from rocmforge.commands.chat.values import check_for_completion
from rocmforge.errors import ConfigurationError, RemoteError
from rocmforge.expected import did_you_mean
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.text.output.reasoning import Reasoning

_CONNECT_S: Final = 10.0
_MAX_PORT: Final = 65535
_FULL: Final = ("context_length_exceeded", "exceed_context_size_error", "maximum context length")
"""Words of servers for a conversation that is too long: OpenAI's and ours, llama.cpp's, vLLM's."""

T = TypeVar("T")


class RemoteModel(msgspec.Struct, kw_only=True):
    """A model of a server. Servers of others say no more than its id."""

    id: str
    aliases: tuple[str, ...] | None = None
    max_model_len: int | None = None
    capabilities: tuple[str, ...] = ()
    sampling: SamplingDefaults | None = None

    @property
    def chats(self) -> bool:
        """Whether it chats, as far as the server tells."""
        return not self.capabilities or "chat" in self.capabilities

    @property
    def takes_images(self) -> bool:
        """Whether its questions may have images, as far as the server tells."""
        return not self.capabilities or "images" in self.capabilities


class _Models(msgspec.Struct):
    data: list[RemoteModel]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # what newer servers call it


class _Choice(msgspec.Struct):
    delta: _Delta | None = None  # of a chat
    text: str | None = None  # of a completion
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Event(msgspec.Struct):
    """An event of a stream."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Count(msgspec.Struct):
    """Answer of POST /tokenize, here and in vLLM."""

    count: int
    max_model_len: int


class RemoteServer:
    """Connections to a server.

    Args:
        url: where its API is, with or without `/v1`.
        key: its API key, if it wants one.

    Raises:
        ConfigurationError: the address makes no sense.
    """

    def __init__(self, url: str, key: str | None) -> None:
        try:
            parsed = httpx2.URL(url)
        except httpx2.InvalidURL as error:
            raise ConfigurationError(f"--url {url}: {error}.") from error
        if parsed.port is not None and parsed.port > _MAX_PORT:
            raise ConfigurationError(f"--url {url}: ports end at {_MAX_PORT}.")
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigurationError(f"--url {url}: write it as http://HOST:PORT or https://HOST.")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx2.AsyncClient(
            headers=[] if key is None else [(b"Authorization", f"Bearer {key}".encode())],
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),  # an answer may take any time
            verify=parsed.scheme == "https",  # else certificates are read for nothing
            trust_env=not _is_loopback(parsed.host),  # no proxy knows the way to this machine
        )

    async def models(self) -> list[RemoteModel]:
        """Returns the models that the server has; raises RemoteError."""
        with_data = await self._json("GET", "/v1/models", None, _Models)
        return with_data.data

    async def count_tokens(self, body: Mapping[str, Any]) -> tuple[int, int] | None:
        """Returns tokens of a prompt and of the context; None if the server does not tell."""
        try:
            counted = await self._json("POST", "/tokenize", body, _Count)
        except RemoteError:
            return None
        return counted.count, counted.max_model_len

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[_Event]:
        """Yields the events of an answer; raises RemoteError."""
        async with self._answered("POST", path, body) as response:
            async for line in _lines(response.aiter_bytes()):
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                event = self._decoded(data, _Event)
                if event.error is not None:
                    raise self._refusal(None, data)
                yield event

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        await self._client.aclose()

    async def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None, kind: type[T]
    ) -> T:
        async with self._answered(method, path, body) as response:
            return self._decoded(await response.aread(), kind)

    @asynccontextmanager
    async def _answered(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[httpx2.Response]:
        """Sends a request; raises RemoteError unless it succeeds."""
        try:
            async with self._client.stream(method, self.url + path, json=body) as response:
                if response.status_code != 200:
                    raise self._refusal(response.status_code, await response.aread())
                yield response
        except httpx2.ConnectError as error:
            raise RemoteError(f"No server answers at {self.url}: {error}.") from error
        except httpx2.TimeoutException as error:
            raise RemoteError(f"{self.url} does not answer within {_CONNECT_S:g} s.") from error
        except httpx2.HTTPError as error:
            what = str(error) or type(error).__name__
            raise RemoteError(f"The connection to {self.url} broke: {what}.") from error

    def _decoded(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RemoteError(
                f"{self.url} does not answer as a server with OpenAI's API: {error}."
            ) from error

    def _refusal(self, status: int | None, data: bytes) -> RemoteError:
        """Makes the error of what a server says, in whichever form it says it."""
        try:
            said = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = None
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error.get("message") if isinstance(error, dict) else error
        text = data.decode(errors="replace")
        where = self.url if status is None else f"{self.url} answers with status {status}"
        hint = " Give its key with --api-key." if status == 401 else ""
        return RemoteError(
            f"{where}: {message if isinstance(message, str) else text[:200]}{hint}",
            is_full=any(word in text for word in _FULL),
        )


class RemoteResponder:
    """Answers from one model of a server at a time.

    Args:
        server: has it.
        model: answers first.
    """

    def __init__(self, server: RemoteServer, model: RemoteModel) -> None:
        self._server = server
        self._model = model

    @property
    def model(self) -> str:
        return self._model.id

    @property
    def chats(self) -> bool:
        return self._model.chats

    @property
    def takes_images(self) -> bool:
        return self._model.takes_images

    @property
    def defaults(self) -> SamplingDefaults | None:
        return self._model.sampling

    @property
    def context(self) -> int | None:
        return self._model.max_model_len

    async def room(self, turn: Turn) -> int | None:
        if self.context is None:
            return None
        prompt = {"messages": turn.messages} if self.chats else {"prompt": turn.text}
        counted = await self._server.count_tokens({"model": self.model, **prompt})
        return None if counted is None else counted[1] - counted[0]

    async def answer(self, turn: Turn) -> AsyncGenerator[Part]:
        path, body = await self._request(turn)
        reason, num_tokens = None, None
        async for event in self._server.stream(path, body):
            num_tokens = event.usage.completion_tokens if event.usage else num_tokens
            for choice in event.choices[:1]:
                delta = choice.delta or _Delta(content=choice.text)
                thoughts = delta.reasoning_content or delta.reasoning
                if thoughts:
                    yield Reasoning(thoughts)
                if delta.content:
                    yield delta.content
                reason = choice.finish_reason or reason
        if reason is None:
            raise RemoteError(f"{self._server.url} ended the answer before it was finished.")
        yield Ended(reason, num_tokens)

    async def _request(self, turn: Turn) -> tuple[str, dict[str, Any]]:
        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        if self.chats:
            return "/v1/chat/completions", {**body, "messages": turn.messages, **turn.values}
        check_for_completion(turn.values)
        room = await self.room(turn)
        limit = {} if room is None else {"max_tokens": max(room, 1)}  # else 16, as OpenAI has it
        return "/v1/completions", {**body, "prompt": turn.text, **limit, **turn.values}

    async def models(self) -> tuple[str, ...]:
        return tuple(model.id for model in await self._server.models())

    async def switch(self, name: str) -> None:
        self._model = find_remote(await self._server.models(), name, self._server.url)

    async def close(self) -> None:
        await self._server.close()


def find_remote(models: list[RemoteModel], name: str | None, url: str) -> RemoteModel:
    """Returns the model of that name; the only one if no name is given.

    Raises:
        ConfigurationError: there is none, or there are several.
    """
    names = [model.id for model in models]
    only = only_model(models)
    if name is None and only is not None:
        return only
    for model in models:
        if model.id == name:
            return model
    if not models:
        raise ConfigurationError(f"{url} has no model.")
    if name is None:
        raise ConfigurationError(f"{url} has several models. Name one of: {', '.join(names)}.")
    hint = did_you_mean(name, names)
    raise ConfigurationError(f"{url} has no model {name}. {hint}".rstrip())


def only_model(models: list[RemoteModel]) -> RemoteModel | None:
    """Returns a server's model if it has one, which may be listed under several names."""
    if not models:
        return None
    names = {models[0].id, *(models[0].aliases or ())}
    return models[0] if {model.id for model in models} <= names else None


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Splits at newlines only: JSON may hold other characters that end lines elsewhere."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    yield rest


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
