"""The data: addresses of images (RFC 2397)."""

from __future__ import annotations

import binascii
from typing import Final

from rocmforge.errors import InvalidParameter

TYPES: Final = ("image/jpeg", "image/png", "image/webp", "image/gif")
_OTHER_NAMES: Final = {"image/jpg": "image/jpeg"}


def is_data(address: str) -> bool:
    """Returns whether an address holds the image itself."""
    return address[:5].lower() == "data:"


def read_data(address: str, max_bytes: int) -> bytes:
    """Returns the file that a data: address holds.

    The file itself says what it is: its declared type must be one of an image, nothing more.

    Raises:
        InvalidParameter: it holds none. The message goes on after "the image".
    """
    head, comma, body = address[5:].partition(",")
    kind, *parameters = head.lower().split(";")
    if not comma or "base64" not in (parameter.strip() for parameter in parameters):
        raise InvalidParameter("must be written as data:image/png;base64,...")
    kind = kind.strip()
    if _OTHER_NAMES.get(kind, kind) not in TYPES:
        known = ", ".join(TYPES)
        raise InvalidParameter(
            f"is {kind[:80]!r}, which is not one of {known}: save it as one of these"
        )
    if 3 * len(body) // 4 > max_bytes + 3:
        raise InvalidParameter(f"has more than {max_bytes:,} bytes")
    try:
        return binascii.a2b_base64(body.strip(), strict_mode=True)
    except (binascii.Error, ValueError):
        return _without_breaks(body)


def _without_breaks(body: str) -> bytes:
    """Returns what base64 in lines stands for: many programs write it so."""
    try:
        return binascii.a2b_base64("".join(body.split()), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidParameter(f"is not valid base64: {error}") from None
