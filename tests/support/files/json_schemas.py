"""Random JSON schemas."""

from __future__ import annotations

import random
from typing import Any


class RandomSchemas:
    """Schemas of bounded values, from every keyword that the grammar library enforces.

    Args:
        seed: the same seed gives the same schemas.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def schema(self, depth: int = 3) -> dict[str, Any]:
        """A schema nested at most `depth` times."""
        leaves = (
            self._string,
            self._number,
            self._integer,
            self._constant,
            self._simple,
            self._pattern,
        )
        nested = (
            self.object,
            self._array,
            self._tuple,
            self._any_of,
            self._all_of,
            self._reference,
        )
        make = self._random.choice(leaves if depth == 0 else leaves + 2 * nested)
        return make(depth - 1)

    def _simple(self, depth: int) -> dict[str, Any]:
        return {"type": self._random.choice(["boolean", "null", ["boolean", "null"]])}

    def _string(self, depth: int) -> dict[str, Any]:
        least = self._random.randrange(4)
        return {
            "type": "string",
            "minLength": least,
            "maxLength": least + self._random.randrange(5),
        }

    def _pattern(self, depth: int) -> dict[str, Any]:
        pattern = self._random.choice([r"^[a-c]{2,4}$", r"^\d{3}-\d{4}$", r"^(x|yy)?z$", r"^[^a]$"])
        return {"type": "string", "pattern": pattern}

    def _number(self, depth: int) -> dict[str, Any]:
        least = round(self._random.uniform(-50, 50), 1)
        return {"type": "number", "minimum": least, "exclusiveMaximum": least + 20}

    def _integer(self, depth: int) -> dict[str, Any]:
        least = self._random.randrange(-1000, 1000)
        extra = self._random.choice([{}, {"multipleOf": 5}])
        return {"type": "integer", "exclusiveMinimum": least, "maximum": least + 99, **extra}

    def _constant(self, depth: int) -> dict[str, Any]:
        values = ["", 'a"b\\c', "é😀\n", 0, -1.5, True, None, [], {}, ["x", 1], {"k": [None]}]
        chosen = self._random.sample(values, 3)
        return self._random.choice([{"const": chosen[0]}, {"enum": chosen}])

    def object(self, depth: int) -> dict[str, Any]:
        """A schema of an object; some of them do not say whether there may be other fields."""
        names = self._random.sample(["a", "b c", "ключ", 'q"', "long_property_name"], 3)
        return {
            "type": "object",
            "properties": {name: self.schema(depth) for name in names},
            "required": self._random.sample(names, self._random.randrange(4)),
            **self._random.choice([{}, {"additionalProperties": False}]),
        }

    def _array(self, depth: int) -> dict[str, Any]:
        least = self._random.randrange(3)
        return {
            "type": "array",
            "items": self.schema(depth),
            "minItems": least,
            "maxItems": least + self._random.randrange(3),
        }

    def _tuple(self, depth: int) -> dict[str, Any]:
        prefix = [self.schema(depth) for _ in range(2)]
        return {"type": "array", "prefixItems": prefix, "items": False, "minItems": 1}

    def _any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self.schema(depth), self.schema(depth)]}

    def _all_of(self, depth: int) -> dict[str, Any]:
        return {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 30}]}

    def _reference(self, depth: int) -> dict[str, Any]:
        # Names of their own: `#` is the root, wherever this stands.
        return {
            "type": "object",
            "properties": {"value": self.schema(depth)},
            "required": ["value"],
            "additionalProperties": False,
        }


def with_recursion(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in a list that refers to itself."""
    node = {
        "type": "object",
        "properties": {
            "value": schema,
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$defs": {"n": node}, "$ref": "#/$defs/n"}
