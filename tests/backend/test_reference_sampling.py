"""The exact definitions in the reference's sampling, against sources we did not write."""

from __future__ import annotations

import numpy as np
import pytest

from rocmforge.backend.step import SamplingBatch
from rocmforge_reference.sampling import NO_TOKEN, gumbel_noise, philox4x32, sample
from tests.backend.driving import Want, make_sampling

# Known answers for philox4x32 with 10 rounds, from the file kat_vectors of Random123.
KNOWN_ANSWERS = [
    ((0x00000000,) * 4, (0x00000000,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    got = philox4x32(key, tuple(np.uint32(word) for word in counter))  # type: ignore[arg-type]
    assert tuple(int(word) for word in got) == words


def test_noise_is_minus_log_of_minus_log_of_the_philox_words() -> None:
    seed, position, vocab = 0x0123456789ABCDEF, 77, 20_001
    noise = gumbel_noise(seed, position, vocab)
    assert noise.dtype == np.float32
    assert len(noise) == vocab
    for token in (0, 1, 2, 3, 4, 4097, 20_000):
        counter = (np.uint32(token // 4), np.uint32(position), np.uint32(0), np.uint32(0))
        word = int(philox4x32((0x89ABCDEF, 0x01234567), counter)[token % 4])
        uniform = (word + 0.5) / 2**32
        expected = -np.log(-np.log1p(-uniform))
        np.testing.assert_allclose(noise[token], expected, rtol=0, atol=2e-6)


def test_noise_is_close_to_float64_logarithms_everywhere() -> None:
    blocks = np.arange(50_000, dtype=np.uint32)
    words = philox4x32((5, 6), (blocks, np.uint32(9), np.uint32(0), np.uint32(0)))
    uniform = (np.stack(words, axis=1).reshape(-1).astype(np.float64) + 0.5) / 2**32
    expected = -np.log(-np.log1p(-uniform))
    noise = gumbel_noise(5 + (6 << 32), 9, 200_000)
    # Near uniform = 1 the result is about -2.8, and its argument has few float32 digits.
    error = np.abs(noise - expected)
    assert error.max() < 2e-4
    assert error[uniform < 0.999].max() < 1e-5


def test_noise_has_the_moments_of_a_standard_gumbel_variable() -> None:
    noise = np.concatenate([gumbel_noise(seed, 3, 50_000) for seed in range(20)])
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=5 * 1.283 / 1000)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)
    assert np.isfinite(noise).all()


def test_noise_of_the_same_token_does_not_depend_on_the_vocabulary() -> None:
    np.testing.assert_array_equal(gumbel_noise(3, 4, 1000)[:97], gumbel_noise(3, 4, 97))


def test_a_row_with_nan_gives_no_token_and_leaves_others_alone() -> None:
    logits = np.zeros((4, 9), np.float32)
    logits[:, 4] = 1
    logits[1, 7] = np.nan
    logits[2, 3] = np.inf
    wants = [Want(num_logprobs=2), Want(num_logprobs=2), Want(), Want(target=8, num_logprobs=0)]
    samples = sample(logits, make_sampling(wants), np.full(4, NO_TOKEN, np.int32))
    assert samples.token_ids.tolist() == [4, -1, -1, 8]
    assert samples.logprobs is not None
    assert np.isfinite(samples.logprobs[[0, 3]]).all()


def test_a_row_that_cannot_be_sampled_leaves_others_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logits = np.zeros((3, 9), np.float32)
    logits[:, 4] = 1
    beyond_the_vocabulary = Want(bias={9: 1.0})
    batch = make_sampling([Want(), beyond_the_vocabulary, Want(temperature=1e-30)])
    samples = sample(logits, batch, np.full(3, NO_TOKEN, np.int32))
    assert samples.token_ids.tolist() == [4, NO_TOKEN, 4]
    assert "row 1" in caplog.text
    assert "IndexError" in caplog.text


def test_scoring_a_row_with_nan_gives_no_token() -> None:
    logits = np.full((1, 5), np.nan, np.float32)
    samples = sample(logits, make_sampling([Want(target=2)]), np.array([NO_TOKEN], np.int32))
    assert samples.token_ids.tolist() == [-1]


def test_greedy_takes_the_smallest_id_among_equals() -> None:
    logits = np.array([[0, 3, 1, 3, 3]], np.float32)
    samples = sample(logits, make_sampling([Want()]), np.array([NO_TOKEN], np.int32))
    assert samples.token_ids.tolist() == [1]


@pytest.mark.parametrize(
    "truncation", [{"top_k": 2}, {"top_p": 0.3}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str
)
def test_ties_at_the_border_share_one_fate(truncation: dict[str, float]) -> None:
    row = np.array([1, 5, 5, 0, 5], np.float32)
    drawn = set()
    for seed in range(60):
        want = Want(temperature=1.0, seed=seed, **truncation)  # type: ignore[arg-type]
        batch = make_sampling([want])
        samples = sample(row[None].copy(), batch, np.array([NO_TOKEN], np.int32))
        drawn.add(int(samples.token_ids[0]))
    assert drawn == {1, 2, 4}


def test_top_logprobs_list_equals_by_id() -> None:
    logits = np.array([[2, 7, 7, 1, 7]], np.float32)
    batch = make_sampling([Want(num_logprobs=4)])
    samples = sample(logits, batch, np.array([NO_TOKEN], np.int32))
    assert samples.top_ids is not None
    assert samples.top_ids.tolist() == [[1, 2, 4, 0]]


def test_greedy_rows_take_the_largest_logit_and_report_no_more() -> None:
    logits = np.random.default_rng(0).normal(size=(64, 70)).astype(np.float32)
    found = sample(logits.copy(), SamplingBatch.greedy(64), np.full(64, NO_TOKEN, np.int32))
    assert found.token_ids.tolist() == logits.argmax(axis=1).tolist()
    assert (found.logprobs, found.top_ids) == (None, None)
