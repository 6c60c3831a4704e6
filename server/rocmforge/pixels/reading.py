"""Files of images become pixels: JPEG, PNG, WebP, and the first frame of GIF.

This runs in a worker process (`pixels.worker`): what decodes a file is C code, and the file may
have been made to break it. A file is given to one of four decoders, which its first bytes choose;
no other decoder of Pillow's is ever asked. Pillow's reader of TIFF is imported for EXIF data, which
are written like it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from typing import Final

import numpy as np
from PIL import ExifTags, Image
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from rocmforge.errors import InvalidParameter
from rocmforge.pixels.jobs import WorkerLimits

_REASON_CHARACTERS: Final = 200

_LOOKED_AT: Final = 1024  # bytes of a file that is not read, to say what it is
_BRANDS: Final = {
    b"avif": "an AVIF image",
    b"avis": "an AVIF animation",
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1"), "a HEIC image"),
}
"""Files that begin like films, by their kind."""
_BEGINNINGS: Final = (
    (b"%PDF-", "a PDF document"),
    (b"BM", "a BMP image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (b"<!doctype html", "an HTML page"),
    (b"<!DOCTYPE html", "an HTML page"),
    (b"<html", "an HTML page"),
)

_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns an image the right way up, by the orientation that its EXIF data state."""


def read_image(data: bytes, limits: WorkerLimits) -> Image.Image:
    """Decodes a file.

    Args:
        data: the file.
        limits: what is refused before a pixel of it is decoded.

    Returns:
        The image in any mode of 8 bits, the right way up; of an animation, the first frame.

    Raises:
        InvalidParameter: the file is of another format, is damaged or too large. The message goes
            on after "the image": "is ...", "has ...".
        MemoryError: decoding takes more than the process may have.
    """
    with warnings.catch_warnings(action="ignore"):  # of what is odd in a file
        return _read(data, limits)


def _read(data: bytes, limits: WorkerLimits) -> Image.Image:
    name, decoder = _decoder_of(data)
    try:
        image = decoder(BytesIO(data))
        _check_size(image, limits)
        image.load()
    except (InvalidParameter, MemoryError):
        raise
    except Exception as error:  # decoders raise anything
        reason = str(error)[:_REASON_CHARACTERS] or type(error).__name__
        raise InvalidParameter(f"is a damaged {name} file: {reason}") from error
    turn = _UPRIGHT.get(_orientation(image))
    shown = _of_8_bits(image) if image.mode.startswith("I") else image
    return shown if turn is None else shown.transpose(turn)


def _decoder_of(data: bytes) -> tuple[str, Callable[[BytesIO], ImageFile]]:
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG", JpegImageFile
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG", PngImageFile
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF", GifImageFile
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP", WebPImageFile
    if not data:
        raise InvalidParameter("is an empty file")
    if (name := _other_format(data)) is not None:
        raise InvalidParameter(f"is {name}, which is not read: save it as PNG or JPEG")
    raise InvalidParameter("is not of a known format: it must be a JPEG, PNG, WebP or GIF file")


def _other_format(data: bytes) -> str | None:
    """Returns what a file is that people take for one of an image that is read."""
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "a film")
    start = data[:_LOOKED_AT].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith((b"<svg", b"<?xml")) and b"<svg" in data[:_LOOKED_AT]:
        return "an SVG drawing"
    return next((name for begin, name in _BEGINNINGS if start.startswith(begin)), None)


def _check_size(image: ImageFile, limits: WorkerLimits) -> None:
    width, height = image.size
    if min(image.size) < 1:
        raise InvalidParameter("has no pixels")
    if max(image.size) > limits.side:
        raise InvalidParameter(
            f"has {width} x {height} pixels, but no side may have more than {limits.side}"
        )
    if width * height > limits.pixels:
        raise InvalidParameter(
            f"has {width} x {height} pixels, but no more than {limits.pixels:,} are read"
        )


def _orientation(image: ImageFile) -> int:
    """Returns what the EXIF data say; of damaged ones, that the image is upright."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _of_8_bits(image: Image.Image) -> Image.Image:
    """Returns the upper bits of grey of 16 bits, which Pillow would cut off at 255."""
    grey = np.asarray(image.convert("I")) >> 8
    return Image.fromarray(grey.astype(np.uint8))
