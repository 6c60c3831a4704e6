"""Heads of attention as `config.json` has them, and which layers see a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rocmforge.errors import UnsupportedArchitecture
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.layer_config import LatentConfig, LayerConfig, share_caches
from rocmforge.models.rope_config import RopeScaling, RopeScalingKind

_BY_LAYER: Final = "per_layer_config"


def same_heads(config: JsonObject, layer: LayerConfig, count: int) -> list[LayerConfig]:
    """Returns the heads of each layer where they are those of all; refuses any that differ."""
    by_layer = config.get_object(_BY_LAYER)
    if by_layer is not None and by_layer.values:
        raise config.bad(_BY_LAYER, "layers of this type of model that differ are not read")
    return [layer] * count


def read_latent(config: JsonObject) -> LayerConfig:
    """Returns what all layers have in common; their networks may differ."""
    rank, value_dim = config.get_positive("kv_lora_rank"), config.get_positive("v_head_dim")
    rotary_dim = config.get_positive("qk_rope_head_dim")
    plain_dim = config.get_positive("qk_nope_head_dim")
    return LayerConfig(
        num_heads=config.get_positive("num_attention_heads"),
        num_kv_heads=1,
        key_dim=rotary_dim + rank,
        value_dim=rank,
        attention_scale=(plain_dim + rotary_dim) ** -0.5,
        intermediate_size=0,
        latent=LatentConfig(
            query_rank=config.get_positive("q_lora_rank") if config.has("q_lora_rank") else 0,
            rank=rank,
            rotary_dim=rotary_dim,
            plain_dim=plain_dim,
            value_dim=value_dim,
        ),
    )


def latent_gain(config: JsonObject, scaling: RopeScaling | None) -> float:
    """Returns what YaRN multiplies the scores of all elements by, beside its factor of cosines.

    As Transformers' `yarn_apply_mscale`.
    """
    if scaling is None or scaling.kind is not RopeScalingKind.YARN:
        return 1.0
    parameters = config.get_object("rope_parameters") or config.get_object("rope_scaling")
    multiplier = 0.0 if parameters is None else parameters.get_float("mscale_all_dim", 0.0)
    return (1 + 0.1 * multiplier * math.log(max(scaling.factor, 1.0))) ** 2


def uneven_heads(
    config: JsonObject, layer: LayerConfig, windows: Sequence[int | None]
) -> list[LayerConfig]:
    """Reads the heads of each layer of Gemma 4: those with a window have others.

    Args:
        config: Of the folder.
        layer: The heads of layers with a window.
        windows: Of each layer.
    """
    full, key = full_heads(config, layer), "num_kv_shared_layers"
    found = [full if window is None else layer for window in windows]
    by_layer = config.get_object(_BY_LAYER)
    if by_layer is not None:
        for index, heads in enumerate(found):
            if _own_heads(by_layer, str(index), layer) != heads:
                kind = "with a window" if windows[index] is not None else "without one"
                raise config.bad(_BY_LAYER, f"layer {index} has other heads than others {kind}")
    problem = share_caches(found, windows, config.get_int(key, 0))
    if problem is not None:
        raise config.bad(key, problem)
    return found


def full_heads(config: JsonObject, layer: LayerConfig) -> LayerConfig:
    """Returns the heads of layers without a window.

    The files of Google name them. Transformers saves, by layer, what differs from the heads of
    layers with a window: nothing where they are equal.
    """
    by_layer = config.get_object(_BY_LAYER)
    if by_layer is not None:
        own = (_own_heads(by_layer, index, layer) for index in by_layer.values)
        return next((heads for heads in own if heads != layer), layer)
    dim, count = config.get_positive("global_head_dim"), layer.num_kv_heads
    if config.get_bool("attention_k_eq_v", False):
        count = config.get_positive("num_global_key_value_heads", count)
    return _resized(config, layer, dim, count, "num_global_key_value_heads")


def _own_heads(by_layer: JsonObject, index: str, layer: LayerConfig) -> LayerConfig:
    """Returns the heads of the layer with that index, which are those of `layer` if not named."""
    own = by_layer.get_object(index)
    if own is None:
        return layer
    dim_key, count_key = "head_dim", "num_key_value_heads"
    if others := sorted(own.values.keys() - {dim_key, count_key}):
        raise by_layer.bad(index, f"{', '.join(others)} of single layers is not read")
    dim = own.get_positive(dim_key, layer.key_dim)
    return _resized(own, layer, dim, own.get_positive(count_key, layer.num_kv_heads), count_key)


def _resized(
    config: JsonObject, layer: LayerConfig, dim: int, count: int, count_key: str
) -> LayerConfig:
    if layer.num_heads % count:
        raise config.bad(count_key, f"{count} does not divide the {layer.num_heads} heads")
    return replace(layer, num_kv_heads=count, key_dim=dim, value_dim=dim)


def read_layer(config: JsonObject, scale_key: str | None = None) -> LayerConfig:
    """Reads what all layers have in common; their feed-forward networks may differ.

    Args:
        config: Of the folder.
        scale_key: Of the number that scores are divided by the root of; None: the head's size.
    """
    hidden_size = config.get_positive("hidden_size")
    num_heads = config.get_positive("num_attention_heads")
    num_kv_heads = config.get_positive("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.bad(
            "num_key_value_heads", f"{num_kv_heads} does not divide the {num_heads} heads"
        )
    if hidden_size % num_heads and not config.has("head_dim"):
        raise config.bad(
            "num_attention_heads",
            f"{num_heads} does not divide the width {hidden_size}, and there is no head_dim",
        )
    head_dim = config.get_positive("head_dim", hidden_size // num_heads)
    divisor = float(head_dim)
    if scale_key is not None:
        divisor = config.get_float(scale_key)
        if divisor <= 0:
            raise config.bad(scale_key, f"{divisor} is not positive")
    return LayerConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        attention_scale=divisor**-0.5,
        intermediate_size=0,
    )


def layer_flags(config: JsonObject, count: int) -> tuple[bool, ...] | None:
    """Returns whether each layer has the window, by `layer_types`; None if that is missing."""
    types = config.get_strings("layer_types")
    if types is None:
        return None
    if len(types) != count:
        raise config.bad("layer_types", f"{len(types)} types for {count} layers")
    known = {"full_attention": False, "sliding_attention": True}
    for found in types:
        if found not in known:
            raise UnsupportedArchitecture(
                f"{config.get_str('model_type', '')} with layers of type {found!r}", tuple(known)
            )
    return tuple(known[found] for found in types)
