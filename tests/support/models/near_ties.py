"""Answers of several devices, which are those of one up to the first near tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocmforge.engine.ipc.params import TokenLogprob
from tests.support.engine.core import Request

NEAR_TIE: Final = 0.02
"""Nats. A step that checks draft tokens multiplies otherwise than one that decodes, and two devices
add up in another order than one, so where a greedy token leads by less another may come."""


def assert_same(
    got: Sequence[Sequence[TokenLogprob]],
    expected: Sequence[Sequence[TokenLogprob]],
    requests: Sequence[Request],
    near_tie: float = NEAR_TIE,
) -> None:
    """The same tokens, of greedy answers up to the first near tie, and most come before one."""
    compared = 0
    for (_, sampling), ours, theirs in zip(requests, got, expected, strict=True):
        sure = len(theirs)
        if sampling.temperature == 0:
            leads = (place.top[0][1] - place.top[1][1] for place in theirs)
            sure = next((i for i, lead in enumerate(leads) if lead < near_tie), sure)
        compared += sure
        assert [one.token_id for one in ours[:sure]] == [one.token_id for one in theirs[:sure]]
    assert compared > sum(map(len, expected)) // 2
