"""The defaults of getters that read values of a file by key."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeVar

D = TypeVar("D")


class Required(Enum):
    """Its one member; an enumeration, so that types tell it from every default."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED
"""Stands for "no default": a missing key is an error."""


def given(default: D | Required) -> D:
    """Returns the default of a key that is missing, which raises where there is none."""
    assert not isinstance(default, Required), "the caller has raised for a missing key"
    return default
