"""How models divide the memory of a device."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.backend.protocol import DeviceInfo
from rocmforge.errors import ConfigurationError
from rocmforge.fleet.entry import ModelPolicy
from rocmforge.fleet.sharing import Wish, memory_shares
from tests.support.models.options import SMALL


def wish(
    name: str, weights: int, share: float | None = None, devices: str = "", *, pinned: bool = False
) -> Wish:
    policy = ModelPolicy(devices=frozenset(devices), pinned=pinned)
    return Wish(name=name, weights=weights, policy=policy, share=share)


def test_one_model_has_all() -> None:
    assert memory_shares([wish("a", 5)]) == (1.0,)


def test_several_are_served_by_their_size() -> None:
    assert memory_shares([wish("a", 30), wish("b", 10)]) == (0.75, 0.25)


def test_one_at_a_time_has_all() -> None:
    assert memory_shares([wish("a", 30), wish("b", 10)], max_loaded=1) == (1.0, 1.0)


def test_those_on_other_devices_do_not_count() -> None:
    assert memory_shares([wish("a", 30, devices="0"), wish("b", 10, devices="1")]) == (1.0, 1.0)


def test_what_is_given_away_is_taken_off_first() -> None:
    assert memory_shares([wish("a", 30, 0.2), wish("b", 10), wish("c", 30)]) == pytest.approx(
        (0.2, 0.2, 0.6)
    )


@pytest.mark.parametrize("rest", [0.6, None])
def test_more_than_a_device_cannot_be_given_away(rest: float | None) -> None:
    with pytest.raises(ConfigurationError, match="no room for"):
        memory_shares([wish("a", 30, 1.0), wish("b", 10, rest)])


@pytest.mark.parametrize(("share", "usable"), [(1.0, 700), (0.7, 700), (0.25, 250)])
def test_a_share_is_of_the_whole_device_and_never_more_than_is_free(
    share: float, usable: int
) -> None:
    device = DeviceInfo(index=0, name="d", target="t", memory_total=1000, memory_free=700)
    options = replace(SMALL, memory_share=share)
    assert options.memory_of(device) == usable


@given(
    wishes=st.lists(
        st.builds(
            wish,
            st.just("x"),
            st.integers(1, 1000),
            st.none() | st.sampled_from([0.1, 0.2]),
            st.sampled_from(["", "0", "1", "01"]),
        ),
        min_size=1,
        max_size=5,
    ),
    max_loaded=st.none() | st.integers(1, 5),
)
def test_whatever_may_be_loaded_together_fits(wishes: list[Wish], max_loaded: int | None) -> None:
    shares = memory_shares(wishes, max_loaded)
    assert min(shares) > 0
    for count in range(1, (max_loaded or len(wishes)) + 1):
        for together in combinations(range(len(wishes)), min(count, len(wishes))):
            policies = [wishes[i].policy for i in together]
            if all(a.shares_device(b) for a, b in combinations(policies, 2)):
                assert sum(shares[i] for i in together) <= 1 + 1e-9
