"""How differences are measured, and which ones raise an alarm."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rocmforge.engine.ipc.params import TokenLogprob
from rocmforge.engine.proof.bounds import Bounds
from rocmforge.engine.proof.comparing import Difference, differ, restricted
from rocmforge.engine.proof.watch import LEAST, Watch

VOCABULARY = 400
RIGHT = Difference(kl=1e-6, agrees=True, worst=0.01, error=0.01)


def found(logits: np.ndarray[tuple[int], np.dtype[np.float64]], count: int) -> TokenLogprob:
    logprobs = logits - np.log(np.exp(logits).sum())
    best = np.argsort(-logprobs)[:count].tolist()
    top = tuple((token, float(logprobs[token])) for token in best)
    return TokenLogprob(token_id=best[0], logprob=top[0][1], top=top)


def test_the_divergence_is_that_of_the_whole_distributions() -> None:
    rng = np.random.default_rng(4)
    theirs = 4 * rng.standard_normal(VOCABULARY)
    ours = theirs + 0.05 * rng.standard_normal(VOCABULARY)
    p, q = (np.exp(each) / np.exp(each).sum() for each in (theirs, ours))
    difference = differ(found(theirs, 256), found(ours, 20))
    assert difference.kl == pytest.approx((p * np.log(p / q)).sum(), rel=0.15)
    best = np.argsort(-ours)[:20]
    away = (np.log(q) - np.log(p))[best]
    assert difference.worst == pytest.approx(np.abs(away).max())
    assert difference.error == pytest.approx(away.std() / np.log(p)[best].std())
    assert difference.agrees == (theirs.argmax() == ours.argmax())


def test_logits_that_are_scaled_by_one_percent_are_wrong_by_one_percent() -> None:
    theirs = 3 * np.random.default_rng(5).standard_normal(VOCABULARY)
    difference = differ(found(theirs, 256), found(1.01 * theirs, 20))
    assert difference.error == pytest.approx(0.01, rel=1e-6)


def test_numbers_that_are_none_are_infinitely_wrong() -> None:
    wanted = found(np.arange(9.0), 9)
    nan = replace_top(wanted, math.nan)
    assert differ(wanted, nan).kl == math.inf
    assert differ(wanted, TokenLogprob(token_id=-1, logprob=math.nan, top=())).kl == math.inf


def replace_top(one: TokenLogprob, logprob: float) -> TokenLogprob:
    return TokenLogprob(
        token_id=one.token_id, logprob=logprob, top=((one.top[0][0], logprob), *one.top[1:])
    )


def test_the_rounding_reference_is_asked_for_the_tokens_that_the_device_names() -> None:
    wanted, names = found(np.arange(9.0), 9), found(-np.arange(9.0), 3)
    assert [token for token, _ in restricted(wanted, names).top] == [0, 1, 2]
    assert restricted(wanted, names).top[1][1] == dict(wanted.top)[1]


@pytest.mark.parametrize(("times", "is_wrong"), [(1.0, False), (2.9, False), (3.1, True)])
def test_an_error_beyond_what_rounding_explains_is_an_alarm(times: float, is_wrong: bool) -> None:
    watch = Watch(Bounds(tolerance=3.0))
    wrong = replace(RIGHT, error=times * RIGHT.error)
    assert watch.take([wrong] * (LEAST - 1), [RIGHT] * (LEAST - 1)) is None
    assert (watch.take([wrong], [RIGHT]) is not None) == is_wrong
    assert watch.error == pytest.approx(times * watch.expected)


def test_places_where_rounding_chooses_another_expert_are_no_alarm() -> None:
    watch = Watch(Bounds(tolerance=3.0))
    places = [replace(RIGHT, error=0.5) if n % 3 == 0 else RIGHT for n in range(1000)]
    assert watch.take(places, [RIGHT] * len(places)) is None


def test_sequences_that_went_on_with_another_expert_are_no_alarm_and_a_mistake_beside_them_is() -> (
    None
):
    for error, is_wrong in ((RIGHT.error, False), (4 * RIGHT.error, True)):
        watch = Watch(Bounds(tolerance=3.0))
        usual, lost = replace(RIGHT, error=error), replace(RIGHT, error=0.5)
        places = [*[usual] * 100, *[lost] * 120, *[usual] * 200]
        assert (watch.take(places, [RIGHT] * len(places)) is not None) == is_wrong


def test_one_place_that_is_far_off_is_an_alarm() -> None:
    watch = Watch(Bounds(tolerance=3.0))
    assert watch.take([replace(RIGHT, kl=0.4)], [RIGHT]) is None
    assert "KL divergence" in str(watch.take([replace(RIGHT, kl=0.6)], [RIGHT]))
    assert "finite" in str(watch.take([replace(RIGHT, kl=math.inf)], [RIGHT]))


def test_a_wrong_stretch_within_a_long_sample_is_an_alarm() -> None:
    watch = Watch(Bounds(tolerance=3.0))
    places = [RIGHT] * 150 + [replace(RIGHT, error=0.05)] * 160 + [RIGHT] * 300
    assert watch.take(places, [RIGHT] * len(places)) is not None
