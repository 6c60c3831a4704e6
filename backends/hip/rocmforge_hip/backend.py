"""The plugin: finds devices, loads a model onto one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rocmforge.backend.optional import MemoryEstimate, OpCheck
from rocmforge.backend.protocol import (
    LoadOptions,
    ProbeResult,
    ProgressCallback,
    Runner,
    RunnerInfo,
)
from rocmforge.errors import BackendError, ConfigurationError
from rocmforge.gguf.reader import GgufFile, open_gguf
from rocmforge.gguf.tensor import GgufTensor
from rocmforge.logits.registry import load_processors
from rocmforge.models.architectures import read_config
from rocmforge.models.config import ModelConfig
from rocmforge.models.encoder_config import is_encoder
from rocmforge.models.lora import Adapter, read_adapters
from rocmforge.models.rope import load_rope_tables
from rocmforge.models.weights import ModelWeights, load_weights
from rocmforge_hip.device import (
    FoundDevice,
    choose_device,
    choose_devices,
    find_devices,
    list_names,
)
from rocmforge_hip.driver import HipUnavailable
from rocmforge_hip.encoder_loading import NO_CACHE, load_encoder, plan_encoder
from rocmforge_hip.geometry import BLOCK_TOKENS, Geometry
from rocmforge_hip.jit.compiler import ProcessorKernels, prepare_processors
from rocmforge_hip.library import NoKernelsForTarget, find_target
from rocmforge_hip.loading import ModelLoading, opened
from rocmforge_hip.ops import HEAD_DIMS
from rocmforge_hip.parallel.rank import Rank
from rocmforge_hip.parallel.runner import load_sharded
from rocmforge_hip.parallel.shard import Shard
from rocmforge_hip.pipeline import PIPELINE_DEPTH
from rocmforge_hip.plan import MemoryNeeds, MemoryPlan, make_plan, measure
from rocmforge_hip.platform import cache_dir, select_platform
from rocmforge_hip.runner import HipRunner
from rocmforge_hip.supported import check_sizes
from rocmforge_hip.traffic import StepReads, copy_bandwidth
from rocmforge_hip.verify import selfcheck
from rocmforge_hip.weight_plan import Planned, plan_weights

_MOST_COMPUTE_UNITS: Final = 304
"""Of a device that is only imagined (MI300X): what splits need grows with it a little."""


def create() -> HipBackend:
    """Entry point."""
    return HipBackend()


class HipBackend:
    """Whole models on a GPU, through hip-python and prebuilt kernels."""

    @property
    def name(self) -> str:
        return "hip"

    def probe(self) -> ProbeResult:
        try:
            devices = find_devices(select_platform())
        except HipUnavailable as error:
            return ProbeResult(devices=(), reason=error.detail)
        except (BackendError, ConfigurationError) as error:
            return ProbeResult(devices=(), reason=error.message)
        infos = tuple(device.info for device in devices)
        return ProbeResult(
            devices=infos, reason=None if infos else "HIP lists no device it can use"
        )

    def load(self, model: Path, options: LoadOptions, progress: ProgressCallback) -> Runner:
        devices = choose_devices(
            find_devices(select_platform()), options.device, options.tensor_parallel
        )
        if len(devices) > 1:
            return load_sharded(devices, model, options, progress, self.load_on)
        progress("reading the header", 0.0)
        with open_gguf(model) as file:
            if is_encoder(file):
                return load_encoder(devices[0], file, options, progress)
            return self._load_decoder(devices[0], file, options, progress)

    def load_on(
        self,
        found: FoundDevice,
        model: Path,
        options: LoadOptions,
        progress: ProgressCallback,
        rank: Rank,
    ) -> HipRunner:
        """Loads what of a decoder belongs to a rank.

        Raises:
            ConfigurationError: The model is not a decoder.
        """
        progress("reading the header", 0.0)
        with open_gguf(model) as file:
            if is_encoder(file):
                raise ConfigurationError(
                    "An encoder runs on one device; leave tensor_parallel at 1, not "
                    f"{options.tensor_parallel}."
                )
            return self._load_decoder(found, file, options, progress, rank)

    def _load_decoder(
        self,
        found: FoundDevice,
        file: GgufFile,
        options: LoadOptions,
        progress: ProgressCallback,
        rank: Rank | None = None,
    ) -> HipRunner:
        _check_cache_type(options)
        processors = load_processors()
        progress("compiling logits processors", 0.0)
        kernels = prepare_processors(processors, found.properties.target, cache_dir())
        config, weights, adapters = _read(file, options, rank.shard if rank else None)
        geometry = Geometry(found.properties.compute_units)
        free = options.memory_of(found.info)
        plan = make_plan(config, weights, options, geometry, free, adapters)
        tables = load_rope_tables(config, file, plan.limits.context)
        with opened(found) as device:
            group = rank.join(device, plan) if rank else None
            loading = ModelLoading(
                device, config, plan, geometry, progress, kernels, group, file.locate
            )
            loaded = loading.load(weights, tables, adapters)
            pairs = [(cache.keys, cache.values) for cache in loaded.ops.caches]
            bandwidth = copy_bandwidth(device.driver, device.stream, pairs)
            info = _describe(found, config, plan, kernels, bandwidth, options)
            reads = StepReads(config, weights, plan)
            return HipRunner(device, loaded, plan.limits, info, reads)

    def estimate(self, model: Path, options: LoadOptions, memory: int | None) -> MemoryEstimate:
        if memory is None:
            devices = choose_devices(
                find_devices(select_platform()), options.device, options.tensor_parallel
            )
            found = devices[0]
            name = found.info.name if len(devices) == 1 else f"each of {list_names(devices)}"
            free = min(options.memory_of(device.info) for device in devices)
            geometry = Geometry(found.properties.compute_units)
        else:
            name, free, geometry = "a device", memory, Geometry(_MOST_COMPUTE_UNITS)
        _check_cache_type(options)
        with open_gguf(model) as file:
            if is_encoder(file):
                _, _, needs = plan_encoder(file, options, geometry, free)
            else:
                shard = Shard(0, options.tensor_parallel) if options.tensor_parallel > 1 else None
                config, weights, adapters = _read(file, options, shard)
                needs = measure(config, weights, options, geometry, free, adapters)
        return MemoryEstimate(
            device=name,
            free=free,
            allowed=needs.allowed,
            weights=needs.weights + needs.adapters,
            activations=needs.step_bytes,
            kv_block=needs.block_bytes,
            block_size=BLOCK_TOKENS,
            kv_dtype=_cache_type(needs),
            context=needs.limits.context,
        )

    def kernels_for(self, target: str) -> str | None:
        try:
            return find_target(target)
        except NoKernelsForTarget:
            return None

    def devices(self, device: str | None, count: int) -> tuple[str, ...]:
        found = choose_devices(find_devices(select_platform()), device, count)
        return tuple(str(each.properties.index) for each in found)

    def describe(self, device: str) -> tuple[tuple[str, str], ...]:
        return selfcheck.describe(choose_device(find_devices(select_platform()), device))

    def check_ops(self, device: str, only: str) -> Iterator[OpCheck]:
        return selfcheck.check_ops(choose_device(find_devices(select_platform()), device), only)


def _read(
    file: GgufFile, options: LoadOptions, shard: Shard | None
) -> tuple[ModelConfig, ModelWeights[Planned], tuple[Adapter, ...]]:
    """What a device is to have of a model and its adapters: all of it, or a part."""
    config = read_config(file)
    check_sizes(config, HEAD_DIMS)
    tensors = load_weights(config, file, _keep)
    adapters = read_adapters(config, options.adapters)
    if shard is not None:
        shard.check(config, tensors)
        adapters = tuple(shard.adapter(adapter) for adapter in adapters)
        config, tensors = shard.config(config), shard.weights(tensors)
    return config, plan_weights(tensors), adapters


def _keep(tensor: GgufTensor) -> GgufTensor:
    return tensor


def _check_cache_type(options: LoadOptions) -> None:
    if options.kv_dtype == "f32":
        raise ConfigurationError("The HIP backend has no f32 cache; use kv_dtype f16 or int8.")


def _cache_type(needs: MemoryNeeds) -> str:
    if not needs.block_arrays:
        return NO_CACHE
    return "int8" if "key_scale" in needs.block_arrays else "f16"


def _describe(
    found: FoundDevice,
    config: ModelConfig,
    plan: MemoryPlan,
    kernels: ProcessorKernels,
    bandwidth: float,
    options: LoadOptions,
) -> RunnerInfo:
    return RunnerInfo(
        backend="hip",
        device=found.info,
        block_size=BLOCK_TOKENS,
        num_blocks=plan.num_blocks,
        max_context=plan.limits.context,
        vocab_size=config.vocab_size,
        pipeline_depth=PIPELINE_DEPTH,
        weights_bytes=plan.weights,
        kv_bytes=plan.kv_bytes,
        kv_dtype=_cache_type(plan),
        copy_bandwidth=bandwidth,
        adapters=tuple(adapter.name for adapter in options.adapters),
        adapter_bytes=plan.adapters,
        bus_ids=(found.properties.pci_id,),
        notes=(*str(plan).splitlines(), kernels.note),
        hidden_size=config.hidden_size,
        masks_tokens=True,
        logits_processors=tuple(kernels.processors),
    )
