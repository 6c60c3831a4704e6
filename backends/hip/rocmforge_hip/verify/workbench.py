"""A model of one layer and random weights on a device, to try its operations one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from rocmforge.backend.protocol import LoadOptions
from rocmforge.backend.step import SamplingBatch, StepInput
from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.tensor import Stack, Tensor
from rocmforge.errors import EngineError
from rocmforge.models.blocks import ModelWeights, WeightPlace
from rocmforge.models.config import ModelConfig, TowerConfig
from rocmforge.models.families import FAMILIES
from rocmforge.models.forward.ops import attention_specs
from rocmforge.models.layer_config import NUM_BOUNDS, ExpertsConfig, LatentConfig, LayerConfig
from rocmforge.models.lora import Adapter, LowRank
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rope import RopeTable, RopeTables
from rocmforge.models.rope_config import RopeConfig, RopeStyle
from rocmforge.models.weights import places, take, walk
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.discovery import FoundDevice
from rocmforge_hip.device.memory import DeviceArray, spec
from rocmforge_hip.device.opening import Device, open_device, release
from rocmforge_hip.load.expert_seats import seat_experts
from rocmforge_hip.load.memory_budget import make_plan
from rocmforge_hip.load.model import ModelLoading
from rocmforge_hip.ops.activations import Activation, Forms
from rocmforge_hip.ops.geometry import geometry_of
from rocmforge_hip.ops.sampling.sampler import Sampler
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.ops.step.layout import StepLayout
from rocmforge_hip.ops.step.needs import ListSizes, SamplingNeeds
from rocmforge_hip.run.expert_cache import open_expert_cache
from rocmforge_hip.run.runner import Model
from rocmforge_hip.run.shapes import exact_shape
from rocmforge_hip.run.teams import Teams
from rocmforge_hip.verify.random_weights import random_tensor
from rocmforge_hip.weights.formats import ceil_div
from rocmforge_hip.weights.placement import plan_weights
from rocmforge_hip.weights.shared import join_shared

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

MAX_TOKENS: Final = 512
MAX_SEQUENCES: Final = 8
CONTEXT: Final = 320
NUM_BLOCKS: Final = 24
_STAGING_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The model: one layer, whose matrices all have one stored type, but for that of values."""

    architecture: str = "llama"
    format: str = "f32"
    value_format: str = ""  # "" = the same
    expert_format: str = ""  # "" = the same
    hidden_size: int = 64
    intermediate_size: int = 64
    vocab: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64  # of keys, and of values unless those are given
    value_dim: int | None = None
    rotary_dim: int = 64
    rope_style: RopeStyle = RopeStyle.NEOX
    kv_dtype: str = "f16"
    activation_bits: Literal["8", "16"] = "8"
    window: int | None = None
    tile_windows: bool = False  # of a tower: see `LayerConfig.tile_windows`
    attention_softcap: float | None = None
    sinks: bool = False
    bounded: bool = False  # of a tower: products have bounds
    least_decode_split: int = 1  # see `Geometry`; so that splits of short contexts are merged
    least_prefill_split: int = 0
    least_wide_blocks: int = 0
    least_route_logits: int = 0
    least_wide_rows: int = 0
    least_streamed_rows: int = 0
    least_streamed_features: int = 0
    compute_units: int = 0  # for which work is cut, 0 = those of the device
    experts: ExpertsConfig | None = None  # in place of a dense network
    device_experts: float = 1.0  # share of them; the others are on the host
    latent: LatentConfig | None = None  # with head_dim and value_dim of the cache's rows
    adapter_ranks: tuple[int, ...] = ()  # of LoRA adapters of all matrices


class Workbench:
    """Owns the device while it is open.

    Raises:
        RocmForgeError: The device or its kernels cannot be used.
    """

    def __init__(self, found: FoundDevice, recipe: Recipe) -> None:
        self.config = _config(recipe)
        self.weights = _weights(recipe, self.config)
        self.table = _rope_table(recipe)
        self.spec = attention_specs(self.config)[0]
        self.adapters = tuple(_adapter(rank, self.weights) for rank in recipe.adapter_ranks)
        options = _options(recipe)
        geometry = geometry_of(found.properties)
        geometry = replace(
            geometry,
            compute_units=recipe.compute_units or geometry.compute_units,
            least_decode_split=recipe.least_decode_split,
            least_prefill_split=recipe.least_prefill_split,
            least_wide_blocks=recipe.least_wide_blocks,
            least_route_logits=recipe.least_route_logits,
            least_wide_rows=recipe.least_wide_rows,
            least_streamed_rows=recipe.least_streamed_rows,
            least_streamed_features=recipe.least_streamed_features,
        )
        free, total = found.info.memory_free, found.info.memory_total
        planned = join_shared(plan_weights(self.weights))
        planned = seat_experts(self.config, planned, options, geometry, (free, total))
        plan = make_plan(self.config, planned, options, geometry, free, self.adapters)
        self._device = open_device(found)
        try:
            loading = ModelLoading(self._device, self.config, plan, geometry, lambda *_: None)
            tables = None if self.config.rope is None else RopeTables(self.table, None)
            self.model: Model = loading.load(planned, tables, self.adapters)
            self._seats = open_expert_cache(
                self._device, self.model.hosted, self.model.arena.experts
            )
            if self._seats is not None:
                self._seats.begin(0, 0, 0)  # tells the device where experts are
            self._up = self._device.memory.pinned(_STAGING_BYTES, "uploads")
            self._down = self._device.memory.pinned(_STAGING_BYTES, "downloads")
        except BaseException:
            release(self._device)
            raise

    @property
    def device(self) -> Device:
        """The device, for other operations than the model's; it owns what they allocate."""
        return self._device

    @property
    def residual(self) -> Forms[DeviceArray]:
        """The arrays of what each part of a layer adds to."""
        return self.model.arena.residual or self.model.arena.normed

    @property
    def sampler(self) -> Sampler:
        """Draws tokens."""
        assert self.model.sampler is not None
        return self.model.sampler

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(error, EngineError):  # a device that has failed frees nothing any more
            if self._seats is not None:
                self._seats.close()
            self._device.driver.synchronize_stream(self._device.stream)
            release(self._device)

    def put(self, values: Array, target: DeviceArray) -> DeviceArray:
        """Uploads to the start of an array; returns that part of it."""
        there = target.first(*values.shape)
        assert there.dtype == values.dtype, (there.dtype, values.dtype)
        self._put_bytes(np.ascontiguousarray(values).view(np.uint8).reshape(-1), there.address)
        return there

    def new(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Returns an array that no operation of the model has."""
        return self._device.memory.device(spec(shape, dtype), "of a check").array

    def get(self, array: DeviceArray) -> Array:
        """Downloads an array, once the device has finished."""
        driver, stream = self._device.driver, self._device.stream
        values = np.empty(array.nbytes, np.uint8)
        for first in range(0, len(values), _STAGING_BYTES):
            piece = values[first : first + _STAGING_BYTES]
            driver.copy_to_host(self._down.address, array.address + first, len(piece), stream)
            driver.synchronize_stream(stream)
            piece[:] = self._down.bytes[: len(piece)]
        return values.view(array.dtype).reshape(array.shape)

    def result(self, x: Activation) -> Float64:
        """Returns the values of an activation, float32 or float16."""
        array = x.f32 if x.f32 is not None else x.f16
        assert array is not None
        if x.stride:  # columns of a wider matrix: the row behind the last one is not there
            first = DeviceArray(
                array.address, (x.rows * x.stride - x.stride + x.features,), array.dtype
            )
            flat = np.zeros(x.rows * x.stride, array.dtype)
            flat[: first.shape[0]] = self.get(first)
            return flat.reshape(x.rows, x.stride)[:, : x.features].astype(np.float64)
        return self.get(array).astype(np.float64).reshape(x.rows, x.features)

    def activation(self, arrays: Forms[DeviceArray] | None, values: Array) -> Activation:
        """Returns an activation with these values, in the form of their type."""
        assert arrays is not None, "the model has no use for it"
        rows, features = values.shape
        if values.dtype == np.float32:
            f32 = self.put(values, arrays.float32(rows, features))
            return Activation(arrays, rows, features, f32=f32)
        f16 = self.put(values, arrays.float16(rows, features))
        return Activation(arrays, rows, features, f16=f16)

    def qkv(self, values: Array) -> tuple[Activation, Activation, Activation]:
        """Returns query, key and value, which lie side by side as in `values`."""
        layer, arrays = self.config.layers[0], self.model.arena.qkv
        whole = self.activation(arrays, values)
        edges = np.cumsum([0, layer.query_features, layer.key_features, layer.value_features])

        def part(first: int, end: int) -> Activation:
            f32, f16 = (form and form.columns(first, end) for form in (whole.f32, whole.f16))
            return Activation(
                arrays, whole.rows, end - first, f32=f32, f16=f16, stride=whole.features
            )

        q, k, v = (part(*ends) for ends in pairwise(edges.tolist()))
        return q, k, v

    def step(
        self,
        chunks: Sequence[tuple[int, int, Sequence[int]]],
        *,
        tokens: Sequence[int] | None = None,
        sources: Sequence[int] | None = None,
        rows: Sequence[int] = (),
        sampling: SamplingBatch | None = None,
        ranges: Sequence[tuple[int, int]] = (),
        adapters: Sequence[int] = (),
        places: tuple[Array, Array] = (np.zeros((0, 4)), np.zeros((0, 4))),
        seen_ends: Sequence[int] = (),
        tile_windows: Sequence[int] = (),
        teams: Teams | None = None,
    ) -> DeviceStep:
        """Returns a step on the device.

        Args:
            chunks: For each sequence its context, how many of its last tokens are new, and its
                blocks, if there is a cache.
            tokens: Token ids; zeros if not given.
            sources: Rows of the step before, for tokens that come from there.
            rows: The logit rows.
            sampling: For those rows; greedy if not given.
            ranges: Whose hidden states are added up.
            adapters: Of each sequence, if any has one.
            places: The rows and the shares of a table of positions, [T, 4] each, of a tower.
            seen_ends: Of each token, if some see others behind them.
            tile_windows: The first token of each window of a tile, and the one behind the last.
            teams: Sequences that read what they share once.
        """
        sampling = sampling or SamplingBatch.greedy(len(rows))
        step = replace(
            _step_input(chunks, tokens, sources, rows, sampling, ranges),
            adapters=np.array(adapters, np.int32),
            place_ids=places[0].astype(np.int32),
            place_shares=places[1].astype(np.float32),
            seen_ends=np.array(seen_ends, np.int32),
            tile_windows=np.array(tile_windows, np.int32),
        )
        shape = replace(exact_shape(step), has_teams=teams is not None)
        layout = StepLayout(shape, ListSizes.of(step.sampling))
        packed = np.zeros(layout.nbytes, np.uint8)
        layout.pack(step, packed, teams=None if teams is None else teams.rows)
        self.put(packed, self.model.inputs)
        arrays = layout.arrays(self.model.inputs.address)
        return DeviceStep(shape, arrays, SamplingNeeds.of(step.sampling))

    def _put_bytes(self, values: npt.NDArray[np.uint8], address: int) -> None:
        driver, stream = self._device.driver, self._device.stream
        for first in range(0, len(values), _STAGING_BYTES):
            piece = values[first : first + _STAGING_BYTES]
            self._up.bytes[: len(piece)] = piece
            driver.copy_to_device(address + first, self._up.address, len(piece), stream)
            driver.synchronize_stream(stream)


def _step_input(
    chunks: Sequence[tuple[int, int, Sequence[int]]],
    tokens: Sequence[int] | None,
    sources: Sequence[int] | None,
    rows: Sequence[int],
    sampling: SamplingBatch,
    ranges: Sequence[tuple[int, int]],
) -> StepInput:
    positions = [np.arange(context - new, context) for context, new, _ in chunks]
    slots = [
        np.asarray(blocks)[where // BLOCK_TOKENS] * BLOCK_TOKENS + where % BLOCK_TOKENS
        if blocks
        else np.zeros_like(where)
        for where, (_, _, blocks) in zip(positions, chunks, strict=True)
    ]
    table = np.zeros((len(chunks), max(len(blocks) for _, _, blocks in chunks)), np.int32)
    for row, (_, _, blocks) in zip(table, chunks, strict=True):
        row[: len(blocks)] = blocks
    count = sum(new for _, new, _ in chunks)
    return StepInput(
        step_id=0,
        token_ids=np.array([0] * count if tokens is None else tokens, np.int32),
        token_source=np.array([-1] * count if sources is None else sources, np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots).astype(np.int64),
        query_start=np.cumsum([0, *(new for _, new, _ in chunks)], dtype=np.int32),
        context_len=np.array([context for context, _, _ in chunks], np.int32),
        block_table=table,
        logit_rows=np.array(rows, np.int32),
        sampling=sampling,
        hidden_ranges=np.array(ranges, np.int32).reshape(-1, 2),
    )


def _options(recipe: Recipe) -> LoadOptions:
    return LoadOptions(
        device=None,
        max_context=CONTEXT,
        max_sequences=MAX_SEQUENCES,
        max_batched_tokens=MAX_TOKENS,
        kv_blocks=NUM_BLOCKS,
        kv_dtype=recipe.kv_dtype,  # type: ignore[arg-type]
        activation_bits=recipe.activation_bits,
        memory_utilization=0.9,
        device_experts=recipe.device_experts,
    )


def _config(recipe: Recipe) -> ModelConfig:
    family = FAMILIES[recipe.architecture]
    layer = LayerConfig(
        num_heads=recipe.heads,
        num_kv_heads=recipe.kv_heads,
        key_dim=recipe.head_dim,
        value_dim=recipe.value_dim or recipe.head_dim,
        # Sharper than usual, so that a wrong key shows in the result.
        attention_scale=2.0 * recipe.head_dim**-0.5,
        window=recipe.window,
        tile_windows=recipe.tile_windows,
        intermediate_size=0 if recipe.experts else recipe.intermediate_size,
        experts=recipe.experts,
        latent=recipe.latent,
        joint_head_norms=family.joint_head_norms,
        rotates_first=family.rotates_first,
        bounds=NUM_BOUNDS if recipe.bounded else 0,
    )
    rope = RopeConfig(
        style=recipe.rope_style, rotary_dim=recipe.rotary_dim, theta=100.0, scaling=None
    )
    return ModelConfig(
        architecture=recipe.architecture,
        name="verify",
        causal=family.causal,
        hidden_size=recipe.hidden_size,
        vocab_size=recipe.vocab,
        num_token_types=2,
        max_context=CONTEXT,
        layers=(layer,),
        norm=family.norm,
        norm_eps=1e-5,
        pre_norm=family.pre_norm,
        rope=rope if family.has_rope else None,
        has_alibi=family.has_alibi,
        activation=family.activation,
        attention_softcap=recipe.attention_softcap,
        pooling=PoolingType.NONE,
        num_scores=3 if "head.scores" in family.may_have else 0,
        tower=TowerConfig(patch_features=96, merged=4, embedding_size=64)
        if "patches.matrix" in family.has
        else None,
    )


def _weights(recipe: Recipe, config: ModelConfig) -> ModelWeights[Tensor]:
    """Makes every weight that the family may have, but for a matrix of its own for the output."""
    rng, family = np.random.default_rng(1), FAMILIES[recipe.architecture]
    optional = (family.has | family.may_have) - {"output"}
    if recipe.sinks:
        optional |= {"attention.sinks"}

    def make(place: WeightPlace) -> Tensor:
        name, shape = place.name, place.shape(config)
        if len(shape) > 2:  # of experts or heads
            count, rows, columns = shape
            format = recipe.expert_format or recipe.format
            each = [random_tensor(rng, format, name, rows, columns) for _ in range(count)]
            return Stack(name, each)
        if len(shape) > 1:
            # Biases of experts, and what chooses them, are no matrices to the device.
            is_of_experts = place.declared.shape[0] == "num_experts"
            format = "f32" if is_of_experts else recipe.format
            if name == "attention.v":
                format = recipe.value_format or format
            return random_tensor(rng, format, name, *shape)
        values = (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
        if place.declared.shape == ("bounds",):
            values *= np.array([-1, 1, -10, 10], np.float32)
        return Tensor(name, shape, FORMATS["f32"], values.view(np.uint8))

    made = {
        place.path: make(place)
        for place in places(config.num_layers)
        if (not place.is_optional or place.name in optional) and 0 not in place.shape(config)
    }
    return take(config, made)


def _adapter(rank: int, weights: ModelWeights[Tensor]) -> Adapter:
    """Returns an adapter of all matrices."""
    rng = np.random.default_rng(rank)

    def low_rank(place: WeightPlace, tensor: Tensor) -> LowRank:
        rows, columns = tensor.shape
        a = random_tensor(rng, "f32", f"{place.path}.lora_a", rank, columns)
        b = random_tensor(rng, "bf16", f"{place.path}.lora_b", rows, rank)
        return LowRank(a, b, 0.5 / rank, "verify")

    changes = {
        place: low_rank(place, tensor)
        for place, tensor in walk(weights)
        if place.declared.adaptable
    }
    return Adapter(f"rank {rank}", changes)


def _rope_table(recipe: Recipe) -> RopeTable:
    frequencies = 100.0 ** (-np.arange(0, recipe.rotary_dim, 2) / recipe.rotary_dim)
    angles = np.arange(CONTEXT)[:, None] * frequencies
    return RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


def blocks_of(contexts: Sequence[int]) -> list[list[int]]:
    """Returns the blocks for these sequences, in an order that is not that of memory."""
    order = list(np.random.default_rng(2).permutation(NUM_BLOCKS))
    return [[int(order.pop()) for _ in range(ceil_div(count, BLOCK_TOKENS))] for count in contexts]
