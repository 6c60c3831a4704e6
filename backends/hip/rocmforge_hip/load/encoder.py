"""Brings an encoder onto a device, or says what it would take there."""

from __future__ import annotations

import numpy as np

from rocmforge.backend.protocol import LoadOptions, ProgressCallback, RunnerInfo
from rocmforge.errors import UnsupportedArchitecture
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.models.config import ModelConfig, alibi_slopes
from rocmforge.models.rope import load_rope_tables
from rocmforge.models.weights import take
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.discovery import FoundDevice
from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.device.opening import Device, opened
from rocmforge_hip.device.records import allocate
from rocmforge_hip.load.encoder_budget import check_fits, describe_needs, measure_encoder
from rocmforge_hip.load.memory_budget import NO_CACHE, MemoryNeeds
from rocmforge_hip.load.model import upload, upload_tables
from rocmforge_hip.load.supported import check_sizes
from rocmforge_hip.ops.activations import ActivationArrays
from rocmforge_hip.ops.full_attention import FULL_HEAD_DIMS, ROPE_MULTIPLE
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.model_ops import HipOps, Resources
from rocmforge_hip.run.encoder import Encoder, HipEncoderRunner
from rocmforge_hip.run.pipeline import PIPELINE_DEPTH
from rocmforge_hip.weights.placement import Planned, PlannedMatrix, plan_weights, storages
from rocmforge_hip.weights.upload import WeightLoader


def load_encoder(
    found: FoundDevice, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
) -> HipEncoderRunner:
    """Loads the encoder onto one device.

    Raises:
        ModelLoadError: The model cannot be served.
        OutOfMemory: It does not fit.
    """
    config, weights, needs = _read(checkpoint, options, found)
    with opened(found) as device:
        model = _load(device, config, weights, needs, checkpoint, found, progress)
        info = RunnerInfo(
            backend="hip",
            device=found.info,
            block_size=BLOCK_TOKENS,
            num_blocks=0,
            max_context=needs.limits.context,
            vocab_size=config.vocab_size,
            pipeline_depth=PIPELINE_DEPTH,
            weights_bytes=needs.weights,
            kv_bytes=0,
            kv_dtype=NO_CACHE,
            hidden_size=config.output_size,
            is_encoder=True,
            bus_ids=(found.properties.pci_id,),
            notes=describe_needs(needs),
        )
        return HipEncoderRunner(device, model, needs.limits, info)


def plan_encoder(
    checkpoint: Checkpoint, options: LoadOptions, geometry: Geometry, memory_free: int
) -> tuple[ModelConfig, ModelWeights[Planned], MemoryNeeds]:
    """Returns what the encoder is, and what it needs of a device with so much free memory.

    Raises:
        ModelLoadError: The model cannot be served.
    """
    config = checkpoint.config
    _check_supported(config)
    tensors = take(config, checkpoint.weights)
    weights = plan_weights(tensors, min(config.max_context, options.max_context))
    return config, weights, measure_encoder(config, weights, options, geometry, memory_free)


def _read(
    checkpoint: Checkpoint, options: LoadOptions, found: FoundDevice
) -> tuple[ModelConfig, ModelWeights[Planned], MemoryNeeds]:
    free = options.memory_of(found.info)
    geometry = Geometry(found.properties.compute_units)
    config, weights, needs = plan_encoder(checkpoint, options, geometry, free)
    check_fits(needs, free)
    return config, weights, needs


def _load(
    device: Device,
    config: ModelConfig,
    planned: ModelWeights[Planned],
    needs: MemoryNeeds,
    checkpoint: Checkpoint,
    found: FoundDevice,
    progress: ProgressCallback,
) -> Encoder:
    """Loads the model; returns it once everything is on the device."""
    progress("loading kernels", 0.0)
    arena: ActivationArrays[DeviceArray] = allocate(device.memory, needs.activations, device.stream)
    tables = {}
    if config.rope is not None:
        tables = upload_tables(
            device, load_rope_tables(config, checkpoint.rope_factors, needs.limits.context)
        )
    on_device = None
    if config.has_alibi:
        slopes = np.array(alibi_slopes(config.layers[0].num_heads), np.float32)
        on_device = upload(device, slopes, "slopes")
    formats = frozenset(
        storage.format.name for storage in storages(planned) if isinstance(storage, PlannedMatrix)
    )
    geometry = Geometry(found.properties.compute_units)
    ops = HipOps(
        Resources(
            config=config,
            library=device.library,
            geometry=geometry,
            arena=arena,
            caches=(),
            tables=tables,
            slopes=on_device,
            formats=formats,
            adapters={},
            slices=needs.activation_slices,
        )
    )
    inputs = device.memory.device(spec((needs.input_bytes,), "u1"), "inputs of a step")
    loader = WeightLoader(
        device.driver, device.library, device.stream, device.memory, checkpoint.locate
    )
    try:
        weights = loader.load(planned, lambda share: progress("loading weights", share))
    finally:
        loader.close()
    return Encoder(config, weights, ops, inputs.array)


def _check_supported(config: ModelConfig) -> None:
    check_sizes(config, FULL_HEAD_DIMS)
    if config.rope is not None and config.rope.rotary_dim % ROPE_MULTIPLE:
        raise UnsupportedArchitecture(
            f"{config.architecture} with {config.rope.rotary_dim} rotating elements of a head",
            (f"multiples of {ROPE_MULTIPLE}",),
        )
