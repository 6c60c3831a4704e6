"""Pictures of odd sizes and modes, and the processors that they are prepared with.

`make_picture_goldens.py` records what Transformers' processors make of them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind, Resampling

_EACH: Final = 200  # pictures of each of `CONFIGS`
SAMPLES: Final = 24
_MODES: Final = ("RGB", "RGBA", "L", "LA", "P", "transparent", "1", "CMYK", "YCbCr", "I;16")
_SIZES: Final = ((1, 1), (1, 300), (300, 1), (2, 3), (64, 64), (65, 64), (1500, 4), (192, 192))
_HALVES: Final[dict[str, Any]] = dict.fromkeys(("mean", "std"), (0.5, 0.5, 0.5))
_OTHERS: Final[dict[str, Any]] = {"mean": (0.48, 0.45, 0.4), "std": (0.27, 0.26, 0.28)}

CONFIGS: Final = (
    ProcessorConfig(
        kind=ProcessorKind.IDEFICS3,
        tile=64,
        longest_edge=192,
        splits=True,
        resampling=Resampling.LANCZOS,
        patch=8,
        merge=2,
        **_HALVES,
    ),
    ProcessorConfig(
        kind=ProcessorKind.IDEFICS3,
        tile=56,
        longest_edge=150,
        splits=False,
        resampling=Resampling.BICUBIC,
        patch=14,
        merge=2,
        **_OTHERS,
    ),
    ProcessorConfig(
        kind=ProcessorKind.GEMMA3,
        tile=56,
        resampling=Resampling.BILINEAR,
        patch=14,
        merge=2,
        **_HALVES,
    ),
    ProcessorConfig(
        kind=ProcessorKind.QWEN_VL,
        least_pixels=2500,
        most_pixels=40_000,
        resampling=Resampling.BICUBIC,
        patch=7,
        merge=2,
        **_OTHERS,
    ),
    ProcessorConfig(
        kind=ProcessorKind.PIXTRAL,
        longest_edge=150,
        resampling=Resampling.BICUBIC,
        patch=7,
        merge=2,
        **_OTHERS,
    ),
    ProcessorConfig(
        kind=ProcessorKind.INTERNVL,
        tile=42,
        splits=True,
        least_tiles=1,
        most_tiles=12,
        resampling=Resampling.BICUBIC,
        patch=7,
        merge=2,
        has_class=True,
        **_OTHERS,
    ),
    ProcessorConfig(
        kind=ProcessorKind.GEMMA4,
        most_rows=70,
        resampling=Resampling.BICUBIC,
        patch=5,
        merge=3,
        places=1024,
        adds_places=True,
        **_HALVES,
    ),
)


COUNT: Final = _EACH * len(CONFIGS)


def picture(number: int) -> tuple[Image.Image, ProcessorConfig]:
    """A picture, and what it is prepared with."""
    rng = np.random.default_rng(number)
    kind, place = divmod(number, _EACH)
    width, height = _SIZES[place] if place < len(_SIZES) else rng.integers(2, 260, 2).tolist()
    mode, config = _MODES[number % len(_MODES)], CONFIGS[kind]
    down, right = np.mgrid[0:height, 0:width] / 60
    waves = [np.sin(rng.uniform(1, 9) * down + rng.uniform(1, 9) * right) for _ in range(4)]
    noise = rng.integers(-40, 40, (height, width, 4))
    values = np.clip(127 + 110 * np.stack(waves, axis=-1) + noise, 0, 255).astype(np.uint8)
    image = Image.fromarray(values)
    if mode == "transparent":
        image = image.convert("RGB").quantize(16)
        image.info["transparency"] = int(values[0, 0, 0]) % 16
    elif mode == "I;16":
        image = Image.fromarray(values[..., 0].astype(np.uint16))
    elif mode != "RGBA":
        image = image.convert("RGB" if mode in ("CMYK", "YCbCr", "P") else mode).convert(mode)
    if number % 7 == 0:
        image.info["icc_profile"] = b"a profile, which processors do not look at"
    return image, config


def sampled(number: int, tiles: npt.NDArray[np.floating[Any]]) -> list[int]:
    """Some of the pixels, 0..255, of tiles [count, 3, height, width]."""
    places = np.random.default_rng((number, 1)).integers(0, tiles.size, SAMPLES)
    return [round(float(value)) for value in tiles.reshape(-1)[places]]


@cache
def goldens() -> list[list[int] | None]:
    """Of each picture: rows and columns of tiles, number of tiles, and samples of pixels.

    None of one that is refused, as too long for its width.
    """
    path = Path(__file__).parents[1] / "goldens/picture_goldens.json"
    found: list[list[int] | None] = json.loads(path.read_text())["pictures"]
    return found
