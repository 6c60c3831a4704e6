"""Sampling as seen through a runner: laws, parameters, and equality with a plain restatement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from tests.backend.conftest import Load
from tests.backend.driving import Chunk, Driver, Want
from tests.data.models.text.tiny_models import PROMPT, goldens

Float64Array = npt.NDArray[np.float64]

CHUNK = Chunk(tokens=PROMPT, blocks=[0, 1, 2])
DRAWS = 3000


@pytest.fixture
def driver(load: Load) -> Driver:
    return load("llama")


def draw(driver: Driver, wants: list[Want]) -> list[int]:
    """Tokens drawn after the prompt, one for each want."""
    tokens: list[int] = []
    for start in range(0, len(wants), 1000):
        some = wants[start : start + 1000]
        output = driver.run(Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=some))
        tokens += output.token_ids.tolist()
    return tokens


def softmax(logits: Float64Array) -> Float64Array:
    weights = np.exp(logits - logits.max())
    probabilities: Float64Array = weights / weights.sum()
    return probabilities


def assert_drawn_from(probabilities: Float64Array, tokens: list[int]) -> None:
    """Pearson's chi-square at five standard deviations; rare tokens are put together."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = probabilities * len(tokens)
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    hoped = np.append(expected[common], expected[~common].sum())
    statistic = ((observed - hoped) ** 2 / np.maximum(hoped, 1e-9)).sum()
    freedom = len(hoped) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_draws_follow_the_softmax(temperature: float, driver: Driver) -> None:
    logprobs = driver.logprobs(CHUNK, [-1])[0].astype(np.float64)
    wants = [Want(temperature=temperature, seed=seed, position=40) for seed in range(DRAWS)]
    assert_drawn_from(softmax(logprobs / temperature), draw(driver, wants))


def test_draws_at_consecutive_positions_follow_the_softmax(driver: Driver) -> None:
    logprobs = driver.logprobs(CHUNK, [-1])[0].astype(np.float64)
    wants = [Want(temperature=1.0, seed=1 << 63, position=place) for place in range(DRAWS)]
    assert_drawn_from(softmax(logprobs), draw(driver, wants))


def test_truncated_draws_follow_the_renormalised_softmax(driver: Driver) -> None:
    logprobs = driver.logprobs(CHUNK, [-1])[0].astype(np.float64)
    kept = np.argsort(-logprobs)[:7]
    probabilities = np.zeros(97)
    probabilities[kept] = softmax(logprobs[kept])
    wants = [Want(temperature=1.0, top_k=7, seed=seed) for seed in range(DRAWS)]
    assert_drawn_from(probabilities, draw(driver, wants))


def test_a_draw_depends_on_seed_and_position_only(driver: Driver) -> None:
    wants = [Want(temperature=1.5, seed=seed, position=seed % 5) for seed in range(40)]
    together = draw(driver, wants)
    assert draw(driver, wants[::-1]) == together[::-1]
    assert draw(driver, wants[17:18]) == together[17:18]
    assert len(set(draw(driver, [Want(temperature=1.5, seed=s) for s in range(40)]))) > 5
    assert len(set(draw(driver, [Want(temperature=1.5, position=p) for p in range(40)]))) > 5


def test_all_64_bits_of_the_seed_matter(driver: Driver) -> None:
    low = [Want(temperature=3.0, seed=1, position=place) for place in range(30)]
    high = [Want(temperature=3.0, seed=1 + (1 << 40), position=place) for place in range(30)]
    assert draw(driver, low) != draw(driver, high)


@pytest.mark.parametrize("count", [1, 2, 10, 96])
def test_top_k_draws_from_the_k_most_probable(count: int, driver: Driver) -> None:
    logprobs = driver.logprobs(CHUNK, [-1])[0]
    wants = [Want(temperature=50.0, top_k=count, seed=seed) for seed in range(DRAWS)]
    assert set(draw(driver, wants)) == set(np.argsort(-logprobs)[:count].tolist())


@pytest.mark.parametrize("count", [0, 97, 200])
def test_top_k_beyond_the_vocabulary_keeps_all(count: int, driver: Driver) -> None:
    wants = [Want(temperature=50.0, top_k=count, seed=seed) for seed in range(DRAWS)]
    assert set(draw(driver, wants)) == set(range(97))


@pytest.mark.parametrize("mass", [0.05, 0.3, 0.6, 0.9])
def test_top_p_draws_from_the_smallest_set_with_that_mass(mass: float, driver: Driver) -> None:
    temperature = 4.0
    logprobs = driver.logprobs(CHUNK, [-1])[0].astype(np.float64)
    probabilities = softmax(logprobs / temperature)
    order = np.argsort(-probabilities)
    size = int(np.searchsorted(np.cumsum(probabilities[order]), mass)) + 1
    wants = [Want(temperature=temperature, top_p=mass, seed=seed) for seed in range(DRAWS)]
    assert set(draw(driver, wants)) == set(order[:size].tolist())


@pytest.mark.parametrize("share", [0.9, 0.5, 0.25])
def test_min_p_draws_from_tokens_close_to_the_most_probable(share: float, driver: Driver) -> None:
    temperature = 4.0
    logprobs = driver.logprobs(CHUNK, [-1])[0].astype(np.float64)
    probabilities = softmax(logprobs / temperature)
    kept = np.flatnonzero(probabilities >= share * probabilities.max())
    wants = [Want(temperature=temperature, min_p=share, seed=seed) for seed in range(DRAWS)]
    assert set(draw(driver, wants)) == set(kept.tolist())


def test_top_p_counts_the_mass_that_top_k_left(driver: Driver) -> None:
    logprobs = driver.logprobs(CHUNK, [-1])[0].astype(np.float64)
    temperature, count, mass = 6.0, 12, 0.5
    order = np.argsort(-logprobs)[:count]
    probabilities = softmax(logprobs[order] / temperature)
    size = int(np.searchsorted(np.cumsum(probabilities), mass)) + 1
    wants = [
        Want(temperature=temperature, top_k=count, top_p=mass, seed=seed) for seed in range(DRAWS)
    ]
    assert set(draw(driver, wants)) == set(order[:size].tolist())


@pytest.mark.parametrize("temperature", [1e-30, 1e-45, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature: float, driver: Driver) -> None:
    best = int(driver.logprobs(CHUNK, [-1])[0].argmax())
    wants = [Want(temperature=temperature, seed=seed) for seed in range(20)]
    assert draw(driver, wants) == [best] * 20


@pytest.mark.parametrize("mass", [1e-45, 1e-300])
def test_a_tiny_top_p_draws_the_most_probable(mass: float, driver: Driver) -> None:
    best = int(driver.logprobs(CHUNK, [-1])[0].argmax())
    wants = [Want(temperature=1.0, top_p=mass, seed=seed) for seed in range(20)]
    assert draw(driver, wants) == [best] * 20


@pytest.mark.parametrize("share", [1e-45, 1e-300])
def test_a_tiny_min_p_is_none(share: float, driver: Driver) -> None:
    wants = [Want(temperature=1.0, seed=seed) for seed in range(20)]
    with_min_p = [Want(temperature=1.0, min_p=share, seed=seed) for seed in range(20)]
    assert draw(driver, with_min_p) == draw(driver, wants)


def penalised(
    logits: Float64Array,
    seen: Mapping[int, int],
    repetition: float,
    presence: float,
    frequency: float,
) -> Float64Array:
    """The penalties of the OpenAI API and of Keskar et al. 2019, restated token by token."""
    changed = logits.copy()
    for token, count in seen.items():
        logit = changed[token]
        changed[token] = logit / repetition if logit > 0 else logit * repetition
        if count:
            changed[token] -= presence + frequency * count
    return changed


@pytest.mark.parametrize(
    ("repetition", "presence", "frequency"),
    [(1.3, 0.0, 0.0), (1.0, 0.7, 0.0), (1.0, 0.0, 0.4), (0.8, -0.5, 0.3), (2.0, 1.0, 1.0)],
)
def test_penalties_change_the_greedy_token_as_restated(
    repetition: float, presence: float, frequency: float, driver: Driver
) -> None:
    # A runner shows log-probabilities only; penalties need to know where zero is.
    logits = np.array(goldens("llama")["logits"][-1])
    order = np.argsort(-logits)
    seen = {int(token): place % 4 for place, token in enumerate(order) if place % 3 != 1}
    changed = penalised(logits, seen, repetition, presence, frequency)
    # Penalties treat the two signs differently, so tokens of each must choose among themselves.
    halves = [np.flatnonzero(logits > 0), np.flatnonzero(logits < -1)]
    wants = [
        Want(
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            seen=seen,
            bias={int(token): -np.inf for token in set(range(97)) - set(half.tolist())},
        )
        for half in halves
    ]
    assert draw(driver, wants) == [half[changed[half].argmax()] for half in halves]


def test_the_pending_token_counts_as_seen(driver: Driver) -> None:
    token = int(driver.run(Chunk(tokens=PROMPT, blocks=[0, 1, 2])).token_ids[0])

    def wins(seen: int, source: int | None = None) -> bool:
        """Whether a bias that outweighs one occurrence, but not two, makes it the next token."""
        want = Want(frequency_penalty=60.0, bias={token: 90.0}, seen={token: seen, 5: 1})
        sources = None if source is None else [source]
        chunk = Chunk(tokens=[token], sources=sources, start=40, blocks=[0, 1, 2], wants=[want])
        return int(driver.run(chunk).token_ids[0]) == token

    assert wins(1)
    assert not wins(2)
    driver.run(Chunk(tokens=PROMPT, blocks=[0, 1, 2]))
    assert not wins(1, source=0)


def test_bias_raises_and_forbids(driver: Driver) -> None:
    best = int(driver.logprobs(CHUNK, [-1])[0].argmax())
    worst = int(driver.logprobs(CHUNK, [-1])[0].argmin())
    assert draw(driver, [Want(bias={worst: 100.0})]) == [worst]
    assert draw(driver, [Want(bias={best: -np.inf})]) != [best]
    wants = [Want(temperature=1.0, bias={best: -np.inf}, seed=seed) for seed in range(500)]
    assert Counter(draw(driver, wants))[best] == 0


def test_forbidding_everything_gives_no_token(driver: Driver) -> None:
    everything = dict.fromkeys(range(97), -np.inf)
    assert draw(driver, [Want(bias=everything), Want()])[0] == -1


def test_bias_and_penalties_leave_logprobs_alone(driver: Driver) -> None:
    plain = driver.logprobs(CHUNK, [-1])[0]
    want = Want(bias={9: 100.0}, repetition_penalty=2.0, seen={9: 3}, num_logprobs=1)
    output = driver.run(Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=[want]))
    assert output.token_ids.tolist() == [9]
    assert output.logprobs is not None
    assert output.top_ids is not None
    np.testing.assert_allclose(output.logprobs[0], plain[9], rtol=1e-6)
    assert output.top_ids[0, 0] == plain.argmax()
