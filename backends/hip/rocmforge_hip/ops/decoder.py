"""`models.forward.ops.Ops` by launching kernels: shapes are checked and grids chosen here.

An operation writes to the arrays that the arena has for its result (see `activations`); nothing is
allocated and nothing waits. Few rows go through GEMV with int8 activations, more of them through
GEMM with halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from rocmforge.models.config import ActivationFunction, ModelConfig, RopeStyle
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge_hip.device.constants import ATTENTION_ROWS, BLOCK_TOKENS, QUANT_BLOCK
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.kernels import attention
from rocmforge_hip.kernels import rows as row_kernels
from rocmforge_hip.ops.activations import Activation, DecoderArrays, Forms
from rocmforge_hip.ops.geometry import Geometry
from rocmforge_hip.ops.linear import GATES, LinearKernels, empty, f32_of, part_of, vector_of
from rocmforge_hip.ops.lora import DeviceAdapters, Lora
from rocmforge_hip.ops.rows import RowKernels, norm_threads
from rocmforge_hip.ops.step import DeviceStep
from rocmforge_hip.weights.formats import Matrix, Weight, ceil_div

_ELEMENTS: Final = 1024  # of a block of the element-wise kernels
_THREADS: Final = 256

X = TypeVar("X")

HEAD_DIMS: Final = (64, 80, 96, 128, 256)


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache(Generic[X]):
    """Keys and values of one layer: kernels/include/rf/kv_cache.h. Scales for int8 only."""

    keys: X  # float16 or int8 [blocks, num_kv_heads, BLOCK_TOKENS, head_dim]
    values: X  # as keys
    key_scale: X | None = None  # float32 [blocks, num_kv_heads, BLOCK_TOKENS]
    value_scale: X | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRopeTable:
    """Cosine and sine by position, float32 `[max_context, rotary_dim / 2]` each."""

    cos: DeviceArray
    sin: DeviceArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecoderResources:
    """The things that the operations of a decoder work with."""

    config: ModelConfig
    library: KernelLibrary
    geometry: Geometry
    arena: DecoderArrays[DeviceArray]
    caches: tuple[LayerCache[DeviceArray], ...]  # by layer
    tables: Mapping[bool, DeviceRopeTable]  # by whether they are for `local_rope`
    formats: frozenset[str]  # stored types of the matrices
    adapters: Mapping[Matrix, DeviceAdapters]
    slices: int  # of int8 activations: see `LinearKernels`


class HipOps:
    """Implements `Ops[Activation, Weight, DeviceStep]`."""

    def __init__(self, resources: DecoderResources) -> None:
        config, library, arena = resources.config, resources.library, resources.arena
        geometry, caches, formats = resources.geometry, resources.caches, resources.formats
        self._config = config
        self._geometry = geometry
        self._arena = arena
        self._caches = caches
        self._tables = resources.tables
        self._wave = library.wave_size
        self.products = LinearKernels(library, geometry, arena, formats, resources.slices)
        self._lora = Lora(library, arena, self.products, resources.adapters)
        cache = "int8" if caches[0].key_scale is not None else "f16"
        layer = config.layers[0]  # the others have the same heads: see `check_sizes`
        group = 4 if layer.num_heads // layer.num_kv_heads <= 4 else 8
        self._group = group
        # All are loaded now: a module must not be loaded while a graph is captured.
        self._rows = RowKernels(library, formats)
        self._rms_norm = library.kernel("rf_rms_norm", row_kernels.rf_rms_norm)
        self._add_rms_norm = library.kernel("rf_add_rms_norm", row_kernels.rf_add_rms_norm)
        self._take = library.kernel("rf_take_rows", row_kernels.rf_take_rows)
        self._rope_store = library.kernel(f"rf_rope_store_{cache}", attention.rf_rope_store)
        self._decode = library.kernel(
            f"rf_attention_decode_{cache}_d{layer.key_dim}_g{group}",
            attention.rf_attention_decode,
        )
        self._reduce = library.kernel(
            "rf_attention_decode_reduce", attention.rf_attention_decode_reduce
        )
        self._prefill = library.kernel(
            f"rf_attention_prefill_{cache}_d{layer.key_dim}", attention.rf_attention_prefill
        )

    @property
    def caches(self) -> tuple[LayerCache[DeviceArray], ...]:
        """Keys and values, by layer."""
        return self._caches

    def embed(self, step: DeviceStep, table: Weight, scale: float) -> Activation:
        matrix = part_of(table).matrix
        tokens = step.shape.tokens
        out = self._arena.residual.float32(tokens, matrix.in_features)
        self._rows.embed(matrix, self._arena.tokens, scale, out)
        if step.embeddings is not None:
            step.embeddings.copy_to(out)
        return Activation(self._arena.residual, tokens, matrix.in_features, f32=out)

    def rms_norm(self, x: Activation, weight: Weight) -> Activation:
        arena = self._arena
        result = arena.normed if x.arrays is arena.residual else arena.post_normed
        assert result is not None
        out = self._normed(result, x.rows, x.features)
        self._rms_norm.launch(
            (x.rows, 1, 1),
            norm_threads(x.features),
            x=f32_of(x),
            weight=vector_of(weight, x.features),
            out=out,
            hidden_size=x.features,
            eps=self._config.norm_eps,
        )
        return out

    def add_rms_norm(
        self, residual: Activation, delta: Activation, weight: Weight
    ) -> tuple[Activation, Activation]:
        assert (residual.rows, residual.features) == (delta.rows, delta.features)
        out = self._normed(self._arena.normed, residual.rows, residual.features)
        self._add_rms_norm.launch(
            (residual.rows, 1, 1),
            norm_threads(residual.features),
            delta=f32_of(delta),
            residual=f32_of(residual),
            weight=vector_of(weight, residual.features),
            out=out,
            hidden_size=residual.features,
            eps=self._config.norm_eps,
        )
        return residual, out

    def linear(
        self, step: DeviceStep, x: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        part = part_of(weight)
        out = self.products.multiply(x, part, bias)
        self._lora.add(step, x, part.matrix, out)
        return out

    def qkv(
        self,
        step: DeviceStep,
        x: Activation,
        weights: tuple[Weight, Weight, Weight],
        biases: tuple[Weight | None, Weight | None, Weight | None],
    ) -> tuple[Activation, Activation, Activation]:
        return self.products.qkv(x, weights, biases, then=partial(self._lora.add, step, x))

    def gated_linear(
        self,
        step: DeviceStep,
        x: Activation,
        gate: Weight,
        up: Weight,
        activation: ActivationFunction,
    ) -> Activation:
        assert part_of(gate).matrix is part_of(up).matrix, "gate and up are one matrix"
        if self._lora.changes(step, part_of(gate).matrix):
            return self._lora.gated(step, x, part_of(gate), GATES[activation])
        return self.products.multiply(x, part_of(gate), None, GATES[activation])

    def rope_and_store(
        self,
        step: DeviceStep,
        q: Activation,
        k: Activation,
        v: Activation,
        q_norm: Weight | None,
        k_norm: Weight | None,
        spec: AttentionSpec,
    ) -> Activation:
        config, cache, table = self._config, self._caches[spec.layer], self._tables[spec.local_rope]
        layer, rope = config.layers[spec.layer], config.rope_of(local=spec.local_rope)
        heads, kv_heads, head_dim = layer.num_heads, layer.num_kv_heads, layer.key_dim
        assert (q.features, k.features, v.features) == (
            layer.query_features,
            layer.key_features,
            layer.value_features,
        )
        out = self._arena.rotated.float16(q.rows, q.features)
        waves = _THREADS // self._wave
        self._rope_store.launch(
            (q.rows, ceil_div(heads + 2 * kv_heads, waves), 1),
            _THREADS,
            q=f32_of(q),
            k=f32_of(k),
            v=f32_of(v),
            q_norm=None if q_norm is None else vector_of(q_norm, head_dim),
            k_norm=None if k_norm is None else vector_of(k_norm, head_dim),
            cosine=table.cos,
            sine=table.sin,
            positions=step.inputs.positions,
            slots=step.inputs.slots,
            q_out=out,
            k_cache=cache.keys,
            v_cache=cache.values,
            k_scale=cache.key_scale,
            v_scale=cache.value_scale,
            q_stride=q.stride or q.features,
            k_stride=k.stride or k.features,
            v_stride=v.stride or v.features,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rotary_dim=rope.rotary_dim,
            neox=int(rope.style is RopeStyle.NEOX),
            eps=config.norm_eps,
        )
        return Activation(self._arena.rotated, q.rows, q.features, f16=out)

    def attention(self, step: DeviceStep, q: Activation, spec: AttentionSpec) -> Activation:
        assert q.f16 is not None
        out = self._attended(step, q)
        if step.shape.decodes:
            self._attend_decodes(step, q.f16, out, spec)
        if step.shape.prefills:
            self._attend_prefills(step, q.f16, out, spec)
        return out

    def _attend_decodes(
        self, step: DeviceStep, q: DeviceArray, out: Activation, spec: AttentionSpec
    ) -> None:
        layer, shape, inputs = self._config.layers[spec.layer], step.shape, step.inputs
        cache = self._caches[spec.layer]
        kv_heads = layer.num_kv_heads
        split = self._geometry.attention(
            shape.blocks * BLOCK_TOKENS, spec.window, kv_heads, shape.decodes
        )
        partial, partial_ml = self._arena.attention_partial, self._arena.attention_partial_ml
        assert shape.decodes * split.count <= partial.shape[0] or split.count == 1
        window = spec.window or 0
        tiles = ceil_div(layer.num_heads // kv_heads, self._group)
        self._decode.launch(
            (kv_heads * tiles, split.count, shape.decodes),
            4 * self._wave,
            q=q,
            k_cache=cache.keys,
            v_cache=cache.values,
            k_scale=cache.key_scale,
            v_scale=cache.value_scale,
            block_table=inputs.block_table,
            sequences=inputs.decodes,
            query_start=inputs.query_start,
            context_len=inputs.context_len,
            out=out,
            partial=partial,
            partial_ml=partial_ml,
            blocks_per_sequence=shape.blocks,
            heads=layer.num_heads,
            kv_heads=kv_heads,
            window=window,
            split_tokens=split.tokens,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
        )
        if split.count > 1:
            self._reduce.launch(
                (layer.num_heads, shape.decodes, 1),
                _THREADS,
                partial=partial,
                partial_ml=partial_ml,
                sequences=inputs.decodes,
                query_start=inputs.query_start,
                context_len=inputs.context_len,
                out=out,
                splits=split.count,
                head_dim=layer.value_dim,
                window=window,
                split_tokens=split.tokens,
            )

    def _attend_prefills(
        self, step: DeviceStep, q: DeviceArray, out: Activation, spec: AttentionSpec
    ) -> None:
        layer, shape, inputs = self._config.layers[spec.layer], step.shape, step.inputs
        cache = self._caches[spec.layer]
        group = layer.num_heads // layer.num_kv_heads
        self._prefill.launch(
            (
                ceil_div(shape.longest_prefill * group, ATTENTION_ROWS),
                layer.num_kv_heads,
                shape.prefills,
            ),
            _THREADS,
            q=q,
            k_cache=cache.keys,
            v_cache=cache.values,
            k_scale=cache.key_scale,
            v_scale=cache.value_scale,
            block_table=inputs.block_table,
            sequences=inputs.prefills,
            query_start=inputs.query_start,
            context_len=inputs.context_len,
            out=out,
            blocks_per_sequence=shape.blocks,
            heads=layer.num_heads,
            kv_heads=layer.num_kv_heads,
            window=spec.window or 0,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
        )

    def take_logit_rows(self, step: DeviceStep, x: Activation) -> Activation:
        rows = step.shape.rows
        out = self._arena.logit_rows.float32(rows, x.features)
        if rows:
            self._take_rows(f32_of(x), step.inputs.logit_rows, out)
        return Activation(self._arena.logit_rows, rows, x.features, f32=out)

    def _take_rows(self, x: DeviceArray, rows: DeviceArray, out: DeviceArray) -> None:
        count, features = out.shape
        self._take.launch(
            (ceil_div(features, _ELEMENTS), count, 1),
            _THREADS,
            x=x,
            rows=rows,
            out=out,
            hidden_size=features,
        )

    def sum_hidden(self, step: DeviceStep, x: Activation, out: DeviceArray) -> None:
        """Sums of the rows of x in each range of the step: [sums, hidden_size], float32."""
        self._rows.sum(step, f32_of(x), out)

    def logits(self, x: Activation, weight: Weight, softcap: float | None) -> Activation:
        part = part_of(weight)
        if x.rows == 0:
            return empty(self._arena.logits, 0, part.out_features, half=False)
        out = self.products.multiply(x, part, None)
        if softcap is not None:
            self._rows.softcap(f32_of(out), softcap)
        return out

    def _attended(self, step: DeviceStep, q: Activation) -> Activation:
        """Returns the result of attention, in the forms that a linear layer may read."""
        out = empty(self._arena.attended, q.rows, q.features, half=q.rows > self.products.gemv_rows)
        # The kernels of decodes can write int8, where the blocks do not straddle heads.
        if (
            out.f32 is not None
            and not step.shape.prefills
            and self._config.layers[0].value_dim % QUANT_BLOCK == 0
        ):
            self.products.give_int8(out)
        return out

    def _normed(self, result: Forms[DeviceArray], rows: int, features: int) -> Activation:
        """Returns a result of a norm; only those before a linear layer have forms for it."""
        out = empty(result, rows, features, half=False)
        if result is self._arena.normed and rows <= self.products.gemv_rows:
            self.products.give_int8(out)
        elif result is self._arena.normed:
            out.f16 = result.float16(rows, features)
        return out
