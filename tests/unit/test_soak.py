"""The verdict of benchmarks/soak.py: noise passes, drift does not."""

from __future__ import annotations

import random

import pytest

from benchmarks.soak import FEWEST, drift


def latencies(seed: int, median: float, count: int = 2000) -> list[float]:
    """With a long tail, as those of a server that is shared."""
    dice = random.Random(seed)
    return [median * dice.lognormvariate(0, 0.6) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("median", [0.002, 0.05, 1.5])
def test_noise_is_no_drift(seed: int, median: float) -> None:
    assert drift("token", latencies(seed, median), latencies(seed + 100, median)) == []


@pytest.mark.parametrize("median", [0.02, 0.05, 1.5])
def test_all_of_it_being_slower_is(median: float) -> None:
    slower = latencies(1, median * 2)
    (at_50, at_95) = drift("token", latencies(0, median), slower)
    assert at_50.startswith("drifted: token, 50%")
    assert at_95.startswith("drifted: token, 95%")


def test_a_tail_that_grows_is() -> None:
    values = latencies(0, 0.05)
    worse = [value * 4 if i % 8 == 0 else value for i, value in enumerate(values)]
    (found,) = drift("token", values, worse)
    assert found.startswith("drifted: token, 95%")


def test_getting_faster_is_not() -> None:
    assert drift("token", latencies(0, 1.0), latencies(1, 0.5)) == []


def test_too_few_are_no_proof() -> None:
    values = latencies(0, 0.05)
    assert drift("token", values, values[: FEWEST - 1]) == [
        "token: too few to compare, 2000 and 19"
    ]
