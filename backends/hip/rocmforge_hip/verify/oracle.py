"""The operations by their definitions, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.backend.step import SamplingBatch
from rocmforge.models.config import ActivationFunction
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge.models.rope_config import RopeStyle

Float64 = npt.NDArray[np.float64]

# Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", table 2 and section 5.2.
_PHILOX_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_WORD: Final = 0xFFFFFFFF


def rms_norm(x: Float64, weight: Float64, eps: float) -> Float64:
    """Returns `x / sqrt(mean(x^2) + eps) * weight` of each row."""
    normed: Float64 = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
    return normed


def layer_norm(x: Float64, weight: Float64, bias: Float64, eps: float) -> Float64:
    """Returns `(x - mean) / sqrt(variance + eps) * weight + bias` of each row."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    normed: Float64 = centred / np.sqrt(variance + eps) * weight + bias
    return normed


def turned(x: Float64) -> Float64:
    """Multiplies each 32 elements of rows with a Hadamard matrix, which is its own inverse."""
    number = np.arange(32)
    signs = 1.0 - 2.0 * (np.bitwise_count(number[:, None] & number) % 2)
    parts: Float64 = x.reshape(*x.shape[:-1], -1, 32) @ signs / np.sqrt(32)
    return parts.reshape(x.shape)


def nibbles(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.int8]:
    """Returns the elements of packed values, eight of each word: rf/attention/packed_values.h."""
    shifts = np.array([0, 16, 4, 20, 8, 24, 12, 28], np.uint32)
    codes = (words[..., None] >> shifts & np.uint32(15)).astype(np.int8) - np.int8(8)
    return codes.reshape(*words.shape[:-1], -1)


def gelu(x: Float64) -> Float64:
    """Returns `x * Phi(x)`, Phi the normal distribution function."""
    phi = np.vectorize(lambda value: 0.5 * math.erfc(-value * math.sqrt(0.5)))
    activated: Float64 = x * phi(x)
    return activated


def activate(x: Float64, kind: ActivationFunction) -> Float64:
    """Applies SiLU, or GELU, also with tanh or a sigmoid in it, or squared ReLU."""
    if kind is ActivationFunction.GELU:
        return gelu(x)
    if kind is ActivationFunction.SQUARED_RELU:
        squared: Float64 = np.maximum(x, 0) ** 2
        return squared
    slopes = {ActivationFunction.SILU: 1.0, ActivationFunction.QUICK_GELU: 1.702}
    activated: Float64 = (
        x / (1 + np.exp(-slopes[kind] * x))
        if kind in slopes
        else 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    )
    return activated


def gated(gate: Float64, up: Float64, kind: ActivationFunction) -> Float64:
    """Returns `activate(gate) * up`, or what gpt-oss has: see `rf::gated`."""
    if kind is not ActivationFunction.CLAMPED_SWIGLU:
        return activate(gate, kind) * up
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    clamped: Float64 = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    return clamped


def route(
    logits: Float64, selection_bias: Float64 | None, rule: ExpertsConfig
) -> tuple[npt.NDArray[np.int32], Float64]:
    """Returns the experts of each token, the best first, and their weights.

    Args:
        logits: [T, num_experts].
        selection_bias: [num_experts], added to choose by, or None.
        rule: How to choose and to weight.
    """
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = {
        RouterFunction.SOFTMAX: raised / raised.sum(axis=-1, keepdims=True),
        RouterFunction.SIGMOID: 1 / (1 + np.exp(-logits)),
        RouterFunction.SOFTMAX_OF_CHOSEN: logits,
    }[rule.router]
    scores = probabilities + (0 if selection_bias is None else selection_bias)
    members = rule.num_experts // rule.num_groups
    for row in scores:
        of_groups = [
            np.sort(row[at : at + members])[-2:].sum() for at in range(0, len(row), members)
        ]
        for group in np.argsort(of_groups)[: rule.num_groups - rule.num_chosen_groups]:
            row[group * members : (group + 1) * members] = -np.inf
    chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : rule.num_chosen]
    weights = np.take_along_axis(probabilities, chosen, axis=-1)
    if rule.router is RouterFunction.SOFTMAX_OF_CHOSEN:
        weights = np.exp(weights) / np.exp(weights).sum(axis=-1, keepdims=True)
    if rule.normalised:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 2.0**-14)
    return chosen.astype(np.int32), weights * rule.scale


def rope(x: Float64, cos: Float64, sin: Float64, style: RopeStyle) -> Float64:
    """Rotates the pairs of [T, heads, head_dim] by the angles of [T, pairs]."""
    pairs = cos.shape[1]
    first = np.arange(pairs) if style is RopeStyle.NEOX else 2 * np.arange(pairs)
    second = first + (pairs if style is RopeStyle.NEOX else 1)
    rotated = x.copy()
    turn = (cos + 1j * sin)[:, None, :]
    turned = (x[..., first] + 1j * x[..., second]) * turn
    rotated[..., first], rotated[..., second] = turned.real, turned.imag
    return rotated


def attention(
    q: Float64,
    keys: Float64,
    values: Float64,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    causal: bool = True,
    slopes: Sequence[float] = (),
    sinks: Float64 | None = None,
    ends: npt.NDArray[np.int32] | None = None,
) -> Float64:
    """Returns the attention of one sequence's last tokens.

    Args:
        q: [new, heads, head_dim].
        keys: [context, kv_heads, head_dim].
        values: As keys.
        scale: Of query times key.
        softcap: Of the scores.
        window: Tokens that each token sees, itself among them; unless causal, to each side.
        causal: Whether a token sees none after it.
        slopes: What the scores of each head lose for a token of distance.
        sinks: Of each head, a score that takes its part of the softmax and has no value.
        ends: Behind the last key that each token sees, [new]; None for its own, if causal.
    """
    group = q.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = scale * np.einsum("qhd,khd->hqk", q, keys)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    before = np.arange(len(keys) - len(q), len(keys))[:, None] - np.arange(len(keys))
    for head, slope in enumerate(slopes):
        scores[head] -= slope * np.abs(before)
    hidden = (before < 0) & causal
    if ends is not None:
        hidden = np.arange(len(keys)) >= ends[:, None]
    if window is not None:
        hidden |= (before if causal else np.abs(before)) >= window
    scores = np.where(hidden, -np.inf, scores)
    if sinks is None:
        sinks = np.full(q.shape[1], -np.inf)
    sink = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
    scores = np.concatenate([scores, sink], axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    weights = weights[..., :-1]
    mixed: Float64 = np.einsum("hqk,khd->qhd", weights, values)
    return mixed


def log_softmax(x: Float64) -> Float64:
    """Returns the log-softmax of each row."""
    shifted = x - x.max(axis=-1, keepdims=True)
    logs: Float64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs


def final_scores(logits: Float64, batch: SamplingBatch) -> Iterator[Float64]:
    """Returns what each row's token is the largest of; see `SamplingBatch` for the order."""
    for row, plain in enumerate(logits):
        scores = _adjusted(plain.copy(), batch, row)
        temperature = float(batch.temperature[row])
        if temperature == 0:
            yield scores
            continue
        scores = (scores - scores.max()) / temperature
        kept = _kept(scores, batch, row)
        noise = gumbel_noise(int(batch.seed[row]), int(batch.position[row]), len(scores))
        yield np.where(kept, scores + noise, -np.inf)


def _adjusted(scores: Float64, batch: SamplingBatch, row: int) -> Float64:
    seen = slice(batch.seen_offsets[row], batch.seen_offsets[row + 1])
    tokens, counts = batch.seen_tokens[seen], batch.seen_counts[seen]
    repetition = float(batch.repetition_penalty[row])
    values = scores[tokens]
    values = np.where(values > 0, values / repetition, values * repetition)
    penalty = float(batch.presence_penalty[row]) + float(batch.frequency_penalty[row]) * counts
    scores[tokens] = values - np.where(counts > 0, penalty, 0)
    biased = slice(batch.bias_offsets[row], batch.bias_offsets[row + 1])
    scores[batch.bias_tokens[biased]] += batch.bias_values[biased]
    if batch.allowed is not None:
        bits = np.unpackbits(batch.allowed[row].view(np.uint8), bitorder="little")
        scores[bits[: len(scores)] == 0] = -np.inf
    return scores


def _kept(scores: Float64, batch: SamplingBatch, row: int) -> npt.NDArray[np.bool_]:
    """Applies min-p, then top-k to those kept, then top-p to those."""
    kept = np.isfinite(scores)
    if batch.min_p[row] > 0:
        kept &= scores >= np.log(float(batch.min_p[row]))
    top_k = int(batch.top_k[row])
    if 0 < top_k < kept.sum():
        kept &= scores >= np.sort(scores[kept])[-top_k]
    if batch.top_p[row] < 1:
        order = np.argsort(-np.where(kept, scores, -np.inf))
        mass = np.where(kept, np.exp(scores), 0.0)[order]
        before = (np.cumsum(mass) - mass) / mass.sum()
        kept[order[before >= float(batch.top_p[row])]] = False
    return kept


def gumbel_noise(seed: int, position: int, vocab: int) -> Float64:
    """Returns the Gumbel noise of every token: float64 [vocab].

    It comes of Philox4x32-10 with the key `seed` and the counter (token // 4, position, 0, 0), of
    which word token % 4 is a number in (0, 1).
    """
    words = _philox(seed, np.arange((vocab + 3) // 4, dtype=np.uint64), position)
    bits = np.stack(words, axis=1).reshape(-1)[:vocab]
    # Rounded as the definition says; the logarithms need no care in float64.
    uniform = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    uniform = np.minimum(uniform, np.float32(1 - 2.0**-24))
    noise: Float64 = -np.log(-np.log1p(-uniform.astype(np.float64)))
    return noise


def _philox(seed: int, first: npt.NDArray[np.uint64], second: int) -> Sequence[Any]:
    x = [first, *(np.full_like(first, value) for value in (second, 0, 0))]
    keys = [seed & _WORD, seed >> 32 & _WORD]
    for _ in range(10):
        products = [x[0] * np.uint64(_PHILOX_MULTIPLIERS[0])]
        products.append(x[2] * np.uint64(_PHILOX_MULTIPLIERS[1]))
        high = [product >> np.uint64(32) for product in products]
        low = [product & np.uint64(_WORD) for product in products]
        x = [high[1] ^ x[1] ^ np.uint64(keys[0]), low[1], high[0] ^ x[3] ^ np.uint64(keys[1])]
        x.append(low[0])
        keys = [(key + step) & _WORD for key, step in zip(keys, _PHILOX_KEY_STEPS, strict=True)]
    return x
