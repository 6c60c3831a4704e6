"""A prompt as spans: token ids, rows of embeddings that stand in the place of tokens, or images.

An image's patches become rows of embeddings in the engine process: the model's tower makes them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain
from typing import Final

import numpy as np

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.engine.ipc.message import Message
from rocmforge.errors import InvalidParameter
from rocmforge.models.vision.image import ImageTile

_ID_BYTES: Final = 4


class TokenSpan(Message, frozen=True, tag=0):
    """Tokens by their ids. `token_span` makes one."""

    # int32 in native order, at least one: tens of thousands of numbers would take a millisecond
    # each time that they are written, read or looked at.
    data: bytes

    def __len__(self) -> int:
        return len(self.data) // _ID_BYTES

    def __repr__(self) -> str:
        return f"TokenSpan({self.ids})"

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids."""
        return tuple(self.id_array.tolist())

    @property
    def id_array(self) -> Int32Array:
        """The ids, int32 [num_tokens]; read-only."""
        return np.frombuffer(self.data, np.int32)


class EmbeddingSpan(Message, frozen=True, tag=1):
    """Rows that are computed on instead of rows of the embedding table.

    They take a place each in the cache, as tokens do. `embedding_span` makes and checks one.
    """

    # float32 in native order, [num_rows, hidden_size], or [num_rows, parts, hidden_size] for models
    # that take some behind their first layers, too.
    rows: memoryview  # of bytes; nobody changes them
    num_rows: int  # at least one
    # Says which rows these are: spans with one identity have the same rows. The prefix cache takes
    # its word for it.
    identity: bytes
    placeholder: int  # id of the token that the history of the sequence shows in their places
    both_ways: bool = False  # each row sees those behind it in the span, too
    # Rows and columns of them, where positions have axes; (0, 0): they follow each other as tokens.
    grid: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        return f"EmbeddingSpan({self.num_rows} rows, identity={self.identity.hex()})"

    @property
    def ids(self) -> tuple[int, ...]:
        """A placeholder for each row."""
        return (self.placeholder,) * self.num_rows

    @property
    def values(self) -> Float32Array:
        """The rows, float32 [num_rows, hidden_size]; read-only.

        Raises:
            ValueError: the bytes are not so many rows.
        """
        return np.frombuffer(self.rows, np.float32).reshape(self.num_rows, -1)


class ImageSpan(Message, frozen=True, tag=2):
    """A tile of an image, whose rows of embeddings the model's tower makes. `image_span` makes one.

    Before its sequence is scheduled, the engine has an `EmbeddingSpan` in its place.
    """

    patches: bytes  # as of `ImageTile`
    grid: tuple[int, int]  # rows and columns of patches
    num_rows: int  # of embeddings, at least one
    identity: bytes  # says which patches these are, as that of rows does
    placeholder: int  # id of the token that the history of the sequence shows in their places
    both_ways: bool = False  # as of `EmbeddingSpan`
    lines: int = 1  # at least one; of equally many rows
    breaks: tuple[int, ...] = ()  # ids of the tokens behind each line but the last

    def __len__(self) -> int:
        return self.num_rows + len(self.breaks) * (self.lines - 1)

    def __repr__(self) -> str:
        return f"ImageSpan({self.num_rows} rows, identity={self.identity.hex()})"

    @property
    def ids(self) -> tuple[int, ...]:
        """A placeholder for each row, and the tokens between lines."""
        line = (self.placeholder,) * (self.num_rows // self.lines)
        return ((*line, *self.breaks) * self.lines)[: len(self)]


class Prompt(Message, frozen=True):
    """The spans that stand before the first generated token."""

    spans: tuple[TokenSpan | EmbeddingSpan | ImageSpan, ...]  # at least one

    def __len__(self) -> int:
        return sum(map(len, self.spans))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The id at each position, which is a placeholder where a row of embeddings stands."""
        return tuple(chain.from_iterable(span.ids for span in self.spans))

    @property
    def id_array(self) -> Int32Array:
        """The ids at all positions, int32 [len(self)]; perhaps read-only."""
        parts = [
            span.id_array if isinstance(span, TokenSpan) else np.array(span.ids, np.int32)
            for span in self.spans
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def images(self) -> tuple[ImageSpan, ...]:
        """The tiles of images, in their order."""
        return tuple(span for span in self.spans if isinstance(span, ImageSpan))

    @property
    def embeddings(self) -> tuple[tuple[int, EmbeddingSpan], ...]:
        """The spans of embeddings, each with the position of its first row."""
        found, start = [], 0
        for span in self.spans:
            if isinstance(span, EmbeddingSpan):
                found.append((start, span))
            start += len(span)
        return tuple(found)


def image_span(tile: ImageTile, placeholder: int, *, both_ways: bool = False) -> ImageSpan:
    """Makes a span of a tile of an image; tiles with the same patches have one identity.

    Args:
        tile: As the model's processor has made it.
        placeholder: id of the token that the history shows in the places of its rows.
        both_ways: Whether its rows see those behind them in it, too.
    """
    digest = blake2b(repr(tile.grid).encode() + tile.patches, digest_size=16, person=b"image")
    return ImageSpan(
        patches=tile.patches,
        grid=tile.grid,
        num_rows=tile.num_rows,
        identity=digest.digest(),
        placeholder=placeholder,
        both_ways=both_ways,
    )


def token_prompt(ids: Sequence[int]) -> Prompt:
    """Makes a prompt of tokens alone."""
    return Prompt(spans=(token_span(ids),))


def token_span(ids: Sequence[int]) -> TokenSpan:
    """Makes a span of tokens.

    Raises:
        InvalidParameter: an id has more than 32 bits.
    """
    try:
        return TokenSpan(data=array("i", ids).tobytes())
    except OverflowError as error:
        raise InvalidParameter(f"A token id is out of range: {error}.", param="prompt") from None


def embedding_span(rows: Float32Array, placeholder: int, identity: bytes = b"") -> EmbeddingSpan:
    """Makes a span of rows.

    Args:
        rows: [num_rows, hidden_size].
        placeholder: id of the token that the history shows in their places.
        identity: a hash of everything that the rows were made from; b"" = of the rows themselves.

    Raises:
        InvalidParameter: there is no row, or one holds NaN or infinity.
    """
    if rows.ndim != 2 or not rows.size:
        raise InvalidParameter(
            f"Embeddings of shape {rows.shape} are no rows: give a matrix with a row for each "
            "position.",
            param="prompt",
        )
    values = np.ascontiguousarray(rows, np.float32)
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(wrong):
        raise InvalidParameter(
            f"Row {wrong[0]} of {len(values)} rows of embeddings holds NaN or infinity.",
            param="prompt",
        )
    data = values.tobytes()
    return EmbeddingSpan(
        rows=memoryview(data),
        num_rows=len(values),
        identity=identity or blake2b(data, digest_size=16).digest(),
        placeholder=placeholder,
    )
