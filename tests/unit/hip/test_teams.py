"""Which sequences of a step read together what they share, and how much that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.backend.arrays import Int32Array
from rocmforge.choices import Switch
from rocmforge_hip.run.teams import LEAST_SHARED, TeamFinder, Teams, form_teams

BLOCK = 32
LEAST = LEAST_SHARED // BLOCK
FRONT = list(range(500, 500 + 2 * LEAST))


def table_of(rows: Sequence[Sequence[int]]) -> Int32Array:
    table = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, blocks in zip(table, rows, strict=True):
        row[: len(blocks)] = blocks
    return table


def prompts(*counts: int) -> tuple[Int32Array, Int32Array]:
    """Sequences that share so many blocks, each with one of its own that is half full."""
    rows = [[*FRONT[:count], 1000 + number] for number, count in enumerate(counts)]
    contexts = [BLOCK * count + 16 for count in counts]
    return table_of(rows), np.array(contexts, np.int32)


def teams_in(teams: Teams | None) -> dict[tuple[int, ...], int]:
    """The members of each team and the tokens that it reads for them."""
    found: dict[tuple[int, ...], int] = {}
    if teams is None:
        return found
    for shared, count, first, _ in teams.rows.tolist():
        if count:
            members = teams.rows[first : first + count, 3]
            assert set(teams.rows[members, 0].tolist()) == {shared}
            found[tuple(sorted(members.tolist()))] = shared
    return found


def test_a_team_shares_the_blocks_that_all_of_it_begin_with() -> None:
    table, contexts = prompts(LEAST + 3, LEAST + 1, LEAST + 2)
    found = form_teams(table, contexts, most=8, least=LEAST_SHARED)
    assert teams_in(found) == {(0, 1, 2): (LEAST + 1) * BLOCK}


def test_a_short_front_is_read_by_each() -> None:
    table, contexts = prompts(LEAST - 1, LEAST - 1)
    assert form_teams(table, contexts, most=8, least=LEAST_SHARED) is None


def test_the_token_that_is_computed_belongs_to_its_sequence_alone() -> None:
    """All of a context may be shared: its last block is none that a team reads."""
    rows = [FRONT[: LEAST + 1]] * 2
    contexts = np.full(2, BLOCK * (LEAST + 1), np.int32)
    found = form_teams(table_of(rows), contexts, most=8, least=LEAST_SHARED)
    assert teams_in(found) == {(0, 1): LEAST * BLOCK}


def test_sequences_are_told_apart_by_every_block_and_not_by_the_last_that_is_shared() -> None:
    other = [FRONT[0], 7, *FRONT[2:]]
    rows = [[*FRONT, 1], [*other, 2], [*FRONT, 3], [*other, 4], [9, *FRONT[1:], 5]]
    contexts = np.full(5, BLOCK * len(FRONT) + 1, np.int32)
    found = form_teams(table_of(rows), contexts, most=8, least=LEAST_SHARED)
    assert teams_in(found) == {(0, 2): BLOCK * len(FRONT), (1, 3): BLOCK * len(FRONT)}


def test_one_more_member_is_not_taken_where_less_is_shared_then() -> None:
    """Three that share much, two of another kind that share what is needed at least with them."""
    rows = [[*FRONT, 1], [*FRONT, 2], [*FRONT, 3], *([*FRONT[:LEAST], 800, n] for n in (4, 5))]
    contexts = np.array([BLOCK * len(FRONT) + 1] * 3 + [BLOCK * (LEAST + 1) + 1] * 2, np.int32)
    found = form_teams(table_of(rows), contexts, most=8, least=LEAST_SHARED)
    assert found is not None
    assert found.saved == BLOCK * (2 * len(FRONT) + LEAST + 1)


def test_64_sequences_that_share_4096_tokens_read_an_eighth_of_them() -> None:
    front, own = 4096 // BLOCK, 8
    rows = [[*range(front), *range(front + own * n, front + own * (n + 1))] for n in range(64)]
    contexts = np.full(64, 4096 + own * BLOCK - 5, np.int32)
    found = form_teams(table_of(rows), contexts, most=8, least=LEAST_SHARED)
    assert found is not None
    tokens = int(contexts.sum())
    assert tokens - found.saved == 8 * 4096 + 64 * (own * BLOCK - 5)
    assert sorted(map(len, teams_in(found))) == [8] * 8


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 3), min_size=6, max_size=6), st.integers(1, 6 * BLOCK)),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_whatever_blocks_there_are_members_share_what_is_said(
    sequences: list[tuple[list[int], int]], most: int
) -> None:
    table = table_of([blocks for blocks, _ in sequences])
    contexts = np.array([context for _, context in sequences], np.int32)
    found = form_teams(table, contexts, most=most, least=BLOCK)
    in_teams: list[int] = []
    for members, shared in teams_in(found).items():
        assert 2 <= len(members) <= most
        assert shared % BLOCK == 0
        assert BLOCK <= shared < contexts[list(members)].min()
        front = table[list(members), : shared // BLOCK]
        assert (front == front[0]).all()
        in_teams += members
    assert len(in_teams) == len(set(in_teams))
    if found is not None:
        assert sorted(found.rows[:, 3].tolist()) == list(range(len(sequences)))
        assert set(np.flatnonzero(found.rows[:, 0]).tolist()) == set(in_teams)


@pytest.mark.parametrize(
    ("mode", "others", "has_teams"),
    [("auto", 0, True), ("auto", 1, False), ("on", 1, True), ("off", 0, False)],
)
def test_auto_wants_half_as_much_to_read(mode: Switch, others: int, has_teams: bool) -> None:
    """Three sequences share nearly all they have; another one as long shares nothing."""
    count = len(FRONT)
    rows = [[*FRONT, n] for n in range(3)] + [list(range(100, 101 + count))] * others
    contexts = np.full(3 + others, BLOCK * count + 1, np.int32)
    found = TeamFinder(mode, 8).of(table_of(rows), contexts)
    assert (found is not None) is has_teams


def test_teams_change_with_the_sequences_of_a_step() -> None:
    """One comes, one leaves, one comes back with other blocks, and one grows."""
    finder = TeamFinder("on", 8)
    table, contexts = prompts(LEAST, LEAST, LEAST)
    first = finder.of(table, contexts)
    assert teams_in(first) == {(0, 1, 2): LEAST_SHARED}
    assert finder.of(table, contexts + 1) is first, "what is known is kept"
    assert teams_in(finder.of(table[1:], contexts[1:])) == {(0, 1): LEAST_SHARED}
    table[1, 3] = 77
    assert teams_in(finder.of(table, contexts)) == {(0, 2): LEAST_SHARED}
    table[1, 3] = FRONT[3]
    assert teams_in(finder.of(table, contexts)) == {(0, 1, 2): LEAST_SHARED}
    table[:2, 5] = 78, 79
    contexts[2] = 5
    assert finder.of(table, contexts) is None
    assert finder.of(table[:1], contexts[:1]) is None


def test_what_is_shared_is_seen_to_have_grown() -> None:
    """As where all rows of a draft are of one sequence."""
    finder, rows = TeamFinder("on", 8), [FRONT, FRONT]
    context = LEAST_SHARED + 1
    for _ in range(2 * BLOCK + 1):
        found = finder.of(table_of(rows), np.array([context, context + 1], np.int32))
        context += 1
    assert teams_in(found) == {(0, 1): LEAST_SHARED + 2 * BLOCK}
