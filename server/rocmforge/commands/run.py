"""`rocmforge run`: answers one prompt, or talks until the user leaves."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from rocmforge.arguments import given_settings
from rocmforge.commands.chat.commands import COMMANDS, HINT, run_command
from rocmforge.commands.chat.conversation import Conversation
from rocmforge.commands.chat.images import is_image
from rocmforge.commands.chat.prompt import is_interactive, whole_prompt
from rocmforge.commands.chat.rendering import Screen
from rocmforge.commands.chat.responder import Responder
from rocmforge.commands.chat.session import Session
from rocmforge.commands.chat.values import USUAL
from rocmforge.commands.terminal.interrupts import Interrupted, Interrupts
from rocmforge.errors import ConfigurationError, RocmForgeError
from rocmforge.setting_sources import state_folder
from rocmforge.settings import Settings, flag_of


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Answers one prompt, or talks until ^D or /bye. ^C ends an answer early."""
    for name in ("rocmforge.request", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)  # no line between answers
    if arguments.quiet:
        logging.getLogger("rocmforge.commands").setLevel(logging.WARNING)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what is not in its encoding ends nothing
    start = _start_local if arguments.url is None else _start_remote
    # The loop runs only while there is something to wait for.
    with asyncio.Runner() as runner:
        start(runner, arguments, settings)
    return 0


def _start_local(runner: asyncio.Runner, arguments: argparse.Namespace, settings: Settings) -> None:
    if arguments.model is None:
        raise ConfigurationError("Name a model, or a server with --url.")
    if arguments.api_key is not None:
        raise ConfigurationError("--api-key is for the server of --url: a local model has no keys.")
    # Takes a second to import, which a conversation with a server need not wait for.
    from rocmforge.commands.chat.local import LocalResponder
    from rocmforge.commands.obtain import obtain
    from rocmforge.model_front import read_front

    front = read_front(arguments.model, settings, obtain(arguments.model, settings))
    front.check_generates()
    prompt = _given_prompt(arguments, arguments.prompt)
    # Without a terminal there are lines of the log instead of a bar; --quiet has neither.
    console = Console(stderr=True, force_terminal=False if arguments.quiet else None)
    responder = LocalResponder(front, settings, console)
    try:
        runner.run(responder.load())
        _talk(runner, responder, arguments, _given_values(arguments), prompt)
    finally:
        runner.run(responder.close())


def _start_remote(
    runner: asyncio.Runner, arguments: argparse.Namespace, settings: Settings
) -> None:
    from rocmforge.commands.chat.remote import (
        RemoteResponder,
        RemoteServer,
        find_remote,
        only_model,
    )

    for given in given_settings(arguments):
        if not given.startswith("log_"):
            raise ConfigurationError(f"{flag_of(given)} is for a model on this machine, not --url.")
    key = arguments.api_key or next(iter(settings.api_key), None)
    server = RemoteServer(arguments.url, key)
    try:
        models = runner.run(server.models())
        name: str | None = arguments.model
        text = arguments.prompt
        if text is None and name not in {model.id for model in models} and only_model(models):
            name, text = None, name  # it is the prompt
        prompt = _given_prompt(arguments, text)
        responder = RemoteResponder(server, find_remote(models, name, server.url))
        _talk(runner, responder, arguments, _given_values(arguments), prompt)
    finally:
        runner.run(server.close())


def _given_prompt(arguments: argparse.Namespace, text: str | None) -> str | None:
    """Returns what to answer once; None for a conversation."""
    if text is None and not arguments.file and is_interactive():
        return None
    return whole_prompt(text, [file for file in arguments.file if not is_image(file)])


def _given_values(arguments: argparse.Namespace) -> Mapping[str, Any]:
    given = vars(arguments)
    return {name: given[name] for name in USUAL if given.get(name) is not None}


def _talk(
    runner: asyncio.Runner,
    responder: Responder,
    arguments: argparse.Namespace,
    values: Mapping[str, Any],
    prompt: str | None,
) -> None:
    screen = Screen(sys.stdout, sys.stderr, quiet=arguments.quiet)
    session = Session(responder, screen, Conversation(system=arguments.system), values)
    for file in filter(is_image, arguments.file):
        session.add_image(file)
    if prompt is not None:
        runner.run(session.ask(prompt))
    else:
        history = None if arguments.no_history else state_folder() / "history"
        runner.run(_converse(session, history))


async def _converse(session: Session, history: Path | None) -> None:
    # Takes a third of a second to import, and scripts need no editor.
    from rocmforge.commands.chat.editor import Editor

    screen = session.screen
    screen.note(f"{session.responder.model}.{session.kind} {HINT}")
    editor = Editor([name for command in COMMANDS for name in command.names], history)
    gave_up = False
    with Interrupts() as interrupts:
        while True:
            if gave_up:
                screen.reply("^C again, ^D or /bye ends the program.")
            try:
                message = await interrupts.unless(editor.read())
            except EOFError:
                return
            except Interrupted:  # while the terminal did not send keys yet
                message = None
            if message is None and gave_up:
                return
            gave_up = message is None
            if message is not None and message.strip():
                try:
                    await interrupts.unless(_answer(session, message))
                except EOFError:
                    return
                except Interrupted:
                    screen.reply("(stopped)")


async def _answer(session: Session, message: str) -> None:
    """Answers a message, be it a command or a question; says what goes wrong."""
    try:
        reply = await run_command(session, message)
        if reply is None:
            await session.ask(message)
        else:
            session.screen.reply(reply)
    except RocmForgeError as error:
        session.screen.error(error.message)
