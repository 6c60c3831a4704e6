"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re
from typing import Final

from rocmforge.errors import ConfigurationError

SIZE_PATTERN: Final = r"^\s*(\d+(?:\.\d+)?) *(?:([KMGTkmgt])(?:[iI]?[bB])?)?\s*$"
"""Matches what `parse_size` takes."""
_UNITS: Final = {"K": 10, "M": 20, "G": 30, "T": 40}


def parse_size(text: str) -> int:
    """Parses bytes of "24GiB", "24G", "512 MiB" or "1000000"; units are powers of 1024.

    Raises:
        ConfigurationError: It is no such size.
    """
    match = re.fullmatch(SIZE_PATTERN, text)
    if match is None:
        raise ConfigurationError(f"{text!r} is not a size. Write it as 24GiB or 512MiB.")
    number, unit = match.groups()
    return int(float(number) * (1 << _UNITS[unit.upper()] if unit else 1))
