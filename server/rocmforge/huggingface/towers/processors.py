"""The processor of each family that takes images: how its files say that pictures are prepared.

Functions take the configuration of a model, what it says of the tower, with the words and defaults
of `TowerType`, and what the file of the processor says of pictures.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

import msgspec

from rocmforge.huggingface.config.decoders import norm_eps
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind, Resampling
from rocmforge.models.vision.towers import in_whole_numbers

_MOST_PIXELS: Final = 65_536
_MOST_TILES: Final = 64
PIXTRAL_EPS: Final = 1e-5  # of the norms of such a tower; files do not say it
_Colours = tuple[float, float, float]
_HALF: Final = (0.5, 0.5, 0.5)
_CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)


def idefics3(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Idefics3 and SmolVLM."""
    return _as_said(
        pictures,
        ProcessorConfig(
            kind=ProcessorKind.IDEFICS3,
            tile=_edge(pictures, "max_image_size", 364),
            longest_edge=_edge(pictures, "size", 4 * 364),
            splits=pictures.get_bool("do_image_splitting", True),
            resampling=Resampling.LANCZOS,
            merge=config.get_positive("scale_factor", 2),
            patch=vision.get_positive("patch_size"),
            mean=_HALF,
            std=_HALF,
        ),
    )


def gemma3(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Gemma 3, which scales each picture to one tile."""
    if pictures.get_bool("do_pan_and_scan", False):
        raise pictures.bad("do_pan_and_scan", "pictures are not cut into crops")
    tile = _square(pictures, "size", 224)
    rows = config.get_positive("mm_tokens_per_image", 256)
    of_side, side = isqrt(rows), tile // vision.get_positive("patch_size")
    if of_side * of_side != rows or side % of_side:
        raise config.bad("mm_tokens_per_image", f"{side} patches of a side do not make {rows} rows")
    return _as_said(
        pictures,
        ProcessorConfig(
            kind=ProcessorKind.GEMMA3,
            tile=tile,
            resampling=Resampling.BILINEAR,
            merge=side // of_side,
            patch=vision.get_positive("patch_size"),
            mean=_HALF,
            std=_HALF,
        ),
    )


def gemma4(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Gemma 4, which scales each picture to about as many patches.

    Its pixels are not normalised: the tower itself takes them from -1 to 1.
    """
    _check_gemma4(vision, pictures)
    half = {"do_normalize": True, "image_mean": list(_HALF), "image_std": list(_HALF)}
    return _gemma4(vision, pictures.replaced(half), "position_embedding_size")


def gemma4_unified(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Gemma 4 12B, where patches are as large as what becomes a row."""
    _check_gemma4(vision, pictures)
    merge, key = vision.get_positive("pooling_kernel_size"), "model_patch_size"
    patch = vision.get_positive("patch_size") * merge
    if (given := vision.get_positive(key, patch)) != patch:
        raise vision.bad(key, f"{given}, and {merge} patches of a side have {patch} pixels")
    vision = vision.replaced({"patch_size": patch, "pooling_kernel_size": 1})
    none = {"do_normalize": True, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    return in_whole_numbers(_gemma4(vision, pictures.replaced(none), "mm_posemb_size"))


def _check_gemma4(vision: JsonObject, pictures: JsonObject) -> None:
    """Refuses patches that are not those of the tower, and pixels that are normalised."""
    for key, ours in (("patch_size", "patch_size"), ("pooling_kernel_size",) * 2):
        if pictures.get_positive(key, vision.get_positive(ours)) != vision.get_positive(ours):
            raise pictures.bad(key, f"the tower says {vision.get_positive(ours)}")
    if pictures.get_bool("do_normalize", False):
        for key, none in (("image_mean", (0.0, 0.0, 0.0)), ("image_std", (1.0, 1.0, 1.0))):
            if _colours(pictures, key, none) != none:
                raise pictures.bad(key, "pixels of Gemma 4 are not normalised")


def _gemma4(vision: JsonObject, pictures: JsonObject, places: str) -> ProcessorConfig:
    """Reads what all processors of Gemma 4 have; `places` is the key of places of an axis."""
    rows = pictures.get_positive("max_soft_tokens", 280)
    merge = vision.get_positive("pooling_kernel_size")
    if rows * merge > vision.get_positive(places):
        raise vision.bad(places, f"a picture of {rows} rows may have {rows * merge} patches a side")
    found = _as_said(
        pictures,
        ProcessorConfig(
            kind=ProcessorKind.GEMMA4,
            most_rows=rows,
            resampling=Resampling.BICUBIC,
            patch=vision.get_positive("patch_size"),
            merge=merge,
            places=vision.get_positive(places),
            adds_places=True,
            mean=_HALF,
            std=_HALF,
        ),
    )
    if found.most_patches > _MOST_PIXELS:
        raise pictures.bad("max_soft_tokens", f"{found.most_patches} patches of a picture")
    return found


def qwen3(
    config: JsonObject, vision: JsonObject, pictures: JsonObject, patch: int = 16
) -> ProcessorConfig:
    """Reads the processor of Qwen3-VL and Qwen 3.5."""
    usual = {"patch_size": patch, "temporal_patch_size": 2, "spatial_merge_size": 2}
    for key, kept in usual.items():
        theirs = "merge_size" if key == "spatial_merge_size" else key
        if pictures.get_positive(theirs, kept) != vision.get_positive(key):
            raise pictures.bad(theirs, f"the tower says {vision.get_positive(key)} ({key})")
    size = pictures.get_object("size") or pictures.empty("size")
    least = pictures.get_positive("min_pixels", size.get_positive("shortest_edge", 56 * 56))
    most = pictures.get_positive("max_pixels", size.get_positive("longest_edge", 28 * 28 * 1280))
    if not least <= most <= _MOST_PIXELS * 1024:
        raise pictures.bad("size", f"pictures of {least} to {most} pixels")
    places = isqrt(vision.get_positive("num_position_embeddings"))
    return _as_said(
        pictures,
        ProcessorConfig(
            kind=ProcessorKind.QWEN_VL,
            least_pixels=least,
            most_pixels=most,
            resampling=Resampling.BICUBIC,
            merge=vision.get_positive("spatial_merge_size"),
            places=places,
            has_axes=True,
            patch=vision.get_positive("patch_size"),
            mean=_CLIP_MEAN,
            std=_CLIP_STD,
        ),
    )


def qwen2(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Qwen2-VL."""
    # Its patches have no embedding of their place: a table for one place is as good as none.
    return qwen3(config, vision.replaced({"num_position_embeddings": 1}), pictures, 14)


def qwen25(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Qwen2.5-VL, and the windows of its tower."""
    processor, pixels = qwen2(config, vision, pictures), vision.get_positive("window_size")
    window = pixels // (processor.patch * processor.merge)
    if not window:
        raise vision.bad("window_size", f"{pixels} pixels are less than a row of embeddings has")
    return msgspec.structs.replace(processor, window=window)


def pixtral(
    config: JsonObject, vision: JsonObject, pictures: JsonObject, merge: int = 1
) -> ProcessorConfig:
    """Reads the processor of Pixtral, or of Mistral 3, which merges patches."""
    _check_projector(config)
    size = pictures.get_object("size") or pictures.empty("size")
    keys = ("longest_edge",) if size.has("longest_edge") else ("height", "width")
    edges = {size.get_positive(key) if size.has(key) else 1024 for key in keys}
    if len(edges) > 1 or max(edges) > _MOST_PIXELS:
        raise pictures.bad("size", f"the most of each side is one, up to {_MOST_PIXELS} pixels")
    found = _as_said(
        pictures,
        ProcessorConfig(
            kind=ProcessorKind.PIXTRAL,
            longest_edge=max(edges),
            resampling=Resampling.BICUBIC,
            merge=merge,
            places=1,
            patch=vision.get_positive("patch_size"),
            mean=_CLIP_MEAN,
            std=_CLIP_STD,
        ),
    )
    if found.most_patches > _MOST_PIXELS:
        raise pictures.bad("size", f"{found.most_patches} patches; there may be {_MOST_PIXELS}")
    return found


def internvl(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of InternVL, which always cuts pictures into tiles."""
    for key, own, usual in (
        ("vision_feature_layer", -1, -1),
        ("vision_feature_select_strategy", "default", "default"),
        ("projector_hidden_act", "gelu", "gelu"),
        ("downsample_ratio", 0.5, 0.5),
    ):
        config.check_kept(key, own, usual)
    tile = _square(pictures, "size", 384)
    least, most = pictures.get_positive("min_patches", 1), pictures.get_positive("max_patches", 12)
    if not least <= most <= _MOST_TILES:
        raise pictures.bad("max_patches", f"{least} to {most} tiles; there may be {_MOST_TILES}")
    return _as_said(
        pictures,
        ProcessorConfig(
            kind=ProcessorKind.INTERNVL,
            tile=tile,
            splits=most > 1,
            least_tiles=least,
            most_tiles=most,
            resampling=Resampling.BICUBIC,
            merge=2,
            has_class=True,
            patch=vision.get_positive("patch_size"),
            mean=_CLIP_MEAN,
            std=_CLIP_STD,
        ),
    )


def mistral3(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Mistral 3, whose tower has one more norm than Pixtral's."""
    text = config.get_object("text_config") or config.empty("text_config")
    if (eps := norm_eps(text, "rms_norm_eps", PIXTRAL_EPS)) != PIXTRAL_EPS:
        raise text.bad("rms_norm_eps", f"{eps}, and the norms of a tower have {PIXTRAL_EPS}")
    if (merge := config.get_positive("spatial_merge_size", 2)) == 1:
        raise config.bad("spatial_merge_size", "patches are merged in such models")
    return pixtral(config, vision, pictures, merge)


def _check_projector(config: JsonObject) -> None:
    """Refuses a projector of Pixtral's that reads other states or has another activation."""
    is_llava = config.get_str("model_type") == "llava"
    for key, own, usual in (
        ("vision_feature_layer", -1, -2 if is_llava else -1),
        ("vision_feature_select_strategy", "full", "default" if is_llava else "full"),
        ("projector_hidden_act", "gelu", "gelu"),
    ):
        config.check_kept(key, own, usual)


def _as_said(pictures: JsonObject, usual: ProcessorConfig) -> ProcessorConfig:
    """Returns the processor with what the files of all families may say of filter and colours."""
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if not pictures.get_bool(key, True):
            raise pictures.bad(key, "pictures that are not prepared in this way are not read")
    number = pictures.get_int("resample", int(usual.resampling))
    if number not in list(Resampling):
        raise pictures.bad("resample", f"the filter {number} of Pillow is not one that is known")
    return msgspec.structs.replace(
        usual,
        resampling=Resampling(number),
        rescale=pictures.get_float("rescale_factor", usual.rescale),
        mean=_colours(pictures, "image_mean", usual.mean),
        std=_colours(pictures, "image_std", usual.std),
    )


def _square(pictures: JsonObject, key: str, default: int) -> int:
    """Returns the pixels of a side of a tile, at most 65,536."""
    size = pictures.get_object(key)
    sides = {default} if size is None else {size.get_positive(side) for side in ("height", "width")}
    if len(sides) > 1 or max(sides) > _MOST_PIXELS:
        raise pictures.bad(key, f"tiles are squares of at most {_MOST_PIXELS} pixels a side")
    return min(sides)


def _edge(pictures: JsonObject, key: str, default: int) -> int:
    """Returns the pixels of a longest edge, at most 65,536."""
    found = pictures.get_object(key)
    edge = default if found is None else found.get_positive("longest_edge")
    if edge > _MOST_PIXELS:
        raise pictures.bad(key, f"{edge} pixels; there may be {_MOST_PIXELS}")
    return edge


def _colours(pictures: JsonObject, key: str, usual: _Colours) -> _Colours:
    numbers = pictures.get_numbers(key) or usual
    if len(numbers) != 3 or (key == "image_std" and min(numbers) <= 0):
        raise pictures.bad(key, f"{list(numbers)} is not a number for each of three colours")
    return numbers[0], numbers[1], numbers[2]
