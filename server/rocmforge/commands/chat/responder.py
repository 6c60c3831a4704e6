"""An engine of our own or a server: who answers, behind one protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from rocmforge.commands.chat.conversation import Turn
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.text.output.reasoning import Reasoning


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer."""

    reason: str  # "stop", or "length" if it was cut
    num_tokens: int | None  # of the answer and its thoughts; None = not known


Part = str | Reasoning | Ended
"""A piece of an answer, in the order in which they come."""


class Responder(Protocol):
    """Answers questions with one model at a time."""

    @property
    def model(self) -> str:
        """The name of the model that answers."""

    @property
    def chats(self) -> bool:
        """Whether the model has a chat template; the others continue texts."""

    @property
    def takes_images(self) -> bool:
        """Whether questions may have images, as far as it is known."""

    @property
    def defaults(self) -> SamplingDefaults | None:
        """How tokens are drawn where a turn does not say; None = not known."""

    @property
    def context(self) -> int | None:
        """Tokens that a prompt and its answer may have together; None = not known."""

    async def room(self, turn: Turn) -> int | None:
        """Returns how many tokens the context leaves for the answer; None = not known."""

    def answer(self, turn: Turn) -> AsyncGenerator[Part]:
        """Answers; the last part is `Ended`.

        Raises:
            RocmForgeError: the turn does not fit, or something failed.
        """

    async def models(self) -> tuple[str, ...]:
        """Returns the names of the models that there are."""

    async def switch(self, name: str) -> None:
        """Answers with another model from now on.

        Raises:
            RocmForgeError: it cannot be used; the one before it answers as before.
        """

    async def close(self) -> None:
        """Frees what it holds. Idempotent."""
