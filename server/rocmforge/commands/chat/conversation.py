"""A conversation, and how it is said to a model: as messages, or as one text to continue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer."""

    question: str
    answer: str
    thoughts: str = ""  # for templates that show them again
    images: tuple[str, ...] = ()  # of the question, as data: addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """All that has been said so far; the oldest exchanges may be hidden from the model."""

    system: str | None = None
    exchanges: tuple[Exchange, ...] = ()
    num_hidden: int = 0  # exchanges for which the context has no room; they are kept all the same

    @property
    def can_hide(self) -> bool:
        """Whether the model still sees an exchange."""
        return self.num_hidden < len(self.exchanges)

    def hide_oldest(self) -> Conversation:
        """Returns it with one more exchange hidden. The system message always stays."""
        return replace(self, num_hidden=self.num_hidden + 1)

    def show_all(self) -> Conversation:
        """Returns it as a model with a larger context may see it."""
        return replace(self, num_hidden=0)

    def add(self, exchange: Exchange) -> Conversation:
        """Returns it with one more exchange at its end."""
        return replace(self, exchanges=(*self.exchanges, exchange))

    def cleared(self) -> Conversation:
        """Returns what is left when everything but the system message is forgotten."""
        return Conversation(system=self.system)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, with what was said before it."""

    conversation: Conversation
    question: str
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of the request, such as its temperature; those left out are up to the model."""
    images: tuple[str, ...] = ()  # of the question, as data: addresses

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Messages as OpenAI's API has them.

        The thoughts go along: the model's template says which of them it is to see again.
        """
        found: list[dict[str, Any]] = []
        if self.conversation.system is not None:
            found.append({"role": "system", "content": self.conversation.system})
        for exchange in self._shown:
            found.append({"role": "user", "content": _content(exchange.question, exchange.images)})
            answer = {"role": "assistant", "content": exchange.answer}
            if exchange.thoughts:
                answer["reasoning_content"] = exchange.thoughts
            found.append(answer)
        return [*found, {"role": "user", "content": _content(self.question, self.images)}]

    @property
    def text(self) -> str:
        """One text, for a model that only continues texts."""
        before = "".join(f"{each.question}{each.answer}\n" for each in self._shown)
        return before + self.question

    @property
    def _shown(self) -> tuple[Exchange, ...]:
        return self.conversation.exchanges[self.conversation.num_hidden :]


def _content(text: str, images: tuple[str, ...]) -> str | list[dict[str, Any]]:
    if not images:
        return text
    parts = [{"type": "image_url", "image_url": {"url": address}} for address in images]
    return [*parts, {"type": "text", "text": text}]
