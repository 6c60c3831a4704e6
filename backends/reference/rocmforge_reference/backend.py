"""The plugin: finds the processor, loads a model into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import (
    DeviceInfo,
    LoadOptions,
    ProbeResult,
    ProgressCallback,
    Runner,
    RunnerInfo,
)
from rocmforge.backend.windows import (
    WindowGroups,
    least_blocks,
    most_blocks,
    plan_windows,
    why_windows_keep,
)
from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import ConfigurationError, OutOfMemory
from rocmforge.logits.registry import load_processors
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.memory import float32_weight_bytes, kv_bytes_per_token, state_bytes
from rocmforge.models.rope import load_rope_tables
from rocmforge.models.weights import load_weights
from rocmforge_reference.host import describe_host
from rocmforge_reference.model_ops import KvCache, ReferenceOps
from rocmforge_reference.rounding import RoundingOps
from rocmforge_reference.runner import ReferenceRunner
from rocmforge_reference.weights import with_adapters

_Ops = TypeVar("_Ops", bound=ReferenceOps)

NAME: Final = "reference"
BLOCK_SIZE: Final = 16
_NOTE: Final = "NumPy reference backend: for verification, not for speed"
_DEFAULT_KV_BYTES: Final = 512 << 20
"""Of the cache, unless one sequence of full length needs more: this backend is for verifying."""


def create() -> ReferenceBackend:
    """Makes the backend; the entry point of the plugin."""
    return ReferenceBackend()


class ReferenceBackend:
    """NumPy on the CPU: slow, readable, and the oracle for every other backend."""

    @property
    def name(self) -> str:
        return NAME

    def probe(self) -> ProbeResult:
        return ProbeResult(devices=(describe_host(),), reason=None)

    def load(
        self, checkpoint: Checkpoint, options: LoadOptions, progress: ProgressCallback
    ) -> Runner:
        device = _choose_device(options.device)
        if options.kv_dtype not in ("auto", "f32"):
            raise ConfigurationError(
                f"The reference backend has no {options.kv_dtype} cache; use kv_dtype auto or f32."
            )
        if options.activation_bits != "auto":
            raise ConfigurationError(
                "The reference backend rounds no activations; leave activation_bits at auto, not "
                f"{options.activation_bits}."
            )
        if options.tensor_parallel != 1:
            raise ConfigurationError(
                "The reference backend runs on one processor; leave tensor_parallel at 1, not "
                f"{options.tensor_parallel}."
            )
        return _load(checkpoint, options, device, progress)


def _load(
    checkpoint: Checkpoint,
    options: LoadOptions,
    device: DeviceInfo,
    progress: ProgressCallback,
) -> ReferenceRunner:
    config, adapters, processors = checkpoint.config, checkpoint.adapters, load_processors()
    causal, max_context = config.causal, options.context_of(config)
    weights_bytes = float32_weight_bytes(checkpoint.weights)
    adapter_bytes = 4 * sum(adapter.num_values for adapter in adapters)
    of_states = state_bytes(config)
    num_slots = options.running_slots(config)
    needed = weights_bytes + adapter_bytes + num_slots * of_states
    allowed = int(options.memory_of(device) * options.memory_utilization)
    snapshots = options.snapshots_within(allowed - needed, of_states)
    num_slots += snapshots
    needed = weights_bytes + adapter_bytes + num_slots * of_states
    windows = plan_windows(config, options, BLOCK_SIZE)
    kept = why_windows_keep(config, options, BLOCK_SIZE)
    block_bytes = _block_bytes(config, windows)
    num_blocks = 0
    if causal:
        num_blocks = _plan_blocks(windows, block_bytes, options, max_context, needed, device)
    if not causal:
        _check_fits(needed, options, device)
    weights = with_adapters(
        load_weights(
            config,
            checkpoint.weights,
            _to_weight,
            lambda share: progress("loading weights", share),
        ),
        adapters,
    )
    tables = None
    if config.rope is not None:
        tables = load_rope_tables(config, checkpoint.rope_factors, max_context)
    info = RunnerInfo(
        backend=NAME,
        device=device,
        block_size=_tokens(windows),
        num_blocks=num_blocks,
        max_context=max_context,
        vocab_size=config.vocab_size,
        pipeline_depth=1,
        weights_bytes=weights_bytes,
        kv_bytes=num_blocks * block_bytes,
        kv_dtype="f32" if causal else "none",
        hidden_size=config.output_size,
        embedding_size=config.hidden_size if causal else 0,
        masks_tokens=causal,
        logits_processors=tuple(processors) if causal else (),
        adapters=tuple(adapter.name for adapter in adapters),
        adapter_bytes=adapter_bytes,
        causal=causal,
        state_slots=num_slots,
        state_bytes=num_slots * of_states,
        snapshots=snapshots,
        window_groups=windows.count if windows else 0,
        window=windows.reach if windows else 0,
        predicts=config.predicts,
        notes=(_NOTE, *([f"windows keep all blocks: {kept}"] if kept else [])),
    )

    def new_ops(kind: type[_Ops]) -> _Ops:
        caches = _new_caches(config.layers, num_blocks, windows) if causal else ()
        states = tuple(_new_states(layer, num_slots) for layer in config.layers)
        hidden = None
        if config.predicts:
            hidden = np.zeros((num_blocks, 1, BLOCK_SIZE, config.hidden_size), np.float32)
        groups = windows.group_of if windows else ()
        return kind(config, tables, caches, states, hidden, groups)

    def round_ops(kv_dtype: str, activation_bits: int) -> ReferenceOps:
        ops = new_ops(RoundingOps)
        ops.kv_dtype, ops.activation_bits = kv_dtype, activation_bits
        return ops

    return ReferenceRunner(
        config, weights, new_ops(ReferenceOps), info, processors, round_ops, windows
    )


def _choose_device(wanted: str | None) -> DeviceInfo:
    device = describe_host()
    if wanted not in (None, "0", "cpu", device.name):
        raise ConfigurationError(
            f"The reference backend has no device {wanted!r}; its only one is 0 ({device.name})."
        )
    return device


def _check_fits(weights_bytes: int, options: LoadOptions, device: DeviceInfo) -> None:
    """Refuses weights that do not fit, of a model without a cache.

    Raises:
        OutOfMemory: Says what they need.
    """
    usable = options.memory_of(device)
    allowed = int(usable * options.memory_utilization)
    if weights_bytes > allowed:
        raise OutOfMemory(
            f"The model needs {_mib(weights_bytes)} as float32, but only {_mib(allowed)} may be "
            f"used ({options.memory_utilization:.0%} of {_mib(usable)} free)."
        )


def _block_bytes(config: ModelConfig, windows: WindowGroups | None) -> int:
    """Returns the bytes of a block: of all layers, or of those of one group."""
    of_all = _tokens(windows) * kv_bytes_per_token(config, "f32")
    return of_all if windows is None else round(of_all * windows.share_of(config))


def _tokens(windows: WindowGroups | None) -> int:
    """Returns the tokens of a block."""
    return BLOCK_SIZE if windows is None else windows.block_size


def _plan_blocks(
    windows: WindowGroups | None,
    block_bytes: int,
    options: LoadOptions,
    max_context: int,
    fixed_bytes: int,
    device: DeviceInfo,
) -> int:
    """Returns the number of blocks of the cache, beside weights and states.

    Raises:
        OutOfMemory: Weights and cache do not fit into the share of memory that may be used.
    """
    block_size = _tokens(windows)
    blocks_per_sequence = -(-max_context // block_size)
    least = least_blocks(windows, options, blocks_per_sequence)
    usable = options.memory_of(device)
    allowed = int(usable * options.memory_utilization)
    left = allowed - fixed_bytes
    num_blocks = least
    if options.kv_blocks is None:
        default = max(least, _DEFAULT_KV_BYTES // block_bytes)
        fitting = max(left, 0) // block_bytes
        num_blocks = min(default, fitting, most_blocks(windows, options, blocks_per_sequence))
    if num_blocks < least or num_blocks * block_bytes > left:
        raise OutOfMemory(
            f"The model needs {_mib(fixed_bytes)} as float32 and {_mib(least * block_bytes)} for "
            f"a cache of {least * block_size} tokens, but only {_mib(allowed)} may be used "
            f"({options.memory_utilization:.0%} of {_mib(usable)} free). Lower "
            "max_context or kv_blocks, or take a smaller model."
        )
    return num_blocks


def _to_weight(tensor: Tensor) -> Float32Array:
    """Returns the tensor in column order: BLAS multiplies a few rows by it a third faster."""
    return tensor.to_float32(order="F")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def _new_caches(
    layers: Sequence[LayerConfig], num_blocks: int, windows: WindowGroups | None
) -> tuple[KvCache, ...]:
    if windows is not None:
        own = {
            index: _new_cache(layers[index], num_blocks * windows.parts)
            for index in set(windows.cache_of)
        }
        return tuple(
            _of_window(own[windows.cache_of[index]], index, layers, windows)
            if windows.group_of[index]
            else own[windows.cache_of[index]]
            for index in range(len(layers))
        )
    caches: list[KvCache] = []
    for layer in layers:
        shared = layer.cache_of
        caches.append(_new_cache(layer, num_blocks) if shared is None else caches[shared])
    return tuple(caches)


def _new_cache(layer: LayerConfig, num_blocks: int) -> KvCache:
    def zeros(head_dim: int) -> Float32Array:
        shape = (num_blocks, layer.num_kv_heads, BLOCK_SIZE, head_dim)
        return np.zeros(shape, np.float32)  # pages are taken when first written

    keys = zeros(layer.key_dim)
    if layer.latent is not None:
        return KvCache(keys, keys[..., layer.latent.rotary_dim :])
    return KvCache(keys, zeros(layer.value_dim))


def _of_window(
    cache: KvCache, index: int, layers: Sequence[LayerConfig], windows: WindowGroups
) -> KvCache:
    """Returns the cache of a layer with a window, in the memory of one without."""
    shared = layers[index].cache_of
    layer = layers[index if shared is None else shared]

    def seen(array: Float32Array, head_dim: int) -> Float32Array:
        blocks = array.reshape(-1, layer.num_kv_heads, BLOCK_SIZE, head_dim)
        return blocks[windows.part_of[index] :]

    return KvCache(seen(cache.keys, layer.key_dim), seen(cache.values, layer.value_dim))


def _new_states(layer: LayerConfig, num_slots: int) -> tuple[Float32Array, ...]:
    """Returns room for the states of a layer, [num_slots, ...] each."""
    return tuple(np.zeros((num_slots, *shape), np.float32) for shape in layer.state_shapes)
