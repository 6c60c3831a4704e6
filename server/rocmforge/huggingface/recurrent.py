"""Layers with states, as `config.json` has them."""

from __future__ import annotations

from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.models.config import ConvolutionConfig, LayerConfig, recurrent_layer
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
    if (width := config.get_positive("conv_L_cache")) < 2:
        raise config.bad("conv_L_cache", f"a convolution of {width} inputs has no state")
    if config.get_bool("conv_bias", False):
        raise config.bad("conv_bias", "convolutions with biases are not supported")
    channels = config.get_positive("hidden_size")
    layer = recurrent_layer(ConvolutionConfig(channels=channels, width=width))
    kinds = _kinds(config, "conv", num_layers)
    return tuple(layer if is_recurrent else None for is_recurrent in kinds)


def _kinds(config: JsonObject, recurrent: str, num_layers: int) -> list[bool]:
    """Returns whether each layer has states."""
    types = config.get_strings("layer_types")
    if types is None:  # of the first models; without it, all layers have attention
        attending = config.get_numbers("full_attn_idxs")
        return [attending is not None and n not in attending for n in range(num_layers)]
    if len(types) != num_layers or not {recurrent, "full_attention"}.issuperset(types):
        raise config.bad("layer_types", f"not {num_layers} times {recurrent} or full_attention")
    return [kind == recurrent for kind in types]
