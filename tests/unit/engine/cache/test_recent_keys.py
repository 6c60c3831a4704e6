"""Keys that a sequence gets from others are those that it would make of its own tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rocmforge.engine.cache import recent_keys
from rocmforge.engine.cache.recent_keys import RecentKeys
from rocmforge.engine.ipc.params import SamplingParams, Share
from rocmforge.engine.sequence.sequence import Sequence
from tests.support.engine.spans import image, prompt_of
from tests.unit.engine.helpers import request

BLOCK = 4


def sequence(tokens: list[int], *, salt: str = "", share: Share | None = None) -> Sequence:
    """A sequence of these tokens, with the keys of its full blocks."""
    asked = request(0, tokens, SamplingParams(max_tokens=4, cache_salt=salt))
    asked = asked if share is None else structs.replace(asked, share=share)
    return Sequence(asked, BLOCK)


def own_keys(seq: Sequence) -> list[bytes]:
    """Those of its full blocks, made of its tokens."""
    seq.keys = []
    full = seq.num_prompt // BLOCK
    return [seq.block_key(i) for i in range(full)]


def kept(recent: RecentKeys, seq: Sequence) -> Sequence:
    """A sequence that ended, with the keys of its full blocks."""
    own_keys(seq)
    recent.keep(seq)
    return seq


def recalled(recent: RecentKeys, seq: Sequence) -> int:
    """How many keys a sequence gets; all of them are right."""
    recent.recall(seq)
    found = seq.keys
    assert found == own_keys(seq)[: len(found)]
    return len(found)


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=20)


@given(st.lists(TOKENS, max_size=5), TOKENS)
def test_the_longest_beginning_is_recalled_whatever_came_before(
    before: list[list[int]], tokens: list[int]
) -> None:
    recent, longest = RecentKeys(), 0
    for each in before:
        kept(recent, sequence(each))
        alike = 0
        while alike < min(len(each), len(tokens)) and each[alike] == tokens[alike]:
            alike += 1
        longest = max(longest, alike // BLOCK)
    assert recalled(recent, sequence(tokens)) == longest


def test_who_may_not_find_the_blocks_of_another_finds_no_keys_either() -> None:
    recent, tokens = RecentKeys(), [*range(13)]
    kept(recent, sequence(tokens))
    assert recalled(recent, sequence(tokens, salt="mine")) == 0
    assert recalled(recent, sequence(tokens, share=Share(key=1, tenant=b"t" * 16))) == 0
    assert recalled(recent, sequence(tokens)) == 3


def test_what_follows_in_either_sequence_changes_nothing_in_the_other() -> None:
    recent = RecentKeys()
    first = kept(recent, sequence([*range(13)]))
    second = sequence([*range(8), *range(50, 60)])
    assert recalled(recent, second) == 2
    second.block_key(3)
    for token in (13, 14, 15):
        first.append(token)
    first.block_key(3)
    assert recalled(recent, sequence([*range(16), 99])) == 3


def test_rows_of_embeddings_are_not_told_apart_by_tokens() -> None:
    recent = RecentKeys()
    prompt = prompt_of([5] * 4, image(1, 4), [7] * 4)
    shown = Sequence(request(0, prompt, SamplingParams(max_tokens=4)), BLOCK)
    kept(recent, shown)
    assert recalled(recent, sequence(shown.tokens[:12].tolist())) == 0
    kept(recent, sequence(shown.tokens[:12].tolist()))
    other = Sequence(request(0, prompt, SamplingParams(max_tokens=4)), BLOCK)
    recent.recall(other)
    assert other.keys == []


def test_so_many_sequences_are_remembered() -> None:
    recent = RecentKeys()
    for number in range(recent_keys.MOST + 1):
        kept(recent, sequence([number] * 9))
    assert [recalled(recent, sequence([number] * 9)) for number in (0, 1)] == [0, 2]
