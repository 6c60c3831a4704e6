"""The operations of a transformer as plain functions over NumPy arrays.

Written to be read and to be compared with: a fast kernel is right if it agrees with the function
here, called with float64 arrays. Nothing depends on the dtype except `linear`'s speed.

A row of a result depends on its own inputs only, to the last bit: not on how many rows are
computed together, nor on where the row or its cache blocks lie. Two rules see to that. Matrix
products run in tiles of ROW_TILE rows, since BLAS rounds differently for different numbers of
rows, or in tiles of WIDE_TILE that were seen to give the same bits; and sums over keys run over
tiles of KEY_TILE positions, counted from position 0.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rocmforge.models.config import ActivationFunction
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge.models.rope_config import RopeStyle

Array: TypeAlias = npt.NDArray[Any]
"""Of float32 when serving, of float64 as an oracle; all arrays of a call have the same dtype."""
Int: TypeAlias = npt.NDArray[np.integer[Any]]

ROW_TILE: Final = 8
WIDE_TILE: Final = 64
"""Rows that BLAS multiplies three to five times as fast as ROW_TILE at a time."""
KEY_TILE: Final = 128
_ERF_END: Final = 6
_ERF_PLACES: Final = 1024
"""Places between two integers."""
LEAST_WEIGHTS: Final = 2.0**-14
"""What the weights of a token's experts are divided by at least, as in llama.cpp."""
QUERY_CHUNK: Final = 32
"""Tokens of a sequence whose scores are in memory at once."""


def embed(table: Array, token_ids: Int, scale: float) -> Array:
    """Returns `table[token_ids] * scale`: [V, hidden_size], [T] -> [T, hidden_size]."""
    rows: Array = table[token_ids] * table.dtype.type(scale)
    return rows


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Returns `x / sqrt(mean(x^2) + eps) * weight` over the last axis (Zhang and Sennrich 2019)."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normalized: Array = x / np.sqrt(mean_square + x.dtype.type(eps)) * weight
    return normalized


def layer_norm(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias` of rows (Ba et al. 2016)."""
    centered = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)
    normalized: Array = centered / np.sqrt(variance + x.dtype.type(eps)) * weight
    return normalized if bias is None else normalized + bias


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Returns `x @ weight.T + bias`: [rows, in_features] -> [rows, out_features]."""
    product = _product(x, weight)
    return product if bias is None else product + bias


def _product(x: Array, weight: Array) -> Array:
    """Returns `x @ weight.T`, from wide tiles where the first of them has the bits of narrow ones.

    In which order BLAS adds up depends on the sizes of a product, and not on what it multiplies.
    """
    x = np.ascontiguousarray(x)
    product = np.empty((len(x), len(weight)), x.dtype)
    first, rest = slice(0, WIDE_TILE), slice(WIDE_TILE, None)
    tile = ROW_TILE
    _multiply(x[first], weight, ROW_TILE, product[first])
    if len(x) >= 2 * WIDE_TILE:  # it would not pay to multiply the first ones twice for fewer
        again = np.empty_like(product[first])
        _multiply(x[first], weight, WIDE_TILE, again)
        tile = WIDE_TILE if np.array_equal(again, product[first]) else ROW_TILE
    _multiply(x[rest], weight, tile, product[rest])
    return product


def _multiply(x: Array, weight: Array, tile: int, product: Array) -> None:
    """Writes `x @ weight.T`, so many rows at a time, and the last ones in tiles of ROW_TILE."""
    rows, features = x.shape
    count = rows // tile
    whole = count * tile
    out = product[:whole].reshape(count, tile, len(weight))
    np.matmul(x[:whole].reshape(count, tile, features), weight.T, out=out)
    if left := rows - whole:
        last = np.zeros((_round_up(left, ROW_TILE), features), x.dtype)
        last[:left] = x[whole:]
        tiles = last.reshape(-1, ROW_TILE, features) @ weight.T
        product[whole:] = tiles.reshape(-1, len(weight))[:left]


def head_linear(x: Array, weight: Array) -> Array:
    """Returns each head times its own matrix of [heads, out, in]: [T, heads, in] -> [.., out]."""
    return np.stack([linear(x[:, head], own) for head, own in enumerate(weight)], axis=1)


def gated_linear(
    x: Array,
    gate: Array,
    up: Array,
    activation: ActivationFunction,
) -> Array:
    """Returns `activation(x @ gate.T) * (x @ up.T)` (Shazeer 2020): [rows, out_features]."""
    return gated(linear(x, gate), linear(x, up), activation)


def gated(gate: Array, up: Array, activation: ActivationFunction) -> Array:
    """Returns `activation(gate) * up`, or what gpt-oss has in its place.

    That is `g * sigmoid(1.702 g) * (u + 1)`, with g the gate up to 7, and u the other within 7.
    """
    if activation is not ActivationFunction.CLAMPED_SWIGLU:
        return activate(gate, activation) * up
    limit, slope = gate.dtype.type(7), gate.dtype.type(1.702)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    product: Array = gate * sigmoid(slope * gate) * (up + 1)
    return product


def sigmoid(x: Array) -> Array:
    """Returns `1 / (1 + exp(-x))`."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right 0
        squashed: Array = 1 / (1 + np.exp(-x))
    return squashed


def softmax(x: Array) -> Array:
    """Returns `exp(x) / sum(exp(x))` over the last axis."""
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    probabilities: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def route(logits: Array, selection_bias: Array | None, rule: ExpertsConfig) -> tuple[Int, Array]:
    """Returns the experts of each token and their weights: [T, num_chosen] each.

    Of equal scores, the smaller index is chosen.

    Args:
        logits: [T, num_experts], of the router.
        selection_bias: [num_experts], added to choose and not to weight; or None.
        rule: How to choose and to weight.
    """
    probabilities = logits
    if rule.router is RouterFunction.SOFTMAX:
        probabilities = softmax(logits)
    elif rule.router is RouterFunction.SIGMOID:
        probabilities = sigmoid(logits)
    scores = probabilities if selection_bias is None else probabilities + selection_bias
    if rule.num_groups > 1:
        scores = _within_best_groups(scores, rule.num_groups, rule.num_chosen_groups)
    chosen = _largest(scores, rule.num_chosen)
    weights = np.take_along_axis(probabilities, chosen, axis=-1)
    if rule.router is RouterFunction.SOFTMAX_OF_CHOSEN:
        weights = softmax(weights)
    if rule.normalised:
        total = weights.sum(axis=-1, keepdims=True)
        weights = weights / np.maximum(total, total.dtype.type(LEAST_WEIGHTS))
    return chosen, weights * weights.dtype.type(rule.scale)


def _within_best_groups(scores: Array, groups: int, kept: int) -> Array:
    """Forbids experts of all but the best groups (DeepSeek-AI 2024, section 2.1.2).

    The score of a group is the sum of those of its two best experts.
    """
    grouped = scores.reshape(len(scores), groups, -1)
    best = -np.sort(-grouped, axis=-1)[..., :2].sum(axis=-1)
    is_kept = np.zeros(best.shape, np.bool_)
    np.put_along_axis(is_kept, _largest(best, kept), values=True, axis=-1)
    return np.where(is_kept[..., None], grouped, -np.inf).reshape(scores.shape)


def _largest(scores: Array, count: int) -> Int:
    """Returns the indices of the largest of each row, the largest first: [rows, count]."""
    return np.argsort(-scores, axis=-1, kind="stable")[:, :count]


def mix_experts(
    x: Array,
    chosen: Int,
    weights: Array,
    matrices: tuple[Array | None, Array, Array],
    biases: tuple[Array | None, Array | None, Array | None],
    activation: ActivationFunction,
) -> Array:
    """Returns the weighted sum of what its experts make of each token: [T, hidden_size].

    Args:
        x: [T, hidden_size].
        chosen: [T, num_chosen], as from `route`.
        weights: [T, num_chosen].
        matrices: Gate, if there is one, up and down of all experts, [num_experts, out_features,
            in_features] each.
        biases: Theirs, [num_experts, out_features] or None each.
        activation: Of the gate, or of up without one.
    """
    mixed, (gates, ups, downs) = np.zeros_like(x), matrices
    for expert in np.unique(chosen):
        up, down = ups[expert], downs[expert]
        of_gate, of_up, of_down = (None if bias is None else bias[expert] for bias in biases)
        tokens, places = np.nonzero(chosen == expert)
        inner = linear(x[tokens], up, of_up)
        if gates is None:
            inner = activate(inner, activation)
        else:
            inner = gated(linear(x[tokens], gates[expert], of_gate), inner, activation)
        mixed[tokens] += weights[tokens, places][:, None] * linear(inner, down, of_down)
    return mixed


def activate(x: Array, activation: ActivationFunction) -> Array:
    """Applies SiLU, `x * sigmoid(x)`, GELU or one of its other forms (Hendrycks and Gimpel 2016).

    They have tanh in them, or a sigmoid: `x * sigmoid(1.702 x)`. Or it applies the square of what
    is above 0 (So et al. 2021).
    """
    activated: Array
    if activation is ActivationFunction.SQUARED_RELU:
        positive = np.maximum(x, x.dtype.type(0))
        activated = positive * positive
    elif activation is ActivationFunction.SILU:
        with np.errstate(over="ignore"):  # exp(-x) = inf gives the right 0
            activated = x / (1 + np.exp(-x))
    elif activation is ActivationFunction.QUICK_GELU:
        activated = x * sigmoid(x.dtype.type(1.702) * x)
    elif activation is ActivationFunction.GELU:
        activated = x.dtype.type(0.5) * x * (1 + erf(x * x.dtype.type(np.sqrt(0.5))))
    else:
        inner = x.dtype.type(np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
        activated = x.dtype.type(0.5) * x * (1 + np.tanh(inner))
    return activated


def erf(x: Array) -> Array:
    """Returns the error function, which NumPy lacks; to 13 digits.

    A Taylor series of degree 3 around the nearest of the places where the exact value is at hand.
    """
    bounded = np.clip(x.astype(np.float64), -_ERF_END, _ERF_END)  # beyond, it is 1 to all digits
    place = np.rint(bounded * _ERF_PLACES)
    start, distance = place / _ERF_PLACES, bounded - place / _ERF_PLACES
    slope = 2 / np.sqrt(np.pi) * np.exp(-start * start)
    series = 1 - distance * start + distance * distance * (2 * start * start - 1) / 3
    index = np.nan_to_num(place).astype(np.intp) + _ERF_END * _ERF_PLACES
    values = _erf_values()[index]
    result: Array = (values + slope * distance * series).astype(x.dtype)
    return result


@cache
def _erf_values() -> npt.NDArray[np.float64]:
    count = _ERF_END * _ERF_PLACES
    return np.array([math.erf(place / _ERF_PLACES) for place in range(-count, count + 1)])


def softcap(x: Array, cap: float | None) -> Array:
    """Returns `cap * tanh(x / cap)`; None leaves x as it is."""
    return x if cap is None else x.dtype.type(cap) * np.tanh(x / x.dtype.type(cap))


def rope(x: Array, cos: Array, sin: Array, style: RopeStyle) -> Array:
    """Rotates pairs of each head (Su et al. 2021); elements beyond the pairs pass through.

    Args:
        x: [T, heads, head_dim].
        cos: [T, pairs], of the position of each token. 2 * pairs <= head_dim.
        sin: [T, pairs].
        style: NORMAL pairs elements (2i, 2i + 1), NEOX pairs (i, i + pairs).
    """
    pairs = cos.shape[1]
    if style is RopeStyle.NORMAL:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated = x.copy()
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., second] * cos + x[..., first] * sin
    return rotated


def store(cache: Array, values: Array, slots: Int) -> None:
    """Writes keys or values to their slots of a paged cache.

    Args:
        cache: [blocks, num_kv_heads, block_size, head_dim], changed in place.
        values: [T, kv_heads, head_dim].
        slots: [T], each `block * block_size + offset`.
    """
    blocks, offsets = np.divmod(slots, cache.shape[2])
    cache[blocks, :, offsets] = values


def paged_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    *,
    positions: Int,
    query_start: Int,
    context_len: Int,
    block_table: Int,
    scale: float,
    softcap: float | None,
    window: int | None,
    sinks: Array | None = None,
    seen_ends: Int | None = None,
) -> Array:
    """Returns causal attention of a flat token batch over a paged cache (Kwon et al. 2023).

    Each token attends to positions `max(0, p - window + 1)..p` of its sequence, p its own, and to
    those behind it up to where it sees.
    Query head h reads key-value head `h // (heads / kv_heads)`.

    Args:
        q: [T, num_heads, key_dim].
        k_cache: [blocks, num_kv_heads, block_size, key_dim], holding these tokens' keys too.
        v_cache: [blocks, num_kv_heads, block_size, value_dim].
        positions: [T].
        query_start: [B + 1]; sequence b owns tokens `query_start[b]:query_start[b + 1]`.
        context_len: [B], tokens of each sequence in the cache.
        block_table: [B, M].
        scale: Of the scores.
        softcap: Applied to the scaled scores, or None.
        window: In tokens, or None for all.
        sinks: [num_heads], scores that take their part of the softmax and have no value, or None.
        seen_ends: [T], ascending in each sequence: the position behind the last one that the token
            sees; None for its own.

    Returns:
        [T, heads, value_dim].
    """
    ends = positions + 1 if seen_ends is None else seen_ends
    out = np.empty((*q.shape[:2], v_cache.shape[-1]), q.dtype)
    block_size = k_cache.shape[2]
    for sequence, context in enumerate(context_len):
        tokens = slice(query_start[sequence], query_start[sequence + 1])
        where = positions[tokens]
        if not len(where):
            continue
        oldest = 0 if window is None else max(0, int(where[0]) - window + 1)
        first = oldest // KEY_TILE * KEY_TILE
        blocks = block_table[sequence, first // block_size : -(-context // block_size)]
        keys = _gather(k_cache, blocks, context - first)
        values = _gather(v_cache, blocks, context - first)
        for start in range(tokens.start, tokens.stop, QUERY_CHUNK):
            chunk = slice(start, min(start + QUERY_CHUNK, tokens.stop))
            seen = -(-(int(ends[chunk.stop - 1]) - first) // KEY_TILE)
            out[chunk] = _attend(
                q[chunk],
                keys[:, :seen],
                values[:, :seen],
                positions[chunk] - first,
                ends[chunk] - first,
                scale,
                softcap,
                window,
                sinks,
            )
    return out


def attend_all(
    q: Array,
    k: Array,
    v: Array,
    query_start: Int,
    scale: float,
    *,
    reach: int | None = None,
    slopes: Array | None = None,
) -> Array:
    """Returns each token's attention to its sequence (Vaswani et al. 2017, section 3.2).

    Args:
        q: [T, num_heads, key_dim].
        k: [T, num_kv_heads, key_dim].
        v: [T, num_kv_heads, value_dim].
        query_start: [B + 1]; sequence b owns tokens `query_start[b]:query_start[b + 1]`.
        scale: Of the scores.
        reach: A token sees itself and so many before and after it (Beltagy et al. 2020); None for
            all.
        slopes: [heads], what a score loses for each token of distance (ALiBi, Press et al. 2022);
            None for nothing.

    Returns:
        [T, heads, value_dim].
    """
    out = np.empty((*q.shape[:2], v.shape[-1]), q.dtype)
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    for start, stop in pairwise(query_start.tolist()):
        keys, values = k[start:stop].swapaxes(0, 1), v[start:stop].swapaxes(0, 1)
        for first in range(start, stop, QUERY_CHUNK):
            chunk = slice(first, min(first + QUERY_CHUNK, stop))
            queries = q[chunk].swapaxes(0, 1) * q.dtype.type(scale)
            scores = queries @ keys.swapaxes(-1, -2)  # [heads, queries, keys]
            distance = np.abs(np.arange(first, chunk.stop)[:, None] - np.arange(start, stop))
            if slopes is not None:
                scores -= slopes[:, None, None] * distance.astype(q.dtype)
            if reach is not None:
                scores = np.where(distance <= reach, scores, -np.inf)
            scores -= scores.max(axis=-1, keepdims=True)
            weights = np.exp(scores, out=scores)
            mixed = weights @ values / weights.sum(axis=-1, keepdims=True)
            out[chunk] = mixed.swapaxes(0, 1)
    return out


def _gather(cache: Array, blocks: Int, count: int) -> Array:
    """Returns the first `count` positions of these blocks as [kv_heads, tiles, KEY_TILE, head_dim].

    What lies behind them, in a block or a tile, is zero: a slot may hold what an earlier owner
    left there, and not even a NaN of it may be multiplied by a probability of zero.
    """
    _, kv_heads, block_size, head_dim = cache.shape
    gathered = np.zeros((kv_heads, _round_up(count, KEY_TILE), head_dim), cache.dtype)
    whole = gathered[:, : len(blocks) * block_size]
    whole.reshape(kv_heads, len(blocks), block_size, head_dim)[:] = cache[blocks].swapaxes(0, 1)
    gathered[:, count:] = 0
    return gathered.reshape(kv_heads, -1, KEY_TILE, head_dim)


def _attend(
    q: Array,
    keys: Array,
    values: Array,
    positions: Int,
    ends: Int,
    scale: float,
    cap: float | None,
    window: int | None,
    sinks: Array | None,
) -> Array:
    """Returns attention of [T, heads, key_dim] over [kv_heads, tiles, KEY_TILE, key_dim].

    Rows are (token, query head of the group), cut into tiles; scores have the axes
    [kv_head, row tile, key tile, row, key].
    """
    tokens, heads, head_dim = q.shape
    kv_heads, key_tiles = keys.shape[:2]
    group = heads // kv_heads
    rows = tokens * group
    padded = np.zeros((kv_heads, _round_up(rows, ROW_TILE), head_dim), q.dtype)
    grouped = padded[:, :rows].reshape(kv_heads, tokens, group, head_dim)
    grouped[:] = q.reshape(tokens, kv_heads, group, head_dim).swapaxes(0, 1)
    tiles = padded.reshape(kv_heads, -1, 1, ROW_TILE, head_dim)
    scores = (tiles * q.dtype.type(scale)) @ keys[:, None].swapaxes(-1, -2)
    scores = softcap(scores, cap)

    row_position = np.zeros((padded.shape[1] // ROW_TILE, 1, ROW_TILE, 1), np.int64)
    row_end = np.ones_like(row_position)
    row_position.reshape(-1)[:rows] = np.repeat(positions, group)
    row_end.reshape(-1)[:rows] = np.repeat(ends, group)
    key_position = np.arange(key_tiles * KEY_TILE).reshape(key_tiles, 1, KEY_TILE)
    visible = key_position < row_end
    if window is not None:
        visible &= key_position > row_position - window
    scores = np.where(visible, scores, -np.inf)

    largest = scores.max(axis=(2, 4), keepdims=True)
    sink = np.full_like(largest, -np.inf)
    if sinks is not None:
        of_rows = sink.reshape(kv_heads, -1)[:, :rows].reshape(kv_heads, tokens, group)
        of_rows[:] = sinks.reshape(kv_heads, 1, group)
        largest = np.maximum(largest, sink)
    scores -= largest
    weights = np.exp(scores, out=scores)
    total = weights.sum(axis=4, keepdims=True).sum(axis=2) + np.exp(sink - largest)[:, :, 0]
    mixed: Array = (weights @ values[:, None]).sum(axis=2) / total
    value_dim = values.shape[-1]
    mixed = mixed.reshape(kv_heads, -1, value_dim)[:, :rows]
    mixed = mixed.reshape(kv_heads, tokens, group, value_dim)
    return mixed.swapaxes(0, 1).reshape(tokens, heads, value_dim)


def _round_up(count: int, tile: int) -> int:
    return -(-count // tile) * tile
