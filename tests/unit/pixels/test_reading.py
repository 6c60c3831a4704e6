"""Files of images as pixels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rocmforge.errors import InvalidParameter
from rocmforge.pixels.jobs import WorkerLimits
from rocmforge.pixels.reading import read_image
from tests.support.files.pictures import BLUE, GREEN, RED, encoded, picture, png_of_size

LIMITS = WorkerLimits(pixels=1_000_000, side=2_000)


def read(data: bytes) -> Image.Image:
    return read_image(data, LIMITS)


def corner_colours(image: Image.Image) -> list[tuple[int, ...]]:
    """The colours of the top left, top right and bottom left corner."""
    shown = image.convert("RGB")
    places = ((0, 0), (image.width - 1, 0), (0, image.height - 1))
    return [shown.getpixel(place) for place in places]  # type: ignore[misc]


def marked() -> Image.Image:
    """A picture whose corners differ."""
    image = picture(32, 16, color=(200, 200, 200))
    for colour, place in ((RED, (0, 0)), (GREEN, (16, 0)), (BLUE, (0, 8))):
        image.paste(colour, (*place, place[0] + 16, place[1] + 8))
    return image


@pytest.mark.parametrize("kind", ["PNG", "WebP", "GIF"])
def test_formats_without_loss_give_the_pixels_that_were_saved(kind: str) -> None:
    image = marked()
    found = read(encoded(image, kind, **({"lossless": True} if kind == "WebP" else {})))
    assert np.array_equal(np.asarray(found.convert("RGB")), np.asarray(image))


def test_a_jpeg_gives_nearly_the_pixels_that_were_saved() -> None:
    image = picture(64, 64)
    found = read(encoded(image, "JPEG", quality=95))
    difference = np.asarray(found, np.int32) - np.asarray(image, np.int32)
    assert abs(difference).max() <= 12


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
def test_an_image_stands_upright_whatever_its_orientation(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = marked() if turned is None else marked().transpose(turned)
    found = read(encoded(stored, kind, exif=exif, quality=95))
    assert found.size == (32, 16)
    for colour, wanted in zip(corner_colours(found), (RED, GREEN, BLUE), strict=True):
        assert np.abs(np.subtract(colour, wanted)).max() < 80, (colour, wanted)


def test_damaged_exif_data_leave_an_image_as_it_is() -> None:
    assert read(encoded(marked(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")).size == (32, 16)


def test_an_animation_gives_its_first_frame() -> None:
    frames = [picture(color=colour) for colour in (RED, GREEN)]
    found = read(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert corner_colours(found)[0] == RED


def test_grey_of_16_bits_keeps_its_upper_ones() -> None:
    values = np.array([[0x0000, 0x80FF, 0xFFFF]], np.uint16)
    assert np.asarray(read(encoded(Image.fromarray(values)))).tolist() == [[0x00, 0x80, 0xFF]]


def test_transparency_is_kept_for_the_processor() -> None:
    found = read(encoded(picture(mode="RGBA", color=(255, 0, 0, 0))))
    assert found.mode == "RGBA"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is an empty file"),
        (b"PK" + bytes(100), "is not of a known format"),
        (b"\0\0\0\x18ftypheic" + bytes(99), "is a HEIC image.* save it as PNG or JPEG"),
        (b"\0\0\0\x1cftypavif" + bytes(99), "is an AVIF image"),
        (b"\0\0\0\x20ftypisom" + bytes(99), "is a film"),
        (b"<svg/>", "is an SVG drawing"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- -->\n<svg/>", "is an SVG drawing"),
        (b"<?xml version='1.0'?><kml/>", "is not of a known format"),
        (b"%PDF-1.7", "is a PDF document"),
        (b"\n<!DOCTYPE html>", "is an HTML page"),
        (b"\xff\x0a" + bytes(9), "is a JPEG XL image"),
        (b"BM" + bytes(100), "is a BMP image"),
        (encoded(kind="TIFF"), "is a TIFF image"),
        (encoded()[:60], "is a damaged PNG file"),
        (encoded(picture(200, 200), "JPEG")[:-200], "is a damaged JPEG file"),
        (encoded(kind="GIF")[:20], "is a damaged GIF file"),
        (encoded(kind="WebP")[:20], "is a damaged WebP file"),
        (png_of_size(1, 100_000), "no side may have more than 2000"),
        (png_of_size(1_500, 1_500), "no more than 1,000,000 are read"),
        (png_of_size(0, 5), "is a damaged PNG file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        read(data)


def test_no_other_decoder_is_imported_whatever_is_read(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds = ("PNG", "JPEG", "WebP", "GIF")
    files = [encoded(picture(), kind, exif=exif) for kind in kinds]  # a GIF has none
    for number, data in enumerate([*files, b"BM" + bytes(60), encoded(kind="TIFF")]):
        (tmp_path / f"{number}").write_bytes(data)
    program = (
        "import sys, pathlib, rocmforge.pixels.worker\n"
        "from rocmforge.errors import InvalidParameter\n"
        "from rocmforge.pixels.jobs import WorkerLimits\n"
        "from rocmforge.pixels.reading import read_image\n"
        f"for path in sorted(pathlib.Path({str(tmp_path)!r}).iterdir()):\n"
        "    try:\n"
        "        read_image(path.read_bytes(), WorkerLimits()).convert('RGB').resize((4, 4))\n"
        "    except InvalidParameter as error:\n"
        "        assert 'which is not read' in error.message\n"
        "print(*[name for name in sys.modules if name.endswith('ImagePlugin')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names = ("Jpeg", "Png", "Gif", "WebP", "Tiff")  # the last one reads EXIF data
    assert set(found.stdout.split()) == {f"PIL.{name}ImagePlugin" for name in names}
