"""The memory that an encoder will take of a device: weights and activations, and no cache."""

from __future__ import annotations

from collections.abc import Mapping

from rocmforge.backend.protocol import LoadOptions
from rocmforge.errors import OutOfMemory
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.load.memory_budget import MemoryNeeds, mib
from rocmforge_hip.ops.activations import (
    ActivationArrays,
    Forms,
    StepLimits,
    most_intermediate,
    qkv_features,
)
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.step import StepLayout, StepShape
from rocmforge_hip.weights.placement import Planned, weight_bytes
from rocmforge_hip.weights.products import Product


def measure_encoder(
    config: ModelConfig,
    weights: ModelWeights[Planned],
    options: LoadOptions,
    geometry: Geometry,
    memory_free: int,
) -> MemoryNeeds:
    """Returns what the encoder needs of a device with so much free memory."""
    limits = StepLimits(
        tokens=options.max_batched_tokens,
        sequences=options.max_sequences,
        context=options.context_of_encoder(config.max_context),
    )
    return MemoryNeeds(
        allowed=int(memory_free * options.memory_utilization),
        weights=weight_bytes(weights),
        adapters=0,
        activations=plan_encoder_activations(config, qkv_features(weights), limits, geometry),
        input_bytes=_largest_input(limits),
        cache_block=None,
        block_bytes=0,
        limits=limits,
    )


def check_fits(needs: MemoryNeeds, memory_free: int) -> None:
    """Refuses what does not fit into what may be used.

    Raises:
        OutOfMemory: Says what it needs.
    """
    if needs.fixed_bytes > needs.allowed:
        raise OutOfMemory(
            f"The model needs {mib(needs.weights)} for weights and {mib(needs.step_bytes)} for a "
            f"step, but only {mib(needs.allowed)} of {mib(memory_free)} may be used. Lower "
            "max_batched_tokens or max_sequences, or take a smaller model."
        )


def describe_needs(needs: MemoryNeeds) -> tuple[str, ...]:
    """Returns the plan for people, line by line."""
    return (
        f"weights      {mib(needs.weights)}",
        f"activations  {mib(needs.step_bytes)}",
        "KV cache     none: an encoder keeps nothing of a prompt",
        f"allowed      {mib(needs.allowed)}",
    )


def plan_encoder_activations(
    config: ModelConfig,
    attention_inputs: Mapping[Product, int],
    limits: StepLimits,
    geometry: Geometry,
) -> ActivationArrays[ArraySpec]:
    """Returns every array that a step of an encoder writes.

    Args:
        config: The model.
        attention_inputs: Features of the activations that query, key and value go to.
        limits: The largest step.
        geometry: For the device.
    """
    hidden_size, has_head = config.hidden_size, config.num_scores > 0

    def forms(
        rows: int, features: int, *, f32: bool = False, f16: bool = False
    ) -> Forms[ArraySpec]:
        return Forms(
            f32=spec((rows, features), "f4") if f32 else None,
            f16=spec((rows, features), "f2") if f16 else None,
        )

    tokens, pools = limits.tokens, limits.sequences
    qkv = {
        product: forms(tokens, features, f16=True) for product, features in attention_inputs.items()
    }
    return ActivationArrays(
        normed=forms(tokens, hidden_size, f32=True, f16=True),
        qkv=qkv[Product.QKV],
        qkv_2=qkv.get(Product.QKV_2),
        qkv_3=qkv.get(Product.QKV_3),
        attended=forms(tokens, hidden_size, f16=True),
        delta=forms(tokens, hidden_size, f32=True),
        intermediate=forms(tokens, most_intermediate(config), f16=True),
        pooled=forms(pools, hidden_size, f32=True, f16=has_head),
        dense=forms(pools, hidden_size, f32=True, f16=True) if has_head else None,
        scores=forms(pools, config.num_scores, f32=True) if has_head else None,
        gemm_partial=geometry.gemm_scratch(),
    )


def _largest_input(limits: StepLimits) -> int:
    shape = StepShape(
        tokens=limits.tokens,
        sequences=limits.sequences,
        rows=0,
        blocks=0,
        decodes=limits.sequences,
        prefills=limits.sequences,
        longest_prefill=limits.context,
        sums=limits.sequences,
    )
    return StepLayout(shape).nbytes
