"""rf_logprobs against the reference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge_reference.sampling import NO_TOKEN, sample
from tests.backend.driving import Want, make_sampling
from tests.support.launches.kernels import Device, check

Logits = npt.NDArray[np.float32]


def assert_as_reference(
    device: Device, logits: Logits, targets: list[int], counts: list[int], threads: int = 256
) -> None:
    """Scores the targets, and lists as many top_logprobs as each row asks for."""
    rows, vocab = logits.shape
    wants = [
        Want(target=target, num_logprobs=count)
        for target, count in zip(targets, counts, strict=True)
    ]
    expected = sample(logits.copy(), make_sampling(wants), np.full(rows, NO_TOKEN, np.int32))
    num_top = max(0, *counts)
    logprobs = device.empty(rows, np.float32, "logprobs")
    top_ids = device.empty((rows, num_top), np.int32, "top_ids")
    top_logprobs = device.empty((rows, num_top), np.float32, "top_logprobs")
    device.launch(
        "rf_logprobs",
        device.upload(logits, "logits"),
        device.upload(expected.token_ids, "tokens"),
        device.upload(np.array(counts, np.int32)),
        *(logprobs, top_ids, top_logprobs, vocab, num_top),
        grid=rows,
        block=threads,
    )
    assert expected.logprobs is not None
    check(logprobs.get(), expected.logprobs.astype(np.float64), rtol=2e-6, atol=2e-6)
    if num_top:
        assert expected.top_ids is not None
        assert expected.top_logprobs is not None
        np.testing.assert_array_equal(top_ids.get(), expected.top_ids)
        top = expected.top_logprobs.astype(np.float64)
        check(top_logprobs.get(), top, rtol=2e-6, atol=2e-6)


def random_logits(rows: int, vocab: int) -> Logits:
    return (np.random.default_rng(4).standard_normal((rows, vocab)) * 4).astype(np.float32)


@pytest.mark.parametrize("vocab", [5, 64, 257, 1003], ids=lambda vocab: f"vocab_{vocab}")
def test_rows_ask_for_different_numbers(device: Device, vocab: int) -> None:
    targets, counts = [0, 4, 1, 2], [-1, 0, 1, 5]
    assert_as_reference(device, random_logits(4, vocab), targets, counts)


def test_only_chosen_tokens(device: Device) -> None:
    assert_as_reference(device, random_logits(2, 100), [3, 99], [0, -1])


def test_more_top_logprobs_than_tokens(device: Device) -> None:
    assert_as_reference(device, random_logits(1, 6), [2], [20])


def test_best_tokens_of_the_same_wave(device: Device) -> None:
    logits = random_logits(1, 3000)
    logits[0, [5, 5 + 256, 6, 6 + 512]] += 40.0
    assert_as_reference(device, logits, [5], [6])


def test_best_tokens_of_the_same_thread_which_has_several_for_each_lane(device: Device) -> None:
    logits = random_logits(1, 9000)
    logits[0, 5::64] += 40.0
    assert_as_reference(device, logits, [5], [20], threads=64)


def test_equals_are_listed_by_id(device: Device) -> None:
    logits = np.zeros((1, 500), np.float32)
    logits[0, [400, 3, 77]] = 2.0
    assert_as_reference(device, logits, [77], [6])


def test_forbidden_tokens_are_listed_last(device: Device) -> None:
    logits = np.full((1, 100), -np.inf, np.float32)
    logits[0, [7, 50]] = [1.0, 2.0]
    assert_as_reference(device, logits, [50], [2])


def test_a_nan_row_has_no_log_probabilities(device: Device) -> None:
    logits = random_logits(2, 80)
    logits[0, 3] = np.nan
    assert_as_reference(device, logits, [1, 1], [3, 3])


def test_large_logits(device: Device) -> None:
    logits = random_logits(2, 300) + np.float32(1e4)
    assert_as_reference(device, logits, [1, 200], [3, 3])
