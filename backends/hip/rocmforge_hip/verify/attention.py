"""Checks of rotation, cache and attention, for every size of head and type of cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.models.config import RopeStyle
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.device.memory import DeviceArray
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.cached_attention import CACHED_HEAD_DIMS
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cases import Case, Group, error
from rocmforge_hip.verify.workbench import Recipe, Workbench, blocks_of

# Relative to the largest value of a head of a token.
_HALF: Final = 2.0**-10
_INT8: Final = 0.51 / 127
# Relative to the largest result: decoding is in float32, prefilling in halves.
_DECODE: Final = 2e-4
_PREFILL: Final = 5e-3

# Tokens of each sequence, and how many of the last ones attend. Splits of a context, its last
# block, and a prefill that does not begin at the start are among them.
_CONTEXTS: Final = (1, 33, 300, 70)
_DECODES: Final = (1, 1, 1)
_MIXED: Final = (1, 1, 1, 40)

Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields every kernel, with what else the smallest number of models can vary."""
    for kv_dtype in ("f16", "int8"):
        for index, head_dim in enumerate(CACHED_HEAD_DIMS):
            yield _group(
                Recipe(
                    heads=6,
                    kv_heads=2,
                    head_dim=head_dim,
                    rotary_dim=head_dim if index % 2 else 32,
                    rope_style=RopeStyle.NEOX if index % 2 else RopeStyle.NORMAL,
                    head_norms=index % 2 == 1,
                    kv_dtype=kv_dtype,
                )
            )
            yield _group(
                Recipe(
                    heads=6,
                    kv_heads=1,
                    head_dim=head_dim,
                    rotary_dim=head_dim,
                    rope_style=RopeStyle.NORMAL if index % 2 else RopeStyle.NEOX,
                    kv_dtype=kv_dtype,
                    window=50,
                    attention_softcap=20.0,
                )
            )


def _group(recipe: Recipe) -> Group:
    name = f"{recipe.kv_dtype}, heads of {recipe.head_dim}, {recipe.heads} to {recipe.kv_heads}"
    stored = _INT8 if recipe.kv_dtype == "int8" else _HALF
    return Group(
        recipe,
        (
            Case("rope_and_store", name, stored, _store),
            Case("decode attention", name, _DECODE, _decode),
            Case("prefill attention", name, _PREFILL, _mixed),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """The arguments of `rope_and_store` in a step of all tokens, and its results."""

    inputs: tuple[Float64, Float64, Float64]  # q, k, v [T, heads, head_dim]
    rotated: Float64  # [T, heads, head_dim]
    keys: Float64  # [T, kv_heads, head_dim], as the cache has them
    values: Float64


def _fill_cache(bench: Workbench) -> _Stored:
    sizes, weights = bench.config.layers[0], bench.model.weights.layers[0].attention
    widths = [sizes.query_features, sizes.key_features, sizes.value_features]
    rng = np.random.default_rng(3)
    tokens = sum(_CONTEXTS)
    stacked = rng.standard_normal((tokens, sum(widths))).astype(np.float32)
    qkv = bench.model.arena.qkv
    array = bench.put(stacked, qkv.float32(*stacked.shape))
    edges = np.cumsum([0, *widths])
    q_part, k_part, v_part = (
        Activation(qkv, tokens, width, f32=array.columns(start, start + width), stride=sum(widths))
        for start, width in zip(edges.tolist(), widths, strict=False)
    )
    blocks = blocks_of(_CONTEXTS)
    step = bench.step([(n, n, of) for n, of in zip(_CONTEXTS, blocks, strict=True)])
    rotated = bench.model.ops.rope_and_store(
        step, q_part, k_part, v_part, weights.q_norm, weights.k_norm, bench.spec
    )
    slots = np.concatenate(
        [
            np.array(of)[np.arange(n) // BLOCK_TOKENS] * BLOCK_TOKENS + np.arange(n) % BLOCK_TOKENS
            for n, of in zip(_CONTEXTS, blocks, strict=True)
        ]
    )
    cache = bench.model.ops.caches[0]
    q, k, v = (
        stacked[:, start:stop].astype(np.float64).reshape(tokens, -1, sizes.key_dim)
        for start, stop in pairwise(edges)
    )
    return _Stored(
        inputs=(q, k, v),
        rotated=bench.result(rotated).reshape(q.shape),
        keys=_cached(bench, cache.keys, cache.key_scale, slots),
        values=_cached(bench, cache.values, cache.value_scale, slots),
    )


def _cached(
    bench: Workbench, data: DeviceArray, scale: DeviceArray | None, slots: npt.NDArray[np.int64]
) -> Float64:
    """Returns the tokens of a cache [blocks, kv_heads, BLOCK_TOKENS, head_dim], [T, ...]."""
    block, offset = np.divmod(slots, BLOCK_TOKENS)
    rows: Float64 = bench.get(data)[block, :, offset].astype(np.float64)
    return rows if scale is None else rows * bench.get(scale)[block, :, offset][..., None]


def _store(bench: Workbench) -> float:
    config, stored = bench.config, _fill_cache(bench)
    q, k, v = stored.inputs
    layer = bench.weights.layers[0].attention
    if layer.q_norm is not None and layer.k_norm is not None:
        q = oracle.rms_norm(q, layer.q_norm.to_float32().astype(np.float64), config.norm_eps)
        k = oracle.rms_norm(k, layer.k_norm.to_float32().astype(np.float64), config.norm_eps)
    positions = np.concatenate([np.arange(n) for n in _CONTEXTS])
    cos, sin = (x[positions].astype(np.float64) for x in (bench.table.cos, bench.table.sin))
    q, k = (oracle.rope(x, cos, sin, config.rope_of(local=False).style) for x in (q, k))
    return max(
        error(got, want, np.abs(want).max(axis=-1, keepdims=True))
        for got, want in ((stored.rotated, q), (stored.keys, k), (stored.values, v))
    )


def _decode(bench: Workbench) -> float:
    return _attend(bench, _DECODES)


def _mixed(bench: Workbench) -> float:
    return _attend(bench, _MIXED)


def _attend(bench: Workbench, new: tuple[int, ...]) -> float:
    """Returns the attention of the last `new` tokens of each sequence to what the cache holds."""
    sizes, spec, stored = bench.config.layers[0], bench.spec, _fill_cache(bench)
    blocks = blocks_of(_CONTEXTS)
    chunks = list(zip(_CONTEXTS, new, blocks, strict=False))
    queries = np.random.default_rng(4).standard_normal((sum(new), sizes.num_heads, sizes.key_dim))
    halves = queries.astype(np.float16)
    step = bench.step(chunks)
    q = bench.activation(bench.model.arena.rotated, halves.reshape(len(halves), -1))
    got = bench.result(bench.model.ops.attention(step, q, spec)).reshape(queries.shape)
    wanted, start, row = [], 0, 0
    for context, count, _ in chunks:
        seen = slice(start, start + context)
        wanted.append(
            oracle.attention(
                halves[row : row + count].astype(np.float64),
                stored.keys[seen],
                stored.values[seen],
                scale=spec.scale,
                softcap=spec.softcap,
                window=spec.window,
            )
        )
        start, row = start + context, row + count
    return error(got, np.concatenate(wanted))
