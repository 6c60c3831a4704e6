"""What was not used for longest is given up first, and what is too large is not kept."""

from __future__ import annotations

from rocmforge.latest_used import LatestUsed


def test_what_was_not_used_for_longest_is_given_up() -> None:
    kept = LatestUsed[str, str](3)
    for key in "abc":
        kept.keep(key, key.upper(), 1)
    assert kept.find("a") == "A"
    kept.keep("d", "D", 1)
    assert [kept.find(key) for key in "abcd"] == ["A", None, "C", "D"]


def test_weights_count_and_not_values() -> None:
    kept = LatestUsed[str, str](10)
    for key in "abc":
        kept.keep(key, key, 3)
    kept.keep("d", "d", 6)
    assert [kept.find(key) for key in "abcd"] == [None, None, "c", "d"]


def test_what_weighs_more_than_all_may_drives_nothing_out() -> None:
    kept = LatestUsed[str, str](3)
    kept.keep("a", "a", 3)
    kept.keep("b", "b", 4)
    assert kept.find("a") == "a"
    assert kept.find("b") is None


def test_a_value_that_comes_again_weighs_once() -> None:
    kept = LatestUsed[str, str](3)
    for weight in (3, 1, 1):
        kept.keep("a", f"a{weight}", weight)
    kept.keep("b", "b", 2)
    assert kept.find("a") == "a1"
    assert kept.find("b") == "b"
