"""Checks of multi-head latent attention: rows of the cache, queries to them, and results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.models.blocks import LatentAttention
from rocmforge.models.layer_config import LatentConfig
from rocmforge.models.rope_config import RopeStyle
from rocmforge.models.weights import present
from rocmforge_hip.device.constants import BLOCK_TOKENS
from rocmforge_hip.ops.activations import Activation
from rocmforge_hip.ops.step.device_step import DeviceStep
from rocmforge_hip.ops.step.variants import VARIANTS
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
from rocmforge_hip.verify.matrices import exact_activation
from rocmforge_hip.verify.rows import int8_error, int8_values, random_values
from rocmforge_hip.verify.workbench import Recipe, Workbench, blocks_of
from rocmforge_hip.weights.formats import FORMATS, Weight

# Relative to the sum of the absolute values of what is added up. Results are halves.
_HALVES: Final = 2.0**-9
_INT8: Final = 0.51 / 127  # relative to the largest value of a block of 32
_FLOAT_SUM: Final = 4e-6  # float32

_LATENT: Final = LatentConfig(query_rank=32, rank=512, rotary_dim=64, plain_dim=64, value_dim=96)
_WIDE: Final = LatentConfig(query_rank=256, rank=512, rotary_dim=64, plain_dim=256, value_dim=256)
_FEW, _MANY = 2, 40  # tokens, that matrices of heads are multiplied with in either way
_AT_ONCE: Final = 1, 8  # tokens of launches that do what lies around these products, too

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
    for index, format in enumerate(name for name, each in FORMATS.items() if each.is_mixed):
        recipe = Recipe(
            architecture="deepseek2",
            format=format,
            hidden_size=256,
            intermediate_size=256,
            heads=3,
            kv_heads=1,
            head_dim=576,
            value_dim=512,
            rotary_dim=64,
            rope_style=RopeStyle.NEOX if index % 2 else RopeStyle.NORMAL,
            kv_dtype="int8" if index % 2 else "f16",
            latent=_WIDE,
        )
        cases = []
        for tokens in _AT_ONCE:
            name = f"{format}, {tokens} {'token' if tokens == 1 else 'tokens'}"
            measure = partial(_queries, tokens=tokens)
            cases.append(Case("queries to latent vectors", name, _HALVES, measure))
            measure = partial(_stored_beside, tokens=tokens)
            cases.append(Case("latent vectors", name, STORED[recipe.kv_dtype], measure))
            measure = partial(_rounded, tokens=tokens)
            cases.append(Case("rounded results of heads", name, _INT8, measure))
        cases.append(Case("norm of a product", format, _INT8, _norm_of_first))
        cases.append(Case("completed norm of a product", format, _FLOAT_SUM, _beside_first))
        yield Group(recipe, tuple(cases))


def _of_device(bench: Workbench) -> LatentAttention[Weight]:
    return present(bench.model.weights.layers[0].latent)


def _fill_cache(bench: Workbench) -> npt.NDArray[np.float32]:
    """Fills the cache; returns what it was made of."""
    kv = _vectors(bench, sum(CONTEXTS))
    product = bench.activation(bench.model.arena.qkv, kv)
    bench.model.ops.store_latent(fill_step(bench), product, _of_device(bench).kv_norm, bench.spec)
    return kv


def _rows(bench: Workbench) -> Float64:
    cache = bench.model.ops.caches[0]
    return cached_tokens(bench, cache.keys, cache.key_scale)


def _store(bench: Workbench) -> float:
    kv = _fill_cache(bench)
    return _row_error(
        bench, _rows(bench)[:, 0], kv, np.concatenate([np.arange(n) for n in CONTEXTS])
    )


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
    wanted = attended(bench, rows, rows[..., _latent(bench).rotary_dim :], lengths, queries)
    return error(got.reshape(wanted.shape), wanted)


def _first_products(
    bench: Workbench,
) -> tuple[tuple[DeviceStep, Activation, Activation], tuple[Float64, Float64]]:
    """Returns what `Ops.norm_first` makes in a step of few launches, and the exact products."""
    step = replace(bench.step([(1, 1, [0])]), variant=VARIANTS["deferred"])
    values = exact_activation(1, bench.config.hidden_size)
    x, own = bench.activation(bench.model.arena.normed, values), _of_device(bench)
    assert own.q_a is not None
    assert own.q_norm is not None
    first, second = bench.model.ops.norm_first(step, x, (own.q_a, own.kv_a), own.q_norm)
    stored, wide = present(bench.weights.layers[0].latent), values.astype(np.float64)
    exact = wide @ values_of(stored.q_a).T, wide @ values_of(stored.kv_a).T
    return (step, first, second), exact


def _norm_of_first(bench: Workbench) -> float:
    """Returns the error of the int8 form of a norm that is left for what reads it."""
    (_, first, _), (exact, _) = _first_products(bench)
    norm = values_of(present(bench.weights.layers[0].latent).q_norm)
    return int8_error(bench, first, exact * norm)


def _beside_first(bench: Workbench) -> float:
    """Returns the error of what reads such a norm, and of the product beside it."""
    (step, first, second), (exact, beside) = _first_products(bench)
    factor = 1 / np.sqrt((exact * exact).mean(axis=-1, keepdims=True) + bench.config.norm_eps)
    normed = int8_values(bench, first) * factor
    on_device = _of_device(bench).q_b
    assert on_device is not None
    got = bench.model.ops.linear(step, first, on_device, None)
    q_b = values_of(present(bench.weights.layers[0].latent).q_b)
    sums = np.abs(normed) @ np.abs(q_b).T
    return max(
        error(bench.result(got), normed @ q_b.T, sums),
        error(bench.result(second), beside, np.abs(beside).max(axis=-1, keepdims=True)),
    )


def _latent(bench: Workbench) -> LatentConfig:
    return present(bench.config.layers[0].latent)


def _absorb(bench: Workbench, tokens: int) -> float:
    heads, latent = bench.config.layers[0].num_heads, _latent(bench)
    q = random_values(tokens, heads * (latent.plain_dim + latent.rotary_dim))
    step = bench.step([(tokens + 7, tokens, blocks_of([tokens + 7])[0])])
    return _query_error(bench, step, np.arange(7, tokens + 7), q)


def _queries(bench: Workbench, tokens: int) -> float:
    """Returns the error of queries that one launch makes of all that they consist of."""
    heads, latent = bench.config.layers[0].num_heads, _latent(bench)
    plain = exact_activation(tokens * heads, latent.plain_dim)
    rotating = random_values(tokens * heads, latent.rotary_dim)
    q = np.concatenate([plain, rotating], axis=1).reshape(tokens, -1)
    return _query_error(bench, _decodes(bench, tokens), _contexts(tokens) - 1, q)


def _contexts(sequences: int) -> npt.NDArray[np.int64]:
    return 11 + 3 * np.arange(sequences)


def _decodes(bench: Workbench, sequences: int) -> DeviceStep:
    """Returns a step of a token of each of several sequences, with few launches."""
    contexts = _contexts(sequences).tolist()
    chunks = [(n, 1, of) for n, of in zip(contexts, blocks_of(contexts), strict=True)]
    return replace(bench.step(chunks), variant=VARIANTS["rounded"])


def _query_error(
    bench: Workbench,
    step: DeviceStep,
    positions: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
) -> float:
    heads, latent, tokens = bench.config.layers[0].num_heads, _latent(bench), len(values)
    got = bench.result(_absorbed(bench, step, values))
    wide = values.astype(np.float64).reshape(tokens, heads, -1)
    plain, rotating = wide[..., : latent.plain_dim], wide[..., latent.plain_dim :]
    k_b = values_of(present(bench.weights.layers[0].latent).k_b)
    rotated = _rotated(bench, rotating, positions)
    want = np.concatenate([rotated, np.einsum("nhi,hoi->nho", plain, k_b)], axis=-1)
    sums = np.einsum("nhi,hoi->nho", np.abs(plain), np.abs(k_b))
    largest = np.broadcast_to(np.abs(rotated).max(axis=-1, keepdims=True), rotated.shape)
    return error(got.reshape(want.shape), want, np.concatenate([largest, sums], axis=-1))


def _absorbed(bench: Workbench, step: DeviceStep, values: npt.NDArray[np.float32]) -> Activation:
    """Returns queries made of these values; stores rows of `_vectors` for their tokens."""
    q = bench.activation(bench.model.arena.qkv_3, values)
    kv = bench.activation(bench.model.arena.qkv, _vectors(bench, len(values)))
    own = _of_device(bench)
    return bench.model.ops.absorb_and_store(step, q, kv, own.k_b, own.kv_norm, bench.spec)


def _vectors(bench: Workbench, tokens: int) -> npt.NDArray[np.float32]:
    latent = _latent(bench)
    return random_values(tokens + 5, latent.rank + latent.rotary_dim)[5:]


def _stored_beside(bench: Workbench, tokens: int) -> float:
    """Returns the error of rows that the launch stores which makes queries."""
    heads, latent = bench.config.layers[0].num_heads, _latent(bench)
    q = random_values(tokens, heads * (latent.plain_dim + latent.rotary_dim))
    _absorbed(bench, _decodes(bench, tokens), q)
    positions, cache = _contexts(tokens) - 1, bench.model.ops.caches[0]
    tables = zip(positions, blocks_of((positions + 1).tolist()), strict=True)
    blocks = [of[position // BLOCK_TOKENS] for position, of in tables]
    rows = bench.get(cache.keys)[blocks, 0, positions % BLOCK_TOKENS].astype(np.float64)
    if cache.key_scale is not None:
        rows *= bench.get(cache.key_scale)[blocks, 0, positions % BLOCK_TOKENS][:, None]
    return _row_error(bench, rows, _vectors(bench, tokens), positions)


def _row_error(
    bench: Workbench,
    rows: Float64,
    vectors: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int64],
) -> float:
    """Returns the error of rows of the cache, [T, rotary_dim + rank]."""
    kv, latent = vectors.astype(np.float64), _latent(bench)
    norm = values_of(present(bench.weights.layers[0].latent).kv_norm)
    normed = oracle.rms_norm(kv[:, : latent.rank], norm, bench.config.norm_eps)
    rotated = _rotated(bench, kv[:, None, latent.rank :], positions)[:, 0]
    want = np.concatenate([rotated, normed], axis=-1)
    return error(rows, want, np.abs(want).max(axis=-1, keepdims=True))


def _expand(bench: Workbench, tokens: int) -> float:
    _absorb(bench, tokens)  # says which pair has which head
    features = bench.config.layers[0].num_heads * _latent(bench).rank
    is_few = tokens <= bench.model.ops.products.gemv_rows
    halves = random_values(tokens, features).astype(np.float16)
    values = halves.astype(np.float32) if is_few else halves
    x = bench.activation(bench.model.arena.attended, values)
    step = bench.step([(tokens, tokens, blocks_of([tokens])[0])])
    got = bench.result(bench.model.ops.expand(step, x, _of_device(bench).v_b, bench.spec))
    want, sums = _expanded(bench, values)
    return error(got, want, sums)


def _rounded(bench: Workbench, tokens: int) -> float:
    """Returns the error of results of heads that the launch of the product rounds to int8."""
    rank, heads = _latent(bench).rank, bench.config.layers[0].num_heads
    values = exact_activation(tokens * heads, rank).reshape(tokens, -1)
    x, step = bench.activation(bench.model.arena.attended, values), _decodes(bench, tokens)
    got = bench.model.ops.expand(step, x, _of_device(bench).v_b, bench.spec)
    bench.model.ops.products.forms.int8(got)
    return int8_error(bench, got, _expanded(bench, values)[0])


def _expanded(bench: Workbench, values: npt.NDArray[Any]) -> tuple[Float64, Float64]:
    """Returns what expanding these results gives, and the sums of the absolute values."""
    wide = values.astype(np.float64).reshape(len(values), bench.config.layers[0].num_heads, -1)
    v_b = values_of(present(bench.weights.layers[0].latent).v_b)
    want = np.einsum("nhi,hoi->nho", wide, v_b)
    sums = np.einsum("nhi,hoi->nho", np.abs(wide), np.abs(v_b))
    return want.reshape(len(values), -1), sums.reshape(len(values), -1)
