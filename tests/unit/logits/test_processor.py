"""Processors as users write them: what they may ask for, what is refused, what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.step import SamplingBatch
from rocmforge.errors import ConfigurationError
from rocmforge.logits import (
    INF,
    LogitsProcessor,
    Parameter,
    contains,
    exp,
    logits_processor,
    minimum,
    nucleus,
    reduction,
    sqrt,
    where,
)
from rocmforge.logits import registry as registry_module
from rocmforge.logits.builtin import BUILTIN
from rocmforge.logits.processor import uniform_number
from rocmforge.logits.registry import load_processors
from rocmforge_reference.sampling import NO_TOKEN, sample
from tests.backend.driving import Want, make_sampling
from tests.support.launches.processors import process

VOCAB = 50


def row(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)


@reduction(over="vocabulary", by="sum")
def total(logit: Any) -> Any:
    return logit


@reduction(over="vocabulary", by="sum")
def squares(logit: Any, total: Any, vocab: Any) -> Any:
    return (logit - total / vocab) * (logit - total / vocab)


@reduction(over="vocabulary", by="max")
def highest(logit: Any) -> Any:
    return logit


@logits_processor("top_n_sigma", parameters=(Parameter("n", 1.0),), needs=(total, squares, highest))
def top_n_sigma(logit: Any, highest: Any, squares: Any, vocab: Any, n: Any) -> Any:
    return where(logit >= highest - n * sqrt(squares / vocab), logit, -INF)


def test_top_n_sigma_is_written_in_four_functions() -> None:
    logits = row()
    changed = process(top_n_sigma, logits, n=1.5)
    expected = logits >= logits.max() - 1.5 * logits.astype(np.float64).std()
    assert (changed > -np.inf).tolist() == expected.tolist()
    assert 1 < expected.sum() < VOCAB


@nucleus(share="p")
def rareness(logit: Any, highest: Any) -> Any:
    return highest - logit, exp(logit - highest)


@logits_processor("half_top_p", parameters=(Parameter("p", 1.0),), needs=(highest, rareness))
def half_top_p(logit: Any, rareness: Any) -> Any:
    return where(rareness, logit, -INF)


@pytest.mark.parametrize("share", [0.0, 0.7, 1.3, 1e9])
def test_a_nucleus_is_the_smallest_set_with_more_than_the_share(share: float) -> None:
    logits = row(1)
    order = np.argsort(-logits)
    weights = np.cumsum(np.exp(logits[order] - logits.max(), dtype=np.float64))
    size = int(np.searchsorted(weights, share, side="right")) + 1
    kept = np.flatnonzero(process(half_top_p, logits, p=share) > -np.inf)
    assert set(kept.tolist()) == set(order[:size].tolist())


@reduction(over="history", by="sum", per_token=True)
def count(index: Any, prompt_length: Any) -> Any:
    return 1.0 if index >= prompt_length else 0.0


@reduction(over="history", by="max", per_token=True)
def seen() -> Any:
    return 1.0


@logits_processor(
    "penalties",
    parameters=(
        Parameter("repetition", 1.0),
        Parameter("presence", 0.0),
        Parameter("frequency", 0.0),
    ),
    needs=(count, seen),
)
def penalties(
    logit: Any, count: Any, seen: Any, repetition: Any, presence: Any, frequency: Any
) -> Any:
    repeated = where(logit > 0, logit / repetition, logit * repetition)
    lowered = repeated - where(count > 0, presence + frequency * count, 0.0)
    return where(seen > 0, lowered, logit)


@logits_processor("bias", parameters=(Parameter("amount", 0.0), Parameter("tokens", ())))
def bias(logit: Any, token: Any, amount: Any, tokens: Any) -> Any:
    return where(contains(tokens, token), logit + amount, logit)


@logits_processor("cutoff", parameters=(Parameter("min_p", 0.0),), needs=(highest,))
def cutoff(logit: Any, highest: Any, min_p: Any) -> Any:
    return where(exp(logit - highest) >= min_p, logit, -INF)


def greedy_ranking(sampling: Callable[[Mapping[int, float]], SamplingBatch], logits: Any) -> Any:
    """All tokens in the order in which greedy sampling prefers them."""
    order: list[int] = []
    while len(order) < VOCAB:
        batch = sampling(dict.fromkeys(order, -np.inf))
        drawn = sample(logits[None].copy(), batch, np.full(1, NO_TOKEN, np.int32))
        token = int(drawn.token_ids[0])
        if token == NO_TOKEN:
            break
        order.append(token)
    return order


def test_penalties_written_as_a_processor_equal_those_of_the_sampler() -> None:
    history = [3, 4, 3, 9, 9, 9, 17, 3]
    settings = {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3}
    logits = row(2)
    times = {3: 1, 4: 0, 9: 2, 17: 1}  # in the output, which begins at index 4

    def native(forbidden: Mapping[int, float]) -> SamplingBatch:
        return make_sampling([Want(seen=times, bias=forbidden, **settings)])  # type: ignore[arg-type]

    changed = process(
        penalties, logits, history=history, prompt_length=4, repetition=1.3, presence=0.7,
        frequency=0.4,
    )  # fmt: skip
    assert greedy_ranking(native, logits) == np.argsort(-changed, kind="stable").tolist()


def test_a_bias_written_as_a_processor_equals_that_of_the_sampler() -> None:
    logits = row(3)

    def native(forbidden: Mapping[int, float]) -> SamplingBatch:
        return make_sampling([Want(bias={2: 4.5, 30: 4.5, **forbidden})])

    changed = process(bias, logits, amount=4.5, tokens=[2, 30])
    assert greedy_ranking(native, logits) == np.argsort(-changed, kind="stable").tolist()


@pytest.mark.slow
def test_min_p_written_as_a_processor_equals_that_of_the_sampler() -> None:
    logits = row(4)
    kept = set(np.flatnonzero(process(cutoff, logits, min_p=0.05) > -np.inf).tolist())
    wants = [Want(temperature=1.0, min_p=0.05, seed=seed) for seed in range(4000)]
    rows = np.tile(logits, (len(wants), 1))
    drawn = sample(rows, make_sampling(wants), np.full(len(wants), NO_TOKEN, np.int32))
    assert set(drawn.token_ids.tolist()) == kept


def test_history_functions_see_the_window_only() -> None:
    @reduction(over="history", by="sum")
    def tokens(history: Any, index: Any) -> Any:
        return history[index]

    @reduction(over="history", by="sum")
    def generated(index: Any, prompt_length: Any) -> Any:
        return 1 if index >= prompt_length else 0

    @logits_processor(
        "probe", parameters=(Parameter("last", 3),), needs=(tokens, generated), history="last"
    )
    def probe(token: Any, tokens: Any, generated: Any, position: Any) -> Any:
        return where(token == 0, tokens, where(token == 1, generated, position))

    def look(last: int) -> list[float]:
        changed = process(
            probe, row(), history=[5, 6, 7, 8], prompt_length=2, position=4, last=last
        )
        seen: list[float] = changed[:3].tolist()
        return seen

    assert look(-1) == [26.0, 2.0, 4.0]
    assert look(3) == [21.0, 2.0, 4.0]
    assert look(1) == [8.0, 1.0, 4.0]
    assert look(0) == [0.0, 0.0, 4.0]


def test_what_a_function_cannot_see_is_refused_with_its_line() -> None:
    def lost(logit: Any, temprature: Any) -> Any:
        return logit * temprature

    with pytest.raises(ConfigurationError) as raised:
        logits_processor("lost", parameters=(Parameter("temperature", 1.0),))(lost)
    assert "'temprature'" in str(raised.value)
    assert f"test_processor.py:{lost.__code__.co_firstlineno}" in str(raised.value)
    assert "temperature" in str(raised.value)


def test_a_need_sees_only_what_stands_before_it() -> None:
    with pytest.raises(ConfigurationError, match="'total'"):
        logits_processor("wrong", needs=(squares, total))(lambda logit: logit)


def test_history_is_not_for_functions_over_the_vocabulary() -> None:
    @reduction(over="vocabulary", by="sum")
    def wrong(history: Any) -> Any:
        return history

    with pytest.raises(ConfigurationError, match="'history'"):
        logits_processor("wrong", needs=(wrong,))(lambda logit: logit)


@pytest.mark.parametrize(
    "declaration",
    [
        {"parameters": [Parameter(f"p{i}", 0.0) for i in range(9)]},
        {"parameters": [Parameter("a", ()), Parameter("b", ())]},
        {"parameters": [Parameter("last", 3.0)], "history": "last"},
        {"history": "missing"},
        {"needs": [rareness]},
    ],
)
def test_declarations_that_make_no_sense_are_refused(declaration: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="wrong"):
        logits_processor("wrong", **declaration)(lambda logit: logit)


class Entry:
    """An entry point of a distribution that is not there."""

    def __init__(self, name: str, found: object) -> None:
        self.name, self.value, self._found = name, "somewhere:thing", found

    def load(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (ImportError("no module named somewhere"), "cannot be imported"),
        (lambda logit: logit, "logits_processor"),
        (BUILTIN[0], "has the name of another"),
    ],
)
def test_a_bad_entry_point_is_named(
    found: object, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "entry_points", lambda group: [Entry("mine", found)])
    with pytest.raises(ConfigurationError, match=says) as raised:
        load_processors()
    assert "somewhere:thing" in str(raised.value)


def test_installed_processors_stand_beside_the_built_in_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        registry_module, "entry_points", lambda group: [Entry("top_n_sigma", top_n_sigma)]
    )
    found = load_processors()
    assert set(found) == {"dry", "typical_p", "xtc", "top_n_sigma"}
    assert isinstance(found["top_n_sigma"], LogitsProcessor)


def test_uniform_numbers_are_uniform_and_differ_by_seed_position_and_name() -> None:
    numbers = [uniform_number(seed, place, "xtc") for seed in range(100) for place in range(100)]
    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) > 9900
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert ((counts - 500) ** 2 / 500).sum() < 19 + 5 * np.sqrt(38)
    assert uniform_number(1, 2, "xtc") != uniform_number(1, 2, "other")
    assert uniform_number(2**64 - 1, 5, "xtc") != uniform_number(2**63 - 1, 5, "xtc")


def test_helpers_work_on_numbers_and_rows_alike() -> None:
    assert minimum(3.0, 2.0) == 2.0
    assert where(1 > 2, 1.0, -INF) == -np.inf


def test_a_processor_that_raises_leaves_nan_and_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @logits_processor("divider", parameters=(Parameter("by", 1),))
    def divider(logit: Any, by: Any) -> Any:
        return logit * (1 // by)

    assert np.isfinite(process(divider, row(), by=1)).all()
    assert np.isnan(process(divider, row(), by=0)).all()
    assert "'divider' failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
