"""`rocmforge run`: a conversation in the terminal, through the same path as the HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import sys
from dataclasses import dataclass, replace
from typing import Final, TextIO

from rich.console import Console
from rich.markup import escape

from rocmforge.api.generate.convert import prepare_chat
from rocmforge.api.generate.generation import Generation
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.parts import AnswerParts
from rocmforge.api.generate.schema import ChatRequest, Message
from rocmforge.api.http.origin import Origin
from rocmforge.api.metrics.requests import Metrics
from rocmforge.commands.obtain import obtain
from rocmforge.commands.terminal.progress import wait_ready
from rocmforge.commands.terminal.questions import (
    HINT,
    MessageReader,
    answer_to_command,
    is_interactive,
    whole_prompt,
)
from rocmforge.errors import RequestError
from rocmforge.fleet.entry import Engine
from rocmforge.models.sampling import SamplingDefaults
from rocmforge.settings import Settings
from rocmforge.text.output.reasoning import Reasoning
from rocmforge.text.tool_calls import Said
from rocmforge.wiring import build_model, build_request_log, read_front

_DIM: Final = "\x1b[2m"
_NORMAL: Final = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Options:
    """The sampling settings of answers."""

    system: str | None
    temperature: float | None  # None = as the model's maker recommends
    seed: int | None
    max_tokens: int | None


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Answers one prompt, or talks until end of input (^D). ^C ends an answer early."""
    options = Options(
        system=arguments.system,
        temperature=arguments.temperature,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
    )
    logging.getLogger("rocmforge.request").setLevel(logging.WARNING)  # no line between answers
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what is not in its encoding ends nothing
    obtain(arguments.model, settings)
    front = read_front(arguments.model, settings)
    front.check_generates()
    front.check_chats()
    prompt = None
    if arguments.prompt is not None or not is_interactive():
        prompt = whole_prompt(arguments.prompt)
    served = build_model(front, settings)
    engine = served.entry.open()
    model = RequestedModel(
        served=served,
        metrics=Metrics(served.name, lambda: engine.status),
        request_log=build_request_log(settings),
    )
    conversation = Conversation(model, options)
    # The loop runs only while there is something to wait for: input() belongs to the terminal.
    with asyncio.Runner() as runner:
        try:
            runner.run(_start(engine, settings))
            if prompt is not None:
                runner.run(conversation.ask(prompt))
            else:
                print(f"{HINT} Answers: {conversation.sampling}.", file=sys.stderr)
                _converse(runner, conversation)
        finally:
            runner.run(engine.stop())
    return 0


async def _start(engine: Engine, settings: Settings) -> None:
    console = Console(stderr=True)
    await engine.start()
    await wait_ready(engine, console, settings.log_format)
    if engine.status.is_fallback:
        console.print(f"[yellow]No GPU is used:[/] {escape(engine.status.fallback_reason)}")


def _converse(runner: asyncio.Runner, conversation: Conversation) -> None:
    reader = MessageReader()
    while True:
        try:
            message = reader.read()
        except EOFError:
            return
        if not message.strip():
            continue
        reply = answer_to_command(message)
        if reply is not None:
            print(reply, file=sys.stderr)
            continue
        try:
            runner.run(conversation.ask(message))
        except RequestError as error:
            print(f"rocmforge: {error.message}", file=sys.stderr)
        except KeyboardInterrupt:
            continue


class Conversation:
    """The messages so far.

    Args:
        model: answers.
        options: how answers are drawn.
    """

    def __init__(self, model: RequestedModel, options: Options) -> None:
        self.messages: list[Message] = []
        if options.system is not None:
            self.messages.append(Message(role="system", content=options.system))
        self._model = model
        self._options = options

    @property
    def sampling(self) -> SamplingDefaults:
        """How answers are drawn."""
        usual, wanted = self._model.served.sampling_defaults, self._options.temperature
        return usual if wanted is None else usual.changed({"temperature": wanted})

    async def ask(self, question: str) -> None:
        """Prints the answer as it comes, and keeps it without the thoughts.

        An answer that is interrupted is kept as far as it came, unless nothing came at all.

        Raises:
            RequestError: the question does not fit; it is forgotten.
        """
        asked = [*self.messages, Message(role="user", content=question)]
        request = ChatRequest(
            model=self._model.served.name,
            messages=asked,
            temperature=self._options.temperature,
            seed=self._options.seed,
            max_completion_tokens=self._options.max_tokens,
        )
        model = replace(self._model, origin=Origin())  # it arrives now
        prepared = prepare_chat(model.served, request)
        generation = Generation.start(model, "run", prepared)
        parts, printer = AnswerParts(prepared), Printer()
        try:
            async for pieces in generation.batches():
                for part in (part for piece in pieces for part in parts.split(piece)):
                    printer.show(part)
        finally:
            generation.close()
            printer.end()
            if printer.answer:
                self.messages = [*asked, Message(role="assistant", content=printer.answer)]


class Printer:
    """Shows one answer: its text on standard output, and thoughts dimmed on a terminal.

    Elsewhere thoughts go to standard error, so that a program gets the answer alone.
    """

    def __init__(self) -> None:
        self.answer = ""
        self._is_terminal = sys.stdout.isatty()
        self._thinks = False

    def show(self, part: Said) -> None:
        """Prints a part of the answer."""
        if isinstance(part, Reasoning):
            self._begin_thoughts()
            print(part.text, end="", flush=True, file=self._aside)
        elif isinstance(part, str):
            self._end_thoughts()
            self.answer += part
            print(part, end="", flush=True)

    def end(self) -> None:
        """Ends the last line."""
        if self._thinks:
            self._end_thoughts()
        else:
            print()

    @property
    def _aside(self) -> TextIO:
        return sys.stdout if self._is_terminal else sys.stderr

    def _begin_thoughts(self) -> None:
        if not self._thinks and self._is_terminal:
            print(_DIM, end="")
        self._thinks = True

    def _end_thoughts(self) -> None:
        if self._thinks:
            print(_NORMAL if self._is_terminal else "", flush=True, file=self._aside)
        self._thinks = False
