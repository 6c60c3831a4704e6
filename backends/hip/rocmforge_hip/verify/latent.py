"""Checks of multi-head latent attention: rows of the cache, queries to them, and results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from rocmforge.models.blocks import LatentAttention
from rocmforge.models.layer_config import LatentConfig
from rocmforge.models.rope_config import RopeStyle
from rocmforge.models.weights import present
from rocmforge_hip.verify import oracle
from rocmforge_hip.verify.cached_attention import (
    CONTEXTS,
    DECODES,
    HALF,
    MIXED,
    PREFILL,
    STORED,
    attended,
    cached_tokens,
    fill_step,
    last_queries,
)
from rocmforge_hip.verify.cases import Case, Group, error, values_of
from rocmforge_hip.verify.rows import random_values
from rocmforge_hip.verify.workbench import Recipe, Workbench, blocks_of
from rocmforge_hip.weights.formats import Weight

# Relative to the sum of the absolute values of what is added up. Results are halves.
_HALVES: Final = 2.0**-9

_LATENT: Final = LatentConfig(query_rank=32, rank=512, rotary_dim=64, plain_dim=64, value_dim=96)
_FEW, _MANY = 2, 40  # tokens, that matrices of heads are multiplied with in either way

Float64 = npt.NDArray[np.float64]


def groups() -> Iterator[Group]:
    """Yields both types of cache, and matrices of floats and of blocks."""
    for kv_dtype, format, style in (
        ("f16", "f16", RopeStyle.NORMAL),
        ("int8", "q8_0", RopeStyle.NEOX),
    ):
        recipe = Recipe(
            architecture="deepseek2",
            format=format,
            heads=5,
            kv_heads=1,
            head_dim=576,
            value_dim=512,
            rotary_dim=64,
            rope_style=style,
            kv_dtype=kv_dtype,
            activation_bits="16",
            latent=_LATENT,
        )
        cases = [
            Case("store_latent", kv_dtype, STORED[kv_dtype], _store),
            Case("decode attention", f"{kv_dtype}, latent vectors", HALF, _decode),
            Case("prefill attention", f"{kv_dtype}, latent vectors", PREFILL, _mixed),
        ]
        for tokens in (_FEW, _MANY):
            name = f"{format}, {tokens} tokens"
            cases.append(Case("absorb", name, _HALVES, partial(_absorb, tokens=tokens)))
            cases.append(Case("expand", name, _HALVES, partial(_expand, tokens=tokens)))
        yield Group(recipe, tuple(cases))


def _of_device(bench: Workbench) -> LatentAttention[Weight]:
    return present(bench.model.weights.layers[0].latent)


def _fill_cache(bench: Workbench) -> npt.NDArray[np.float32]:
    """Fills the cache; returns what it was made of."""
    kv = random_values(sum(CONTEXTS), _LATENT.rank + _LATENT.rotary_dim)
    product = bench.activation(bench.model.arena.qkv_2, kv)
    bench.model.ops.store_latent(fill_step(bench), product, _of_device(bench).kv_norm, bench.spec)
    return kv


def _rows(bench: Workbench) -> Float64:
    cache = bench.model.ops.caches[0]
    return cached_tokens(bench, cache.keys, cache.key_scale)


def _store(bench: Workbench) -> float:
    kv = _fill_cache(bench).astype(np.float64)
    norm = values_of(present(bench.weights.layers[0].latent).kv_norm)
    latent = oracle.rms_norm(kv[:, : _LATENT.rank], norm, bench.config.norm_eps)
    positions = np.concatenate([np.arange(n) for n in CONTEXTS])
    rotated = _rotated(bench, kv[:, None, _LATENT.rank :], positions)
    want = np.concatenate([rotated, latent[:, None]], axis=-1)
    return error(_rows(bench), want, np.abs(want).max(axis=-1, keepdims=True))


def _rotated(bench: Workbench, x: Float64, positions: npt.NDArray[np.int64]) -> Float64:
    cos, sin = (part[positions].astype(np.float64) for part in (bench.table.cos, bench.table.sin))
    return oracle.rope(x, cos, sin, bench.config.rope_of(local=False).style)


def _decode(bench: Workbench) -> float:
    return _attend(bench, DECODES)


def _mixed(bench: Workbench) -> float:
    return _attend(bench, MIXED)


def _attend(bench: Workbench, new: tuple[int, ...]) -> float:
    _fill_cache(bench)
    rows = _rows(bench)
    step, q, queries = last_queries(bench, new)
    got = bench.result(bench.model.ops.attention(step, q, bench.spec, None))
    lengths = list(zip(CONTEXTS, new, strict=False))
    wanted = attended(bench, rows, rows[..., _LATENT.rotary_dim :], lengths, queries)
    return error(got.reshape(wanted.shape), wanted)


def _absorb(bench: Workbench, tokens: int) -> float:
    heads, plain_dim = bench.config.layers[0].num_heads, _LATENT.plain_dim
    values = random_values(tokens, heads * (plain_dim + _LATENT.rotary_dim))
    step = bench.step([(tokens + 7, tokens, blocks_of([tokens + 7])[0])])
    q = bench.activation(bench.model.arena.qkv, values)
    got = bench.result(bench.model.ops.absorb(step, q, _of_device(bench).k_b, bench.spec))
    wide = values.astype(np.float64).reshape(tokens, heads, -1)
    plain, rotating = wide[..., :plain_dim], wide[..., plain_dim:]
    k_b = values_of(present(bench.weights.layers[0].latent).k_b)
    rotated = _rotated(bench, rotating, np.arange(7, tokens + 7))
    want = np.concatenate([rotated, np.einsum("nhi,hoi->nho", plain, k_b)], axis=-1)
    sums = np.einsum("nhi,hoi->nho", np.abs(plain), np.abs(k_b))
    largest = np.broadcast_to(np.abs(rotated).max(axis=-1, keepdims=True), rotated.shape)
    return error(got.reshape(want.shape), want, np.concatenate([largest, sums], axis=-1))


def _expand(bench: Workbench, tokens: int) -> float:
    heads = bench.config.layers[0].num_heads
    _absorb(bench, tokens)  # says which pair has which head
    is_few = tokens <= bench.model.ops.products.gemv_rows
    halves = random_values(tokens, heads * _LATENT.rank).astype(np.float16)
    values = halves.astype(np.float32) if is_few else halves
    x = bench.activation(bench.model.arena.attended, values)
    got = bench.result(bench.model.ops.expand(x, _of_device(bench).v_b, bench.spec))
    wide = values.astype(np.float64).reshape(tokens, heads, -1)
    v_b = values_of(present(bench.weights.layers[0].latent).v_b)
    want = np.einsum("nhi,hoi->nho", wide, v_b)
    sums = np.einsum("nhi,hoi->nho", np.abs(wide), np.abs(v_b))
    return error(got.reshape(want.shape), want, sums)
