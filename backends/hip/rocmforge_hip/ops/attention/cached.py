"""Causal attention over the paged cache, and the way of keys and values into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypedDict, TypeVar

import numpy as np

from rocmforge.models.config import ModelConfig
from rocmforge.models.forward.ops import AttentionSpec
from rocmforge.models.layer_config import LayerConfig
from rocmforge.models.rope_config import RopeStyle
from rocmforge_hip.device.constants import (
    ATTENTION_ROWS,
    ATTENTION_VALUES,
    BLOCK_TOKENS,
    MAX_SCALED_SPLIT_DIM,
    MAX_SPLIT_DIM,
    MERGE_SUMS,
    NARROW_HEAD_DIM,
    QUANT_BLOCK,
    TEAM_ROWS,
)
from rocmforge_hip.device.heads import CACHED_HEADS, HeadSize
from rocmforge_hip.device.kernel import Kernel
from rocmforge_hip.device.library import KernelLibrary
from rocmforge_hip.device.memory import ArraySpec, DeviceArray
from rocmforge_hip.kernels import attention as kernels
from rocmforge_hip.ops.activations import Activation, ActivationArrays
from rocmforge_hip.ops.attention.prefill_splits import PrefillTiles, best_split
from rocmforge_hip.ops.geometry import Geometry, whole_waves
from rocmforge_hip.ops.linear.products import LinearKernels
from rocmforge_hip.ops.operands import empty, f16_of, f32_of, optional_vector
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.weights.formats import Weight, ceil_div

_THREADS: Final = 256
_DECODE_WAVES: Final = 4
"""Of a block, but for those of `decode_w8`."""

X = TypeVar("X")


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache(Generic[X]):
    """Keys and values of one layer: kernels/include/rf/attention/kv_cache.h. No scales for float16.

    A `k8v4` cache has keys in int8, and values in uint32 [..., value_dim / 8].
    """

    keys: X  # float16 or int8 [blocks, num_kv_heads, BLOCK_TOKENS, key_dim]
    values: X | None  # as keys, [..., value_dim]; None: they are the end of keys
    key_scale: X | None = None  # float32 [blocks, num_kv_heads, BLOCK_TOKENS]
    value_scale: X | None = None  # None with values that are a part of keys

    @property
    def of_values(self) -> tuple[X, X | None]:
        """Where kernels read values from, and the scales there."""
        if self.values is None:
            return self.keys, self.key_scale
        return self.values, self.value_scale


def stored_type(cache: LayerCache[DeviceArray] | LayerCache[ArraySpec]) -> str:
    """Returns the type of a cache, as settings and the names of kernels have it."""
    if cache.key_scale is None:
        return "f16"
    packs = cache.values is not None and cache.values.dtype == np.uint32
    return "k8v4" if packs else "int8"


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRopeTable:
    """Cosine and sine by position, float32 `[max_context, rotary_dim / 2]` each."""

    cos: DeviceArray
    sin: DeviceArray


class _Rotation(TypedDict):
    """Arguments of the kernels that rotate."""

    cosine: DeviceArray | None
    sine: DeviceArray | None
    rotary_dim: int
    neox: int


@dataclass(slots=True, eq=False, kw_only=True)
class _Unrotated(Activation):
    """Queries that attention is to rotate, with the keys and values that it is to store."""

    queries: Activation
    keys: Activation | None  # None: another layer stores keys and values
    values: Activation | None
    norms: tuple[DeviceArray | None, DeviceArray | None]  # of queries and keys


@dataclass(frozen=True, slots=True, eq=False)
class _Decodes:
    """Sequences of a step of which one token attends."""

    count: int
    sequences: DeviceArray  # int32 [count], their numbers
    rows: DeviceArray  # int32 [S], of each sequence of the step its token
    teams: DeviceArray | None = None  # `StepArrays.teams`


def _head_of(layer: LayerConfig) -> HeadSize | None:
    sizes = layer.key_dim, layer.value_dim
    return next((h for h in CACHED_HEADS if (h.key_dim, h.value_dim) == sizes), None)


def reads_in_teams(layer: LayerConfig) -> bool:
    """Returns whether sequences may read what they share of a layer's cache once, if not k8v4."""
    head = _head_of(layer)
    # A window leaves the front of a context behind.
    return head is not None and head.is_common and layer.window is None


class _LayerKernels:
    """The kernels for the heads of one layer, and how many of them a block of decodes has."""

    def __init__(
        self,
        library: KernelLibrary,
        layer: LayerConfig,
        kv_heads: int,
        cache: str,
        *,
        has_gains: bool,
    ) -> None:
        head = _head_of(layer)
        assert head is not None, "`load.supported` refuses others"
        largest = max(head.key_dim, head.value_dim)
        wide = "wide_" if largest > NARROW_HEAD_DIM else ""
        shared = layer.num_heads // kv_heads
        self.kv_heads: Final = kv_heads  # of the cache that it reads
        self.group: Final = head.group(shared)
        self.tiles: Final = ceil_div(shared, self.group)  # blocks for what shares keys
        # Attention knows no gains, and norms behind rope for common heads alone.
        is_behind = layer.rotates_first and not head.is_common
        self.may_rope: Final = not (has_gains or is_behind)
        self.rope_store: Final = library.kernel(
            f"rf_rope_store_{wide}{cache}", kernels.rf_rope_store
        )
        self.decode: Final = library.kernel(
            f"rf_attention_decode_{cache}_{head.name}_g{self.group}", kernels.rf_attention_decode
        )
        # Norms queries and keys as a whole, too.
        self.decode_joint: Final = (
            library.kernel(
                f"rf_attention_decode_joint_{cache}_{head.name}_g{self.group}",
                kernels.rf_attention_decode,
            )
            if layer.joint_head_norms and self.may_rope and head.is_common and cache != "k8v4"
            else None
        )
        self.decodes_at_once: Final = _blocks_at_once(self.decode)
        # With eight waves in a block, for few blocks. Not beside joint norms, which have none: they
        # add up in another order, and variants of a step are to give the same bits.
        w8 = f"rf_attention_decode_w8_{cache}_{head.name}_g{self.group}"
        self.decode_w8: Final = (
            library.kernel(w8, kernels.rf_attention_decode)
            if self.decode_joint is None and library.has(w8)
            else None
        )
        self.w8_at_once: Final = 0 if self.decode_w8 is None else _blocks_at_once(self.decode_w8)
        has_teams = reads_in_teams(layer) and cache != "k8v4"
        self.most_of_team: Final = (
            _DECODE_WAVES * (TEAM_ROWS // min(shared, self.group)) if has_teams else 0
        )
        self.decode_teams = None
        if has_teams:
            self.decode_teams = library.kernel(
                f"rf_attention_decode_teams_{cache}_{head.name}_g{self.group}",
                kernels.rf_attention_decode,
            )
            self.teams_at_once = _blocks_at_once(self.decode_teams)
        self.prefill: Final = library.kernel(
            f"rf_attention_prefill_{cache}_{head.name}", kernels.rf_attention_prefill
        )
        # Blocks of prefills that a compute unit runs at once; 0 if keys cannot be split.
        most_split = MAX_SPLIT_DIM if cache == "f16" else MAX_SCALED_SPLIT_DIM
        self.prefills_per_cu: Final = (
            self.prefill.blocks_at_once(_THREADS) if largest <= most_split else 0
        )


def _blocks_at_once(kernel: Kernel[...]) -> int:
    """Returns how many of its largest blocks a compute unit runs at once."""
    return kernel.blocks_at_once(kernel.max_threads)


class CachedAttention:
    """Launches it.

    Args:
        config: The model.
        library: Where the kernels are.
        geometry: For the device.
        arena: The arrays of the activations.
        products: What multiplies with the results.
        caches: By layer.
        tables: By whether they are for `local_rope`.
        query_gains: As `RopeTables.query_gains`.
        window_groups: As `Resources.window_groups`.
    """

    def __init__(
        self,
        config: ModelConfig,
        library: KernelLibrary,
        geometry: Geometry,
        arena: ActivationArrays[DeviceArray],
        products: LinearKernels,
        caches: tuple[LayerCache[DeviceArray], ...],
        tables: Mapping[bool, DeviceRopeTable],
        query_gains: DeviceArray | None,
        window_groups: tuple[int, ...],
    ) -> None:
        self.caches: Final = caches
        self._window_groups = window_groups
        self._config = config
        self._geometry = geometry
        self._arena = arena
        self._products = products
        self._tables = tables
        self._query_gains = query_gains
        self._wave = library.wave_size
        cache = stored_type(caches[0])
        self._kernels = {  # of the layers that have attention
            index: _LayerKernels(
                library,
                layer,
                config.kv_heads_read_by(index),
                cache,
                has_gains=query_gains is not None,
            )
            for index, layer in enumerate(config.layers)
            if layer.num_heads
        }
        self._reduce = library.kernel(
            "rf_attention_decode_reduce", kernels.rf_attention_decode_reduce
        )
        self._reduce_prefills = library.kernel(
            "rf_attention_prefill_reduce", kernels.rf_attention_prefill_reduce
        )

    @property
    def most_of_team(self) -> int:
        """Members that a team may have in every layer that has teams; 0 if none has."""
        found = (own.most_of_team for own in self._kernels.values() if own.most_of_team)
        return min(found, default=0)

    def norms_rows(self, step: DeviceStep, spec: AttentionSpec) -> bool:
        """Returns whether `attend` norms queries and keys that are normed as a whole.

        If not, they are normed before `rope_and_store`, which then is given no norms.
        """
        own = self._kernels[spec.layer]
        return (
            step.variant.fuses_attention
            and own.decode_joint is not None
            and not self._has_teams(step, own)
        )

    def _has_teams(self, step: DeviceStep, own: _LayerKernels) -> bool:
        return step.shape.has_teams and own.decode_teams is not None

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
        """Does as `Ops.rope_and_store` says, or leaves it to `attend`."""
        layer = self._config.layers[spec.layer]
        assert (k.features, v.features) == (layer.key_features, layer.value_features)
        return self._roped(step, (q, k, v), (q_norm, k_norm), spec)

    def rotate_queries(
        self, step: DeviceStep, q: Activation, q_norm: Weight | None, spec: AttentionSpec
    ) -> Activation:
        """Does as `Ops.rotate_queries` says, or leaves it to `attend`."""
        return self._roped(step, (q, None, None), (q_norm, None), spec)

    def _roped(
        self,
        step: DeviceStep,
        rows: tuple[Activation, Activation | None, Activation | None],
        norms: tuple[Weight | None, Weight | None],
        spec: AttentionSpec,
    ) -> Activation:
        """Rotates queries, and keys with values unless another layer stores them."""
        (q, k, v), (q_norm, k_norm) = rows, norms
        config, cache, own = self._config, self.caches[spec.layer], self._kernels[spec.layer]
        layer, key_dim = config.layers[spec.layer], config.layers[spec.layer].key_dim
        heads, kv_heads = layer.num_heads, layer.num_kv_heads
        assert q.features == layer.query_features
        vectors = (
            optional_vector(q_norm, layer.query_norm_features),
            optional_vector(k_norm, layer.key_norm_features),
        )
        assert q_norm is None or not layer.joint_head_norms or self.norms_rows(step, spec)
        assert self._arena.rotated is not None
        # Teams norm before they rotate.
        may_rope = own.may_rope and not (layer.rotates_first and self._has_teams(step, own))
        if step.variant.fuses_attention and may_rope:
            assert not step.shape.prefills
            return _Unrotated(
                self._arena.rotated,
                q.rows,
                q.features,
                queries=q,
                keys=k,
                values=v,
                norms=vectors,
            )
        assert cache.values is not None
        out = self._arena.rotated.float16(q.rows, q.features)
        waves = _THREADS // self._wave
        own.rope_store.launch(
            (q.rows, ceil_div(heads + 2 * kv_heads, waves), 1),
            _THREADS,
            q=f32_of(q),
            k=_optional_f32(k),
            v=_optional_f32(v),
            q_norm=vectors[0],
            k_norm=vectors[1],
            **self._rotation(spec),
            q_gains=self._query_gains,
            positions=step.rope_rows,
            slots=self._slots(step, spec.layer),
            q_out=out,
            k_cache=cache.keys,
            v_cache=cache.values,
            k_scale=cache.key_scale,
            v_scale=cache.value_scale,
            q_stride=_stride(q),
            k_stride=_stride(k),
            v_stride=_stride(v),
            heads=heads,
            kv_heads=kv_heads,
            key_dim=key_dim,
            value_dim=layer.value_dim,
            rotates_first=int(layer.rotates_first),
            norms_values=int(layer.norms_values),
            eps=config.norm_eps,
        )
        return Activation(self._arena.rotated, q.rows, q.features, f16=out)

    def _slots(self, step: DeviceStep, layer: int) -> DeviceArray:
        """Returns where a layer stores keys and values, int64 [T]."""
        group = self._window_groups[layer] if self._window_groups else 0
        return step.inputs.window_slots.rows(group - 1, group) if group else step.inputs.slots

    def _block_table(self, step: DeviceStep, layer: int) -> DeviceArray:
        """Returns where a layer finds them, int32 [S, M]."""
        group = self._window_groups[layer] if self._window_groups else 0
        inputs = step.inputs
        return inputs.window_tables.rows(group - 1, group) if group else inputs.block_table

    def _rotation(self, spec: AttentionSpec) -> _Rotation:
        """Returns how a layer rotates, as kernels take it: no elements do if it does not."""
        if not spec.rotates:
            return _Rotation(cosine=None, sine=None, rotary_dim=0, neox=0)
        table, rope = self._tables[spec.local_rope], self._config.rope_of(local=spec.local_rope)
        return _Rotation(
            cosine=table.cos,
            sine=table.sin,
            rotary_dim=rope.rotary_dim,
            neox=int(rope.style is RopeStyle.NEOX),
        )

    def attend(
        self,
        step: DeviceStep,
        q: Activation,
        spec: AttentionSpec,
        sinks: Weight | None,
        *,
        ends_alone: bool,
    ) -> Activation:
        """Attends as `Ops.attention` says.

        If `ends_alone`, for the last new token of each sequence as if it were the only one. Other
        rows stay what an earlier layer left.
        """
        layer, shape, inputs = self._config.layers[spec.layer], step.shape, step.inputs
        out = self._attended(step, q, layer)
        scores = optional_vector(sinks, layer.num_heads)
        if ends_alone:
            ends = _Decodes(shape.sequences, inputs.in_order, inputs.ends)
            self._attend_decodes(step, q, out, spec, scores, ends)
            return out
        if shape.decodes:
            teams = inputs.teams if shape.has_teams else None
            decodes = _Decodes(shape.decodes, inputs.decodes, inputs.query_start, teams)
            self._attend_decodes(step, q, out, spec, scores, decodes)
        if shape.prefills:
            self._attend_prefills(step, f16_of(q), out, spec, scores)
        return out

    def _attend_decodes(
        self,
        step: DeviceStep,
        q: Activation,
        out: Activation,
        spec: AttentionSpec,
        sinks: DeviceArray | None,
        decodes: _Decodes,
    ) -> None:
        layer, shape, inputs = self._config.layers[spec.layer], step.shape, step.inputs
        cache, own = self.caches[spec.layer], self._kernels[spec.layer]
        kv_heads, (values, value_scale) = own.kv_heads, cache.of_values
        partial, partial_ml = self._arena.attention_partial, self._arena.attention_partial_ml
        assert partial is not None
        assert partial_ml is not None
        kernel, at_once, teams = own.decode, own.decodes_at_once, None
        context, head_blocks = shape.blocks * BLOCK_TOKENS, kv_heads * own.tiles
        if own.decode_w8 and self._geometry.has_few_decodes(head_blocks * decodes.count):
            kernel, at_once = own.decode_w8, own.w8_at_once
        most = min(partial.shape[0] // layer.value_dim, partial_ml.shape[0])
        room = most // (decodes.count * layer.num_heads)
        if decodes.teams is not None and own.decode_teams is not None and room > 1:
            kernel, teams = own.decode_teams, decodes.teams
            number = ceil_div(decodes.count, self.most_of_team)
            split = self._geometry.team_splits(
                context, head_blocks, number, own.teams_at_once, room
            )
        else:
            split = self._geometry.attention(
                context,
                spec.window,
                head_blocks,
                decodes.count,
                at_once,
            )
        results = decodes.count * split.count * layer.num_heads
        assert results * layer.value_dim <= partial.shape[0] or split.count == 1
        assert results <= partial_ml.shape[0] or split.count == 1
        window = spec.window or 0
        new = q if isinstance(q, _Unrotated) else None
        if new is not None and layer.joint_head_norms and new.norms[0] is not None:
            assert own.decode_joint is not None
            assert teams is None
            kernel = own.decode_joint
        rows = (q,) * 3 if new is None else (new.queries, new.keys, new.values)
        strides = [_stride(each) for each in rows]
        kernel.launch(
            (head_blocks, split.count, decodes.count),
            kernel.max_threads,
            q=q.f16,
            new_q=None if new is None else f32_of(new.queries),
            new_k=_optional_f32(new and new.keys),
            new_v=_optional_f32(new and new.values),
            q_norm=None if new is None else new.norms[0],
            k_norm=None if new is None else new.norms[1],
            **self._rotation(spec),
            k_cache=cache.keys,
            v_cache=values,
            k_scale=cache.key_scale,
            v_scale=value_scale,
            block_table=self._block_table(step, spec.layer),
            sequences=decodes.sequences,
            query_start=decodes.rows,
            context_len=inputs.context_len,
            teams=teams,
            sinks=sinks,
            out=out,
            partial=partial,
            partial_ml=partial_ml,
            arrived=self._arena.attention_arrived if step.variant.fuses_attention else None,
            q_stride=strides[0],
            k_stride=strides[1],
            v_stride=strides[2],
            blocks_per_sequence=shape.blocks,
            heads=layer.num_heads,
            kv_heads=kv_heads,
            norms_values=int(layer.norms_values),
            window=window,
            split_tokens=split.tokens,
            eps=self._config.norm_eps,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
            rotates_first=int(layer.rotates_first),
        )
        if split.count > 1 and not step.variant.fuses_attention:
            self._reduce.launch(
                (layer.num_heads, decodes.count, 1),
                whole_waves(layer.value_dim // 4 * MERGE_SUMS),
                partial=partial,
                partial_ml=partial_ml,
                sequences=decodes.sequences,
                query_start=decodes.rows,
                context_len=inputs.context_len,
                teams=teams,
                sinks=sinks,
                out=out,
                splits=split.count,
                value_dim=layer.value_dim,
                window=window,
                split_tokens=split.tokens,
            )

    def _attend_prefills(
        self,
        step: DeviceStep,
        q: DeviceArray,
        out: Activation,
        spec: AttentionSpec,
        sinks: DeviceArray | None,
    ) -> None:
        layer, shape, inputs = self._config.layers[spec.layer], step.shape, step.inputs
        cache, own = self.caches[spec.layer], self._kernels[spec.layer]
        values, value_scale = cache.of_values
        group = layer.num_heads // own.kv_heads
        head_blocks = own.kv_heads * ceil_div(layer.value_dim, ATTENTION_VALUES)
        context = shape.blocks * BLOCK_TOKENS
        if spec.window is not None:  # splits begin with a tile that the first new token sees
            context = min(context, spec.window + shape.longest_prefill + ATTENTION_ROWS)
        rows = [tokens * group for tokens in shape.tokens_of_prefills]
        tiles = PrefillTiles(
            context=context,
            of_sequences=tuple(ceil_div(each, ATTENTION_ROWS) for each in rows),
            kv_heads=own.kv_heads,
            group=group,
        )
        split = best_split(
            tiles,
            self._geometry.prefills_at_once(own.prefills_per_cu),
            self._geometry.prefill_results(),
            self._geometry.least_prefill_keys,
        )
        parts = max(tiles.of_sequences) + split.tiles * (split.count - 1)
        partial, partial_ml = self._arena.attention_partial, self._arena.attention_partial_ml
        own.prefill.launch(
            (shape.prefills * head_blocks, parts, 1),
            _THREADS,
            q=q,
            k_cache=cache.keys,
            v_cache=values,
            k_scale=cache.key_scale,
            v_scale=value_scale,
            block_table=self._block_table(step, spec.layer),
            sequences=inputs.prefills,
            query_start=inputs.query_start,
            context_len=inputs.context_len,
            seen_ends=inputs.seen_ends if shape.both_ways and spec.sees_ahead else None,
            sinks=sinks,
            out=out,
            partial=partial,
            partial_ml=partial_ml,
            split_tiles=split.tiles,
            splits=split.count,
            split_tokens=split.tokens,
            blocks_per_sequence=shape.blocks,
            heads=layer.num_heads,
            kv_heads=own.kv_heads,
            window=spec.window or 0,
            scale=spec.scale,
            softcap=spec.softcap or 0.0,
        )
        if split.tiles:
            assert partial is not None
            assert partial_ml is not None
            results = split.count * tiles.results(split.tiles)
            assert results <= partial_ml.shape[0]
            assert results * layer.value_dim <= partial.shape[0]
            self._reduce_prefills.launch(
                (
                    layer.num_heads,
                    min(tiles.tokens(split.tiles), shape.longest_prefill),
                    shape.prefills,
                ),
                whole_waves(layer.value_dim // 4 * MERGE_SUMS),
                partial=partial,
                partial_ml=partial_ml,
                sequences=inputs.prefills,
                query_start=inputs.query_start,
                sinks=sinks,
                out=out,
                split_tiles=split.tiles,
                splits=split.count,
                kv_heads=own.kv_heads,
                value_dim=layer.value_dim,
            )

    def _attended(self, step: DeviceStep, q: Activation, layer: LayerConfig) -> Activation:
        """Returns the result of attention, in the forms that a linear layer may read."""
        many = q.rows > self._products.gemv_rows
        out = empty(self._arena.attended, q.rows, layer.attended_features, half=many)
        # The kernels of decodes can write int8, where the blocks do not straddle heads.
        if out.f32 is not None and not step.shape.prefills and layer.value_dim % QUANT_BLOCK == 0:
            self._products.forms.give_int8(out)
        return out


def _optional_f32(x: Activation | None) -> DeviceArray | None:
    return None if x is None else f32_of(x)


def _stride(x: Activation | None) -> int:
    """Returns the elements between rows of float32, 0 of nothing."""
    return 0 if x is None else x.stride or x.features
