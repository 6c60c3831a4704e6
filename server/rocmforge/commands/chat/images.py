"""Images of this machine, as messages carry them."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Final

from rocmforge.errors import ConfigurationError

_MAX_BYTES: Final = 32 * 1024 * 1024
_BEGINNINGS: Final = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
)


def is_image(path: Path) -> bool:
    """Returns whether a file begins as an image does; not if it cannot be read."""
    try:
        with path.open("rb") as file:
            return _kind(file.read(12)) is not None
    except OSError:
        return False


def image_address(path: Path) -> str:
    """Returns an image as a data: address.

    Raises:
        ConfigurationError: the file cannot be read, is no image, or is too large.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigurationError(f"{path} is larger than {_MAX_BYTES:,} bytes.")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    kind = _kind(data)
    if kind is None:
        raise ConfigurationError(
            f"{path} is no JPEG, PNG, WebP or GIF image: save it as one of these."
        )
    return f"data:image/{kind};base64,{b64encode(data).decode('ascii')}"


def _kind(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for begin, kind in _BEGINNINGS if data.startswith(begin)), None)
