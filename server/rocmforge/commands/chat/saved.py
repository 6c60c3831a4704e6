"""Conversations as JSON files: /save and /load."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from rocmforge.commands.chat.conversation import Conversation, Exchange, Turn
from rocmforge.errors import ConfigurationError

MAX_BYTES: Final = 1 << 26
"""No conversation that fits a context is as long."""


class SavedImage(msgspec.Struct, kw_only=True):
    """The address of an image."""

    url: Annotated[str, Meta(pattern="^data:image/")]


class SavedPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of a message with images."""

    type: Literal["image_url", "text"]
    image_url: SavedImage | None = None
    text: str = ""


class SavedMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message as OpenAI's API has it."""

    role: Literal["system", "user", "assistant"]
    content: str | list[SavedPart]
    reasoning_content: str = ""


class SavedConversation(msgspec.Struct, kw_only=True):
    """The content of such a file."""

    format: Literal["rocmforge-conversation"] = "rocmforge-conversation"
    version: Literal[1] = 1
    model: str  # that wrote the last answer
    messages: list[SavedMessage]


def save(conversation: Conversation, model: str, path: Path) -> None:
    """Writes a conversation into a file that only its owner may read. All of it or nothing.

    Raises:
        ConfigurationError: it cannot be written, or there is another file of that name.
    """
    if path.exists():
        try:
            load(path)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{path} is not a saved conversation, so it is not overwritten. Give another name."
            ) from error
    messages = Turn(conversation.show_all(), "").messages[:-1]
    file = SavedConversation(model=model, messages=msgspec.convert(messages, list[SavedMessage]))
    data = msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        try:
            with os.fdopen(handle, "wb") as writing:
                writing.write(data)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink()
            raise
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from error


def load(path: Path) -> Conversation:
    """Reads a conversation that was saved.

    Raises:
        ConfigurationError: the file cannot be read, or holds something else; says what is wrong.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"{path} is not a file.")
        if path.stat().st_size > MAX_BYTES:
            raise ConfigurationError(f"{path} is larger than any conversation: {MAX_BYTES} bytes.")
        file = msgspec.json.decode(path.read_bytes(), type=SavedConversation)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} is not a conversation that /save has written: {error}."
        ) from error
    return _conversation(file.messages, path)


def _conversation(messages: list[SavedMessage], path: Path) -> Conversation:
    """Takes the messages apart: one of the system perhaps, then questions with their answers."""
    system = _text(messages[0]) if messages and messages[0].role == "system" else None
    rest = messages if system is None else messages[1:]
    roles = [message.role for message in rest]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        raise ConfigurationError(
            f"{path}: behind the system message, messages of user and assistant must take turns, "
            "and the last one must be the assistant's."
        )
    return Conversation(
        system=system,
        exchanges=tuple(
            Exchange(_text(question), _text(answer), answer.reasoning_content, _images(question))
            for question, answer in zip(rest[::2], rest[1::2], strict=True)
        ),
    )


def _text(message: SavedMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


def _images(message: SavedMessage) -> tuple[str, ...]:
    parts = [] if isinstance(message.content, str) else message.content
    return tuple(part.image_url.url for part in parts if part.image_url is not None)
