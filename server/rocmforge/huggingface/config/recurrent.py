"""Layers with states, as `config.json` has them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.families import ModelFamily
from rocmforge.models.layer_config import (
    ConvolutionConfig,
    DeltaConfig,
    LayerConfig,
    MambaConfig,
    layer_without_attention,
)

_ATTENTION: Final = frozenset({"full_attention", "attention"})
_NETWORKS: Final = frozenset({"mlp", "moe"})
_SYMBOLS: Final[Mapping[str, str]] = MappingProxyType(
    {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
)
_LONG_STEP: Final = 1e6
"""After which nothing is left of a state."""


def with_layer_types(config: JsonObject) -> JsonObject:
    """Returns the configuration with the types of layers that a string of symbols stands for."""
    if not config.has("layer_types") and config.has("hybrid_override_pattern"):
        pattern = config.get_str("hybrid_override_pattern")
        if unknown := set(pattern).difference(_SYMBOLS):
            raise config.bad("hybrid_override_pattern", f"{min(unknown)!r} is no kind of layer")
        config = config.replaced({"layer_types": [_SYMBOLS[symbol] for symbol in pattern]})
    types = config.get_list("layer_types")
    if types is not None and not config.has("num_hidden_layers"):
        config = config.replaced({"num_hidden_layers": len(types)})
    return config


def read_without_attention(
    config: JsonObject, family: ModelFamily, num_layers: int, norm_eps: float
) -> tuple[LayerConfig | None, ...]:
    """Returns the layers that have no attention, without their networks; None for others.

    Args:
        config: Of the folder.
        family: Says which kind of states its layers have.
        num_layers: Layers of the model.
        norm_eps: Of the model.

    Raises:
        BadFolder: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    if not family.has_states:
        return (None,) * num_layers
    if family.has_delta:
        delta = _delta(config)
        convolution = _convolution(config, "linear_conv_kernel_dim", delta.mixed_features)
        layer = layer_without_attention(convolution, delta=delta)
        kinds = _kinds(config, {"linear_attention"}, num_layers)
    elif family.has_mamba:
        mamba = _mamba(config, norm_eps)
        convolution = _convolution(config, "conv_kernel", mamba.mixed_features)
        layer = layer_without_attention(convolution, mamba=mamba)
        networks = _NETWORKS if family.has_one_part else frozenset[str]()
        kinds = _kinds(config, {"linear_attention", "mamba"} | networks, num_layers)
    else:
        if config.get_bool("conv_bias", False):
            raise config.bad("conv_bias", "convolutions with biases are not supported")
        channels = config.get_positive("hidden_size")
        layer = layer_without_attention(_convolution(config, "conv_L_cache", channels))
        kinds = _kinds(config, {"conv"}, num_layers)
    bare = layer_without_attention()
    return tuple(
        None if kind in _ATTENTION else bare if kind in _NETWORKS else layer for kind in kinds
    )


def have_networks(config: JsonObject, family: ModelFamily, num_layers: int) -> tuple[bool, ...]:
    """Returns whether each layer has a feed-forward network or experts."""
    if not family.has_one_part:
        return (True,) * num_layers
    return tuple(kind in _NETWORKS for kind in config.get_strings("layer_types") or ())


def _convolution(config: JsonObject, key: str, channels: int) -> ConvolutionConfig:
    if (width := config.get_positive(key)) < 2:
        raise config.bad(key, f"a convolution of {width} inputs has no state")
    return ConvolutionConfig(channels=channels, width=width)


def _delta(config: JsonObject) -> DeltaConfig:
    delta = DeltaConfig(
        num_key_heads=config.get_positive("linear_num_key_heads"),
        num_value_heads=config.get_positive("linear_num_value_heads"),
        key_dim=config.get_positive("linear_key_head_dim"),
        value_dim=config.get_positive("linear_value_head_dim"),
    )
    if (problem := delta.problem()) is not None:
        raise config.bad("linear_num_value_heads", problem[1])
    return delta


def _mamba(config: JsonObject, norm_eps: float) -> MambaConfig:
    heads = config.get_positive("mamba_num_heads")
    if config.values.get("mamba_head_dim") == "auto":
        inner = config.get_positive("mamba_expand") * config.get_positive("hidden_size")
        config = config.replaced({"mamba_head_dim": inner // heads})
    mamba = MambaConfig(
        num_heads=heads,
        head_dim=config.get_positive("mamba_head_dim"),
        num_groups=config.get_positive("n_groups"),
        state_size=config.get_positive("ssm_state_size"),
        norm_eps=norm_eps,
    )
    if (problem := mamba.problem()) is not None:
        raise config.bad("n_groups", problem)
    _refuse_limits(config)
    return mamba


def _refuse_limits(config: JsonObject) -> None:
    """Refuses limits of steps in time that could matter; infinity is written in several ways.

    Not read is `time_step_min`: training draws the first offsets from there on. Transformers takes
    it for a limit of Nemotron-H, too, in prompts only; vLLM and llama.cpp do not.
    """
    limits = config.get_list("time_step_limit")
    if limits is None:
        return
    written = {"__float__": "Infinity"}  # by Transformers 5
    low, high = (math.inf if limit == written else limit for limit in (*limits, None, None)[:2])
    if low != 0 or not isinstance(high, float) or high < _LONG_STEP:
        raise config.bad("time_step_limit", f"steps in time within {limits} are not supported")


def _kinds(config: JsonObject, others: Collection[str], num_layers: int) -> list[str]:
    """Returns the kind of each layer: one of the others, or one with attention.

    A file may leave out which they are; then there is one other kind.
    """
    types = config.get_strings("layer_types")
    if types is None and "linear_attention" in others:
        period = config.get_positive("full_attention_interval", 4)
        flags = [(index + 1) % period != 0 for index in range(num_layers)]
    elif types is None:  # of the first models; without it, all layers have attention
        attending = config.get_numbers("full_attn_idxs")
        flags = [attending is not None and n not in attending for n in range(num_layers)]
    else:
        if len(types) != num_layers or not {*others, *_ATTENTION}.issuperset(types):
            known = " or ".join(sorted({*others, "full_attention"}))
            raise config.bad("layer_types", f"not {num_layers} times {known}")
        return list(types)
    return [min(others) if is_recurrent else "full_attention" for is_recurrent in flags]
