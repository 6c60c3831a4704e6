"""Mutated and crafted files of images: each is read or refused, and nothing else happens.

How many is said by $ROCMFORGE_TEST_IMAGES (default: 400, for CI).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rocmforge.errors import InvalidParameter
from rocmforge.pixels.jobs import WorkerLimits
from rocmforge.pixels.readers import ImageReaders
from tests.support.files.pictures import ONE_TILE, encoded, picture, png_chunk, png_of_size

COUNT = int(os.environ.get("ROCMFORGE_TEST_IMAGES", "400"))
GROWTH_KIB = 64 * 1024
PNG_HEAD = 8


def seeds() -> list[bytes]:
    """Small files of every kind that the decoders know."""
    frames = [picture(color=(shade, 9, 9)) for shade in (10, 90, 200)]
    animated: dict[str, Any] = {"save_all": True, "append_images": frames[1:]}
    exif = Image.Exif()
    exif[0x0112] = 6
    return [
        *(encoded(picture(mode=mode)) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
        encoded(picture(mode="P"), transparency=3),
        encoded(frames[0], **animated),
        encoded(exif=exif, icc_profile=bytes(300)),
        *(encoded(picture(mode=mode), "JPEG") for mode in ("L", "RGB", "CMYK")),
        encoded(kind="JPEG", progressive=True, exif=exif, subsampling=2, quality=30),
        encoded(kind="JPEG", restart_marker_rows=1),
        encoded(kind="WebP"),
        encoded(picture(mode="RGBA"), "WebP", lossless=True, exif=exif),
        encoded(frames[0], "WebP", **animated),
        encoded(kind="GIF"),
        encoded(frames[0], "GIF", **animated, interlace=True, transparency=1),
    ]


def crafted() -> list[bytes]:
    """Files that say what is not so, or that want too much."""
    image_data = encoded()[33:]
    return [
        *(png_of_size(*size) for size in ((1, 100_000), (100_000, 1), (2**31 - 1, 2**31 - 1))),
        png_of_size(16_384, 4_096),  # allowed, and 200 MB of which nothing is there
        png_of_size(16_384, 16_384, bytes(1 << 20)),
        encoded()[:PNG_HEAD] + png_chunk(b"IHDR", b"") + image_data,
        encoded()[:33] + png_chunk(b"zTXt", b"a\0\0" + bytes(9)) + image_data,
        encoded()[:33] + png_chunk(b"iCCP", b"a\0\0" + b"x" * 99) + image_data,
        encoded()[:33] + 5_000 * png_chunk(b"tEXt", b"k\0v") + image_data,
        encoded()[:33] + png_chunk(b"acTL", b"\xff" * 8) + image_data,
        b"GIF89a" + b"\xff" * 4 + bytes(3) + b"," + b"\xff" * 8 + bytes(9),
        b"GIF89a\1\0\1\0\0\0\0" + 20_000 * b"!\xfe\1a\0" + b";",
        b"\xff\xd8" + 30_000 * b"\xff\xfe\0\2" + b"\xff\xd9",
        b"\xff\xd8\xff\xc0\0\x11\x08\xff\xff\xff\xff\3\1\x11\0\2\x11\1\3\x11\1",
        b"RIFF\xff\xff\xff\xffWEBPVP8X\x0a\0\0\0\x10\0\0\0" + b"\xff" * 6,
        b"RIFF\x0c\0\0\0WEBPVP8L\0\0\0\0",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF____WEBP",
        b"GIF89a",
    ]


def mutated(data: bytes, randomness: random.Random) -> bytes:
    """A file with damage; half of the PNG files get right checksums again."""
    changed = bytearray(data)
    for _ in range(randomness.choice((1, 1, 2, 4, 16))):
        at = randomness.randrange(len(changed))
        match randomness.randrange(7):
            case 0:
                changed[at] ^= 1 << randomness.randrange(8)
            case 1:
                changed[at] = randomness.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                changed[at : at + 4] = randomness.choice(
                    (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f")
                )
            case 3:
                del changed[at : at + randomness.randrange(1, 40)]
            case 4:
                end = at + randomness.randrange(1, 60)
                changed[at:at] = changed[at:end] * randomness.choice((1, 1, 50))
            case 5:
                changed[at:at] = randomness.randbytes(randomness.randrange(1, 30))
            case 6:
                del changed[max(at, 16) :]
        if len(changed) < 2:
            break
    found = bytes(changed)
    return rechecked(found) if randomness.random() < 0.5 else found


def rechecked(data: bytes) -> bytes:
    """A PNG file whose chunks have right checksums, as far as there are chunks; else the file."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    result, at = data[:PNG_HEAD], PNG_HEAD
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4])
        if at + 12 + length > len(data):
            break
        result += png_chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + length])
        at += 12 + length
    return result + data[at:]


def files(count: int = COUNT) -> Iterator[bytes]:
    """All files of a run, the same each time."""
    yield from crafted()
    randomness = random.Random(19)
    of_kinds = seeds()
    for number in range(count - len(crafted())):
        yield mutated(of_kinds[number % len(of_kinds)], randomness)


def memory_kib(pid: int, line: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split(line)[1].split()[0])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_whatever_a_file_holds_it_is_read_or_refused_by_a_process_that_lives_on() -> None:
    readers = ImageReaders(WorkerLimits(seconds=20), max_kept_bytes=0)
    try:
        for seed in seeds():
            readers.read(seed, ONE_TILE)
        (pid,) = readers.pids
        before = memory_kib(pid, "VmRSS:")
        reasons: Counter[str] = Counter()
        for data in files():
            try:
                found = readers.read(data, ONE_TILE)
            except InvalidParameter as error:
                reasons[error.message.split(":")[0][:40]] += 1
            else:
                assert found.layout.num_rows == 1
                reasons["read"] += 1
        assert readers.pids == (pid,), reasons
        assert memory_kib(pid, "VmRSS:") - before < GROWTH_KIB, reasons
        print(reasons.most_common())
        assert min(reasons["read"], reasons.total() - reasons["read"]) > COUNT // 10, reasons
    finally:
        readers.close()
