"""The keys of a GGUF file of a tower: how images are prepared for it, and its sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np

from rocmforge.errors import BadGguf, UnsupportedArchitecture
from rocmforge.gguf.reader import GgufFile
from rocmforge.models.config import MAX_LAYERS, ActivationFunction, ModelConfig
from rocmforge.models.layer_config import NUM_BOUNDS, LayerConfig
from rocmforge.models.layouts import has_bounds
from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind, Resampling
from rocmforge.models.vision.towers import (
    GEMMA4_UNIFIED,
    WITHOUT_PLACES,
    ReadTower,
    gemma4_tower_config,
    gemma4_unified_config,
    in_whole_numbers,
    pixtral_config,
    qwen_tower_config,
    siglip_config,
)

VISION: Final = "clip.vision."
_MOST_PIXELS: Final = 65_536
_MOST_TILES: Final = 64
_RESAMPLING: Final = MappingProxyType(
    {
        ProcessorKind.IDEFICS3: Resampling.LANCZOS,
        ProcessorKind.GEMMA3: Resampling.BILINEAR,
        ProcessorKind.INTERNVL: Resampling.BICUBIC,
    }
)
_GELUS: Final = MappingProxyType(
    {
        ProcessorKind.INTERNVL: ActivationFunction.GELU,
        ProcessorKind.PIXTRAL: ActivationFunction.GELU,
    }
)
"""Of networks that have another form of it than the one with tanh."""
# Of Gemma 4, files do not say how many rows of embeddings a picture becomes at most.
_GEMMA4_MERGE: Final = 3
_GEMMA4_ROWS: Final = 280
_GEMMA4_PLACES: Final = "v.position_embd.weight"
_GEMMA3_MERGE: Final = 4  # patches of a side that a row is made of, unless a file says so
# Pixels of a picture, where a file does not say it: those of 64 to 4,096 tokens, and of Qwen2-VL
# and Qwen2.5-VL of 4 to 4,096.
_QWEN_PIXELS: Final = (65_536, 4_194_304)
_QWEN2_PIXELS: Final = (3_136, 3_211_264)
_WINDOW: Final = 112
"""Pixels of a side of Qwen2.5-VL's windows, which files do not say."""


def read_processor(file: GgufFile, kind: ProcessorKind, architecture: str) -> ProcessorConfig:
    """Reads how images are prepared; what such files do not say is as the family has it.

    Args:
        file: Of the tower.
        kind: The family's.
        architecture: Of a tower that differs from others of its kind; "" of another.

    Raises:
        BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    if architecture in WITHOUT_PLACES:
        return _qwen2_processor(file, architecture)
    if kind is ProcessorKind.QWEN_VL:
        return _qwen_processor(file)
    if kind is ProcessorKind.PIXTRAL:
        return _pixtral_processor(file)
    if kind is ProcessorKind.GEMMA4:
        return _gemma4_processor(file, is_unified=architecture == GEMMA4_UNIFIED)
    tile, has_tiles = _positive(file, "image_size", _MOST_PIXELS), kind is ProcessorKind.IDEFICS3
    is_internvl = kind is ProcessorKind.INTERNVL
    patch, merge = _positive(file, "patch_size", tile), 2 if is_internvl else _GEMMA3_MERGE
    if has_tiles or f"{VISION}projector.scale_factor" in file.metadata:
        merge = _positive(file, "projector.scale_factor")
    if tile // patch % merge:
        raise BadGguf(str(file.path), f"{tile // patch} patches of a side, {merge} to a row")
    least, most = _tiles(file) if is_internvl else (0, 0)
    return ProcessorConfig(
        kind=kind,
        tile=tile,
        longest_edge=_positive(file, "preproc_image_size", _MOST_PIXELS) if has_tiles else 0,
        splits=has_tiles or most > 1,
        least_tiles=least,
        most_tiles=most,
        has_class=is_internvl,
        resampling=_RESAMPLING[kind],
        patch=patch,
        merge=merge,
        mean=_colours(file, "image_mean"),
        std=_colours(file, "image_std"),
    )


def _qwen_processor(file: GgufFile, pixels: tuple[int, int] = _QWEN_PIXELS) -> ProcessorConfig:
    """Reads the same of Qwen3-VL, whose pictures keep their shape."""
    patch = _positive(file, "patch_size", _MOST_PIXELS)
    merge = _positive(file, "spatial_merge_size") if _has(file, "spatial_merge_size") else 2
    least, most = (
        _positive(file, f"image_{kind}_pixels", _MOST_PIXELS * 1024)
        if _has(file, f"image_{kind}_pixels")
        else usual
        for kind, usual in zip(("min", "max"), pixels, strict=True)
    )
    if least > most:
        raise BadGguf(str(file.path), f"pictures of {least} to {most} pixels")
    return ProcessorConfig(
        kind=ProcessorKind.QWEN_VL,
        least_pixels=least,
        most_pixels=most,
        resampling=Resampling.BICUBIC,
        patch=patch,
        merge=merge,
        places=_positive(file, "image_size", _MOST_PIXELS) // patch,
        has_axes=True,
        mean=_colours(file, "image_mean"),
        std=_colours(file, "image_std"),
    )


def _qwen2_processor(file: GgufFile, architecture: str) -> ProcessorConfig:
    """Reads the same of Qwen2-VL and Qwen2.5-VL, whose towers have no table of places.

    That of Qwen2.5-VL has windows.
    """
    processor = msgspec.structs.replace(_qwen_processor(file, _QWEN2_PIXELS), places=1)
    if architecture == "qwen2vl-tower":
        return processor
    pixels = _positive(file, "window_size") if _has(file, "window_size") else _WINDOW
    window = pixels // (processor.patch * processor.merge)
    if not window:
        reason = f"windows of {pixels} pixels are less than a row of embeddings has"
        raise BadGguf(str(file.path), reason)
    return msgspec.structs.replace(processor, window=window)


def _gemma4_processor(file: GgufFile, *, is_unified: bool) -> ProcessorConfig:
    """Reads the same of Gemma 4, whose tower takes pixels from -1 to 1 of those of a file.

    That of 12B takes them as they are, and patches as large as what becomes a row.
    """
    patch = _positive(file, "patch_size", _MOST_PIXELS)
    key, merge = "projector.scale_factor", _GEMMA4_MERGE
    if _has(file, key):
        merge = _positive(file, key, 16)
    patch, merge = (patch * merge, 1) if is_unified else (patch, merge)
    table = file.tensors.get(_GEMMA4_PLACES)
    places = table.shape[1] if table is not None and len(table.shape) == 3 else 0
    if places < _GEMMA4_ROWS * merge:
        reason = f"{_GEMMA4_PLACES} has {places} places of each axis; {_GEMMA4_ROWS * merge} may be"
        raise BadGguf(str(file.path), reason)
    mean, std = _colours(file, "image_mean"), _colours(file, "image_std")
    red, green, blue = (
        (begin + width / 2, width / 2) for begin, width in zip(mean, std, strict=True)
    )
    processor = ProcessorConfig(
        kind=ProcessorKind.GEMMA4,
        most_rows=_GEMMA4_ROWS,
        resampling=Resampling.BICUBIC,
        patch=patch,
        merge=merge,
        places=places,
        adds_places=True,
        mean=(red[0], green[0], blue[0]),
        std=(red[1], green[1], blue[1]),
    )
    if is_unified:
        return in_whole_numbers(msgspec.structs.replace(processor, mean=mean, std=std))
    return processor


def _pixtral_processor(file: GgufFile) -> ProcessorConfig:
    """Reads the same of Pixtral and Mistral 3."""
    found = ProcessorConfig(
        kind=ProcessorKind.PIXTRAL,
        longest_edge=_positive(file, "image_size", _MOST_PIXELS),
        resampling=Resampling.BICUBIC,
        patch=_positive(file, "patch_size", _MOST_PIXELS),
        merge=_positive(file, "spatial_merge_size") if _has(file, "spatial_merge_size") else 1,
        places=1,
        mean=_colours(file, "image_mean"),
        std=_colours(file, "image_std"),
    )
    if (most := found.most_patches) > _MOST_PIXELS:
        raise BadGguf(str(file.path), f"pictures of {most} patches; there may be {_MOST_PIXELS}")
    return found


def _tiles(file: GgufFile) -> tuple[int, int]:
    """Returns how few and how many tiles InternVL cuts a picture into."""
    least, most = (
        _positive(file, f"preproc_{kind}_tiles") if _has(file, f"preproc_{kind}_tiles") else usual
        for kind, usual in (("min", 1), ("max", 12))
    )
    if not least <= most <= _MOST_TILES:
        raise BadGguf(str(file.path), f"{least} to {most} tiles; there may be {_MOST_TILES}")
    return least, most


def _colours(file: GgufFile, key: str) -> tuple[float, float, float]:
    numbers = file.get_floats(VISION + key).tolist()
    if len(numbers) != 3 or (key == "image_std" and min(numbers) <= 0):
        raise BadGguf(str(file.path), f"{VISION + key!r} is {numbers}: not one for each colour")
    return numbers[0], numbers[1], numbers[2]


def read_config(
    file: GgufFile, processor: ProcessorConfig, embedding_size: int, architecture: str
) -> ModelConfig:
    """Reads the sizes of a tower.

    Args:
        file: Of the tower.
        processor: How images are prepared for it.
        embedding_size: Hidden size of the model.
        architecture: As that of `read_processor`.

    Raises:
        UnsupportedArchitecture: It uses a feature that we do not have.
        BadGguf: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    hidden_size = _positive(file, "embedding_length")
    eps = file.get_float(f"{VISION}attention.layer_norm_epsilon")
    if not 0 < eps < 1:
        raise BadGguf(str(file.path), f"the epsilon of norms is {eps}")
    read = ReadTower(
        name=file.path.stem,
        processor=processor,
        hidden_size=hidden_size,
        embedding_size=embedding_size,
        norm_eps=eps,
    )
    if architecture == GEMMA4_UNIFIED:
        if count := file.get_int(f"{VISION}block_count"):
            raise BadGguf(str(file.path), f"{count} layers in a tower of a kind that has none")
        return gemma4_unified_config(read)
    activation, heads = _activation(file, processor), _positive(file, "attention.head_count")
    if hidden_size % heads:
        raise BadGguf(str(file.path), f"{heads} heads do not divide {hidden_size} features")
    head = hidden_size // heads
    layer = LayerConfig(
        num_heads=heads,
        num_kv_heads=heads,
        key_dim=head,
        value_dim=head,
        attention_scale=1.0 if processor.kind is ProcessorKind.GEMMA4 else head**-0.5,
        intermediate_size=_network_size(file, hidden_size, architecture),
        joint_head_norms=processor.has_class and "v.blk.0.attn_q_norm.weight" in file.tensors,
        bounds=NUM_BOUNDS
        if processor.kind is ProcessorKind.GEMMA4 and has_bounds(_of_pictures(file))
        else 0,
    )
    count = _positive(file, "block_count", MAX_LAYERS)
    if processor.places and head % 4:
        raise BadGguf(str(file.path), f"{head} elements of a head do not rotate by axes")
    read = replace(read, layers=(layer,) * count, activation=activation)
    if architecture:
        merged = hidden_size * processor.merge**2
        # The last of so many layers sees the whole tile.
        period = _positive(file, "n_wa_pattern", MAX_LAYERS) if processor.window else 1
        layers = tuple(
            replace(
                layer,
                merger_features=merged if merges else 0,
                tile_windows=(index + 1) % period > 0,
            )
            for index, merges in enumerate(_merging_layers(file, count))
        )
        return qwen_tower_config(replace(read, layers=layers), architecture)
    if processor.kind is ProcessorKind.PIXTRAL:
        return pixtral_config(read)
    if processor.kind is ProcessorKind.GEMMA4:
        return gemma4_tower_config(read)
    return siglip_config(read)


def _of_pictures(file: GgufFile) -> Iterator[str]:
    """Returns the names of tensors of the tower: there may be one that reads sound beside it."""
    return (name for name in file.tensors if name.startswith("v."))


def _merging_layers(file: GgufFile, count: int) -> list[bool]:
    """Returns whether each layer makes rows for an inner layer of the model beside the tower."""
    flags = file.metadata.get(f"{VISION}is_deepstack_layers")
    if flags is None:
        return [False] * count
    found = [bool(flag) for flag in flags] if isinstance(flags, np.ndarray | list) else []
    if len(found) != count:
        raise BadGguf(str(file.path), f"'{VISION}is_deepstack_layers' is not of {count} layers")
    return found


def _activation(file: GgufFile, processor: ProcessorConfig) -> ActivationFunction:
    """Returns the activation of networks: as in llama.cpp, quick GELU where a file says none."""
    silu, gelu = (file.get_bool(f"clip.use_{name}", False) for name in ("silu", "gelu"))
    if silu and gelu:
        raise BadGguf(str(file.path), "both clip.use_silu and clip.use_gelu are set")
    if processor.kind is ProcessorKind.GEMMA4 and not silu:
        return ActivationFunction.GELU_TANH  # which its files do not say
    if processor.window and not silu:
        raise UnsupportedArchitecture("such a tower without SiLU (clip.use_silu)", ("SiLU",))
    is_gated = processor.window > 0 or processor.kind is ProcessorKind.PIXTRAL
    if silu and not is_gated:
        raise UnsupportedArchitecture("such a tower with SiLU (clip.use_silu)", ("GELU",))
    if is_gated and not silu and not gelu:
        raise UnsupportedArchitecture("a tower without GELU (clip.use_gelu)", ("GELU", "SiLU"))
    if silu:
        return ActivationFunction.SILU
    exact = _GELUS.get(processor.kind, ActivationFunction.GELU_TANH)
    return exact if gelu else ActivationFunction.QUICK_GELU


def _network_size(file: GgufFile, hidden_size: int, architecture: str) -> int:
    """Returns the features between both matrices of a network.

    For Qwen2-VL, converters write some other number under that key, or 0.
    """
    first = file.tensors.get("v.blk.0.ffn_up.weight")
    if architecture == "qwen2vl-tower" and first is not None:
        return max(math.prod(first.shape) // hidden_size, 1)
    return _positive(file, "feed_forward_length")


def _positive(file: GgufFile, key: str, most: int = 1 << 20) -> int:
    """Returns the integer under a key of the tower, which must be in 1..most."""
    value = file.get_int(VISION + key)
    if not 1 <= value <= most:
        raise BadGguf(str(file.path), f"{VISION + key!r} is {value}, not in 1..{most}")
    return value


def _has(file: GgufFile, key: str) -> bool:
    return VISION + key in file.metadata
