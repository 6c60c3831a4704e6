"""The memory that a model will take of a device, computed before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from rocmforge.backend.protocol import LoadOptions
from rocmforge.backend.windows import (
    WindowGroups,
    least_blocks,
    most_blocks,
    plan_windows,
    why_windows_keep,
)
from rocmforge.checkpoint.cache_types import SCALED_CACHES
from rocmforge.errors import OutOfMemory
from rocmforge.models.blocks import ModelWeights
from rocmforge.models.config import ModelConfig
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.lora import Adapter
from rocmforge.models.memory import state_bytes
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.memory import ArraySpec, spec
from rocmforge_hip.device.records import mapped, total_bytes
from rocmforge_hip.load.activation_plan import plan_activations
from rocmforge_hip.ops.activations import ActivationArrays, StepLimits
from rocmforge_hip.ops.attention.cached import LayerCache, stored_type
from rocmforge_hip.ops.attention.prefill_splits import KEY_TILE
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.step.layout import StepLayout
from rocmforge_hip.ops.step.needs import ListSizes
from rocmforge_hip.ops.step.processor_arrays import UseSizes
from rocmforge_hip.ops.step.shape import PredictorUse, StateLaunch, StepShape
from rocmforge_hip.weights.adapters import (
    adapter_bytes,
    most_tiles,
    plan_adapters,
)
from rocmforge_hip.weights.formats import ceil_div
from rocmforge_hip.weights.placement import Planned, stored_bytes, weight_bytes
from rocmforge_hip.weights.seats import host_bytes, table_bytes

_MAX_BIASES: Final = 4096
"""Biased tokens of a row."""
SMALL_MODEL: Final = 512 << 20
"""Bytes of weights, on all devices, up to which 16 bits of activations are kept by default.

The errors of 8 bits average out in wide models; in narrow ones they choose other tokens.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """Sizes in bytes, and the arrays they are for; the cache has no size yet."""

    allowed: int
    weights: int
    adapters: int
    activations: ActivationArrays[ArraySpec]
    input_bytes: int
    cache_blocks: tuple[LayerCache[ArraySpec], ...]  # of each layer; none: there is no cache
    limits: StepLimits
    hidden_block: ArraySpec | None = None  # hidden states of a block, kept for a predictor
    host_bytes: int = 0  # of the host's memory, for experts that the device has no room for
    table_bytes: int = 0  # of the host's memory, for a table of embeddings
    states: int = 0  # of all sequences that run at once, and of snapshots
    state_slots: int = 0  # so many
    snapshots: int = 0  # of those slots
    windows: WindowGroups | None = None  # of layers that release blocks
    kept_windows: str = ""  # why none does
    activation_slices: int = 0  # of int8 activations in decode: rf/activations/act.h

    @property
    def block_bytes(self) -> int:
        """A block of the cache, in all layers, and the hidden states of its tokens if kept.

        If layers release blocks, it is in the layers of one group.
        """
        hidden = 0 if self.hidden_block is None else self.hidden_block.nbytes
        windows, scales = self.windows, self.window_scales
        if windows is None:
            return hidden + sum(map(total_bytes, self.cache_blocks))
        of_windows = 0 if scales is None else 2 * scales.nbytes
        return hidden + sum(
            windows.parts * total_bytes(self.cache_blocks[layer]) + of_windows
            for layer in set(windows.cache_of)
        )

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return BLOCK_TOKENS if self.windows is None else self.windows.block_size

    @property
    def window_scales(self) -> ArraySpec | None:
        """Scales of keys, or of values, that layers with a window have in a block of one array.

        None if those of layers without one are theirs, too, or there are none.
        """
        windows = self.windows
        if windows is None or windows.is_even:
            return None
        scales = self.cache_blocks[windows.group_of.index(1)].key_scale
        return None if scales is None else spec((windows.sharing, *scales.shape), scales.dtype)

    @property
    def step_bytes(self) -> int:
        """Bytes that a step needs beside weights and cache."""
        return total_bytes(self.activations) + self.input_bytes

    @property
    def fixed_bytes(self) -> int:
        """Everything but the cache."""
        return self.weights + self.adapters + self.states + self.step_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan(MemoryNeeds):
    """The needs of a model together with its cache. `str()` is for people."""

    num_blocks: int

    @property
    def kv_bytes(self) -> int:
        """The cache."""
        return self.num_blocks * self.block_bytes

    def __str__(self) -> str:
        states = f"{self.state_slots - self.snapshots} sequences, {self.snapshots} snapshots"
        decode, cache = [], "none: the model keeps nothing of a prompt"
        if self.cache_blocks:
            decode = [f"decode       {8 * self.activation_slices}-bit activations"]
            context, windows = self.limits.context, self.windows
            of_one, of_step = ceil_div(context, self.block_tokens), 0
            if windows is not None:
                of_one += windows.sequence_blocks
                of_step = windows.step_blocks
            sequences = (self.num_blocks - of_step) // of_one
            tokens = f"{self.num_blocks * BLOCK_TOKENS} tokens"
            if windows is not None:
                tokens = f"layers with a window of {windows.window} keep no more"
            cache = (
                f"{mib(self.kv_bytes)}: {self.num_blocks} blocks, {tokens}, "
                f"{sequences} sequences of {context}"
            )
        return "\n".join(
            (
                f"weights      {mib(self.weights)}",
                *([f"host         {mib(self.host_bytes)}: experts"] if self.host_bytes else []),
                *(
                    [f"host         {mib(self.table_bytes)}: embeddings"]
                    if self.table_bytes
                    else []
                ),
                *decode,
                *([f"adapters     {mib(self.adapters)}"] if self.adapters else []),
                f"activations  {mib(self.step_bytes)}",
                *([f"states       {mib(self.states)}: {states}"] if self.states else []),
                f"KV cache     {cache}",
                *(
                    [f"windows      keep all blocks: {self.kept_windows}"]
                    if self.kept_windows
                    else []
                ),
                f"allowed      {mib(self.allowed)}",
            )
        )


def measure(
    config: ModelConfig,
    weights: ModelWeights[Planned],
    options: LoadOptions,
    geometry: Geometry,
    memory_free: int,
    adapters: Sequence[Adapter] = (),
) -> MemoryNeeds:
    """Returns what the model and its adapters need of a device with so much free memory."""
    most = options.max_batched_tokens
    limits = StepLimits(
        tokens=most,
        # Each draft token that is checked counts as a sequence of its step.
        sequences=max(options.max_sequences, min(1 + options.draft_tokens, most)),
        context=options.context_of(config),
        adapters=len(adapters),
        merged=0 if config.tower is None else config.tower.merged,
    )
    stacks = plan_adapters(weights, adapters)
    layers = config.layers if config.causal else ()
    needs = MemoryNeeds(
        allowed=int(memory_free * options.memory_utilization),
        weights=weight_bytes(weights),
        host_bytes=host_bytes(weights),
        table_bytes=table_bytes(weights),
        adapters=adapter_bytes(stacks),
        activations=plan_activations(config, weights, limits, geometry, stacks),
        input_bytes=_largest_input(config, limits, options),
        cache_blocks=tuple(_cache_block(layer, options.kv_dtype) for layer in layers),
        limits=limits,
        hidden_block=spec((BLOCK_TOKENS, config.hidden_size), "f2") if config.predicts else None,
        states=options.running_slots(config) * state_bytes(config),
        state_slots=options.running_slots(config),
        windows=plan_windows(config, options, BLOCK_TOKENS, KEY_TILE),
        kept_windows=why_windows_keep(config, options, BLOCK_TOKENS, KEY_TILE),
        activation_slices=_activation_slices(config, options, stored_bytes(weights)),
    )
    one, left = state_bytes(config), needs.allowed - needs.fixed_bytes
    count = options.snapshots_within(left, one)
    return replace(
        needs,
        states=needs.states + count * one,
        state_slots=needs.state_slots + count,
        snapshots=count,
    )


def make_plan(
    config: ModelConfig,
    weights: ModelWeights[Planned],
    options: LoadOptions,
    geometry: Geometry,
    memory_free: int,
    adapters: Sequence[Adapter] = (),
) -> MemoryPlan:
    """Returns the plan for a device with so much free memory.

    Raises:
        OutOfMemory: One sequence of full length, or the cache that was asked for, does not fit.
    """
    needs = measure(config, weights, options, geometry, memory_free, adapters)
    left = needs.allowed - needs.fixed_bytes
    num_blocks = least = needed_blocks(needs, options)
    if needs.cache_blocks and options.kv_blocks is None:
        fitting = max(left, 0) // needs.block_bytes
        num_blocks = min(fitting, most_blocks(needs.windows, options, _context_blocks(needs)))
    if num_blocks < least or num_blocks * needs.block_bytes > left:
        cache = "no cache"
        if least:
            tokens = least * needs.block_tokens
            cache = f"{mib(least * needs.block_bytes)} for a cache of {tokens} tokens"
        raise OutOfMemory(
            f"The model needs {mib(needs.weights)} for weights, "
            f"{mib(needs.adapters)} for adapters, {mib(needs.step_bytes + needs.states)} for a "
            "step and "
            f"{cache}, but only {mib(needs.allowed)} may be used ({options.memory_utilization:.0%} "
            f"of {mib(memory_free)} free). Lower max_context, max_batched_tokens, max_sequences or "
            "kv_blocks, or take a smaller model."
        )
    values = {field.name: getattr(needs, field.name) for field in fields(needs)}
    return MemoryPlan(**values, num_blocks=num_blocks)


def check_table(needs: MemoryNeeds, host_free: int) -> None:
    """Refuses to pin a table of embeddings that the host has no memory for.

    Raises:
        OutOfMemory: There is too little.
    """
    if needs.table_bytes > host_free:
        raise OutOfMemory(
            f"The embeddings of the model's layers take {mib(needs.table_bytes)} of the host's "
            f"memory, {mib(needs.table_bytes - host_free)} more than can be had. Free as much, or "
            "take a smaller model or file."
        )


def needed_blocks(needs: MemoryNeeds, options: LoadOptions) -> int:
    """Returns the blocks that there must be: for one sequence, or as many as were asked for."""
    if not needs.cache_blocks:
        return 0
    return least_blocks(needs.windows, options, _context_blocks(needs))


def _context_blocks(needs: MemoryNeeds) -> int:
    return ceil_div(needs.limits.context, needs.block_tokens)


def cache_arrays(plan: MemoryPlan, layer: int) -> LayerCache[ArraySpec]:
    """Returns the arrays of a layer that has some of its own, for all blocks of the cache."""
    parts = 1 if plan.windows is None else plan.windows.parts

    def blocks(name: str, block: ArraySpec) -> ArraySpec:
        return spec((plan.num_blocks * parts, *block.shape), block.dtype)

    arrays: LayerCache[ArraySpec] = mapped(plan.cache_blocks[layer], ArraySpec, blocks)
    return arrays


def cache_block_bytes(config: ModelConfig, options: LoadOptions) -> list[int]:
    """Returns the bytes of a block of each layer's cache."""
    return [total_bytes(_cache_block(layer, options.kv_dtype)) for layer in config.layers]


def cache_type(needs: MemoryNeeds) -> str:
    """Returns the stored type of a model's cache; "none" if it has none."""
    if not needs.cache_blocks:
        return "none"
    return stored_type(needs.cache_blocks[0])


def _activation_slices(config: ModelConfig, options: LoadOptions, weights: int) -> int:
    """Returns the slices for this many bytes of weights on each device."""
    if not config.causal:  # all rows go through GEMM
        return 0
    if options.activation_bits == "auto":
        return 2 if weights * options.tensor_parallel <= SMALL_MODEL else 1
    return int(options.activation_bits) // 8


def _cache_block(layer: LayerConfig, kv_dtype: str) -> LayerCache[ArraySpec]:
    rows = layer.num_kv_heads, BLOCK_TOKENS
    scaled = kv_dtype in SCALED_CACHES
    stored, scales = ("i1", spec(rows, "f4")) if scaled else ("f2", None)
    keys = spec((*rows, layer.key_dim), stored)
    if layer.latent is not None:
        return LayerCache(keys, None, scales, None)
    if kv_dtype == "k8v4":
        return LayerCache(keys, spec((*rows, layer.value_dim // 8), "u4"), scales, scales)
    return LayerCache(keys, spec((*rows, layer.value_dim), stored), scales, scales)


def _largest_input(config: ModelConfig, limits: StepLimits, options: LoadOptions) -> int:
    """Returns the bytes of the inputs of the largest step."""
    causal, vocab = config.causal, config.vocab_size
    windows = plan_windows(config, options, BLOCK_TOKENS, KEY_TILE)
    shape = StepShape(
        tokens=limits.tokens,
        sequences=limits.sequences,
        rows=limits.rows if causal else 0,
        blocks=ceil_div(limits.context, BLOCK_TOKENS) if causal else 0,
        decodes=limits.sequences,
        prefills=limits.sequences,
        longest_prefill=limits.tokens,
        lora_tiles=most_tiles(limits.tokens, limits.adapters) if causal else 0,
        sums=limits.sums,
        predictor=PredictorUse.FILL if config.predicts else PredictorUse.NONE,
        state_launches=(StateLaunch(limits.sequences, limits.tokens),) if config.has_states else (),
        checked=limits.sequences if config.has_states else 0,
        window_groups=0 if windows is None else windows.num_tables,
        has_axes=config.rope is not None and bool(config.rope.axes),
        has_places=config.tower is not None and config.tower.places > 0,
        has_teams=causal,
        reads_ends=causal,
        # A window has one row of embeddings at least.
        tile_windows=limits.sums if any(layer.tile_windows for layer in config.layers) else 0,
    )
    if not causal:
        return StepLayout(shape).nbytes
    lists = ListSizes(
        seen=limits.sequences * min(limits.context, vocab),
        biases=limits.sequences * min(_MAX_BIASES, vocab),
        mask_words=ceil_div(vocab, 32),
        uses=UseSizes.most(limits.sequences, limits.context, words=ceil_div(vocab, 32)),
    )
    return StepLayout(shape, lists).nbytes


def mib(size: int) -> str:
    """Returns a number of bytes, for people."""
    return f"{size / (1 << 20):,.0f} MiB"
