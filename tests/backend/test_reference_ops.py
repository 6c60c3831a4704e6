"""The reference's operations against plain restatements, and their independence of batching."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.models.config import ActivationFunction
from rocmforge.models.rope_config import RopeStyle
from rocmforge_reference import ops

BLOCK = 16


def random(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return rng.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_every_operation_keeps_the_dtype_of_its_input(kind: type[np.floating]) -> None:
    rng = np.random.default_rng(0)
    x, w = random(rng, 3, 8).astype(kind), random(rng, 8, 8).astype(kind)
    heads, cos = x.reshape(3, 2, 4), x[:, :2]
    results = [
        ops.embed(w, np.array([1, 2]), 3.0),
        ops.rms_norm(x, w[0], 1e-5),
        ops.layer_norm(x, w[0], w[1], 1e-5),
        ops.activate(x, ActivationFunction.GELU),
        ops.attend_all(heads, heads, heads, np.array([0, 3]), 0.5),
        ops.linear(x, w, w[0]),
        ops.gated_linear(x, w, w, ActivationFunction.SILU),
        ops.gated_linear(x, w, w, ActivationFunction.GELU_TANH),
        ops.softcap(x, 2.0),
        ops.rope(heads, cos, cos, RopeStyle.NEOX),
        ops.paged_attention(
            heads,
            np.zeros((2, 2, BLOCK, 4), kind),
            np.zeros((2, 2, BLOCK, 4), kind),
            positions=np.arange(3),
            query_start=np.array([0, 3]),
            context_len=np.array([3]),
            block_table=np.array([[1]]),
            scale=0.5,
            softcap=4.0,
            window=2,
        ),
    ]
    assert [result.dtype for result in results] == [np.dtype(kind)] * len(results)


# Sizes around the tiles, and those of the demo models. Of some of these, BLAS rounds a wide tile as
# narrow ones.
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(1, 5), (13, 7), (17, 48), (96, 32), (100, 48), (192, 576), (576, 1536)]
)
def test_a_row_of_a_product_does_not_depend_on_its_company(
    outputs: int, inputs: int, order: Literal["C", "F"]
) -> None:
    rng = np.random.default_rng(outputs)
    x, weight = random(rng, 333, inputs), np.asarray(random(rng, outputs, inputs), order=order)
    together = ops.linear(x, weight)
    for rows in (1, 2, 3, 7, 8, 9, 16, 31, 64, 127, 128, 200, 300):
        some = rng.choice(333, rows, replace=False)
        np.testing.assert_array_equal(ops.linear(x[some], weight), together[some])
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    np.testing.assert_allclose(together, exact, rtol=0, atol=1e-5 * math.sqrt(inputs))


def test_norm_of_a_row_does_not_depend_on_its_company() -> None:
    rng = np.random.default_rng(1)
    x, weight = random(rng, 33, 577), random(rng, 577)
    together = ops.rms_norm(x, weight, 1e-6)
    for row in range(33):
        np.testing.assert_array_equal(
            ops.rms_norm(x[row : row + 1], weight, 1e-6)[0], together[row]
        )


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    x = np.array([[3.0, 4.0]])
    expected = x / math.sqrt(12.5 + 0.5) * [2.0, 10.0]
    np.testing.assert_allclose(ops.rms_norm(x, np.array([2.0, 10.0]), 0.5), expected)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        (ActivationFunction.SILU, lambda x: x / (1 + math.exp(-x))),
        (
            ActivationFunction.GELU_TANH,
            lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        (ActivationFunction.GELU, lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2)))),
        (ActivationFunction.QUICK_GELU, lambda x: x / (1 + math.exp(-1.702 * x))),
    ],
)
def test_activations_follow_their_formulas(
    activation: ActivationFunction, formula: Callable[[float], float]
) -> None:
    x = np.linspace(-20, 20, 41)
    np.testing.assert_allclose(ops.activate(x, activation), [formula(value) for value in x])
    extremes = ops.activate(np.array([-1e4, 1e4], np.float32), activation)
    np.testing.assert_array_equal(extremes, [0, 1e4])


def test_the_error_function_is_exact_to_13_digits() -> None:
    x = np.concatenate([np.linspace(-7, 7, 30_001), [0.0, 1e300, -math.inf]])
    expected = [math.erf(value) for value in x]
    np.testing.assert_allclose(ops.erf(x), expected, rtol=0, atol=1e-13)
    assert np.isnan(ops.erf(np.array([math.nan]))).all()


def test_layer_norm_centres_and_divides_by_the_deviation() -> None:
    x = np.array([[1.0, 5.0]])
    expected = np.array([[-2.0, 2.0]]) / math.sqrt(4 + 0.5) * [2.0, 10.0] + [1.0, -1.0]
    found = ops.layer_norm(x, np.array([2.0, 10.0]), np.array([1.0, -1.0]), 0.5)
    np.testing.assert_allclose(found, expected)


def test_every_token_attends_to_all_of_its_own_sequence() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (random(rng, 90, 3, 8).astype(np.float64) for _ in range(3))
    found = ops.attend_all(q, k, v, np.array([0, 40, 41, 90]), 0.3)
    for start, stop in ((0, 40), (40, 41), (41, 90)):
        for token in range(start, stop):
            for head in range(3):
                weights = np.exp(0.3 * k[start:stop, head] @ q[token, head])
                expected = weights @ v[start:stop, head] / weights.sum()
                np.testing.assert_allclose(found[token, head], expected)


@pytest.mark.parametrize("style", list(RopeStyle))
@pytest.mark.parametrize("pairs", [2, 3])
def test_rope_rotates_pairs_as_complex_numbers(style: RopeStyle, pairs: int) -> None:
    rng = np.random.default_rng(2)
    x, angle = rng.standard_normal((5, 3, 6)), rng.standard_normal((5, pairs))
    got = ops.rope(x, np.cos(angle), np.sin(angle), style)
    for pair in range(pairs):
        first, second = (
            (2 * pair, 2 * pair + 1) if style is RopeStyle.NORMAL else (pair, pair + pairs)
        )
        turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angle[:, None, pair])
        np.testing.assert_allclose(got[..., first], turned.real)
        np.testing.assert_allclose(got[..., second], turned.imag)
    np.testing.assert_array_equal(got[..., 2 * pairs :], x[..., 2 * pairs :])


class Attention:
    """One sequence of random queries, keys and values, and its scattered cache."""

    def __init__(self, length: int, heads: int, kv_heads: int, head_dim: int) -> None:
        rng = np.random.default_rng(length)
        self.q = random(rng, length, heads, head_dim)
        self.k = random(rng, length, kv_heads, head_dim)
        self.v = random(rng, length, kv_heads, head_dim)
        count = -(-length // BLOCK)
        self.blocks = rng.permutation(count + 3)[:count]
        # What other sequences left must never be read, so it is poison.
        shape = (count + 3, kv_heads, BLOCK, head_dim)
        self.k_cache, self.v_cache = np.full((2, *shape), np.nan, np.float32)
        positions = np.arange(length)
        slots = self.blocks[positions // BLOCK] * BLOCK + positions % BLOCK
        ops.store(self.k_cache, self.k, slots)
        ops.store(self.v_cache, self.v, slots)

    def paged(
        self, start: int, stop: int, softcap: float | None, window: int | None
    ) -> npt.NDArray[np.float32]:
        return ops.paged_attention(
            self.q[start:stop],
            self.k_cache,
            self.v_cache,
            positions=np.arange(start, stop),
            query_start=np.array([0, stop - start]),
            context_len=np.array([stop]),
            block_table=self.blocks[None],
            scale=0.3,
            softcap=softcap,
            window=window,
        )

    def dense(self, softcap: float | None, window: int | None) -> npt.NDArray[np.float64]:
        """Attention as its definition has it, one head and one token at a time."""
        length, heads, _ = self.q.shape
        group = heads // self.k.shape[1]
        out = np.empty(self.q.shape)
        for head in range(heads):
            k, v = (x[:, head // group].astype(np.float64) for x in (self.k, self.v))
            for token in range(length):
                first = 0 if window is None else max(0, token - window + 1)
                scores = 0.3 * k[first : token + 1] @ self.q[token, head]
                if softcap is not None:
                    scores = softcap * np.tanh(scores / softcap)
                weights = np.exp(scores - scores.max())
                out[token, head] = weights @ v[first : token + 1] / weights.sum()
        return out


SHAPES = [(6, 2, 8), (4, 1, 16), (3, 3, 5), (9, 3, 64)]
VARIANTS = [(None, None), (2.0, None), (None, 50), (None, 200), (3.0, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("softcap", "window"), VARIANTS)
def test_paged_attention_equals_its_definition(
    shape: tuple[int, int, int], softcap: float | None, window: int | None
) -> None:
    case = Attention(300, *shape)
    got = case.paged(0, 300, softcap, window)
    np.testing.assert_allclose(got, case.dense(softcap, window), rtol=0, atol=3e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("softcap", "window"), VARIANTS)
def test_attention_of_a_token_does_not_depend_on_its_chunk(
    shape: tuple[int, int, int], softcap: float | None, window: int | None
) -> None:
    case = Attention(300, *shape)
    whole = case.paged(0, 300, softcap, window)
    for start, stop in [(299, 300), (128, 129), (127, 128), (0, 1), (250, 283), (100, 300)]:
        part = case.paged(start, stop, softcap, window)
        np.testing.assert_array_equal(part, whole[start:stop])


def test_sequences_of_a_batch_do_not_see_each_other() -> None:
    left, right = Attention(40, 6, 2, 8), Attention(170, 6, 2, 8)
    table = np.zeros((3, 11), np.int64)
    table[0, : len(left.blocks)] = left.blocks
    table[2, : len(right.blocks)] = right.blocks + len(left.k_cache)
    together = ops.paged_attention(
        np.concatenate([left.q[39:], right.q[160:]]),
        np.concatenate([left.k_cache, right.k_cache]),
        np.concatenate([left.v_cache, right.v_cache]),
        positions=np.concatenate([[39], np.arange(160, 170)]),
        query_start=np.array([0, 1, 1, 11]),
        context_len=np.array([40, 0, 170]),
        block_table=table,
        scale=0.3,
        softcap=None,
        window=None,
    )
    np.testing.assert_array_equal(together[:1], left.paged(39, 40, None, None))
    np.testing.assert_array_equal(together[1:], right.paged(160, 170, None, None))
