"""Brings a model onto a device, or a rank's part of one; or says what it would take there."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from rocmforge.backend.host_memory import host_memory
from rocmforge.backend.optional import HostedEstimate
from rocmforge.backend.protocol import LoadOptions, ProgressCallback, RunnerInfo
from rocmforge.checkpoint.file_reads import reserve_descriptors
from rocmforge.errors import ConfigurationError, EngineError
from rocmforge.logits.registry import load_processors
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import Adapter
from rocmforge.models.rope import load_rope_tables
from rocmforge.models.weights import take
from rocmforge_hip.device.discovery import FoundDevice
from rocmforge_hip.device.heads import CACHED_HEADS, FULL_HEADS
from rocmforge_hip.device.opening import opened
from rocmforge_hip.device.platform import cache_dir
from rocmforge_hip.device.records import total_bytes
from rocmforge_hip.jit.compiler import NO_KERNELS, ProcessorKernels, prepare_processors
from rocmforge_hip.load.expert_seats import check_host_memory, estimate_hosted, seat_experts
from rocmforge_hip.load.memory_budget import (
    MemoryNeeds,
    MemoryPlan,
    cache_block_bytes,
    cache_type,
    check_table,
    make_plan,
    measure,
)
from rocmforge_hip.load.model import ModelLoading
from rocmforge_hip.load.rank import Rank
from rocmforge_hip.load.supported import (
    check_adapters,
    check_packed_values,
    check_sinks,
    check_sizes,
)
from rocmforge_hip.ops.activations import StepLimits
from rocmforge_hip.ops.geometry import Geometry, geometry_of
from rocmforge_hip.ops.sharded import any_rank
from rocmforge_hip.run.pipeline import PIPELINE_DEPTH
from rocmforge_hip.run.runner import HipRunner
from rocmforge_hip.run.traffic import StepReads, copy_bandwidth
from rocmforge_hip.run.trials.first_prompts import try_prompts
from rocmforge_hip.run.trials.graph_check import REPORTS, Agree, check_graphs
from rocmforge_hip.run.trials.variants import measure_variants
from rocmforge_hip.run.variant_choice import ChoiceFile, StepVariants
from rocmforge_hip.weights.fitting import fit_tower
from rocmforge_hip.weights.placement import (
    Planned,
    PlannedMatrix,
    plan_weights,
    storages,
    with_whole,
)
from rocmforge_hip.weights.shard import Shard
from rocmforge_hip.weights.shared import join_shared

logger = logging.getLogger(__name__)


def load_model(
    found: FoundDevice,
    checkpoint: Checkpoint,
    options: LoadOptions,
    progress: ProgressCallback,
    rank: Rank | None = None,
) -> HipRunner:
    """Loads the model, or what of it belongs to a rank, onto one device.

    Raises:
        ConfigurationError: It cannot be loaded so.
        ModelLoadError: The model cannot be served.
        OutOfMemory: It does not fit.
    """
    reserve_descriptors()
    config, weights, adapters = _read(checkpoint, options, rank.shard if rank else None)
    kernels = NO_KERNELS
    if config.causal:
        processors = load_processors()
        progress("compiling logits processors", 0.0)
        kernels = prepare_processors(processors, found.properties.target, cache_dir("jit"))
    geometry = geometry_of(found.properties)
    free = options.memory_of(found.info)
    memory = free, int(found.info.memory_total * options.memory_share)
    weights = _place_experts(config, weights, options, geometry, memory, adapters)
    hosted = estimate_hosted(config, weights, host_memory()[1])
    if hosted is not None:
        if config.predicts:
            raise ConfigurationError(
                "The device has no room for all experts of the model, and a predictor needs them "
                "there: take another draft model than mtp, or none."
            )
        check_host_memory(hosted)
        logger.warning("%s", _hosted_note(found, hosted))
    plan = make_plan(config, weights, options, geometry, free, adapters)
    check_table(plan, host_memory()[1])
    tables = None
    if config.rope is not None:
        tables = load_rope_tables(config, checkpoint.rope_factors, plan.limits.context)
    with opened(found) as device:
        group = rank.join(device) if rank else None
        loading = ModelLoading(
            device, config, plan, geometry, progress, kernels, group, checkpoint.locate
        )
        loaded = loading.load(weights, tables, adapters)
        caches = loaded.ops.caches
        arrays = [
            each for cache in caches for each in (cache.keys, cache.values) if each and each.nbytes
        ]
        pairs = zip(arrays[::2], arrays[1::2], strict=False)
        bandwidth = copy_bandwidth(device.driver, device.stream, pairs)
        replays = options.graphs != "off"
        info = _describe(found, config, plan, kernels, bandwidth, options, replays=replays)
        if hosted is not None:
            info = replace(info, notes=(*info.notes, f"experts      {hosted}"))
        reads = StepReads(config, weights, [total_bytes(block) for block in plan.cache_blocks])
        runner = HipRunner(
            *(device, loaded, plan.limits, info, reads),
            replays=replays,
            windows=plan.windows,
            shared_prefix=options.shared_prefix,
        )
    if config.causal:
        agree: Agree = tuple
        if group is not None:
            scratch = loaded.arena.delta.f32
            assert scratch is not None
            agree = partial(any_rank, group, device, scratch)
        try:
            kept = ChoiceFile(cache_dir("steps"), _facts(found, config, plan, options, weights))
            _choose_variants(runner, plan.limits, options, kept, agree, progress)
            if options.graphs == "auto":
                _check_graphs(runner, plan.limits, agree, progress)
            if is_measured(found.properties.target):
                try_prompts(runner, plan.limits, agree, partial(progress, "trying prompts"))
        except BaseException:
            with suppress(EngineError):
                runner.close()
            raise
    return runner


def _choose_variants(
    runner: HipRunner,
    limits: StepLimits,
    options: LoadOptions,
    kept: ChoiceFile,
    agree: Agree,
    progress: ProgressCallback,
) -> None:
    """Has decode steps take the variant that the options say, or the fastest; says which.

    Raises:
        EngineError: The device failed.
    """
    if options.decode_variant != "auto":
        variants = StepVariants.always(options.decode_variant)
        how = f"{variants}, as it was set"
    elif not is_measured(runner.info.device.target):
        variants = StepVariants.always("plain")
        how = f"{variants}, not measured on this platform"
    else:
        found = kept.read()
        (is_missing,) = agree((found is None,))
        if found is not None and not is_missing:
            variants, how = found, f"{found}; measured at an earlier load, kept in {kept.path}"
        else:
            measured = measure_variants(
                runner, limits, agree, partial(progress, "measuring decode steps")
            )
            variants, how = measured.variants, str(measured)
            if measured.difference:
                logger.warning(
                    "Fused kernels are not used on device %d (%s, %s), as their results differ "
                    "there: %s. Answers are right without them. Please report what `rocmforge "
                    "verify` says.",
                    *(runner.info.device.index, runner.info.device.name),
                    *(runner.info.device.target, measured.difference),
                )
            else:
                kept.write(variants)
                logger.info("Decode steps: %s.", measured)
    info = replace(runner.info, notes=(*runner.info.notes, f"decode steps {how}"))
    runner.decide(info, replays=runner.replays, variants=variants)


def is_measured(target: str) -> bool:
    """Returns whether the speed of steps means anything on a device: not on the CPU."""
    return not target.startswith("host")


def _facts(
    found: FoundDevice,
    config: ModelConfig,
    plan: MemoryPlan,
    options: LoadOptions,
    weights: ModelWeights[Planned],
) -> tuple[object, ...]:
    """Returns all that the fastest variant of a step depends on."""
    properties = found.properties
    matrices = {
        (storage.format.name, storage.stored_rows, storage.in_features)
        for storage in storages(weights)
        if isinstance(storage, PlannedMatrix)
    }
    return (
        *(version("rocmforge"), properties.name, properties.target, properties.compute_units),
        *(config, sorted(matrices), plan.limits, cache_type(plan), plan.activation_slices),
        *(options.tensor_parallel, options.graphs, plan.windows),
    )


def _check_graphs(
    runner: HipRunner, limits: StepLimits, agree: Agree, progress: ProgressCallback
) -> None:
    """Lets the runner use graphs only if their replays are right; says what was found.

    Raises:
        EngineError: The device failed.
    """
    found = check_graphs(runner, limits, agree, partial(progress, "checking graphs"))
    is_right, info = not found.difference, runner.info
    if not is_right:
        logger.warning(
            "Graphs of decode steps are not used on device %d (%s, %s), as their replays are "
            "wrong there: %s. Answers are right without them, but small batches are slower. "
            "Known reports: %s. Try another version of ROCm, and please report what "
            "`rocmforge verify` says.",
            *(info.device.index, info.device.name, info.device.target),
            *(found.difference, ", ".join(REPORTS)),
        )
    info = replace(
        info,
        graphs="checked" if is_right else "failed",
        notes=(*info.notes, f"graphs       {found}"),
    )
    runner.decide(info, replays=is_right)


def _hosted_note(found: FoundDevice, hosted: HostedEstimate) -> str:
    return (
        f"Device {found.info.index} ({found.info.name}) does not hold all experts of the model: "
        f"{hosted}. What a step needs and the device has not got is read through the bus, which "
        "takes many times as long."
    )


def measure_model(
    checkpoint: Checkpoint,
    options: LoadOptions,
    geometry: Geometry,
    memory: tuple[int, int],
    host_free: int | None,
) -> tuple[MemoryNeeds, HostedEstimate | None]:
    """Returns what the model needs of each device, and of the host for experts.

    Args:
        checkpoint: The model.
        options: The limits.
        geometry: Of the device.
        memory: Bytes of the device that are free, and that there are.
        host_free: Bytes that the host can give; None if it is not the one at hand.

    Raises:
        ModelLoadError: The model cannot be served.
    """
    shard = Shard(0, options.tensor_parallel) if options.tensor_parallel > 1 else None
    config, weights, adapters = _read(checkpoint, options, shard)
    weights = _place_experts(config, weights, options, geometry, memory, adapters)
    needs = measure(config, weights, options, geometry, memory[0], adapters)
    return needs, estimate_hosted(config, weights, host_free)


def plan_reads(checkpoint: Checkpoint, options: LoadOptions) -> StepReads:
    """Returns what steps of a model will read if all of it is on one device; reads no weights.

    Raises:
        ModelLoadError: The model cannot be served.
    """
    config, weights, _ = _read(checkpoint, options, None)
    return StepReads(config, join_shared(weights), cache_block_bytes(config, options))


def _place_experts(
    config: ModelConfig,
    weights: ModelWeights[Planned],
    options: LoadOptions,
    geometry: Geometry,
    memory: tuple[int, int],
    adapters: tuple[Adapter, ...],
) -> ModelWeights[Planned]:
    """Seats experts; shared ones become some of the others, on one device without adapters."""
    weights = seat_experts(config, weights, options, geometry, memory, adapters)
    return weights if options.tensor_parallel > 1 or adapters else join_shared(weights)


def _read(
    checkpoint: Checkpoint, options: LoadOptions, shard: Shard | None
) -> tuple[ModelConfig, ModelWeights[Planned], tuple[Adapter, ...]]:
    """Reads what a device is to have of a model and its adapters: all of it, or a part."""
    config, adapters = checkpoint.config, checkpoint.adapters
    if config.causal and options.kv_dtype == "f32":
        raise ConfigurationError(
            "The HIP backend has no f32 cache; use kv_dtype f16, int8 or k8v4."
        )
    if config.causal and options.kv_dtype == "k8v4":
        check_packed_values(config)
    if shard is not None and config.predicts:
        raise ConfigurationError(
            "A model drafts with its predictor on one device; leave tensor_parallel at 1, not "
            f"{options.tensor_parallel}, or take another draft model than mtp."
        )
    if shard is not None and not config.causal:
        raise ConfigurationError(
            "An encoder runs on one device; leave tensor_parallel at 1, not "
            f"{options.tensor_parallel}."
        )
    config, tensors = fit_tower(config, take(config, checkpoint.weights), FULL_HEADS)
    heads = CACHED_HEADS if config.causal else FULL_HEADS
    check_sizes(config, heads)
    check_adapters(config, adapters)
    check_sinks(config, tensors)
    if shard is not None:
        shard.check(config, tensors)
        shard = shard.fitted(tensors)
        adapters = tuple(shard.adapter(config, adapter) for adapter in adapters)
        config, tensors = shard.config(config), shard.weights(config, tensors)
        check_sizes(config, heads, shard.size)
    planned = plan_weights(tensors, min(config.max_context, options.max_context))
    return config, planned if shard is None else with_whole(planned, shard.whole), adapters


def _describe(
    found: FoundDevice,
    config: ModelConfig,
    plan: MemoryPlan,
    kernels: ProcessorKernels,
    bandwidth: float,
    options: LoadOptions,
    *,
    replays: bool,
) -> RunnerInfo:
    return RunnerInfo(
        backend="hip",
        device=found.info,
        block_size=plan.block_tokens,
        num_blocks=plan.num_blocks,
        max_context=plan.limits.context,
        vocab_size=config.vocab_size,
        pipeline_depth=PIPELINE_DEPTH,
        weights_bytes=plan.weights,
        kv_bytes=plan.kv_bytes,
        kv_dtype=cache_type(plan),
        activation_bits=8 * plan.activation_slices or 16,
        copy_bandwidth=bandwidth,
        adapters=tuple(adapter.name for adapter in options.adapters),
        adapter_bytes=plan.adapters,
        bus_ids=(found.properties.pci_id,),
        notes=(*str(plan).splitlines(), *([kernels.note] if config.causal else [])),
        hidden_size=config.output_size,
        embedding_size=config.hidden_size if config.causal else 0,
        masks_tokens=config.causal,
        causal=config.causal,
        graphs="none" if not config.causal else "unchecked" if replays else "off",
        predicts=config.predicts,
        state_slots=plan.state_slots,
        state_bytes=plan.states,
        snapshots=plan.snapshots,
        window_groups=plan.windows.count if plan.windows else 0,
        window=plan.windows.reach if plan.windows else 0,
        logits_processors=tuple(kernels.processors),
    )
