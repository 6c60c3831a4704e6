"""The configuration of a tower and of its processor: a row for each family that takes images.

What a file leaves out has the default of Transformers' classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from types import MappingProxyType
from typing import Final

import msgspec

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.huggingface.config.decoders import activation, norm_eps, num_layers
from rocmforge.huggingface.config.heads import read_layer
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.vision.config import (
    ProcessorConfig,
    ProcessorKind,
    Resampling,
    VisionConfig,
)
from rocmforge.models.vision.towers import (
    pixtral_config,
    qwen_tower_config,
    siglip_config,
    vision_config,
)

_MOST_PIXELS: Final = 65_536
_MOST_TILES: Final = 64
_SIDES: Final = ("image_size", "patch_size")
_QK_EPS: Final = 1e-6  # of the norms of queries and keys in InternVL's tower of 6B
_PIXTRAL_EPS: Final = 1e-5  # of the norms of such a tower; files do not say it
_GELUS: Final = (
    ActivationFunction.GELU,
    ActivationFunction.GELU_TANH,
    ActivationFunction.QUICK_GELU,
)
_Colours = tuple[float, float, float]
_HALF: Final = (0.5, 0.5, 0.5)
_CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
_SIGLIP: Final = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerType:
    """One row: how a family's files describe images."""

    processor: Callable[[JsonObject, JsonObject, JsonObject], ProcessorConfig]
    tower: Callable[[JsonObject, str, ProcessorConfig, int], ModelConfig]
    defaults: Mapping[str, object]  # of the tower, by Transformers' class
    placeholder_key: str
    placeholder: int  # where a file leaves it out
    kind: str = ""  # the `model_type` of its towers, if the family has others, too
    in_our_words: Callable[[JsonObject], JsonObject] = lambda vision: vision


def read_tower(
    config: JsonObject, folder: Folder, embedding_size: int
) -> tuple[VisionConfig, ModelConfig] | None:
    """Reads how a model takes images, and its tower.

    Args:
        config: Of the folder.
        folder: Which has the file of the processor, too.
        embedding_size: The hidden size of the model.

    Returns:
        None if it takes none: no family with a tower, or no file says what its processor does.

    Raises:
        UnsupportedArchitecture: It uses a feature that we do not have.
        BadFolder: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    row, vision = TOWERS.get(config.get_str("model_type")), config.get_object("vision_config")
    pictures = _processor_file(folder)
    if row is None or vision is None or pictures is None:
        return None
    if (kind := vision.get_str("model_type", row.kind)) != row.kind and row.kind:
        raise UnsupportedArchitecture(f"a tower of the type {kind}", (row.kind,))
    vision = row.in_our_words(vision.with_defaults(row.defaults))
    processor = row.processor(config, vision, pictures)
    model = row.tower(vision, f"{folder.name} (tower)", processor, embedding_size)
    placeholder = config.get_int(row.placeholder_key, row.placeholder)
    return vision_config(processor, placeholder), model


def _processor_file(folder: Folder) -> JsonObject | None:
    """Returns what a processor does with pictures, in either of the files that may say it."""
    whole = folder.json("processor_config.json")
    own = None if whole is None else whole.get_object("image_processor")
    return own or folder.json("preprocessor_config.json")


def _activation(vision: JsonObject, known: tuple[ActivationFunction, ...]) -> ActivationFunction:
    """Returns the activation of networks, which must be one of those that are known."""
    key, default = "hidden_act", "gelu_pytorch_tanh"
    if vision.get_str(key, default) == ActivationFunction.QUICK_GELU:  # no model of text has it
        act = ActivationFunction.QUICK_GELU
    else:
        act = activation(vision, key, default)
    if act not in known:
        raise UnsupportedArchitecture(f"a tower with the activation {act}", known)
    return act


def _siglip(
    vision: JsonObject, name: str, processor: ProcessorConfig, embedding_size: int
) -> ModelConfig:
    """Reads a tower of the kind of SigLIP."""
    act = _activation(vision, _GELUS)
    side = vision.get_positive("image_size") // processor.patch
    if processor.tile // processor.patch != side:
        raise vision.bad("image_size", f"tiles of its processor have {processor.tile} pixels")
    if not side or side % processor.merge:
        raise vision.bad("image_size", f"{side} patches of a side, {processor.merge} to a row")
    layer = replace(
        read_layer(vision),
        intermediate_size=vision.get_positive("intermediate_size"),
        joint_head_norms=vision.get_bool("use_qk_norm", False) and processor.has_class,
    )
    return siglip_config(
        name,
        processor,
        (layer,) * num_layers(vision),
        hidden_size=vision.get_positive("hidden_size"),
        embedding_size=embedding_size,
        norm_eps=norm_eps(vision, "layer_norm_eps", 1e-6),
        activation=act,
    )


def _idefics3(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Idefics3 and SmolVLM."""
    return _processor(
        pictures,
        vision,
        kind=ProcessorKind.IDEFICS3,
        tile=_edge(pictures, "max_image_size", 364),
        longest_edge=_edge(pictures, "size", 4 * 364),
        splits=pictures.get_bool("do_image_splitting", True),
        resampling=Resampling.LANCZOS,
        merge=config.get_positive("scale_factor", 2),
    )


def _gemma3(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Gemma 3, which scales each picture to one tile."""
    if pictures.get_bool("do_pan_and_scan", False):
        raise pictures.bad("do_pan_and_scan", "pictures are not cut into crops")
    tile = _square(pictures, "size", 224)
    rows = config.get_positive("mm_tokens_per_image", 256)
    of_side, side = isqrt(rows), tile // vision.get_positive("patch_size")
    if of_side * of_side != rows or side % of_side:
        raise config.bad("mm_tokens_per_image", f"{side} patches of a side do not make {rows} rows")
    return _processor(
        pictures,
        vision,
        kind=ProcessorKind.GEMMA3,
        tile=tile,
        resampling=Resampling.BILINEAR,
        merge=side // of_side,
    )


def _qwen(
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
    return _processor(
        pictures,
        vision,
        kind=ProcessorKind.QWEN_VL,
        least_pixels=least,
        most_pixels=most,
        resampling=Resampling.BICUBIC,
        merge=vision.get_positive("spatial_merge_size"),
        colours=(_CLIP_MEAN, _CLIP_STD),
        places=places,
        has_axes=True,
    )


def _qwen2(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Qwen2-VL."""
    # Its patches have no embedding of their place: a table for one place is as good as none.
    return _qwen(config, vision.replaced({"num_position_embeddings": 1}), pictures, 14)


def _qwen2_vision(vision: JsonObject) -> JsonObject:
    """Returns what files say of Qwen2-VL's tower, in the words of those after it."""
    size, ratio = vision.get_positive("embed_dim"), vision.get_positive("mlp_ratio")
    out_size = vision.get_positive("hidden_size")
    sizes = {"hidden_size": size, "out_hidden_size": out_size, "intermediate_size": ratio * size}
    return vision.replaced(sizes)


def _qwen25(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of Qwen2.5-VL, and the windows of its tower."""
    processor, pixels = _qwen2(config, vision, pictures), vision.get_positive("window_size")
    window = pixels // (processor.patch * processor.merge)
    if not window:
        raise vision.bad("window_size", f"{pixels} pixels are less than a row of embeddings has")
    return msgspec.structs.replace(processor, window=window)


def _qwen_tower(
    vision: JsonObject,
    name: str,
    processor: ProcessorConfig,
    embedding_size: int,
    architecture: str = "qwen3vl-tower",
) -> ModelConfig:
    """Reads the tower of any of Qwen's: without another name, that of Qwen3-VL and Qwen 3.5."""
    own = {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"}
    vision = vision.replaced({ours: vision.get_positive(theirs) for ours, theirs in own.items()})
    act = _activation(vision, (ActivationFunction.SILU,) if processor.window else _GELUS)
    if (size := vision.get_positive("out_hidden_size")) != embedding_size:
        key = "hidden_size" if architecture == "qwen2vl-tower" else "out_hidden_size"
        raise vision.bad(key, f"{size}, and the model has {embedding_size}")
    hidden_size = vision.get_positive("hidden_size")
    layer = replace(read_layer(vision), intermediate_size=vision.get_positive("intermediate_size"))
    if layer.key_dim % 4:
        raise vision.bad("num_heads", f"{layer.key_dim} elements of a head do not rotate by axes")
    layers, merged = [layer] * num_layers(vision), hidden_size * processor.merge**2
    indices = vision.get_numbers("deepstack_visual_indexes") or ()
    if list(indices) != sorted(set(indices) & set(range(len(layers)))):
        raise vision.bad("deepstack_visual_indexes", f"{list(indices)} of {len(layers)} layers")
    for index in map(int, indices):
        layers[index] = replace(layer, merger_features=merged)
    if processor.window:
        key = "fullatt_block_indexes"
        seeing_all = vision.get_numbers(key) or ()
        if not set(seeing_all) <= set(range(len(layers))):
            raise vision.bad(key, f"{list(seeing_all)} of {len(layers)} layers")
        layers = [
            replace(layer, tile_windows=index not in seeing_all)
            for index, layer in enumerate(layers)
        ]
    return qwen_tower_config(
        name,
        processor,
        tuple(layers),
        architecture=architecture,
        hidden_size=hidden_size,
        embedding_size=embedding_size,
        norm_eps=1e-6,
        activation=act,
    )


def _pixtral(
    config: JsonObject, vision: JsonObject, pictures: JsonObject, merge: int = 1
) -> ProcessorConfig:
    """Reads the processor of Pixtral, or of Mistral 3, which merges patches."""
    _check_projector(config)
    size = pictures.get_object("size") or pictures.empty("size")
    keys = ("longest_edge",) if size.has("longest_edge") else ("height", "width")
    edges = {size.get_positive(key) if size.has(key) else 1024 for key in keys}
    if len(edges) > 1 or max(edges) > _MOST_PIXELS:
        raise pictures.bad("size", f"the most of each side is one, up to {_MOST_PIXELS} pixels")
    found = _processor(
        pictures,
        vision,
        kind=ProcessorKind.PIXTRAL,
        longest_edge=max(edges),
        resampling=Resampling.BICUBIC,
        merge=merge,
        colours=(_CLIP_MEAN, _CLIP_STD),
        places=1,
    )
    if found.most_patches > _MOST_PIXELS:
        raise pictures.bad("size", f"{found.most_patches} patches; there may be {_MOST_PIXELS}")
    return found


def _internvl(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the processor of InternVL, which always cuts pictures into tiles."""
    for key, own, usual in (
        ("vision_feature_layer", -1, -1),
        ("vision_feature_select_strategy", "default", "default"),
        ("projector_hidden_act", "gelu", "gelu"),
        ("downsample_ratio", 0.5, 0.5),
    ):
        _check_kept(config, key, own, usual)
    tile = _square(pictures, "size", 384)
    least, most = pictures.get_positive("min_patches", 1), pictures.get_positive("max_patches", 12)
    if not least <= most <= _MOST_TILES:
        raise pictures.bad("max_patches", f"{least} to {most} tiles; there may be {_MOST_TILES}")
    return _processor(
        pictures,
        vision,
        kind=ProcessorKind.INTERNVL,
        tile=tile,
        splits=most > 1,
        least_tiles=least,
        most_tiles=most,
        resampling=Resampling.BICUBIC,
        merge=2,
        colours=(_CLIP_MEAN, _CLIP_STD),
        has_class=True,
    )


def _internvl_vision(vision: JsonObject) -> JsonObject:
    """Returns what files say of InternVL's tower, in the words of others."""
    has_norms = vision.get_bool("use_qk_norm", False)
    for key, own, usual in (
        ("norm_type", "rms_norm" if has_norms else "layer_norm", "layer_norm"),
        ("use_mean_pooling", True, True),
        ("use_absolute_position_embeddings", True, True),
    ):
        _check_kept(vision, key, own, usual)
    if has_norms and (eps := norm_eps(vision, "layer_norm_eps", _QK_EPS)) != _QK_EPS:
        raise vision.bad("layer_norm_eps", f"{eps}, and norms of queries and keys have {_QK_EPS}")
    sides = {key: vision.get_numbers(key) for key in _SIDES if isinstance(vision.values[key], list)}
    for key, numbers in sides.items():
        if not numbers or len(set(numbers)) != 1:
            raise vision.bad(key, "tiles and patches are squares")
    return vision.replaced({key: int(numbers[0]) for key, numbers in sides.items() if numbers})


def _check_kept(config: JsonObject, key: str, own: object, usual: object) -> None:
    """Refuses what is not computed in any other way."""
    if (value := config.values.get(key, usual)) != own:
        raise config.bad(key, f"{value!r} is not read; {own!r} is")


def _mistral3(config: JsonObject, vision: JsonObject, pictures: JsonObject) -> ProcessorConfig:
    """Reads the same of Mistral 3, whose tower has one more norm than Pixtral's."""
    text = config.get_object("text_config") or config.empty("text_config")
    if (eps := norm_eps(text, "rms_norm_eps", _PIXTRAL_EPS)) != _PIXTRAL_EPS:
        raise text.bad("rms_norm_eps", f"{eps}, and the norms of a tower have {_PIXTRAL_EPS}")
    if (merge := config.get_positive("spatial_merge_size", 2)) == 1:
        raise config.bad("spatial_merge_size", "patches are merged in such models")
    return _pixtral(config, vision, pictures, merge)


def _pixtral_tower(
    vision: JsonObject, name: str, processor: ProcessorConfig, embedding_size: int
) -> ModelConfig:
    """Reads the tower of Pixtral and Mistral 3."""
    act = activation(vision, "hidden_act", "gelu")
    layer = replace(read_layer(vision), intermediate_size=vision.get_positive("intermediate_size"))
    if layer.key_dim % 4:
        raise vision.bad("num_attention_heads", f"heads of {layer.key_dim} do not rotate by axes")
    rope = vision.get_object("rope_parameters") or vision
    if (theta := rope.get_float("rope_theta", 10000.0)) <= 1:
        raise rope.bad("rope_theta", f"{theta} is no base of frequencies")
    return pixtral_config(
        name,
        processor,
        (layer,) * num_layers(vision),
        hidden_size=vision.get_positive("hidden_size"),
        embedding_size=embedding_size,
        norm_eps=_PIXTRAL_EPS,
        activation=act,
        theta=theta,
    )


def _check_projector(config: JsonObject) -> None:
    """Refuses a projector of Pixtral's that reads other states or has another activation."""
    is_llava = config.get_str("model_type") == "llava"
    for key, own, usual in (
        ("vision_feature_layer", -1, -2 if is_llava else -1),
        ("vision_feature_select_strategy", "full", "default" if is_llava else "full"),
        ("projector_hidden_act", "gelu", "gelu"),
    ):
        _check_kept(config, key, own, usual)


def _processor(
    pictures: JsonObject,
    vision: JsonObject,
    *,
    kind: ProcessorKind,
    tile: int = 0,
    longest_edge: int = 0,
    splits: bool = False,
    least_tiles: int = 0,
    most_tiles: int = 0,
    least_pixels: int = 0,
    most_pixels: int = 0,
    resampling: Resampling,
    merge: int,
    colours: tuple[_Colours, _Colours] = (_HALF, _HALF),
    places: int = 0,
    has_class: bool = False,
    has_axes: bool = False,
) -> ProcessorConfig:
    """Reads what the processors of all families have.

    Resampling is that by default, and so are the mean and the deviation of colours.
    """
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if not pictures.get_bool(key, True):
            raise pictures.bad(key, "pictures that are not prepared in this way are not read")
    number = pictures.get_int("resample", int(resampling))
    if number not in list(Resampling):
        raise pictures.bad("resample", f"the filter {number} of Pillow is not one that is known")
    return ProcessorConfig(
        kind=kind,
        tile=tile,
        longest_edge=longest_edge,
        splits=splits,
        least_tiles=least_tiles,
        most_tiles=most_tiles,
        least_pixels=least_pixels,
        most_pixels=most_pixels,
        resampling=Resampling(number),
        patch=vision.get_positive("patch_size"),
        merge=merge,
        places=places,
        has_class=has_class,
        has_axes=has_axes,
        rescale=pictures.get_float("rescale_factor", 1 / 255),
        mean=_colours(pictures, "image_mean", colours[0]),
        std=_colours(pictures, "image_std", colours[1]),
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


_IDEFICS3: Final = TowerType(
    processor=_idefics3,
    tower=_siglip,
    defaults=_SIGLIP,
    placeholder_key="image_token_id",
    placeholder=128257,
)

_GEMMA3: Final = TowerType(
    processor=_gemma3,
    tower=_siglip,
    defaults=_SIGLIP | {"hidden_size": 768, "num_attention_heads": 12, "patch_size": 16},
    placeholder_key="image_token_index",
    placeholder=262144,
)

_QWEN3: Final = TowerType(
    processor=_qwen,
    tower=_qwen_tower,
    defaults={
        "depth": 27,
        "hidden_size": 1152,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 3584,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
    placeholder_key="image_token_id",
    placeholder=151655,
)
_QWEN2: Final = TowerType(
    processor=_qwen2,
    tower=partial(_qwen_tower, architecture="qwen2vl-tower"),
    defaults={
        "depth": 32,
        "embed_dim": 1280,
        "hidden_size": 3584,
        "hidden_act": "quick_gelu",
        "mlp_ratio": 4,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    placeholder_key="image_token_id",
    placeholder=151655,
    in_our_words=_qwen2_vision,
)
_QWEN25: Final = TowerType(
    processor=_qwen25,
    tower=partial(_qwen_tower, architecture="qwen25vl-tower"),
    defaults={
        "depth": 32,
        "hidden_size": 3584,
        "hidden_act": "silu",
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "out_hidden_size": 3584,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
    placeholder_key="image_token_id",
    placeholder=151655,
)
_QWEN35: Final = replace(
    _QWEN3,
    defaults={**_QWEN3.defaults, "deepstack_visual_indexes": []},
    placeholder=248056,
)

_PIXTRAL: Final = TowerType(
    processor=_pixtral,
    tower=_pixtral_tower,
    defaults={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "patch_size": 16,
        "hidden_act": "gelu",
    },
    placeholder_key="image_token_index",
    placeholder=32000,
    kind="pixtral",
)
_MISTRAL3: Final = replace(
    _PIXTRAL,
    processor=_mistral3,
    defaults={**_PIXTRAL.defaults, "patch_size": 14},
    placeholder=10,
)

_INTERNVL: Final = TowerType(
    processor=_internvl,
    tower=_siglip,
    defaults={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
    },
    placeholder_key="image_token_id",
    placeholder=151667,
    kind="internvl_vision",
    in_our_words=_internvl_vision,
)

TOWERS: Final[Mapping[str, TowerType]] = MappingProxyType(
    {
        "idefics3": _IDEFICS3,
        "smolvlm": _IDEFICS3,
        "gemma3": _GEMMA3,
        "internvl": _INTERNVL,
        "llava": _PIXTRAL,
        "mistral3": _MISTRAL3,
        "qwen2_vl": _QWEN2,
        "qwen2_5_vl": _QWEN25,
        **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), _QWEN3),
        "qwen3_5": _QWEN35,
        "qwen3_5_moe": _QWEN35,
    }
)
"""By `model_type`."""
