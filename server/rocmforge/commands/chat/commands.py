"""The commands of a conversation: lines that begin with a slash."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocmforge.commands.chat.saved import load, save
from rocmforge.commands.chat.session import Session
from rocmforge.errors import ConfigurationError
from rocmforge.expected import did_you_mean

HINT: Final = "/help shows commands."

_COMMAND: Final = re.compile(r"/[A-Za-z?]*(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and what it does with a session and the text behind its name.

    It returns what is said to it; EOFError ends the program, a RocmForgeError is shown.
    """

    names: tuple[str, ...]  # the first is shown
    takes: str  # what may stand behind the name
    about: str
    act: Callable[[Session, str], Awaitable[str]]


async def _help(session: Session, text: str) -> str:
    usages = [f"{', '.join(each.names)} {each.takes}".rstrip() for each in COMMANDS]
    width = max(map(len, usages)) + 2
    rows = [f"{usage:<{width}}{each.about}" for usage, each in zip(usages, COMMANDS, strict=True)]
    return "\n".join([*rows, _KEYS])


_KEYS: Final = """\
Enter sends; Alt-Enter begins a new line, and so does Enter behind an opening \"\"\".
A pasted text is one message. A space before a slash sends the line to the model.
^C ends an answer, which stays in the conversation; ^D at an empty line ends the program."""


async def _clear(session: Session, text: str) -> str:
    session.conversation = session.conversation.cleared()
    return "The conversation begins anew."


async def _system(session: Session, text: str) -> str:
    if text:
        session.set_system(None if text == '""' else text)
    system = session.conversation.system
    return "There is no system message." if system is None else f"System message: {system}"


async def _set(session: Session, text: str) -> str:
    if text:
        name, _, value = text.partition(" ")
        if not value.strip():
            raise ConfigurationError("Write /set NAME VALUE, or /set NAME default.")
        session.set_value(name, value.strip())
    return session.describe_values()


async def _image(session: Session, text: str) -> str:
    path = _path(text, "/image FILE")
    session.add_image(path)
    return f"{path.name} goes with your next message."


async def _save(session: Session, text: str) -> str:
    path = _path(text, "/save FILE")
    save(session.conversation, session.responder.model, path)
    return f"Saved: {path}"


async def _load(session: Session, text: str) -> str:
    path = _path(text, "/load FILE")
    loaded = load(path)
    if loaded.system is not None:
        session.set_system(loaded.system)
    session.conversation = loaded
    return f"Loaded: {len(loaded.exchanges)} questions with their answers."


def _path(text: str, usage: str) -> Path:
    if not text:
        raise ConfigurationError(f"Write {usage}.")
    path = Path(text).expanduser()
    if path.exists():
        return path
    try:
        words = shlex.split(text)  # terminals quote the path of a file that is dropped on them
    except ValueError:
        return path
    return Path(words[0]).expanduser() if len(words) == 1 else path


async def _model(session: Session, text: str) -> str:
    if text:
        await session.switch(text)
        told = f"{session.responder.model} answers from now on.{session.kind}"
        is_unused = session.conversation.system is not None and not session.responder.chats
        return f"{told} The system message is not used." if is_unused else told
    current = session.responder.model
    names = await session.responder.models()
    shown = [f"{'*' if name == current else ' '} {name}" for name in names]
    return "\n".join(shown if current in names else [f"* {current}", *shown])


async def _bye(session: Session, text: str) -> str:
    raise EOFError


COMMANDS: Final = (
    Command(("/help", "/?"), "", "shows this", _help),
    Command(("/clear",), "", "forgets what was said; the system message stays", _clear),
    Command(("/system",), "[TEXT]", 'shows or changes the system message; "" removes it', _system),
    Command(("/set",), "[NAME VALUE]", "shows or changes how answers are drawn", _set),
    Command(("/image",), "FILE", "adds an image to the next message", _image),
    Command(("/model",), "[NAME]", "shows the models there are, or changes to one", _model),
    Command(("/save",), "FILE", "writes the conversation into a JSON file", _save),
    Command(("/load",), "FILE", "goes on with a conversation that was saved", _load),
    Command(("/bye", "/exit", "/quit"), "", "ends the program", _bye),
)


async def run_command(session: Session, message: str) -> str | None:
    """Does what a message says if it is a command.

    Returns:
        What to say to it; None for a message to the model.

    Raises:
        EOFError: the program shall end.
        RocmForgeError: there is no such command, or it cannot be done.
    """
    typed = _COMMAND.match(message)
    if typed is None:
        return None
    known = {name: command for command in COMMANDS for name in command.names}
    if typed[0] not in known:
        hint = did_you_mean(typed[0], known, "/") or HINT
        raise ConfigurationError(f"{typed[0]} is not a command. {hint}")
    command, text = known[typed[0]], message[typed.end() :].strip()
    if text and not command.takes:
        raise ConfigurationError(f"{typed[0]} takes nothing behind it.")
    return await command.act(session, text)
