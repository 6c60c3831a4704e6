"""What steps cost is learnt on devices of different kinds, none of which is what the prices say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest

from rocmforge.engine.schedule import step_costs
from rocmforge.engine.schedule.step_costs import StepCosts, StepWork, pairs_of

Law = Callable[[StepWork], float]


def linear(work: StepWork) -> float:
    """An H200's prices, without any effect of size."""
    return 3e6 + 55e3 * work.tokens + 5e3 * work.rows + 2.2 * work.pairs + 33 * work.context


def in_tiles(*tiles: int) -> Law:
    """The matrix products compute so many rows at a time; some of them so many, others so many."""

    def law(work: StepWork) -> float:
        whole = [-(-work.tokens // tile) * tile for tile in tiles]
        return linear(work._replace(tokens=sum(whole) // len(whole)))

    return law


def deep(work: StepWork) -> float:
    """Attention is most of the time."""
    return 1e6 + 10e3 * work.tokens + 20 * work.pairs + 100 * work.context


def slow(work: StepWork) -> float:
    """A CPU: 60 ms for the weights, 5 ms for each token."""
    return 60e6 + 5e6 * work.tokens + 300 * work.pairs + 3000 * work.context


def saturating(work: StepWork) -> float:
    """Small steps read the weights, large ones compute: the longer of the two counts."""
    return max(6e6, 50e3 * work.tokens) + 2.2 * work.pairs + 33 * work.context


def work_of(tokens: int, start: int, decodes: int, depth: int) -> StepWork:
    """A chunk of a prompt, behind `start` tokens, beside some decodes."""
    return StepWork(tokens + decodes, decodes, pairs_of(start, tokens), decodes * depth)


def some_work(count: int, seed: int = 0) -> Iterable[StepWork]:
    """Steps as different as serving makes them."""
    random = Random(seed)
    for _ in range(count):
        tokens = round(2 ** random.uniform(4, 11))
        yield work_of(
            tokens, random.randrange(30_000), random.randrange(64), random.randrange(1, 4000)
        )


def learn(law: Law, steps: Iterable[StepWork], noise: float = 0.02) -> StepCosts:
    costs, random = StepCosts(), Random(1)
    for work in steps:
        costs.observe(work, round(law(work) * random.gauss(1.0, noise)))
    return costs


def worst(costs: StepCosts, law: Law, steps: Iterable[StepWork]) -> float:
    """The largest error of a prediction, as a share of the truth."""
    assert costs.prices is not None
    return max(abs(costs.prices.of(work) / law(work) - 1) for work in steps)


@pytest.mark.parametrize(
    ("law", "error"),
    [
        (linear, 0.05),
        (in_tiles(64), 0.25),
        (in_tiles(128), 0.2),
        (in_tiles(256), 0.15),
        (in_tiles(128, 256), 0.1),
        (deep, 0.12),
        (slow, 0.08),
        (saturating, 0.35),
    ],
)
def test_forty_steps_teach_what_any_step_takes(law: Law, error: float) -> None:
    costs = learn(law, some_work(40))
    assert worst(costs, law, some_work(100, seed=5)) < error


def test_without_the_price_of_attention_it_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_pairs(work: StepWork) -> StepWork:
        return work._replace(pairs=0.0)

    costs = learn(lambda work: 1.0, [])
    for work in some_work(40):
        costs.observe(without_pairs(work), round(linear(work)))
    assert costs.prices is not None
    errors = [
        abs(costs.prices.of(without_pairs(work)) / linear(work) - 1)
        for work in some_work(100, seed=5)
    ]
    assert max(errors) > 0.3


def test_without_prices_of_tiles_a_staircase_is_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is what the test of forty steps would find."""
    monkeypatch.setattr(step_costs, "_in_tiles", lambda tokens: (tokens, 0, 0, 0))
    for law in (in_tiles(128), in_tiles(256), in_tiles(128, 256)):
        assert worst(learn(law, some_work(40)), law, some_work(100, seed=5)) > 0.2


@pytest.mark.parametrize("law", [linear, deep, slow, saturating])
def test_one_step_teaches_enough_for_one_of_twice_the_size(law: Law) -> None:
    costs = learn(law, [work_of(64, 0, 16, 500)], noise=0)
    following = work_of(128, 64, 16, 500)
    assert worst(costs, law, [following]) < 0.5
    assert costs.most_tokens == 2 * (64 + 16)


def test_nothing_is_believed_before_anything_was_measured() -> None:
    costs = StepCosts()
    assert costs.prices is None
    assert costs.most_tokens == 64
    assert costs.margin == 1.0


def test_a_thousand_equal_steps_do_not_wash_out_what_others_told() -> None:
    same = work_of(300, 1000, 16, 500)
    costs = learn(linear, [*some_work(40), *[same] * 1000])
    assert worst(costs, linear, [same]) < 0.03
    assert worst(costs, linear, some_work(40, seed=5)) < 0.15


def test_a_step_that_took_fifty_times_too_long_changes_little() -> None:
    costs = StepCosts()
    for number, work in enumerate(some_work(60)):
        costs.observe(work, round(linear(work) * (50 if number % 20 == 0 else 1)))
    assert worst(costs, linear, some_work(100, seed=5)) < 0.2


def test_the_first_step_of_all_may_be_the_one_that_took_too_long() -> None:
    first, *others = some_work(12)
    costs = StepCosts()
    costs.observe(first, round(50 * linear(first)))
    for work in others:
        costs.observe(work, round(linear(work)))
    assert worst(costs, linear, some_work(100, seed=5)) < 0.4


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_device_whose_clock_changes_is_followed(factor: float) -> None:
    costs = learn(linear, some_work(200))
    usual = work_of(300, 1000, 16, 500)

    def changed(work: StepWork) -> float:
        return factor * linear(work)

    for _ in range(60):
        costs.observe(usual, round(changed(usual)))
    assert worst(costs, changed, [usual]) < 0.15
    for work in some_work(300, seed=2):
        costs.observe(work, round(changed(work)))
    assert worst(costs, changed, some_work(100, seed=5)) < 0.1


def test_a_device_that_slows_down_cuts_budgets_within_two_steps() -> None:
    costs = learn(linear, some_work(200), noise=0.0)
    assert costs.margin < 1.1
    usual = work_of(300, 1000, 16, 500)
    for _ in range(2):
        costs.observe(usual, round(2 * linear(usual)))
    assert costs.margin > 1.7


def test_one_slow_step_cuts_no_budget() -> None:
    costs = learn(linear, some_work(200), noise=0.0)
    usual = work_of(300, 1000, 16, 500)
    costs.observe(usual, round(10 * linear(usual)))
    assert costs.margin < 1.1


def test_no_price_is_ever_negative() -> None:
    random = Random(3)
    for _ in range(30):
        costs = StepCosts()
        for work in some_work(random.randrange(1, 30), seed=random.randrange(1000)):
            costs.observe(work, random.randrange(1, 10**9))
        assert costs.prices is not None
        assert min(costs.prices) >= 0
        assert max(costs.prices) > 0


def test_what_was_not_seen_for_long_is_dropped() -> None:
    rare = work_of(2000, 0, 0, 1)
    usual = [work_of(100, 2**start, 16, 2**depth) for start in range(4, 14) for depth in range(10)]
    assert learn(linear, [rare, *usual[:10]]).most_tokens == 2 * 2000
    assert learn(linear, [rare, *usual]).most_tokens == 2 * (100 + 16)
