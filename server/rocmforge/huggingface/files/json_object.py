"""An object of a JSON file, with getters that check types and name the key when they refuse it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from rocmforge.checkpoint.required import REQUIRED, Required, given
from rocmforge.errors import BadFolder

D = TypeVar("D")


class JsonObject:
    """Values by key. A key that is missing or null has the default; without one it is an error.

    Attributes:
        values: As they were decoded.
    """

    def __init__(self, path: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self.values = values
        self._path = path
        self._prefix = prefix

    def bad(self, key: str, reason: str) -> BadFolder:
        """Returns the error for what stands under `key`."""
        return BadFolder(str(self._path), f"the key {self._prefix + key!r}: {reason}")

    def check_kept(self, key: str, own: object, usual: object) -> None:
        """Refuses any other value under `key` than `own`; one that is missing is the usual one.

        Raises:
            BadFolder: Names the key.
        """
        if (value := self.values.get(key, usual)) != own:
            raise self.bad(key, f"{value!r} is not read; {own!r} is")

    def has(self, *keys: str) -> bool:
        """Returns whether one of the keys is there and not null."""
        return any(self.values.get(key) is not None for key in keys)

    def get_int(self, key: str, default: D | Required = REQUIRED) -> int | D:
        """Returns the integer under `key`; one written as 8.0 counts."""
        value = self._find(key, default)
        if value is None:
            return given(default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type(key, value, "an integer")
        return value

    def get_positive(self, key: str, default: D | Required = REQUIRED) -> int | D:
        """Returns the integer under `key`, which must be above 0 and fit into 32 bits."""
        value = self.get_int(key, default)
        if self.has(key) and isinstance(value, int) and not 0 < value < 1 << 31:
            raise self.bad(key, f"{value} is not between 1 and {(1 << 31) - 1}")
        return value

    def get_float(self, key: str, default: D | Required = REQUIRED) -> float | D:
        """Returns the finite number under `key`."""
        value = self._find(key, default)
        if value is None:
            return given(default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong_type(key, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.bad(key, f"{value} is no finite number")
        return number

    def get_bool(self, key: str, default: D | Required = REQUIRED) -> bool | D:
        """Returns the bool under `key`."""
        value = self._find(key, default)
        if value is None:
            return given(default)
        if not isinstance(value, bool):
            raise self._wrong_type(key, value, "a bool")
        return value

    def get_str(self, key: str, default: D | Required = REQUIRED) -> str | D:
        """Returns the string under `key`."""
        value = self._find(key, default)
        if value is None:
            return given(default)
        if not isinstance(value, str):
            raise self._wrong_type(key, value, "a string")
        return value

    def get_list(self, key: str) -> tuple[object, ...] | None:
        """Returns the list under `key`; None if there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self._wrong_type(key, value, "a list")
        return None if value is None else tuple(value)

    def get_strings(self, key: str) -> tuple[str, ...] | None:
        """Returns the list of strings under `key`; None if there is none."""
        found = self.get_list(key)
        if found is None:
            return None
        strings = tuple(item for item in found if isinstance(item, str))
        if len(strings) != len(found):
            raise self.bad(key, "not all of it are strings")
        return strings

    def get_numbers(self, key: str) -> tuple[float, ...] | None:
        """Returns the list of finite numbers under `key`; None if there is none."""
        found = self.get_list(key)
        if found is None:
            return None
        numbers = tuple(
            float(item)
            for item in found
            if isinstance(item, int | float) and not isinstance(item, bool) and abs(item) < 1e300
        )
        if len(numbers) != len(found):
            raise self.bad(key, "not all of it are numbers")
        return numbers

    def get_object(self, key: str) -> JsonObject | None:
        """Returns the object under `key`; None if there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong_type(key, value, "an object")
        return JsonObject(self._path, value, f"{self._prefix}{key}.")

    def get_objects(self, key: str) -> tuple[JsonObject, ...]:
        """Returns the list of objects under `key`; empty if there is none."""
        found = self.get_list(key) or ()
        objects = tuple(
            JsonObject(self._path, item, f"{self._prefix}{key}.{index}.")
            for index, item in enumerate(found)
            if isinstance(item, dict)
        )
        if len(objects) != len(found):
            raise self.bad(key, "not all of it are objects")
        return objects

    def empty(self, key: str) -> JsonObject:
        """Returns an object without values, as if it stood under `key`."""
        return JsonObject(self._path, {}, f"{self._prefix}{key}.")

    def with_defaults(self, values: Mapping[str, object]) -> JsonObject:
        """Returns the object with these values for keys that are missing; null is a value."""
        return JsonObject(self._path, {**values, **self.values}, self._prefix)

    def replaced(self, values: Mapping[str, object], without: Iterable[str] = ()) -> JsonObject:
        """Returns the object with other values, and without some keys."""
        kept = {key: value for key, value in self.values.items() if key not in without}
        return JsonObject(self._path, {**kept, **values}, self._prefix)

    def _find(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None and default is REQUIRED:
            raise self.bad(key, "it is missing")
        return value

    def _wrong_type(self, key: str, value: object, wanted: str) -> BadFolder:
        return self.bad(key, f"it is of type {type(value).__name__}, not {wanted}")
