"""The step from logits to tokens: the definition that every backend follows.

The steps, for one row of V logits `l` (float32), in this order:

1.  A row with a NaN, or whose largest logit is infinite, gives token -1.
    Log-probabilities are `l - logsumexp(l)`, taken here.
2.  Penalties, for tokens seen in the prompt or the output: `l = l / r` if `l > 0`, else `l * r`
    (repetition). Then for those seen `count > 0` times in the output:
    `l = l - (presence + frequency * count)`.
3.  Logit bias is added. Tokens that are not `allowed` get minus infinity. Then come the row's
    logits processors (`rocmforge.logits`).
4.  If everything is forbidden now (the largest is minus infinity), the token is -1.
    Temperature 0: the smallest token id among the largest logits. Done.
    Otherwise `l = (l - max(l)) / temperature`.
5.  Min-p keeps tokens with `l >= log(min_p)`.
6.  Top-k keeps tokens with `l >=` the k-th largest of those kept; ties at the border all stay.
7.  Top-p keeps the largest `l`, and tokens for which the kept tokens with a larger `l` have
    together a probability `< top_p`, with probabilities normalised over those kept so far; ties
    share one fate.
8.  Draw: the smallest token id among the largest `l + noise`, over those kept.

The noise is Gumbel distributed, so step 8 draws from softmax(l) (Gumbel 1954; Yellott 1977). It
is a pure function of (seed, position, token id), defined by `gumbel_noise` to the last bit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.backend.arrays import Float32Array, Int32Array
from rocmforge.backend.step import SAMPLE, SamplingBatch
from rocmforge.logits.host import apply_processors
from rocmforge.logits.processor import LogitsProcessor

logger = logging.getLogger(__name__)

NO_TOKEN: Final = -1
"""The token of a row that cannot be sampled."""
NO_PROCESSORS: Final[Mapping[str, LogitsProcessor]] = {}

UInt32Array = npt.NDArray[np.uint32]

# Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", table 2 and section 5.2.
_PHILOX_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The sampling part of a `StepOutput`; fields as there."""

    token_ids: Int32Array
    logprobs: Float32Array | None
    top_ids: Int32Array | None
    top_logprobs: Float32Array | None


def sample(
    logits: Float32Array,
    batch: SamplingBatch,
    pending: Int32Array,
    processors: Mapping[str, LogitsProcessor] = NO_PROCESSORS,
) -> Samples:
    """Draws, or scores, one token per row. A row that cannot be sampled costs no other its token.

    Args:
        logits: [L, V]; overwritten.
        batch: How each row is sampled.
        pending: [L] token that was seen once more than the batch says, or NO_TOKEN. It is the
            row's own input token where the host did not know it (`StepInput.token_source`).
        processors: those that rows may use, by name.
    """
    rows = len(logits)
    tokens = np.full(rows, NO_TOKEN, np.int32)
    wants_logprobs = batch.num_logprobs >= 0
    num_top = int(batch.num_logprobs.max(initial=0))
    logprobs = np.full(rows, np.nan, np.float32)
    top_ids = np.full((rows, num_top), NO_TOKEN, np.int32)
    top_logprobs = np.full((rows, num_top), -np.inf, np.float32)
    for row in range(rows):
        if not np.isfinite(logits[row].max()):
            continue
        model_logprobs = _log_softmax(logits[row]) if wants_logprobs[row] else None
        token = int(batch.target_ids[row])
        if token == SAMPLE:
            try:
                token = _draw(logits[row], batch, row, int(pending[row]), processors)
            except Exception:
                logger.exception("row %d of a step cannot be sampled", row)
                token = NO_TOKEN
        tokens[row] = token
        if model_logprobs is not None and token != NO_TOKEN:
            logprobs[row] = model_logprobs[token]
            best = _largest(model_logprobs, int(batch.num_logprobs[row]))
            top_ids[row, : len(best)] = best
            top_logprobs[row, : len(best)] = model_logprobs[best]
    any_top = num_top > 0
    return Samples(
        token_ids=tokens,
        logprobs=logprobs if wants_logprobs.any() else None,
        top_ids=top_ids if any_top else None,
        top_logprobs=top_logprobs if any_top else None,
    )


def _draw(
    logits: Float32Array,
    batch: SamplingBatch,
    row: int,
    pending: int,
    processors: Mapping[str, LogitsProcessor],
) -> int:
    _penalize(logits, batch, row, pending)
    biased = slice(batch.bias_offsets[row], batch.bias_offsets[row + 1])
    np.add.at(logits, batch.bias_tokens[biased], batch.bias_values[biased])
    if batch.allowed is not None:
        allowed = np.unpackbits(batch.allowed[row].view(np.uint8), bitorder="little")
        logits[allowed[: len(logits)] == 0] = -np.inf
    if batch.processors is not None:
        position = int(batch.position[row])
        apply_processors(processors, batch.processors, row, logits, pending, position)
    largest = logits.max()
    if not np.isfinite(largest):
        return NO_TOKEN
    if batch.temperature[row] == 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):  # a tiny temperature leaves only the largest
        logits -= largest
        logits /= batch.temperature[row]
    kept = _kept(logits, batch.min_p[row], int(batch.top_k[row]), batch.top_p[row])
    noise = gumbel_noise(int(batch.seed[row]), int(batch.position[row]), len(logits))
    return int(kept[(logits[kept] + noise[kept]).argmax()])


def _penalize(logits: Float32Array, batch: SamplingBatch, row: int, pending: int) -> None:
    repetition, presence, frequency = (
        batch.repetition_penalty[row],
        batch.presence_penalty[row],
        batch.frequency_penalty[row],
    )
    if repetition == 1 and presence == 0 and frequency == 0:
        return
    seen = slice(batch.seen_offsets[row], batch.seen_offsets[row + 1])
    counts = dict(zip(batch.seen_tokens[seen].tolist(), batch.seen_counts[seen], strict=True))
    if pending != NO_TOKEN:
        counts[pending] = counts.get(pending, np.int32(0)) + np.int32(1)
    tokens = np.fromiter(counts.keys(), np.int64, len(counts))
    count = np.fromiter(counts.values(), np.float32, len(counts))
    values = logits[tokens]
    values = np.where(values > 0, values / repetition, values * repetition)
    logits[tokens] = values - np.where(count > 0, presence + frequency * count, np.float32(0))


def _kept(
    logits: Float32Array, min_p: np.float32, top_k: int, top_p: np.float32
) -> npt.NDArray[np.intp]:
    """Returns the ids of the tokens that may be drawn, ascending."""
    threshold = np.log(min_p) if min_p > 0 else np.float32(-np.inf)
    if 0 < top_k < len(logits):
        threshold = max(threshold, np.partition(logits, -top_k)[-top_k])
    kept = np.flatnonzero(logits >= threshold)
    if top_p < 1:
        # Distinct logits, largest first: ties share one fate.
        values, inverse = np.unique(-logits[kept], return_inverse=True)
        mass = np.bincount(inverse, weights=np.exp(logits[kept].astype(np.float64) + values[0]))
        before = np.concatenate(([0.0], np.cumsum(mass)[:-1])) / mass.sum()
        is_kept = before < top_p
        is_kept[0] = True  # a top_p may be 0 in float32
        kept = kept[is_kept[inverse]]
    return kept


def _log_softmax(logits: Float32Array) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max()
    logprobs: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return logprobs


def _largest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Returns the indices of the largest values in falling order, smaller first among equals."""
    if count < 1:
        return np.empty(0, np.intp)
    count = min(count, len(values))
    border = np.partition(values, -count)[-count]
    candidates = np.flatnonzero(values >= border)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def gumbel_noise(seed: int, position: int, vocab_size: int) -> Float32Array:
    """Returns standard Gumbel noise of every token id, float32 [vocab_size].

    All operations are IEEE float32, rounded to nearest, one at a time (no fused multiply-add),
    so that any backend can reproduce the result exactly:

    *   key = (low, high) 32 bits of the seed; counter = (token id // 4, position, 0, 0);
        bits = word `token id % 4` of Philox4x32-10.
    *   v = min((float(bits) + 0.5) * 2^-32, 1 - 2^-24), a uniform number in (0, 1).
    *   noise = -log(-log1p(-v)), with the logarithms of `_log` and `_log1p_of_minus`.
    """
    blocks = np.arange((vocab_size + 3) // 4, dtype=np.uint32)
    counter = (blocks, np.uint32(position), np.uint32(0), np.uint32(0))
    words = philox4x32((seed & _WORD, seed >> 32 & _WORD), counter)
    bits = np.stack(words, axis=1).reshape(-1)[:vocab_size]
    v = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    v = np.minimum(v, np.float32(1 - 2.0**-24))
    return -_log(-_log1p_of_minus(v))


def philox4x32(key: tuple[int, int], counter: tuple[Any, Any, Any, Any]) -> tuple[UInt32Array, ...]:
    """Returns four random words for each counter, by Philox4x32-10; words may be arrays."""
    x0, x1, x2, x3 = np.broadcast_arrays(*counter)
    key0, key1 = key
    for _ in range(10):
        product0 = x0.astype(np.uint64) * _PHILOX_MULTIPLIERS[0]
        product1 = x2.astype(np.uint64) * _PHILOX_MULTIPLIERS[1]
        high0, low0 = (product0 >> 32).astype(np.uint32), product0.astype(np.uint32)
        high1, low1 = (product1 >> 32).astype(np.uint32), product1.astype(np.uint32)
        x0, x1, x2, x3 = (
            high1 ^ x1 ^ np.uint32(key0),
            low1,
            high0 ^ x3 ^ np.uint32(key1),
            low0,
        )
        key0 = (key0 + _PHILOX_KEY_STEPS[0]) & _WORD
        key1 = (key1 + _PHILOX_KEY_STEPS[1]) & _WORD
    return x0, x1, x2, x3


def _log(x: Float32Array) -> Float32Array:
    """Returns log(x) for positive normal x, within 2 units in the last place.

    x = m * 2^k with m in [sqrt(1/2), sqrt(2)): with `bits` of x as a signed integer,
    k = (bits - 0x3f3504f3) >> 23 and m has the bits `bits - (k << 23)`.
    Then `_log_polynomial(m - 1, k)`.
    """
    bits = x.view(np.int32)
    k = (bits - np.int32(0x3F3504F3)) >> 23
    m = (bits - (k << 23)).view(np.float32)
    return _log_polynomial(m - np.float32(1), k.astype(np.float32))


def _log1p_of_minus(v: Float32Array) -> Float32Array:
    """Returns log(1 - v) for v in (0, 1), precise for small v.

    `_log_polynomial(-v, 0)` where v < 0.25, which loses nothing to the subtraction; elsewhere
    `_log(1 - v)`.
    """
    return np.where(
        v < np.float32(0.25),
        _log_polynomial(-v, np.float32(0)),
        _log(np.float32(1) - v),
    )


_LOG_COEFFICIENTS: Final = tuple(
    np.float32(coefficient)
    for coefficient in (
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
)
"""Minimax coefficients of logf in the Cephes library (Moshier), highest power first."""


def _log_polynomial(f: Float32Array, k: Float32Array | np.float32) -> Float32Array:
    """Returns log(1 + f) + k * log(2), computed in a fixed order.

    p = c0; then p = p * f + c for each further coefficient c; z = f * f; y = (f * z) * p;
    y = y + k * -2.12194440e-4; y = y - 0.5 * z; result = (f + y) + k * 0.693359375.
    """
    p = np.full_like(f, _LOG_COEFFICIENTS[0])
    for coefficient in _LOG_COEFFICIENTS[1:]:
        p = p * f + coefficient
    z = f * f
    y = (f * z) * p
    y = y + k * np.float32(-2.12194440e-4)
    y = y - np.float32(0.5) * z
    return (f + y) + k * np.float32(0.693359375)
