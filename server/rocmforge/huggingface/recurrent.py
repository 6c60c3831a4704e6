"""Layers with states, as `config.json` has them."""

from __future__ import annotations

from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.config import ConvolutionConfig, DeltaConfig, LayerConfig, recurrent_layer
from rocmforge.models.families import ModelFamily


def read_recurrent(
    config: JsonObject, family: ModelFamily, num_layers: int
) -> tuple[LayerConfig | None, ...]:
    """Returns the layers that have states, without their networks; None for those with attention.

    Args:
        config: Of the folder.
        family: Says which kind of states its layers have.
        num_layers: Layers of the model.

    Raises:
        BadFolder: A key is missing, of the wrong type, or contradicts another; names the key.
    """
    if not family.has_states:
        return (None,) * num_layers
    if family.has_delta:
        delta = _delta(config)
        convolution = _convolution(config, "linear_conv_kernel_dim", delta.mixed_features)
        layer, kind = recurrent_layer(convolution, delta), "linear_attention"
    else:
        if config.get_bool("conv_bias", False):
            raise config.bad("conv_bias", "convolutions with biases are not supported")
        channels = config.get_positive("hidden_size")
        layer, kind = recurrent_layer(_convolution(config, "conv_L_cache", channels)), "conv"
    kinds = _kinds(config, kind, num_layers)
    return tuple(layer if is_recurrent else None for is_recurrent in kinds)


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


def _kinds(config: JsonObject, recurrent: str, num_layers: int) -> list[bool]:
    """Returns whether each layer has states."""
    types = config.get_strings("layer_types")
    if types is None and recurrent == "linear_attention":
        period = config.get_positive("full_attention_interval", 4)
        return [(index + 1) % period != 0 for index in range(num_layers)]
    if types is None:  # of the first models; without it, all layers have attention
        attending = config.get_numbers("full_attn_idxs")
        return [attending is not None and n not in attending for n in range(num_layers)]
    if len(types) != num_layers or not {recurrent, "full_attention"}.issuperset(types):
        raise config.bad("layer_types", f"not {num_layers} times {recurrent} or full_attention")
    return [kind == recurrent for kind in types]
