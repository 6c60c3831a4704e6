"""Keys of a file's metadata, read and checked."""

from __future__ import annotations

import math

import numpy as np

from rocmforge.errors import BadGguf
from rocmforge.gguf.constants import ARCHITECTURE
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.config import MAX_LAYERS
from rocmforge.models.families import FAMILIES
from rocmforge.models.pooling import PoolingType


def declared_pooling(file: GgufFile) -> PoolingType:
    """Returns what the model was trained for; NONE if the file does not say, or it is unknown."""
    architecture = file.metadata.get(ARCHITECTURE)
    value = file.metadata.get(f"{architecture}.pooling_type")
    if isinstance(value, int) and value in {*PoolingType}:
        return PoolingType(value)
    return PoolingType.NONE


def predicting_layers(file: GgufFile) -> int:
    """Returns how many of the last layers predict further tokens: they are no part of the model."""
    key = f"{file.metadata.get('general.architecture')}.nextn_predict_layers"
    count = file.get_int(key, 0)
    if count < 0:
        raise BadGguf(str(file.path), f"the key {key!r}: {count} is negative")
    return count


class KeyReader:
    """Reads `<architecture>.*` keys; exists to hold the file and its family.

    Raises:
        BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
    """

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._name = file.get_str(ARCHITECTURE)
        self._family = FAMILIES[self._name]
        self._known = tuple(
            name
            for name, family in FAMILIES.items()
            if family.causal == self._family.causal and not family.is_tower
        )

    def _key(self, suffix: str) -> str:
        return f"{self._name}.{suffix}"

    def _bad(self, suffix: str, reason: str) -> BadGguf:
        return BadGguf(str(self._file.path), f"the key {self._key(suffix)!r}: {reason}")

    def _positive(self, suffix: str, default: int | None = None) -> int:
        key = self._key(suffix)
        value = self._file.get_int(key) if default is None else self._file.get_int(key, default)
        if value < 1:
            raise self._bad(suffix, f"{value} is not positive")
        return value

    def _count(self, suffix: str, default: int = 0) -> int:
        """Returns a number that may be 0."""
        count = self._file.get_int(self._key(suffix), default)
        if count < 0:
            raise self._bad(suffix, f"{count} is negative")
        return count

    def _num_layers(self) -> int:
        count = self._positive("block_count")
        if count > MAX_LAYERS:
            raise self._bad("block_count", f"{count} layers; there may be {MAX_LAYERS}")
        return count

    def _vocab_size(self) -> int:
        if "tokenizer.ggml.tokens" not in self._file.metadata:
            return self._positive("vocab_size")
        count = len(self._file.get_strs("tokenizer.ggml.tokens"))
        stated = self._positive("vocab_size", count)
        if stated != count:
            raise self._bad("vocab_size", f"{stated}, but the tokenizer has {count} tokens")
        return count

    def _norm_eps(self, suffix: str) -> float:
        norm_eps = self._file.get_float(self._key(suffix))
        if not 0 < norm_eps < 1:
            raise self._bad(suffix, f"{norm_eps} is not in (0, 1)")
        return norm_eps

    def _rotary_dim(self, head_dim: int) -> int:
        dim = self._positive("rope.dimension_count", head_dim)
        if dim > head_dim or dim % 2:
            raise self._bad("rope.dimension_count", f"{dim} of {head_dim} elements cannot rotate")
        return dim

    def _layer_flags(self, suffix: str, num_layers: int) -> list[bool] | None:
        """Returns a flag for each layer; None if the key does not hold a list."""
        value = self._file.metadata.get(self._key(suffix))
        if not isinstance(value, np.ndarray):
            return None
        if len(value) < num_layers:
            raise self._bad(suffix, f"{len(value)} flags for {num_layers} layers")
        return [bool(flag) for flag in value[:num_layers]]

    def _counts(self, suffix: str, num_layers: int, default: int) -> list[int]:
        """Returns a number of each layer, which may be 0; the key may hold one for all of them."""
        key = self._key(suffix)
        if not isinstance(self._file.metadata.get(key), np.ndarray):
            return [self._positive(suffix, default)] * num_layers
        counts: list[int] = self._file.get_ints(key).tolist()[:num_layers]
        if len(counts) < num_layers or min(counts) < 0:
            raise self._bad(suffix, f"{counts} are no counts for {num_layers} layers")
        return counts

    def _have_networks(self, num_layers: int) -> list[bool]:
        """Returns whether each layer has a feed-forward network or experts."""
        if not self._family.has_one_part:
            return [True] * num_layers
        return [size > 0 for size in self._counts("feed_forward_length", num_layers, 0)]

    def _not_negative(self, suffix: str) -> float:
        value = self._file.get_float(self._key(suffix), 0.0)
        if not 0 <= value < math.inf:
            raise self._bad(suffix, f"{value} is negative or not finite")
        return value
