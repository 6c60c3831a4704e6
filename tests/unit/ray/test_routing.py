"""Which replica a request goes to, without Ray."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rocmforge.ray.prefixes import BYTES_PER_TOKEN, MAX_PUBLISHED, Prefixes
from rocmforge.ray.routing import (
    MAX_KEYS,
    SLACK,
    Candidate,
    Hint,
    matched,
    prefix_keys,
    ranked,
    read_hint,
    unpacked,
)

LONG = "a sentence that fills space. " * 100


def keys_of(identity: bytes = b"", **fields: Any) -> tuple[bytes, ...]:
    return read_hint(json.dumps(fields).encode(), identity).keys


def candidate(name: str, load: int = 0, keys: tuple[bytes, ...] = (), **facts: Any) -> Candidate:
    return Candidate(id=name, load=load, has_key=set(keys).__contains__, **facts)


def first(candidates: list[Candidate], **hint: Any) -> str:
    return ranked(candidates, Hint(**hint))[0][0]


# --- keys ---


@given(st.binary(max_size=9000), st.binary(max_size=9000))
def test_texts_share_keys_as_far_as_whole_pieces_are_alike(one: bytes, other: bytes) -> None:
    a, b = list(prefix_keys(one, b"")), list(prefix_keys(one + other, b""))
    assert b[: len(a)] == a


def test_a_longer_conversation_begins_with_a_shorter_one() -> None:
    said = [{"role": "system", "content": LONG}, {"role": "user", "content": "Hi"}]
    more = [*said, {"role": "assistant", "content": LONG}, {"role": "user", "content": "Go on"}]
    short, long = keys_of(messages=said), keys_of(messages=more)
    assert 3 < len(short) < len(long)
    assert long[: len(short)] == short
    text = LONG * 4
    assert keys_of(prompt=text)[: len(keys_of(prompt=LONG))] == keys_of(prompt=LONG)


def test_what_separates_callers_in_the_cache_separates_their_keys() -> None:
    plain = keys_of(prompt=LONG, model="m")
    others = [
        keys_of(prompt=LONG, model="adapter"),
        keys_of(prompt=LONG, model="m", cache_salt="s"),
        keys_of(b"Bearer x", prompt=LONG, model="m"),
        keys_of(prompt="b" + LONG[1:], model="m"),
        keys_of(prompt=LONG, model="m", tools=[{"type": "function"}]),
    ]
    assert len({each[0] for each in [plain, *others]}) == 1 + len(others)


def test_keys_of_a_prompt_are_bounded() -> None:
    assert len(keys_of(prompt="x" * (1 << 21))) == MAX_KEYS


def test_what_is_no_request_has_no_prefix() -> None:
    for body in (b"", b"{", b"[1]", b"\xff\xfe", b'{"model": 1, "prompt": 2}', b"[" * 100_000):
        hint = read_hint(body)
        assert (hint.model, hint.keys) == (None, ())


# --- the rule ---

KEYS = (b"1", b"2", b"3")


def test_the_longest_prefix_is_preferred() -> None:
    replicas = [
        candidate("a", keys=KEYS[:1]),
        candidate("b", 2, KEYS),
        candidate("c", keys=KEYS[:2]),
    ]
    assert first(replicas, keys=KEYS) == "b"


def test_a_prefix_counts_from_its_beginning() -> None:
    assert matched({b"2", b"3"}.__contains__, KEYS) == 0
    assert matched({b"1", b"3"}.__contains__, KEYS) == 1


def test_an_overloaded_replica_is_not_preferred_for_its_prefix() -> None:
    def chosen(load: int, least: int) -> str:
        return first([candidate("a", load, KEYS), candidate("b", least, KEYS[:1])], keys=KEYS)

    assert chosen(SLACK, 0) == "a"
    assert chosen(SLACK + 1, 0) == "b"
    assert chosen(150, 100) == "a"
    assert chosen(151, 100) == "b"


def test_without_a_prefix_two_at_random_are_asked() -> None:
    replicas = [candidate(name) for name in "abcd"]
    seen = Counter(name for _ in range(200) for name in ranked(replicas, Hint(keys=KEYS))[0])
    assert seen.total() == 400
    assert set(seen) == set("abcd")


def test_of_two_equals_the_one_with_fewer_keys_is_named_first() -> None:
    for _ in range(10):
        ((name, _other), *_) = ranked(
            [candidate("a", num_keys=9), candidate("b", num_keys=2)], Hint()
        )
        assert name == "b"


def test_replicas_with_the_model_in_memory_come_first() -> None:
    replicas = [candidate("a", keys=KEYS), candidate("b", 9, models=frozenset({"adapter"}))]
    assert first(replicas, keys=KEYS, model="adapter") == "b"
    assert first(replicas, keys=KEYS, model="unknown") == "a"


def test_who_failed_or_is_not_ready_comes_last() -> None:
    replicas = [candidate("a", keys=KEYS), candidate("b"), candidate("c", is_ready=False)]
    assert first(replicas, keys=KEYS, tried=("a",)) == "b"
    assert first(replicas[:1], keys=KEYS, tried=("a",)) == "a", "better than none"


def test_who_keeps_a_response_is_asked_first() -> None:
    assert first([candidate("a", keys=KEYS), candidate("b", 99)], keys=KEYS, home="b") == "b"


def test_all_replicas_that_are_able_have_a_rank() -> None:
    replicas = [candidate(name, load=load) for load, name in enumerate("abcd")]
    assert {name for rank in ranked(replicas, Hint()) for name in rank} == set("abcd")
    assert ranked([], Hint()) == []


# --- what a replica publishes ---


def test_what_is_published_is_what_was_computed() -> None:
    prefixes = Prefixes()
    keys = keys_of(prompt=LONG)
    prefixes.add(keys, 10_000)
    assert unpacked(prefixes.published()) == set(keys)
    prefixes.clear()
    assert prefixes.published() == b""


def test_what_the_cache_has_no_room_for_is_forgotten_tails_first() -> None:
    prefixes = Prefixes()
    old, new = keys_of(prompt="old" + LONG), keys_of(prompt="new" + LONG)
    prefixes.add(old, len(LONG))
    prefixes.add(new, len(LONG) // BYTES_PER_TOKEN)
    left = unpacked(prefixes.published())
    assert set(new) <= left
    assert matched(left.__contains__, old) == len(left) - len(new)
    assert 0 < len(left) - len(new) < len(old)


def test_what_is_published_is_bounded() -> None:
    prefixes = Prefixes()
    for number in range(MAX_PUBLISHED // 100 + 2):
        prefixes.add([bytes([number, place]) * 4 for place in range(100)], 1 << 40)
    assert len(prefixes) == MAX_PUBLISHED
