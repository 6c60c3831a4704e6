"""Answers from an engine that belongs to this program, on the path of the HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from rocmforge.api.generate.convert import prepare_chat
from rocmforge.api.generate.convert_completion import prepare_completion
from rocmforge.api.generate.generation import Generation
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.parts import AnswerParts
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.prompts import images_of, request_prompt
from rocmforge.api.generate.schema import ChatRequest, CompletionRequest
from rocmforge.api.http.origin import Origin
from rocmforge.api.images.addresses import read_data
from rocmforge.api.images.pictures import MAX_BYTES
from rocmforge.api.images.prompt_images import PromptImage
from rocmforge.api.images.schema import PlacedImage
from rocmforge.api.metrics.requests import Metrics
from rocmforge.commands.chat.conversation import Turn
from rocmforge.commands.chat.responder import Ended, Part
from rocmforge.commands.chat.values import check_for_completion
from rocmforge.commands.terminal.progress import wait_ready
from rocmforge.errors import InvalidParameter, RocmForgeError
from rocmforge.fleet.entry import Engine
from rocmforge.library.finding import all_stored
from rocmforge.model_front import ModelFront, read_front
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.models.vision.config import VisionConfig
from rocmforge.pixels.readers import ImageReaders
from rocmforge.settings import AUTO, Settings
from rocmforge.text.output.reasoning import Reasoning
from rocmforge.wiring import build_model, build_request_log


class LocalModel:
    """Answers from one model that is loaded, as `Responder` says.

    Args:
        model: takes requests, once its engine is ready.
        readers: of images.
    """

    def __init__(self, model: RequestedModel, readers: ImageReaders) -> None:
        self._requested = model
        self._readers = readers
        self._served = model.served

    @property
    def model(self) -> str:
        return self._served.name

    @property
    def chats(self) -> bool:
        return bool(self._served.templates.names)

    @property
    def takes_images(self) -> bool:
        return self.chats and self._served.vision is not None

    @property
    def defaults(self) -> SamplingDefaults:
        return self._served.sampling_defaults

    @property
    def context(self) -> int:
        return self._served.max_context

    async def room(self, turn: Turn) -> int:
        if not self.chats:
            return self._room(turn)
        images = await self._read_images(turn)
        return self.context - len(request_prompt(self._served, self._chat_request(turn), images))

    def _room(self, turn: Turn) -> int:
        return self.context - len(self._served.tokenizer.encode(turn.text, parse_special=True))

    async def _read_images(self, turn: Turn) -> tuple[PromptImage, ...]:
        images, vision = [*images_of(self._chat_request(turn).messages)], self._served.vision
        if vision is None or not images:
            return ()
        return await asyncio.to_thread(self._read, images, vision)

    def _read(self, images: list[PlacedImage], vision: VisionConfig) -> tuple[PromptImage, ...]:
        found = []
        for image in images:
            data = read_data(image.url, MAX_BYTES)
            try:
                read = self._readers.read(data, vision.processor)
            except InvalidParameter as error:
                raise InvalidParameter(f"The image {error.message}.") from error
            found.append(PromptImage.of(read, vision))
        return tuple(found)

    async def answer(self, turn: Turn) -> AsyncGenerator[Part]:
        prepared = self._prepare(turn, await self._read_images(turn) if self.chats else ())
        arrived = replace(self._requested, origin=Origin())
        generation = Generation.start(arrived, "run", prepared)
        parts, reason = AnswerParts(prepared), "stop"
        try:
            async for pieces in generation.batches():
                for piece in pieces:
                    reason = piece.finish_reason or reason
                    for part in parts.split(piece):
                        if isinstance(part, str | Reasoning):
                            yield part
            yield Ended(reason, generation.usage().completion_tokens)
        finally:
            generation.close()

    def _prepare(self, turn: Turn, images: tuple[PromptImage, ...]) -> PreparedRequest:
        if self.chats:
            return prepare_chat(self._served, self._chat_request(turn), images)
        check_for_completion(turn.values)
        values = {"max_tokens": max(self._room(turn), 1), **turn.values}
        request = CompletionRequest(model=self.model, prompt=turn.text, **values)
        return prepare_completion(self._served, request)

    def _chat_request(self, turn: Turn) -> ChatRequest:
        fields: dict[str, Any] = {**turn.values, "model": self.model, "messages": turn.messages}
        return msgspec.convert(fields, ChatRequest)


class LocalResponder:
    """Answers from the model that is loaded, and loads others. Owns the engine.

    Args:
        front: the first model.
        settings: of its engine, and of those of other models.
        console: shows how loading goes.
    """

    def __init__(self, front: ModelFront, settings: Settings, console: Console) -> None:
        self._first = front
        self._settings = settings
        self._console = console
        self._front = front
        self._engine: Engine | None = None
        self._readers = ImageReaders()
        self._model: LocalModel

    @property
    def model(self) -> str:
        return self._model.model

    @property
    def chats(self) -> bool:
        return self._model.chats

    @property
    def takes_images(self) -> bool:
        return self._model.takes_images

    @property
    def defaults(self) -> SamplingDefaults:
        return self._model.defaults

    @property
    def context(self) -> int:
        return self._model.context

    async def room(self, turn: Turn) -> int:
        return await self._model.room(turn)

    def answer(self, turn: Turn) -> AsyncGenerator[Part]:
        return self._model.answer(turn)

    async def models(self) -> tuple[str, ...]:
        return tuple(model.name for model in await asyncio.to_thread(all_stored))

    async def load(self) -> None:
        """Loads the first model; raises why it cannot be."""
        await self._load(self._first, self._settings)

    async def switch(self, name: str) -> None:
        """Loads another model in place of the one that answers; see `Responder.switch`."""
        before, settings = self._front, self._settings_of(name)
        front = await asyncio.to_thread(read_front, name, settings)
        front.check_generates()
        await self.close()  # there may be no memory for both
        try:
            await self._load(front, settings)
        except (RocmForgeError, asyncio.CancelledError):
            await self.close()
            await self._load(before, self._settings_of(before.names[0]))
            raise

    def _settings_of(self, name: str) -> Settings:
        """Leaves out, for other models, what is said of the first one's template and drafts."""
        if name in self._first.names:
            return self._settings
        return msgspec.structs.replace(
            self._settings, chat_template=None, draft_model=AUTO, served_model_name=()
        )

    async def close(self) -> None:
        self._readers.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.stop()

    async def _load(self, front: ModelFront, settings: Settings) -> None:
        served = build_model(front, settings)
        self._engine = engine = served.entry.open()
        await engine.start()
        await wait_ready(engine, self._console, settings.log_format)
        if engine.status.is_fallback:
            reason = escape(engine.status.fallback_reason)
            self._console.print(f"[yellow]No GPU is used:[/] {reason}", soft_wrap=True)
        self._front = front
        self._model = LocalModel(
            RequestedModel(
                served=served,
                metrics=Metrics(served.name, lambda: engine.status),
                request_log=build_request_log(settings),
            ),
            self._readers,
        )
