"""Metadata values of a GGUF file, and getters that check their types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from rocmforge.checkpoint.required import REQUIRED, Required, given
from rocmforge.errors import BadGguf

MetadataValue: TypeAlias = bool | int | float | str | npt.NDArray[Any] | list[str]
"""A value as the file has it. Arrays of numbers and of bools are read-only NumPy arrays of the
file's own type. Strings that are not UTF-8 hold their odd bytes as surrogate escapes (PEP 383)."""

D = TypeVar("D")
V = TypeVar("V")

_NAMES: Final = {
    bool: "a bool",
    int: "an integer",
    float: "a float",
    str: "a string",
    list: "an array of strings",
    np.ndarray: "an array of integers",
}
"""What values are called in messages, by their type."""


class TypedMetadata:
    """Metadata by key, with getters that raise `BadGguf` naming the key and both types.

    A missing key is an error unless a default is given. A present key must have the type that the
    getter names: integers of any width, floats of any width, never one for the other.
    """

    def __init__(self, path: Path, metadata: Mapping[str, MetadataValue]) -> None:
        self.path = path
        self.metadata = metadata

    def get_bool(self, key: str, default: D | Required = REQUIRED) -> bool | D:
        """Returns the bool under `key`."""
        return self._get(key, bool, default)

    def get_int(self, key: str, default: D | Required = REQUIRED) -> int | D:
        """Returns the integer under `key`."""
        return self._get(key, int, default)

    def get_float(self, key: str, default: D | Required = REQUIRED) -> float | D:
        """Returns the float under `key`."""
        return self._get(key, float, default)

    def get_str(self, key: str, default: D | Required = REQUIRED) -> str | D:
        """Returns the string under `key`; it must be valid UTF-8."""
        value = self._get(key, str, default)
        if isinstance(value, str) and not _is_utf8(value):
            raise BadGguf(str(self.path), f"the string under {key!r} is not UTF-8")
        return value

    def get_ints(
        self, key: str, default: D | Required = REQUIRED
    ) -> npt.NDArray[np.integer[Any]] | D:
        """Returns the array of integers under `key`, of the file's own width, read-only."""
        value = self._get(key, np.ndarray, default)
        if isinstance(value, np.ndarray) and value.dtype.kind not in "iu":
            raise self._wrong_type(key, value, np.ndarray)
        return value

    def get_floats(
        self, key: str, default: D | Required = REQUIRED
    ) -> npt.NDArray[np.floating[Any]] | D:
        """Returns the array of floats under `key`, of the file's own width, read-only."""
        value = self._get(key, np.ndarray, default)
        if isinstance(value, np.ndarray) and value.dtype.kind != "f":
            raise self._wrong_type(key, value, np.ndarray)
        return value

    def get_strs(self, key: str, default: D | Required = REQUIRED) -> list[str] | D:
        """Returns the array of strings under `key`; each must be valid UTF-8."""
        value = self._get(key, list, default)
        if isinstance(value, list) and not _is_utf8("".join(value)):
            index = next(i for i, text in enumerate(value) if not _is_utf8(text))
            raise BadGguf(str(self.path), f"string {index} of the array {key!r} is not UTF-8")
        return value

    def _get(self, key: str, kind: type[V], default: D | Required) -> V | D:
        """Returns the value under `key`, which must be of this kind; a bool is no integer."""
        value = self.metadata.get(key)
        if value is None:
            if default is REQUIRED:
                raise BadGguf(str(self.path), f"the required key {key!r} is missing")
            return given(default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._wrong_type(key, value, kind)
        return value

    def _wrong_type(self, key: str, value: MetadataValue, wanted: type) -> BadGguf:
        return BadGguf(str(self.path), f"{key!r} is {_describe(value)}, expected {_NAMES[wanted]}")


def _is_utf8(text: str) -> bool:
    """Returns False where decoding left surrogate escapes behind."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe(value: MetadataValue) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name}"
    return _NAMES[type(value)]
