"""The sizes of models that there are kernels for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import ConfigurationError, UnsupportedArchitecture
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ActivationFunction, ModelConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.layer_config import ConvolutionConfig, DeltaConfig, LayerConfig, MambaConfig
from rocmforge.models.lora import Adapter
from rocmforge_hip.device.constants import MAX_SINK_DIM, MOST_EXPERTS
from rocmforge_hip.device.heads import CACHED_HEADS, HeadSize
from rocmforge_hip.ops.attention.full import ROPE_MULTIPLE
from rocmforge_hip.ops.norms import MAX_NORM_DIM
from rocmforge_hip.ops.recurrent.kernels import CHANNEL_MULTIPLE, MAX_STATE_DIM, MAX_WIDTH


def check_sizes(config: ModelConfig, heads: Sequence[HeadSize], devices: int = 1) -> None:
    """Refuses a model that no kernel fits.

    Args:
        config: The model, or what each of several devices has of it.
        heads: The sizes of heads that its kind of attention can have.
        devices: So many.

    Raises:
        UnsupportedArchitecture: Names the size, and those that there are.
    """
    for size, known in _problems(config, heads):
        if devices > 1:
            size = f"{size} on each of {devices} devices"
        raise UnsupportedArchitecture(f"{config.architecture} with {size}", (known,))


def check_sinks(config: ModelConfig, weights: ModelWeights[Tensor]) -> None:
    """Refuses sinks of heads that are too large for them.

    Raises:
        UnsupportedArchitecture: Names the size of the heads.
    """
    for layer, weight in zip(config.layers, weights.layers, strict=True):
        attention = weight.attention
        if attention is not None and attention.sinks is not None and layer.value_dim > MAX_SINK_DIM:
            raise UnsupportedArchitecture(
                f"{config.architecture} with sinks of heads of {layer.value_dim} elements",
                (f"heads of up to {MAX_SINK_DIM} elements",),
            )


def check_packed_values(config: ModelConfig) -> None:
    """Refuses models whose values cannot be stored in four bits.

    Raises:
        ConfigurationError: Names what there are no kernels for, and another type of cache.
    """
    sizes = [head for head in CACHED_HEADS if head.is_common]
    for layer in config.layers:
        if not layer.num_heads:
            continue
        own = HeadSize(layer.key_dim, layer.value_dim)
        if layer.latent is None and any(str(own) == str(size) for size in sizes):
            continue
        found = "latent vectors" if layer.latent else f"heads of {own} elements"
        raise ConfigurationError(
            f"There are no kernels for a k8v4 cache of {found}, which {config.architecture} has, "
            f"but of heads of {', '.join(map(str, sizes))}. Use kv_dtype int8 or f16."
        )


def check_adapters(config: ModelConfig, adapters: Sequence[Adapter]) -> None:
    """Refuses adapters of models whose networks have no gates.

    Raises:
        UnsupportedArchitecture: There is one.
    """
    if adapters and config.activation is ActivationFunction.SQUARED_RELU:
        raise UnsupportedArchitecture(
            f"{config.architecture} with adapters",
            ("adapters of models whose networks have gates",),
        )


def _problems(config: ModelConfig, heads: Sequence[HeadSize]) -> Iterator[tuple[str, str]]:
    """Yields the sizes that there are no kernels for, each with those that there are."""
    if config.causal and not any(layer.num_heads for layer in config.layers):
        yield "no attention in any layer", "attention in some of them"
    for rule in {layer.experts for layer in config.layers if layer.experts is not None}:
        if rule.num_experts > MOST_EXPERTS:
            yield f"{rule.num_experts} experts", f"up to {MOST_EXPERTS}"
        if not config.causal:
            yield "experts in an encoder", "a feed-forward network"
    for layer in config.layers:
        if layer.joint_head_norms and layer.query_features > MAX_NORM_DIM:
            yield (
                f"norms of {layer.query_features} features of queries",
                f"norms of up to {MAX_NORM_DIM}",
            )
        if layer.convolution is not None:
            yield from _problems_of_convolution(layer.convolution)
            if layer.delta is not None:
                yield from _problems_of_delta(layer.delta)
            if layer.mamba is not None:
                yield from _problems_of_mamba(layer.mamba)
            continue
        if not layer.num_heads:
            continue
        head = HeadSize(layer.key_dim, layer.value_dim)
        fitting = [known for known in heads if known.values_in_keys is (layer.latent is not None)]
        if str(head) not in map(str, fitting):
            known = ", ".join(map(str, fitting))
            yield f"heads of {head} elements", f"heads of {known} elements"
        if config.causal:
            continue
        first = config.layers[0]
        if (layer.num_heads, layer.key_dim) != (first.num_heads, first.key_dim):
            yield "heads that differ by layer", "the same heads in every layer of an encoder"
        if _norms_heads(config, layer) and not _is_power_of_two(layer.key_dim):
            yield f"norms of heads of {layer.key_dim} elements", "powers of two in an encoder"
    for rope in (config.rope, config.local_rope):
        if config.causal or rope is None:
            continue
        if rope.rotary_dim % ROPE_MULTIPLE:
            yield f"{rope.rotary_dim} rotating elements of a head", f"multiples of {ROPE_MULTIPLE}"
        first = config.layers[0]
        if _norms_heads(config, first) and rope.rotary_dim != first.key_dim:
            yield f"{rope.rotary_dim} rotating elements of normed heads", str(first.key_dim)
    if config.hidden_size > MAX_NORM_DIM:
        yield f"a hidden size of {config.hidden_size}", f"up to {MAX_NORM_DIM}"


def _norms_heads(config: ModelConfig, layer: LayerConfig) -> bool:
    """Returns whether each head of queries and keys is normed for itself."""
    has_norms = "attention.q_norm" in FAMILIES[config.architecture].has
    return has_norms and not layer.joint_head_norms


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _problems_of_delta(delta: DeltaConfig) -> Iterator[tuple[str, str]]:
    if delta.key_dim > MAX_STATE_DIM:
        yield f"Gated DeltaNet with keys of {delta.key_dim} elements", f"up to {MAX_STATE_DIM}"
    sizes = {
        "keys of {} elements": delta.key_dim,
        "values of {} elements": delta.value_dim,
        "{} heads of values": delta.num_value_heads,
    }
    yield from _odd_sizes("Gated DeltaNet", sizes)


def _problems_of_mamba(mamba: MambaConfig) -> Iterator[tuple[str, str]]:
    if mamba.state_size > MAX_STATE_DIM:
        yield f"Mamba-2 with states of {mamba.state_size} elements", f"up to {MAX_STATE_DIM}"
    sizes = {
        "states of {} elements": mamba.state_size,
        "heads of {} elements": mamba.head_dim,
        "{} heads": mamba.num_heads,
    }
    yield from _odd_sizes("Mamba-2", sizes)


def _odd_sizes(layer: str, sizes: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yields the sizes that lanes of the kernels of such layers do not divide."""
    for name, size in sizes.items():
        if size % CHANNEL_MULTIPLE:
            yield f"{layer} with {name.format(size)}", f"multiples of {CHANNEL_MULTIPLE}"


def _problems_of_convolution(convolution: ConvolutionConfig) -> Iterator[tuple[str, str]]:
    if convolution.width > MAX_WIDTH:
        yield f"a convolution of {convolution.width} inputs", f"up to {MAX_WIDTH}"
    if convolution.channels % CHANNEL_MULTIPLE:
        yield (
            f"a convolution of {convolution.channels} channels",
            f"multiples of {CHANNEL_MULTIPLE}",
        )
