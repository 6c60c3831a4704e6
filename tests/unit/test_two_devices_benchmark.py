"""What benchmarks/two_devices.py computes of what its streams saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.closed_loop import Ask, Followed, Summary, prompt_of, summarise
from benchmarks.two_devices import Cache, Load, bound

NOTHING = Summary(tokens_per_s=0.0, turns_per_s=0.0, first=[], between=[], unseen=0.0)


def test_only_what_comes_in_the_time_that_counts_is_counted() -> None:
    before = Followed(started=8.0, arrivals=[(9.0, 1), (9.5, 1), (11.0, 1)], wanted=3, ended=11.0)
    within = Followed(started=9.0, arrivals=[(11.5, 1), (12.0, 2)], wanted=4, ended=12.5)
    cut_off = Followed(started=13.0, arrivals=[(13.5, 1), (14.5, 1)], wanted=8)
    seen = summarise([before, within, cut_off], begin=10.0, end=14.0)
    assert seen.tokens_per_s == (1 + 3 + 1) / 4.0
    assert seen.turns_per_s == 2 / 4.0
    assert seen.first == [2.5, 0.5], "the first one's was earlier"
    assert seen.between == [1.5, 0.5, 0.0], "tokens that come together did not wait for each other"
    assert seen.unseen == pytest.approx(1 / 7)
    assert seen.waits_ms[0] == 1500.0
    assert seen.waits_ms[4] == 1500.0


@pytest.mark.parametrize(("prefills", "decoded", "requests"), [(4.0, 9e9, 4.0), (9e9, 254.0, 2.0)])
def test_two_devices_apart_are_no_faster_than_either(
    prefills: float, decoded: float, requests: float
) -> None:
    prefill = replace(NOTHING, turns_per_s=prefills)
    decode = replace(NOTHING, tokens_per_s=decoded)
    assert bound(prefill, decode, Load(512, 128)) == (requests * 128, requests)


def test_room_is_counted_in_whole_blocks() -> None:
    cache = Cache(blocks=10, block_size=16, bytes=16000, queries=0, hits=0)
    assert [cache.room(tokens) for tokens in (16, 17, 160, 161)] == [10, 5, 1, 0]
    assert cache.token_bytes == 100.0


def test_a_known_prompt_is_always_the_same_and_no_other_is() -> None:
    ask = Ask(port=1, prompt=8, answer=2)
    known = replace(ask, known=3)
    assert prompt_of(known, 1000, 1, 2, 3) == prompt_of(known, 1000, 4, 5, 6)
    others = {tuple(prompt_of(ask, 1000, 1, *turn)) for turn in ((0, 0), (0, 1), (1, 0))}
    assert len(others | {tuple(prompt_of(known, 1000))}) == 4


@pytest.mark.parametrize("text", ["512", "512/1", "0/8", "a/b", "5/6/7"])
def test_a_load_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text} is not PROMPT/ANSWER"):
        Load.parse(text)
