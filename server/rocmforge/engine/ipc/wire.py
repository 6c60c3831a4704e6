"""Messages as bytes: four bytes of length, little-endian, then msgpack.

Both ends are the same installation, so there is no version; what does not decode means that the
other side is broken, and is an error rather than a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from rocmforge.errors import EngineError

MAX_FRAME_BYTES = 1 << 30
"""Only a prompt's rows of embeddings come near it; `prompt_checks` keeps them within."""
_HEADER_BYTES = 4

M = TypeVar("M")
_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Encodes one message as one frame.

    Raises:
        EngineError: it is larger than a frame may be.
    """
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise EngineError(f"A {type(message).__name__} of {len(payload)} bytes is too large.")
    return len(payload).to_bytes(_HEADER_BYTES, "little") + payload


class FrameReader(Generic[M]):
    """Collects bytes as they come and takes whole messages out of them.

    Args:
        kinds: the union of message types that may arrive.
    """

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kinds)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Takes in bytes and yields the messages they complete.

        Raises:
            EngineError: the bytes are not what `encode` makes.
        """
        self._buffer += data
        start = 0
        try:
            while (end := self._frame_end(start)) <= len(self._buffer):
                frame = bytes(self._buffer[start + _HEADER_BYTES : end])
                start = end
                yield self._decoder.decode(frame)
        except msgspec.MsgspecError as error:
            raise EngineError(f"A message between server and engine is garbled: {error}") from error
        finally:
            del self._buffer[:start]

    def _frame_end(self, start: int) -> int:
        header = self._buffer[start : start + _HEADER_BYTES]
        if len(header) < _HEADER_BYTES:
            return start + _HEADER_BYTES + 1  # more than there is
        length = int.from_bytes(header, "little")
        if length > MAX_FRAME_BYTES:
            raise EngineError(f"A message of {length} bytes between server and engine is refused.")
        return start + _HEADER_BYTES + length
