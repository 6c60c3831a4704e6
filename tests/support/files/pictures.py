"""Files of pictures, made as a test needs them, and a processor that reads them."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from io import BytesIO
from typing import Any, Final

from PIL import Image

from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind, Resampling

ONE_TILE: Final = ProcessorConfig(
    kind=ProcessorKind.GEMMA3,
    tile=8,
    resampling=Resampling.BILINEAR,
    patch=4,
    merge=2,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
"""Whatever the picture, four patches that make one row."""

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def picture(width: int = 24, height: int = 16, mode: str = "RGB", color: Any = None) -> Image.Image:
    """Returns a gradient, or a picture of one colour."""
    if color is not None:
        return Image.new(mode, (width, height), color)
    red = Image.linear_gradient("L").resize((width, height))
    green = red.transpose(Image.Transpose.ROTATE_180)
    return Image.merge("RGB", (red, green, Image.new("L", (width, height), 90))).convert(mode)


def encoded(image: Image.Image | None = None, kind: str = "PNG", **options: Any) -> bytes:
    """Returns the file of a picture."""
    file = BytesIO()
    (image or picture()).save(file, kind, **options)
    return file.getvalue()


def data_address(data: bytes, kind: str = "png") -> str:
    """Returns a data: address of a file."""
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


def png_of_size(width: int, height: int, body: bytes = b"\0" * 64) -> bytes:
    """Returns a PNG file that says it has so many pixels, whatever follows."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(body)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Returns a chunk with a right checksum."""
    checksum = zlib.crc32(kind + data)
    return len(data).to_bytes(4) + kind + data + checksum.to_bytes(4)
