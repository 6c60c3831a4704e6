"""`rocmforge run`: a conversation in the terminal, through the same path as the HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import sys
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console
from rich.markup import escape

from rocmforge.api.generate.convert import chat_plan
from rocmforge.api.generate.generation import Generation
from rocmforge.api.generate.schema import ChatRequest, Message
from rocmforge.api.http.origin import Origin
from rocmforge.api.service import Service
from rocmforge.commands.progress import wait_ready
from rocmforge.engine.client.client import AsyncEngine
from rocmforge.errors import RequestError
from rocmforge.settings import Settings
from rocmforge.wiring import build_engine, build_service, read_front

PROMPT = "> "


@dataclass(frozen=True, slots=True)
class Options:
    """The sampling settings of answers."""

    system: str | None
    temperature: float
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
    front = read_front(arguments.model, settings)
    front.check_generates()
    engine = build_engine(front, settings)
    service = build_service(front, engine, settings)
    # The loop runs only while there is something to wait for: input() belongs to the terminal.
    with asyncio.Runner() as runner:
        try:
            runner.run(_start(engine))
            history = [] if options.system is None else [_message("system", options.system)]
            if arguments.prompt is not None:
                runner.run(
                    _answer(service, [*history, _message("user", arguments.prompt)], options)
                )
            else:
                _converse(runner, service, history, options)
        finally:
            runner.run(engine.stop())
    return 0


async def _start(engine: AsyncEngine) -> None:
    console = Console(stderr=True)
    await engine.start()
    await wait_ready(engine, console)
    if engine.status.is_fallback:
        console.print(f"[yellow]No GPU is used:[/] {escape(engine.status.fallback_reason)}")


def _converse(
    runner: asyncio.Runner, service: Service, history: list[Message], options: Options
) -> None:
    while True:
        try:
            line = input(PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            return
        if not line.strip():
            continue
        asked = [*history, _message("user", line)]
        try:
            answer = runner.run(_answer(service, asked, options))
        except RequestError as error:
            print(f"rocmforge: {error.message}", file=sys.stderr)
        except KeyboardInterrupt:
            continue
        else:
            history = [*asked, _message("assistant", answer)]


async def _answer(service: Service, messages: list[Message], options: Options) -> str:
    """Prints the answer as it comes, and returns it."""
    request = ChatRequest(
        model=service.model,
        messages=messages,
        temperature=options.temperature,
        seed=options.seed,
        max_completion_tokens=options.max_tokens,
    )
    service = replace(service, origin=Origin())  # it arrives now
    generation = Generation.start(service, "run", chat_plan(service, request))
    written: list[str] = []
    try:
        async for pieces in generation.batches():
            for piece in pieces:
                written.append(piece.text)
                print(piece.text, end="", flush=True)
    finally:
        generation.close()
        print()
    return "".join(written)


def _message(role: Literal["system", "user", "assistant"], content: str) -> Message:
    return Message(role=role, content=content)
