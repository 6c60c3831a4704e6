"""The built-in processors against llama.cpp's samplers, and against definitions restated here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.backend.arrays import Float32Array
from rocmforge.logits.builtin import dry, typical_p, xtc
from tests.support.launches.processors import process

GOLDEN = json.loads((Path(__file__).parents[2] / "data/logits/llama_cpp_samplers.json").read_text())
ROWS = {name: np.array(row, np.float32) for name, row in GOLDEN["rows"].items()}


def kept(logits: Float32Array) -> list[int]:
    tokens: list[int] = np.flatnonzero(logits > -np.inf).tolist()
    return tokens


@pytest.mark.parametrize("case", GOLDEN["typical_p"], ids=lambda c: f"{c['row']}-{c['p']}")
def test_typical_p_keeps_what_llama_cpp_keeps(case: Mapping[str, Any]) -> None:
    assert kept(process(typical_p, ROWS[case["row"]], p=case["p"])) == case["kept"]


@pytest.mark.parametrize("case", GOLDEN["xtc"], ids=lambda c: f"{c['row']}-{c['threshold']}")
def test_xtc_keeps_what_llama_cpp_keeps(case: Mapping[str, Any]) -> None:
    logits = process(xtc, ROWS[case["row"]], probability=1.0, threshold=case["threshold"])
    assert kept(logits) == case["kept"]


@pytest.mark.parametrize("case", GOLDEN["dry"])
def test_dry_penalizes_what_llama_cpp_penalizes(case: Mapping[str, Any]) -> None:
    numbers = {name: case[name] for name in ("multiplier", "base", "allowed_length")}
    logits = process(
        dry,
        np.zeros(max(case["history"]) + 1, np.float32),
        history=case["history"],
        penalty_last_n=case["penalty_last_n"],
        sequence_breakers=case["breakers"],
        **numbers,
    )
    penalties = {int(token): penalty for token, penalty in case["penalties"].items()}
    assert {int(token) for token in np.flatnonzero(logits)} == set(penalties)
    for token, penalty in penalties.items():
        assert -logits[token] == pytest.approx(penalty, rel=1e-4)


def dry_penalty(
    history: Sequence[int],
    token: int,
    breakers: Sequence[int],
    multiplier: float,
    base: float,
    allowed: int,
) -> float:
    """The original proposal: the longest end of the history that `token` has followed before."""
    start = max((i + 1 for i, seen in enumerate(history) if seen in breakers), default=0)
    longest = 0
    for length in range(1, len(history) - start + 1):
        end = list(history[len(history) - length :])
        places = range(length, len(history))
        if any(history[i - length : i] == end and history[i] == token for i in places):
            longest = length
    if token in breakers or longest < allowed:
        return 0.0
    return float(multiplier * base ** (longest - allowed))


@given(
    history=st.lists(st.integers(0, 4), max_size=24),
    breakers=st.lists(st.integers(0, 4), max_size=2),
    allowed=st.integers(1, 4),
    window=st.integers(-1, 24),
)
def test_dry_is_what_was_proposed(
    history: list[int], breakers: list[int], allowed: int, window: int
) -> None:
    seen = history if window < 0 else history[len(history) - min(window, len(history)) :]
    logits = process(
        dry,
        np.zeros(6, np.float32),
        history=history,
        multiplier=0.8,
        base=1.75,
        allowed_length=allowed,
        penalty_last_n=window,
        sequence_breakers=breakers,
    )
    expected = [dry_penalty(seen, token, breakers, 0.8, 1.75, allowed) for token in range(6)]
    np.testing.assert_allclose(-logits, expected, rtol=1e-5)


def test_a_long_repetition_stays_finite() -> None:
    numbers: dict[str, Any] = {
        "multiplier": 1.0,
        "base": 4.0,
        "allowed_length": 2,
        "penalty_last_n": -1,
    }
    logits = process(dry, np.zeros(4, np.float32), history=[1] * 300, **numbers)
    assert np.isfinite(logits).all()
    assert logits[1] < -1e30


@pytest.mark.slow
def test_xtc_acts_as_often_as_its_probability_says() -> None:
    row = ROWS["two heads"]
    acts = [
        len(kept(process(xtc, row, seed=seed, probability=0.3, threshold=0.1))) < len(row)
        for seed in range(2000)
    ]
    assert 0.3 - 0.05 < np.mean(acts) < 0.3 + 0.05


def test_xtc_decides_by_seed_and_position_alone() -> None:
    def decisions(position: int) -> list[int]:
        return [
            len(
                kept(
                    process(
                        xtc,
                        ROWS["two heads"],
                        seed=seed,
                        position=position,
                        probability=0.5,
                        threshold=0.1,
                    )
                )
            )
            for seed in range(40)
        ]

    assert decisions(3) == decisions(3)
    assert decisions(3) != decisions(4)


@pytest.mark.parametrize("processor", [typical_p, xtc], ids=lambda p: p.name)
def test_forbidden_tokens_stay_forbidden_and_count_for_nothing(processor: Any) -> None:
    row = ROWS["normal"]
    more = np.concatenate((row, np.full(20, -np.inf, np.float32)))
    numbers: dict[str, Any] = {"probability": 1.0, "threshold": 0.03}
    if processor is typical_p:
        numbers = {"p": 0.5}
    assert kept(process(processor, more, **numbers)) == kept(process(processor, row, **numbers))


@pytest.mark.parametrize("processor", [dry, typical_p, xtc], ids=lambda p: p.name)
def test_a_nan_stays_for_the_sampler_to_find(processor: Any) -> None:
    row = ROWS["normal"].copy()
    row[7] = np.nan
    assert np.isnan(process(processor, row, history=[1, 2])[7])


def test_xtc_never_takes_a_forbidden_token_for_a_choice() -> None:
    logits = np.array([2, -np.inf, 1, 0], np.float32)
    assert kept(process(xtc, logits, probability=1.0, threshold=0.0)) == [3]
