"""The configuration of a tower: a row for each family that takes images, with its processor.

What a file leaves out has the default of Transformers' classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.huggingface.config.decoders import activation, norm_eps, num_layers
from rocmforge.huggingface.config.heads import read_layer
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.huggingface.towers import processors
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.layer_config import NUM_BOUNDS
from rocmforge.models.vision.config import ProcessorConfig, VisionConfig
from rocmforge.models.vision.towers import (
    ReadTower,
    gemma4_tower_config,
    gemma4_unified_config,
    pixtral_config,
    qwen_tower_config,
    siglip_config,
    vision_config,
)

_SIDES: Final = ("image_size", "patch_size")
_QK_EPS: Final = 1e-6  # of the norms of queries and keys in InternVL's tower of 6B
_GELUS: Final = (
    ActivationFunction.GELU,
    ActivationFunction.GELU_TANH,
    ActivationFunction.QUICK_GELU,
)
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
    placeholder: int  # where a file leaves it out
    placeholder_key: str = "image_token_id"
    kind: str = ""  # the `model_type` of its towers, if the family has others, too
    in_our_words: Callable[[JsonObject], JsonObject] = lambda vision: vision
    layers_embed: bool = False  # models of the family may have another embedding for each layer
    attention: str = ""  # where a file leaves out whether rows see those behind them


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
    text = config.get_object("text_config") or config.empty("text_config")
    both_ways = text.values.get("use_bidirectional_attention", row.attention) == "vision"
    of_layers = text.get_int("hidden_size_per_layer_input", 256)
    if row.layers_embed and of_layers:
        placeholder = text.get_int("pad_token_id", 0)  # whose other embedding rows have
    return vision_config(processor, placeholder, both_ways=both_ways), model


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
    read = ReadTower(
        name=name,
        processor=processor,
        layers=(layer,) * num_layers(vision),
        hidden_size=vision.get_positive("hidden_size"),
        embedding_size=embedding_size,
        norm_eps=norm_eps(vision, "layer_norm_eps", 1e-6),
        activation=act,
    )
    return siglip_config(read)


def _qwen2_vision(vision: JsonObject) -> JsonObject:
    """Returns what files say of Qwen2-VL's tower, in the words of those after it."""
    size, ratio = vision.get_positive("embed_dim"), vision.get_positive("mlp_ratio")
    out_size = vision.get_positive("hidden_size")
    sizes = {"hidden_size": size, "out_hidden_size": out_size, "intermediate_size": ratio * size}
    return vision.replaced(sizes)


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
    read = ReadTower(
        name=name,
        processor=processor,
        layers=tuple(layers),
        hidden_size=hidden_size,
        embedding_size=embedding_size,
        norm_eps=1e-6,
        activation=act,
    )
    return qwen_tower_config(read, architecture)


def _internvl_vision(vision: JsonObject) -> JsonObject:
    """Returns what files say of InternVL's tower, in the words of others."""
    has_norms = vision.get_bool("use_qk_norm", False)
    for key, own, usual in (
        ("norm_type", "rms_norm" if has_norms else "layer_norm", "layer_norm"),
        ("use_mean_pooling", True, True),
        ("use_absolute_position_embeddings", True, True),
    ):
        vision.check_kept(key, own, usual)
    if has_norms and (eps := norm_eps(vision, "layer_norm_eps", _QK_EPS)) != _QK_EPS:
        raise vision.bad("layer_norm_eps", f"{eps}, and norms of queries and keys have {_QK_EPS}")
    sides = {key: vision.get_numbers(key) for key in _SIDES if isinstance(vision.values[key], list)}
    for key, numbers in sides.items():
        if not numbers or len(set(numbers)) != 1:
            raise vision.bad(key, "tiles and patches are squares")
    return vision.replaced({key: int(numbers[0]) for key, numbers in sides.items() if numbers})


def _gemma4_tower(
    vision: JsonObject, name: str, processor: ProcessorConfig, embedding_size: int
) -> ModelConfig:
    """Reads the tower of Gemma 4."""
    layer = replace(
        read_layer(vision),
        attention_scale=1.0,
        intermediate_size=vision.get_positive("intermediate_size"),
        bounds=NUM_BOUNDS if vision.get_bool("use_clipped_linears", False) else 0,
    )
    if layer.key_dim % 4:
        raise vision.bad("head_dim", f"{layer.key_dim} elements of a head do not rotate by axes")
    rope = _rope(vision)
    if (kind := rope.get_str("rope_type", "axial")) not in ("axial", "default"):
        raise rope.bad("rope_type", f"{kind} is not of such a tower")
    theta = _theta(rope, 100.0)
    read = ReadTower(
        name=name,
        processor=processor,
        layers=(layer,) * num_layers(vision),
        hidden_size=vision.get_positive("hidden_size"),
        embedding_size=embedding_size,
        norm_eps=norm_eps(vision, "rms_norm_eps", 1e-6),
        activation=activation(vision, "hidden_activation", "gelu_pytorch_tanh"),
    )
    return gemma4_tower_config(read, theta)


def _gemma4_unified_tower(
    vision: JsonObject, name: str, processor: ProcessorConfig, embedding_size: int
) -> ModelConfig:
    """Reads the tower of Gemma 4 12B."""
    size = vision.get_positive("mm_embed_dim")
    if (given := vision.get_positive("output_proj_dims", size)) != size:
        raise vision.bad("output_proj_dims", f"{given}, and hidden states have {size} elements")
    read = ReadTower(
        name=name,
        processor=processor,
        hidden_size=size,
        embedding_size=embedding_size,
        norm_eps=norm_eps(vision, "rms_norm_eps", 1e-6),
    )
    return gemma4_unified_config(read)


def _rope(vision: JsonObject) -> JsonObject:
    """Returns what a tower says of its rotation, perhaps beside everything else."""
    return vision.get_object("rope_parameters") or vision


def _theta(rope: JsonObject, usual: float) -> float:
    """Returns the base of frequencies, which must be above 1."""
    if (theta := rope.get_float("rope_theta", usual)) <= 1:
        raise rope.bad("rope_theta", f"{theta} is no base of frequencies")
    return theta


def _pixtral_tower(
    vision: JsonObject, name: str, processor: ProcessorConfig, embedding_size: int
) -> ModelConfig:
    """Reads the tower of Pixtral and Mistral 3."""
    act = activation(vision, "hidden_act", "gelu")
    layer = replace(read_layer(vision), intermediate_size=vision.get_positive("intermediate_size"))
    if layer.key_dim % 4:
        raise vision.bad("num_attention_heads", f"heads of {layer.key_dim} do not rotate by axes")
    theta = _theta(_rope(vision), 10000.0)
    read = ReadTower(
        name=name,
        processor=processor,
        layers=(layer,) * num_layers(vision),
        hidden_size=vision.get_positive("hidden_size"),
        embedding_size=embedding_size,
        norm_eps=processors.PIXTRAL_EPS,
        activation=act,
    )
    return pixtral_config(read, theta)


_IDEFICS3: Final = TowerType(
    processor=processors.idefics3,
    tower=_siglip,
    defaults=_SIGLIP,
    placeholder=128257,
)

_GEMMA3: Final = TowerType(
    processor=processors.gemma3,
    tower=_siglip,
    defaults=_SIGLIP | {"hidden_size": 768, "num_attention_heads": 12, "patch_size": 16},
    placeholder_key="image_token_index",
    placeholder=262144,
)

_GEMMA4: Final = TowerType(
    processor=processors.gemma4,
    tower=_gemma4_tower,
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "position_embedding_size": 10240,
    },
    placeholder=258880,
    kind="gemma4_vision",
    layers_embed=True,
)

_GEMMA4_UNIFIED: Final = TowerType(
    processor=processors.gemma4_unified,
    tower=_gemma4_unified_tower,
    defaults={
        "mm_embed_dim": 3840,
        "mm_posemb_size": 1120,
        "rms_norm_eps": 1e-6,
        "patch_size": 16,
        "pooling_kernel_size": 3,
    },
    placeholder=258880,
    kind="gemma4_unified_vision",
    attention="vision",
)

_QWEN3: Final = TowerType(
    processor=processors.qwen3,
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
    placeholder=151655,
)
_QWEN2: Final = TowerType(
    processor=processors.qwen2,
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
    placeholder=151655,
    in_our_words=_qwen2_vision,
)
_QWEN25: Final = TowerType(
    processor=processors.qwen25,
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
    placeholder=151655,
)
_QWEN35: Final = replace(
    _QWEN3,
    defaults={**_QWEN3.defaults, "deepstack_visual_indexes": []},
    placeholder=248056,
)

_PIXTRAL: Final = TowerType(
    processor=processors.pixtral,
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
    processor=processors.mistral3,
    defaults={**_PIXTRAL.defaults, "patch_size": 14},
    placeholder=10,
)

_INTERNVL: Final = TowerType(
    processor=processors.internvl,
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
    placeholder=151667,
    kind="internvl_vision",
    in_our_words=_internvl_vision,
)

TOWERS: Final[Mapping[str, TowerType]] = MappingProxyType(
    {
        "idefics3": _IDEFICS3,
        "smolvlm": _IDEFICS3,
        "gemma3": _GEMMA3,
        "gemma4": _GEMMA4,
        "gemma4_unified": _GEMMA4_UNIFIED,
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
