"""`rocmforge.backend.ops.Ops` by launching kernels: shapes are checked and grids chosen here.

An operation writes to the arrays that the arena has for its result (see `activations`); nothing is
allocated and nothing waits. Few rows go through GEMV with int8 activations, more of them through
GEMM with halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from rocmforge.backend.ops import Activation as GateActivation
from rocmforge.backend.ops import AttentionSpec
from rocmforge.models.config import ModelConfig, RopeStyle
from rocmforge_hip.device.library import Kernel, KernelLibrary
from rocmforge_hip.device.memory import Arena, DeviceArray
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.geometry import BLOCK_TOKENS, Geometry
from rocmforge_hip.ops.linear import GATES, LinearKernels, empty, f32_of, part_of, vector_of
from rocmforge_hip.ops.lora import DeviceAdapters, Lora
from rocmforge_hip.ops.rows import embed_rows, norm_threads, sum_rows
from rocmforge_hip.ops.step import DeviceStep
from rocmforge_hip.weights.formats import UNIT, Matrix, Weight, ceil_div
from rocmforge_hip.weights.slots import ATTENDED, NORMED, POST_NORMED, RESIDUAL, ROTATED, ROWS

_PREFILL_ROWS: Final = 128  # query rows of a block
_ELEMENTS: Final = 1024  # of a block of the element-wise kernels
_THREADS: Final = 256

HEAD_DIMS: Final = (64, 80, 96, 128, 256)


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """Keys and values of one layer: kernels/include/rf/kv_cache.h. Scales for int8 only."""

    keys: DeviceArray
    values: DeviceArray
    key_scale: DeviceArray | None = None
    value_scale: DeviceArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRopeTable:
    """Cosine and sine by position, float32 `[max_context, rope dim / 2]` each."""

    cos: DeviceArray
    sin: DeviceArray


class HipOps:
    """Implements `Ops[Activation, Weight, DeviceStep]`."""

    def __init__(
        self,
        config: ModelConfig,
        library: KernelLibrary,
        geometry: Geometry,
        arena: Arena,
        caches: tuple[LayerCache, ...],
        tables: Mapping[bool, DeviceRopeTable],
        formats: frozenset[str],
        adapters: Mapping[Matrix, DeviceAdapters],
        terms: int,
    ) -> None:
        self._config = config
        self._geometry = geometry
        self._arena = arena
        self._caches = caches
        self._tables = tables
        self._wave = library.wave_size
        self.products = LinearKernels(library, geometry, arena, formats, terms)
        self._lora = Lora(library, arena, self.products, adapters)
        cache = "int8" if caches[0].key_scale is not None else "f16"
        group = 4 if config.num_heads // config.num_kv_heads <= 4 else 8
        self._group = group
        names = [
            *("rf_rms_norm", "rf_add_rms_norm", "rf_take_rows", "rf_sum_rows", "rf_softcap"),
            *("rf_attention_decode_reduce", f"rf_rope_store_{cache}"),
            f"rf_attention_decode_{cache}_d{config.head_dim}_g{group}",
            f"rf_attention_prefill_{cache}_d{config.head_dim}",
        ]
        names += [f"rf_embed_{format_name}" for format_name in formats]
        # All are loaded now: a module must not be loaded while a graph is captured.
        self._kernels: dict[str, Kernel] = {name: library.kernel(name) for name in names}
        self._rope_store = self._kernels[f"rf_rope_store_{cache}"]
        self._decode = self._kernels[f"rf_attention_decode_{cache}_d{config.head_dim}_g{group}"]
        self._prefill = self._kernels[f"rf_attention_prefill_{cache}_d{config.head_dim}"]

    @property
    def caches(self) -> tuple[LayerCache, ...]:
        """Keys and values, by layer."""
        return self._caches

    def embed(self, step: DeviceStep, table: Weight, scale: float) -> Activation:
        matrix = part_of(table).matrix
        tokens = step.shape.tokens
        out = self._arena[f"{RESIDUAL}.f32"].first(tokens, matrix.columns)
        kernel = self._kernels[f"rf_embed_{matrix.format.name}"]
        embed_rows(kernel, matrix, self._arena["tokens"], scale, out)
        return Activation(RESIDUAL, tokens, matrix.columns, f32=out)

    def rms_norm(self, x: Activation, weight: Weight) -> Activation:
        out = self._normed(NORMED if x.slot == RESIDUAL else POST_NORMED, x.rows, x.width)
        self._kernels["rf_rms_norm"].launch(
            f32_of(x),
            vector_of(weight, x.width),
            out.f32,
            out.f16,
            out.q,
            out.scale,
            out.second,
            x.width,
            self._config.norm_eps,
            grid=(x.rows, 1, 1),
            block=norm_threads(x.width),
        )
        return out

    def add_rms_norm(
        self, residual: Activation, delta: Activation, weight: Weight
    ) -> tuple[Activation, Activation]:
        assert (residual.rows, residual.width) == (delta.rows, delta.width)
        out = self._normed(NORMED, residual.rows, residual.width)
        self._kernels["rf_add_rms_norm"].launch(
            f32_of(delta),
            f32_of(residual),
            vector_of(weight, residual.width),
            out.f32,
            out.f16,
            out.q,
            out.scale,
            out.second,
            residual.width,
            self._config.norm_eps,
            grid=(residual.rows, 1, 1),
            block=norm_threads(residual.width),
        )
        return residual, out

    def linear(
        self, step: DeviceStep, x: Activation, weight: Weight, bias: Weight | None
    ) -> Activation:
        matrix = part_of(weight).matrix
        return self.products.linear(x, weight, bias, then=partial(self._lora.add, step, x, matrix))

    def gated_linear(
        self,
        step: DeviceStep,
        x: Activation,
        gate: Weight,
        up: Weight,
        activation: GateActivation,
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
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        assert (q.width, k.width, v.width) == (
            heads * head_dim,
            kv_heads * head_dim,
            kv_heads * head_dim,
        )
        out = self._arena[f"{ROTATED}.f16"].first(q.rows, q.width)
        stores = (cache.keys, cache.values)
        if cache.key_scale is not None:
            stores += (cache.key_scale, cache.value_scale)  # type: ignore[assignment]
        waves = _THREADS // self._wave
        self._rope_store.launch(
            f32_of(q),
            f32_of(k),
            f32_of(v),
            *(None, None, None),  # biases, which `linear` has added
            None if q_norm is None else vector_of(q_norm, head_dim),
            None if k_norm is None else vector_of(k_norm, head_dim),
            table.cos,
            table.sin,
            step.inputs["positions"],
            step.inputs["slots"],
            out,
            *stores,
            *(x.stride or x.width for x in (q, k, v)),
            heads,
            kv_heads,
            head_dim,
            config.rope.rotary_dim,
            int(config.rope.style is RopeStyle.NEOX),
            config.norm_eps,
            grid=(q.rows, ceil_div(heads + 2 * kv_heads, waves), 1),
            block=_THREADS,
        )
        return Activation(ROTATED, q.rows, q.width, f16=out)

    def attention(self, step: DeviceStep, q: Activation, spec: AttentionSpec) -> Activation:
        assert q.f16 is not None
        out = self._attended(step, q)
        cache = self._caches[spec.layer]
        caches: tuple[DeviceArray | None, ...] = (cache.keys, cache.values)
        if cache.key_scale is not None:
            caches += (cache.key_scale, cache.value_scale)
        if step.shape.decodes:
            self._attend_decodes(step, q.f16, caches, out, spec)
        if step.shape.prefills:
            self._attend_prefills(step, q.f16, caches, out, spec)
        return out

    def _attend_decodes(
        self,
        step: DeviceStep,
        q: DeviceArray,
        caches: tuple[DeviceArray | None, ...],
        out: Activation,
        spec: AttentionSpec,
    ) -> None:
        config, shape, inputs = self._config, step.shape, step.inputs
        kv_heads = config.num_kv_heads
        split = self._geometry.attention(
            shape.blocks * BLOCK_TOKENS, spec.window, kv_heads, shape.decodes
        )
        partial, partial_ml = self._arena["attention_partial"], self._arena["attention_partial_ml"]
        assert shape.decodes * split.count <= partial.shape[0] or split.count == 1
        which = (inputs["decodes"], inputs["query_start"], inputs["context_len"])
        window = spec.window or 0
        tiles = ceil_div(config.num_heads // kv_heads, self._group)
        self._decode.launch(
            q,
            *caches,
            inputs["block_table"],
            *which,
            out.f32,
            out.f16,
            out.q,
            out.scale,
            out.second,
            partial,
            partial_ml,
            shape.blocks,
            config.num_heads,
            kv_heads,
            window,
            split.tokens,
            spec.scale,
            spec.softcap or 0.0,
            grid=(kv_heads * tiles, split.count, shape.decodes),
            block=4 * self._wave,
        )
        if split.count > 1:
            self._kernels["rf_attention_decode_reduce"].launch(
                partial,
                partial_ml,
                *which,
                out.f32,
                out.f16,
                out.q,
                out.scale,
                out.second,
                split.count,
                config.head_dim,
                window,
                split.tokens,
                grid=(config.num_heads, shape.decodes, 1),
                block=_THREADS,
            )

    def _attend_prefills(
        self,
        step: DeviceStep,
        q: DeviceArray,
        caches: tuple[DeviceArray | None, ...],
        out: Activation,
        spec: AttentionSpec,
    ) -> None:
        config, shape, inputs = self._config, step.shape, step.inputs
        group = config.num_heads // config.num_kv_heads
        self._prefill.launch(
            q,
            *caches,
            inputs["block_table"],
            inputs["prefills"],
            inputs["query_start"],
            inputs["context_len"],
            out.f32,
            out.f16,
            shape.blocks,
            config.num_heads,
            config.num_kv_heads,
            spec.window or 0,
            spec.scale,
            spec.softcap or 0.0,
            grid=(
                ceil_div(shape.longest_prefill * group, _PREFILL_ROWS),
                config.num_kv_heads,
                shape.prefills,
            ),
            block=_THREADS,
        )

    def take_logit_rows(self, step: DeviceStep, x: Activation) -> Activation:
        rows = step.shape.rows
        out = self._arena[f"{ROWS}.f32"].first(rows, x.width)
        if rows:
            self._take_rows(f32_of(x), step.inputs["logit_rows"], out)
        return Activation(ROWS, rows, x.width, f32=out)

    def _take_rows(self, x: DeviceArray, rows: DeviceArray, out: DeviceArray) -> None:
        count, width = out.shape
        self._kernels["rf_take_rows"].launch(
            x,
            rows,
            out,
            width,
            grid=(ceil_div(width, _ELEMENTS), count, 1),
            block=_THREADS,
        )

    def sum_hidden(self, step: DeviceStep, x: Activation, out: DeviceArray) -> None:
        """Sums of the rows of x in each range of the step: [sums, width], float32."""
        sum_rows(self._kernels["rf_sum_rows"], step, f32_of(x), out)

    def logits(self, x: Activation, weight: Weight, softcap: float | None) -> Activation:
        part = part_of(weight)
        if x.rows == 0:
            empty = self._arena[f"{part.slot}.f32"].first(0, part.width)
            return Activation(part.slot, 0, part.width, f32=empty)
        out = self.products.multiply(x, part, None)
        if softcap is not None:
            count = out.rows * out.width
            self._kernels["rf_softcap"].launch(
                f32_of(out), softcap, count, grid=(ceil_div(count, _THREADS), 1, 1), block=_THREADS
            )
        return out

    def _attended(self, step: DeviceStep, q: Activation) -> Activation:
        """The result of attention, in the forms that a linear layer may read."""
        out = empty(self._arena, ATTENDED, q.rows, q.width, half=q.rows > self.products.gemv_rows)
        # The kernels of decodes can write int8, where the blocks do not straddle heads.
        if out.f32 is not None and not step.shape.prefills and self._config.head_dim % UNIT == 0:
            self.products.give_int8(out)
        return out

    def _normed(self, slot: str, rows: int, width: int) -> Activation:
        """A result of a norm; only those before a linear layer have forms for it."""
        out = empty(self._arena, slot, rows, width, half=False)
        if slot == NORMED and rows <= self.products.gemv_rows:
            self.products.give_int8(out)
        elif slot == NORMED:
            out.f16 = self._arena[f"{slot}.f16"].first(rows, width)
        return out
