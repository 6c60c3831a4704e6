"""Backends for tests of conversations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from rocmforge.commands.chat.conversation import Turn
from rocmforge.commands.chat.local import LocalModel
from rocmforge.commands.chat.responder import Ended, Part
from rocmforge.errors import ModelFileNotFound
from rocmforge.gguf.tokenizer import read_templates, read_tokenizer
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.pixels.readers import ImageReaders
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api import tiny
from tests.api.fake_engine import FakeEngine, make_model, requested, say, tiny_text


def tokens(text: str) -> Sequence[int]:
    """The ids of a text in the tiny vocabulary."""
    return tiny_text()[0].encode(text, parse_special=False)


def saying(*texts: str) -> FakeEngine:
    """An engine that answers everything so."""
    return FakeEngine(script=say(*map(tokens, texts), [tiny.IM_END]))


class OneModel(LocalModel):
    """The path to a local model, with an engine that says what it is told to."""

    def __init__(self, engine: FakeEngine, *, thinks: bool = False, chats: bool = True) -> None:
        data = tiny.thinking_metadata() if thinks else tiny.metadata()
        tokenizer = Tokenizer(read_tokenizer(data))
        sources = read_templates(data) if chats else {}
        templates = ChatTemplates.compile(sources, tokenizer)
        served = make_model(engine, tokenizer=tokenizer, templates=templates)
        super().__init__(requested(served), ImageReaders())

    async def models(self) -> tuple[str, ...]:
        return ("tiny", "other")

    async def switch(self, name: str) -> None:
        raise ModelFileNotFound(f"{name} does not exist.")

    async def close(self) -> None:
        pass


class Measured:
    """Answers "fine", and has room for so many tokens, of which each message takes ten.

    Attributes:
        turns: all that it was asked.
    """

    model = "measured"
    chats = True
    takes_images = True
    defaults = SamplingDefaults()

    def __init__(self, context: int | None) -> None:
        self.context = context
        self.turns: list[Turn] = []
        self.refuse: Callable[[Turn], Exception | None] = lambda turn: None

    async def room(self, turn: Turn) -> int | None:
        return None if self.context is None else self.context - 10 * len(turn.messages)

    async def answer(self, turn: Turn) -> AsyncGenerator[Part]:
        refusal = self.refuse(turn)
        if refusal is not None:
            raise refusal
        self.turns.append(turn)
        yield "fine"
        yield Ended("stop", 1)

    async def models(self) -> tuple[str, ...]:
        return ("measured", "other")

    async def switch(self, name: str) -> None:
        self.model = name

    async def close(self) -> None:
        pass
