"""A conversation that goes on: who answers, what was said, how answers are drawn."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rocmforge.commands.chat.conversation import Conversation, Exchange, Turn
from rocmforge.commands.chat.images import image_address
from rocmforge.commands.chat.rendering import Screen
from rocmforge.commands.chat.responder import Ended, Responder
from rocmforge.commands.chat.values import describe, read_value
from rocmforge.errors import ConfigurationError, RemoteError
from rocmforge.text.output.reasoning import Reasoning

_ROOM: Final = 512
"""Tokens that an answer should have at least, or a quarter of a small context."""


class Session:
    """Owns the conversation and the values of /set.

    Args:
        responder: answers.
        screen: shows the answers.
        conversation: what is said before the first question.
        values: how answers are drawn, as fields of a request.

    Raises:
        ConfigurationError: a system message for a model that only continues texts.
    """

    def __init__(
        self,
        responder: Responder,
        screen: Screen,
        conversation: Conversation,
        values: Mapping[str, Any],
    ) -> None:
        self.responder = responder
        self.screen = screen
        self.conversation = conversation
        self._values = dict(values)
        self._images: tuple[str, ...] = ()  # of the next question
        if conversation.system is not None:
            self._check_chats("A system message")

    @property
    def kind(self) -> str:
        """A sentence about a model that does not chat; empty for the others."""
        if self.responder.chats:
            return ""
        return " It has no chat template: it continues what you write."

    def set_system(self, text: str | None) -> None:
        """Changes the system message; raises ConfigurationError as the constructor."""
        if text is not None:
            self._check_chats("A system message")
        self.conversation = replace(self.conversation, system=text)

    def set_value(self, name: str, text: str) -> None:
        """Changes how answers are drawn; raises ConfigurationError as `read_value`."""
        value = read_value(name, text)
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value

    def describe_values(self) -> str:
        """Returns how answers are drawn, a line for each value."""
        return describe(self._values, self.responder.defaults)

    def add_image(self, path: Path) -> None:
        """Adds an image to the next question.

        Raises:
            ConfigurationError: it cannot be read, or the model takes none.
        """
        if not self.responder.takes_images:
            raise ConfigurationError(f"{self.responder.model} takes no images.")
        self._images = (*self._images, image_address(path))

    async def switch(self, name: str) -> None:
        """Lets another model answer; raises RocmForgeError as `Responder.switch`."""
        await self.responder.switch(name)
        self.conversation = self.conversation.show_all()

    def _check_chats(self, what: str) -> None:
        if not self.responder.chats:
            raise ConfigurationError(
                f"{what} is for models that chat, and {self.responder.model} continues texts: it "
                "has no chat template. --chat-template gives it one."
            )

    async def ask(self, question: str) -> None:
        """Shows the answer as it comes, and keeps it.

        An answer that is interrupted is kept as far as it came, unless nothing came of it but
        thoughts.

        Raises:
            RocmForgeError: the question does not fit, or something failed.
        """
        values = MappingProxyType(dict(self._values))
        images, self._images = self._images, ()  # one that cannot be read spoils no other message
        turn = await self._fitted(Turn(self.conversation, question, values, images))
        while True:
            try:
                await self._show(turn)
                return
            except RemoteError as error:  # the server did not tell how much room there is
                if not (error.is_full and turn.conversation.can_hide):
                    raise
                turn = self._told(replace(turn, conversation=turn.conversation.hide_oldest()))

    async def _fitted(self, turn: Turn) -> Turn:
        """Hides the oldest exchanges until the context has room for an answer, and says so."""
        room, found = await self.responder.room(turn), turn
        if room is None or self.responder.context is None:
            return turn
        wanted = turn.values.get("max_tokens") or min(_ROOM, self.responder.context // 4)
        while room is not None and room < wanted and found.conversation.can_hide:
            found = replace(found, conversation=found.conversation.hide_oldest())
            room = await self.responder.room(found)
        return turn if found is turn else self._told(found)

    def _told(self, turn: Turn) -> Turn:
        count = turn.conversation.num_hidden
        what = "question and its answer" if count == 1 else f"{count} questions and their answers"
        self.screen.note(f"(The context is full: the model no longer sees the oldest {what}.)")
        return turn

    async def _show(self, turn: Turn) -> None:
        answer, thoughts = [], []
        ended: Ended | None = None
        began = time.monotonic()
        first: float | None = None
        try:
            async with aclosing(self.responder.answer(turn)) as parts:
                async for part in parts:
                    if isinstance(part, Ended):
                        ended = part
                        break
                    first = first or time.monotonic()
                    self.screen.show(part)
                    if isinstance(part, Reasoning):
                        thoughts.append(part.text)
                    else:
                        answer.append(part)
        finally:  # also if it is interrupted
            if first is not None:
                self.screen.end()
            if answer:
                said = "".join(answer), "".join(thoughts)
                exchange = Exchange(turn.question, *said, turn.images)
                self.conversation = turn.conversation.add(exchange)
        if ended is not None:
            self.screen.note(_statistics(ended, began, first, time.monotonic()))


def _statistics(ended: Ended, began: float, first: float | None, end: float) -> str:
    said = []
    if first is not None:
        said.append(f"first token after {first - began:.2f} s")
        if ended.num_tokens is not None:
            said.append(f"{ended.num_tokens} tokens")
            if ended.num_tokens > 1 and end > first:
                said.append(f"{(ended.num_tokens - 1) / (end - first):.1f} tokens/s")
    else:
        said.append("the answer is empty")
    if ended.reason == "length":
        said.append("cut at the limit of tokens")
    return f"({', '.join(said)})"
