"""Messages between the server and a process that reads images: a job, and what came of it.

A message is eight bytes of length, little-endian, and msgpack. Both ends are the same installation.
"""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar

import msgspec

from rocmforge.models.vision.config import ProcessorConfig
from rocmforge.models.vision.image import ProcessedImage

MAX_MESSAGE_BYTES: Final = 1 << 30
_LENGTH_BYTES: Final = 8
_CHUNK_BYTES: Final = 1 << 20

T = TypeVar("T")


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that an image may take."""

    pixels: int = 1 << 26  # 8,192 x 8,192
    side: int = 1 << 14  # in pixels
    seconds: float = 30.0
    memory_bytes: int = 3 << 29  # beside what the process has before


class ReadJob(msgspec.Struct, frozen=True, kw_only=True):
    """An image to be read."""

    data: bytes  # a file
    config: ProcessorConfig
    limits: WorkerLimits


class ReadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The image, or why there is none."""

    image: ProcessedImage | None = None
    problem: str = ""  # what is wrong with the image, as in "is damaged"


def send(file: int, message: msgspec.Struct) -> None:
    """Writes a message to a pipe. Raises OSError if nobody reads there any more."""
    payload = msgspec.msgpack.encode(message)
    rest = memoryview(len(payload).to_bytes(_LENGTH_BYTES, "little") + payload)
    while rest:
        rest = rest[os.write(file, rest[:_CHUNK_BYTES]) :]


def receive(file: int, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Reads a message from a pipe; None if the other side has ended, or writes nonsense."""
    header = _read(file, _LENGTH_BYTES)
    length = int.from_bytes(header, "little")
    if len(header) < _LENGTH_BYTES or length > MAX_MESSAGE_BYTES:
        return None
    payload = _read(file, length)
    if len(payload) < length:
        return None
    try:
        return decoder.decode(payload)
    except msgspec.MsgspecError:
        return None


def decoder_of(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Returns what decodes messages of a kind."""
    return msgspec.msgpack.Decoder[Any](kind)


def _read(file: int, count: int) -> memoryview:
    """Reads so many bytes, or as many as there are before the end."""
    data = memoryview(bytearray(count))
    filled = 0
    while filled < count and (read := os.readv(file, [data[filled:]])):
        filled += read
    return data[:filled]
