"""What an encoder will take of a device's memory: weights and activations, and no cache."""

from __future__ import annotations

from collections.abc import Mapping

from rocmforge.backend.protocol import LoadOptions
from rocmforge.errors import OutOfMemory
from rocmforge.models.encoder_config import EncoderConfig, encoder_context
from rocmforge.models.encoder_weights import EncoderWeights
from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.load.memory_budget import MemoryNeeds, mib
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.step import StepLayout, StepShape
from rocmforge_hip.weights.buffers import ATTENDED, DELTA, DENSE, HIDDEN, NORMED, POOLED, SCORES
from rocmforge_hip.weights.encoder_placement import encoder_storages
from rocmforge_hip.weights.placement import Planned, PlannedPart


def measure_encoder(
    config: EncoderConfig,
    weights: EncoderWeights[Planned],
    options: LoadOptions,
    geometry: Geometry,
    memory_free: int,
) -> MemoryNeeds:
    """What the encoder needs of a device with so much free memory."""
    limits = StepLimits(
        tokens=options.max_batched_tokens,
        sequences=options.max_sequences,
        context=encoder_context(config, options),
    )
    return MemoryNeeds(
        allowed=int(memory_free * options.memory_utilization),
        weights=sum(storage.storage.nbytes for storage in encoder_storages(weights)),
        adapters=0,
        activations=plan_encoder_activations(
            config, _attention_input_features(weights), limits, geometry
        ),
        input_bytes=_largest_input(limits),
        block_arrays={},
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
    """The plan for people, line by line."""
    return (
        f"weights      {mib(needs.weights)}",
        f"activations  {mib(needs.step_bytes)}",
        "KV cache     none: an encoder keeps nothing of a prompt",
        f"allowed      {mib(needs.allowed)}",
    )


def plan_encoder_activations(
    config: EncoderConfig,
    attention_inputs: Mapping[str, int],
    limits: StepLimits,
    geometry: Geometry,
) -> dict[str, ArraySpec]:
    """Every array that a step writes, by buffer and form as in `activations.plan_activations`.

    Args:
        config: The model.
        attention_inputs: Features of each buffer that query, key and value go to.
        limits: The largest step.
        geometry: For the device.
    """
    tokens, pools = limits.tokens, limits.sequences
    hidden_size, intermediate_size = config.hidden_size, config.intermediate_size
    plan: dict[str, ArraySpec] = {
        f"{NORMED}.f32": spec((tokens, hidden_size), "f4"),
        f"{DELTA}.f32": spec((tokens, hidden_size), "f4"),
        f"{POOLED}.f32": spec((pools, hidden_size), "f4"),
    }
    multiplied = [
        (NORMED, tokens, hidden_size),
        (ATTENDED, tokens, hidden_size),
        (HIDDEN, tokens, intermediate_size),
    ]
    if config.num_scores:
        plan[f"{DENSE}.f32"] = spec((pools, hidden_size), "f4")
        plan[f"{SCORES}.f32"] = spec((pools, config.num_scores), "f4")
        multiplied += [(POOLED, pools, hidden_size), (DENSE, pools, hidden_size)]
    for buffer, rows, features in multiplied:
        plan[f"{buffer}.f16"] = spec((rows, features), "f2")
    for buffer, features in attention_inputs.items():
        plan[f"{buffer}.f16"] = spec((tokens, features), "f2")
    return plan | geometry.gemm_scratch()


def _attention_input_features(weights: EncoderWeights[Planned]) -> dict[str, int]:
    """Features of each buffer that query, key and value go to."""
    features: dict[str, int] = {}
    for layer in weights.layers:
        for part in (layer.q, layer.k, layer.v):
            assert isinstance(part, PlannedPart)
            features[part.buffer] = max(features.get(part.buffer, 0), part.matrix.out_features)
    return features


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
