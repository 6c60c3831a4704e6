"""Snapshots of states: who finds them, what is kept, and that nobody goes on from a wrong one.

The fake runner keeps a checksum of tokens in each slot and refuses a step that goes on from others,
or that writes a slot which another sequence reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.backend.step import StepInput
from rocmforge.engine.cache.block_manager import BlockManager
from rocmforge.engine.cache.snapshots import Snapshots
from rocmforge.engine.cache.state_keeper import INTERVAL, StateKeeper
from rocmforge.engine.cache.state_slots import StateSlots
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.engine.sequence.sequence import Sequence
from tests.support.fakes.fake_backend import FakeConfig, FakeMistake
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import Bench, limits, options, request

BLOCK = 4
FOUR = limits(max_sequences=4, max_batched_tokens=64)
END = 96  # of a message; the fake runner draws it like any other token


def config(snapshots: int, **fields: Any) -> FakeConfig:
    """A fake model with states, and room for snapshots beside four sequences."""
    sizes = {"block_size": BLOCK, "num_blocks": 256, "max_context": 1024} | fields
    return FakeConfig(**sizes, num_slots=4, snapshots=snapshots)


def ask(number: int, prompt: list[int], tokens: int = 4) -> GenerateRequest:
    """A request that draws so many tokens, in a chat whose messages end with `END`."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return request(number, prompt, sampling, eos_ids=(END,))


def cached(bench: Bench, *requests: GenerateRequest) -> list[int]:
    """How many tokens of each prompt were found, when they run together."""
    bench.run(*requests)
    found = []
    for each in requests:
        last = bench.results[each.request_id].last
        assert last is not None
        found.append(last.cached_tokens)
        prompt = list(each.prompt.token_ids)
        expected = continuation(prompt, each.sampling.max_tokens)
        assert bench.results[each.request_id].token_ids == expected
    return found


def words(number: int, count: int) -> list[int]:
    """So many tokens, others for each number, and no end of a message among them."""
    return [(number * 31 + i * 7 + i * i) % END for i in range(count)]


def test_a_conversation_goes_on_from_the_end_of_its_last_answer() -> None:
    bench = Bench(config(4), FOUR)
    prompt = [*words(1, 21), END, 5]
    assert cached(bench, ask(0, prompt, 10)) == [0]
    answer = bench.results[0].token_ids
    assert cached(bench, ask(1, [*prompt, *answer, *words(2, 9)])) == [32]  # 23 + 9 are computed


def test_an_answer_that_is_left_out_costs_no_more_than_itself() -> None:
    bench = Bench(config(4), FOUR)
    prompt = [*words(1, 21), END, 5]
    cached(bench, ask(0, prompt, 30))
    assert cached(bench, ask(1, [*prompt[:22], *words(2, 9)])) == [20]


def test_the_first_message_is_kept_for_other_conversations() -> None:
    bench = Bench(config(4), FOUR)
    system = [*words(1, 40), END]
    cached(bench, ask(0, [*system, *words(2, 50), END, 5]))
    assert cached(bench, ask(1, [*system, *words(3, 50), END, 5])) == [40]


def test_the_third_prompt_goes_on_where_the_first_two_parted() -> None:
    bench = Bench(config(8), FOUR)
    common = words(1, 50)
    found = [cached(bench, ask(n, [*common, *words(n + 2, 30)])) for n in range(3)]
    assert found == [[0], [0], [48]]


def test_a_long_prompt_is_kept_in_pieces() -> None:
    bench = Bench(config(8, num_blocks=2048, max_context=8192), limits(max_batched_tokens=1000))
    text = words(1, INTERVAL + 900)
    cached(bench, ask(0, [*text, *words(2, 1000)]))
    assert cached(bench, ask(1, [*text[: INTERVAL + 400], *words(3, 10)])) == [INTERVAL]


def test_each_turn_of_a_long_conversation_takes_as_many_steps() -> None:
    """What is kept every so many tokens is counted from what the turn goes on from."""
    bench = Bench(config(16, num_blocks=2048, max_context=4096), limits(max_batched_tokens=2048))
    text, steps = [*words(1, 300), END, 5], list[int]()
    for turn in range(4):
        before = bench.runner._submits
        cached(bench, ask(turn, text))
        steps.append(bench.runner._submits - before)
        text = [*text, *words(2 * turn, 100), END, *words(2 * turn + 1, 850), END, 5]
    assert len(set(steps[1:])) == 1, steps


def parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """Has it note the beginning and the number of tokens of each chunk, for each step."""
    noted, submit = list[list[tuple[int, int]]](), bench.runner.submit

    def note(step: StepInput) -> None:
        starts = step.positions[step.query_start[:-1]].tolist()
        noted.append(list(zip(starts, np.diff(step.query_start).tolist(), strict=True)))
        submit(step)

    monkeypatch.setattr(bench.runner, "submit", note)
    return noted


def test_a_turn_takes_one_step_and_leaves_its_snapshots_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(config(8), FOUR)
    system, turn = [*words(1, 9), END], [*words(2, 20), END, 5, 6]
    steps = parts(bench, monkeypatch)
    assert cached(bench, ask(0, [*system, *turn], 1)) == [0]
    assert steps == [[(0, 8), (8, 20), (28, 5)]]
    assert cached(bench, ask(1, [*system, *turn, *words(3, 9)], 1)) == [28]
    assert cached(bench, ask(2, [*system, *turn[:21], *words(4, 9)], 1)) == [28]
    assert cached(bench, ask(3, [*system, *words(5, 9)], 1)) == [8]


def test_a_prompt_is_not_cut_for_a_snapshot_that_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only slot has one that saves more tokens than where the two prompts part."""
    bench = Bench(config(1), FOUR)
    first = words(1, 200)
    cached(bench, ask(0, first, 1))
    steps = parts(bench, monkeypatch)
    assert cached(bench, ask(1, [*first[:24], *words(2, 6)], 1)) == [0]
    assert steps == [[(0, 30)]]
    assert cached(bench, ask(2, [*first, *words(3, 6)], 1)) == [196]


def test_a_step_has_no_more_parts_than_sequences_may_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that run already, and wait for room in the step, have a place in it."""
    bench = Bench(config(8), replace(FOUR, max_sequences=3))
    steps = parts(bench, monkeypatch)
    prompt = [*words(1, 9), END, *words(2, 20), END, 5, 6]
    bench.submit(ask(0, words(7, 6), 9))
    bench.submit(ask(1, prompt, 1), ask(2, words(8, 6), 1))
    assert steps[1:] == [[(6, 1), (0, 8), (8, 20)]]
    bench.step()
    assert steps[2:] == [[(7, 1), (28, 5), (0, 4)]]
    bench.finish()


def come_together() -> list[int]:
    """What four prompts find that begin alike and come in one step."""
    bench = Bench(config(8), FOUR)
    prompts = [[*words(1, 40), END, *words(n + 2, 20), END] for n in range(4)]
    return cached(bench, *(ask(n, prompt) for n, prompt in enumerate(prompts)))


def test_prompts_alike_that_come_together_are_computed_once_up_to_the_first_snapshot() -> None:
    assert come_together() == [0, 40, 40, 40]


def test_a_preempted_sequence_goes_on_from_a_snapshot() -> None:
    bench = Bench(config(4, num_blocks=26), FOUR)
    cached(bench, *(ask(n, words(n, 25), 40) for n in range(2)))
    totals = bench.stats.totals
    assert totals.preemptions == 1
    assert totals.prefix_hit_tokens >= 24


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    bench = Bench(config(4), replace(FOUR, prefix_cache=False))
    assert [cached(bench, ask(n, words(1, 40))) for n in range(3)] == [[0], [0], [0]]
    assert (bench.stats.snapshots, bench.stats.totals.state_snapshots_taken) == (0, 0)


def test_another_key_finds_nothing() -> None:
    bench = Bench(config(4), FOUR)
    cached(bench, ask(0, words(1, 40)))
    salted = SamplingParams(max_tokens=1, cache_salt="mine")
    bench.run(request(1, words(1, 40), salted))
    last = bench.results[1].last
    assert last is not None
    assert last.cached_tokens == 0
    assert cached(bench, ask(2, words(1, 40))) == [36]


def test_a_long_conversation_keeps_more_of_its_end_and_does_not_push_out_another() -> None:
    bench = Bench(config(8, num_blocks=2048, max_context=4096), FOUR)
    other = [*words(77, 400), END]
    cached(bench, ask(0, other))
    text: list[int] = []
    for turn in range(30):
        text += [*words(turn, 39), END]
        cached(bench, ask(turn + 1, text, 1))
    states = bench.core._scheduler._cache._states
    assert states is not None
    kept = sorted(states._snapshots._found.values(), key=lambda each: each.end)
    assert [(each.start, each.end) for each in kept] == [
        (0, 400),  # of the other one
        *((0, 640), (640, 800), (800, 960), (960, 1040), (1040, 1120), (1120, 1160), (1160, 1200)),
    ]
    assert cached(bench, ask(200, other)) == [400]


def test_the_states_of_a_sequence_with_a_nan_are_given_up() -> None:
    prompt = [*words(1, 40), END, 3]
    first = continuation(prompt, 4)
    bench = Bench(config(4, nan_token=first[2]), FOUR)
    bench.run(ask(0, prompt, 30))
    last = bench.results[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.ERROR
    assert bench.stats.snapshots == 0


def test_states_behind_a_token_that_nobody_knows_are_not_kept() -> None:
    """It was drawn, but did not match its grammar, while the next step took it in."""
    cache = BlockManager(8, BLOCK, keeps_prefixes=True, num_slots=4, num_snapshots=2)
    seq = Sequence(ask(0, words(1, 3)), BLOCK)
    assert cache.place(seq, 4, reusable=2)
    for seq.num_computed in (3, 4):
        cache.begin_step()
        cache.advance(seq)
    cache.release(seq)
    assert cache.num_snapshots == 0
    cache.check_integrity(())


def test_snapshots_take_an_eighth_of_the_memory_for_the_cache_at_most() -> None:
    chosen = replace(options(), state_snapshots=None)
    left = 8 * 100 * 10 + 799
    assert [chosen.snapshots_within(each, 100) for each in (left, -1, 1 << 30)] == [10, 0, 64]
    assert chosen.snapshots_within(left, 0) == 0
    assert replace(chosen, state_snapshots=7).snapshots_within(-1, 100) == 7


def common(first: list[int], second: list[int]) -> int:
    """How many tokens they begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


class Agent:
    """A conversation of a coding agent, whose prompt holds all messages before."""

    def __init__(self, number: int, thoughts: int) -> None:
        self.number, self.thoughts = number, thoughts
        self.messages = [[*words(number, 600), END]]

    def ask(self, turn: int) -> list[int]:
        """The next prompt; in the seventh turn, a message of the fifth has been edited."""
        if turn == 7:
            self.messages = self.messages[: 2 * 4 + 1]
        self.messages.append([1, *words(100 * self.number + turn + (turn == 7), 70), END])
        return [token for message in self.messages for token in message] + [2, 3]

    def hear(self, answer: list[int]) -> None:
        """Takes the answer into the history, without its thoughts."""
        self.messages.append([2, 3, *answer[self.thoughts :], END])


def test_a_session_of_coding_agents_computes_hardly_anything_twice() -> None:
    """Two of them by turns; one loses its thoughts, both edit a message."""
    bench = Bench(
        config(24, block_size=16, num_blocks=1024, max_context=4096),
        limits(max_sequences=4, max_batched_tokens=512),
    )
    agents = [Agent(1, thoughts=0), Agent(2, thoughts=25)]
    seen: list[list[int]] = []
    reusable = found = 0
    for turn in range(20):
        for agent in agents:
            prompt = agent.ask(turn)
            best = max((common(prompt, other) for other in seen), default=0)
            reusable += min(best, len(prompt) - 1) // 16 * 16
            found += cached(bench, ask(len(seen), prompt, 60))[0]
            answer = bench.results[len(seen)].token_ids
            seen.append([*prompt, *answer[:-1]])  # the last token is never computed
            agent.hear(answer)
    assert len(seen[-2]) > 2500
    assert found >= 0.95 * reusable
    assert found <= reusable
    assert bench.stats.totals.prefix_hit_tokens == found


TREES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 40), st.integers(1, 30)),
    min_size=1,
    max_size=16,
)


def branches(tree: list[tuple[int, int, int, int]]) -> list[tuple[list[int], int]]:
    """Prompts that begin like each other: at most two parts, and how many tokens are drawn."""
    return [
        ([*words(0, start), END, *words(branch, rest)], tokens)
        for start, branch, rest, tokens in tree
    ]


def run_branches(
    tree: list[tuple[int, int, int, int]],
    num_blocks: int,
    snapshots: int,
    depth: int,
    cancelled: set[int],
) -> None:
    """Runs them, some cancelled soon, and checks every answer."""
    sizes = config(snapshots, num_blocks=num_blocks, max_context=128, pipeline_depth=depth)
    bench = Bench(sizes, limits(max_sequences=4, max_batched_tokens=24))
    prompts = [each for each in branches(tree) if len(each[0]) + each[1] <= BLOCK * num_blocks]
    for number, (prompt, tokens) in enumerate(prompts):
        bench.submit(ask(number, prompt, tokens))
        if number - 1 in cancelled and bench.results[number - 1].last is None:
            bench.step(Cancel(number - 1))
    results = bench.finish()
    assert bench.stats.slots_used == 0
    for number, (prompt, tokens) in enumerate(prompts):
        last = results[number].last
        assert last is not None
        if last.finish_reason is not FinishReason.CANCELLED:
            assert results[number].token_ids == continuation(prompt, tokens)


@given(
    TREES, st.integers(32, 64), st.integers(0, 5), st.integers(1, 2), st.sets(st.integers(0, 15))
)
@settings(max_examples=60)
def test_whatever_is_found_evicted_preempted_or_cancelled_every_slot_is_accounted_for(
    tree: list[tuple[int, int, int, int]],
    num_blocks: int,
    snapshots: int,
    depth: int,
    cancelled: set[int],
) -> None:
    run_branches(tree, num_blocks, snapshots, depth, cancelled)


MANY = [(20 - n % 3, n % 4, 7 * n % 40, 5 + n) for n in range(16)]


def test_the_branches_of_the_planted_mistakes_are_right_without_them() -> None:
    run_branches(MANY, 40, 3, 2, {3, 8})


def a_token_late(keeper: StateKeeper, seq: Sequence) -> None:
    """Takes the states one token behind the end of a block for those at it."""
    seq.num_computed -= 1
    REAL_ADVANCE(keeper, seq)
    seq.num_computed += 1


def twice(slots: StateSlots, slot: int) -> None:
    """Gives a slot back that somebody else gives back, too."""
    REAL_RELEASE(slots, slot)
    REAL_RELEASE(slots, slot)


def nothing(*_: object) -> None:
    """Does nothing."""


REAL_ADVANCE, REAL_RELEASE = StateKeeper.advance, StateSlots.release
PLANTED = {
    "a snapshot one token late": (StateKeeper, "advance", a_token_late),
    "a snapshot that is evicted while it is to be read": (Snapshots, "hold", nothing),
    "a snapshot that is read by the step that makes it": (Snapshots, "is_coming", lambda *_: False),
    "a slot given to two": (StateSlots, "release", twice),
    "the next part in place of a snapshot": (StateKeeper, "has_left_snapshot", lambda *_: True),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistakes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, mistake = PLANTED[name]
    monkeypatch.setattr(owner, method, mistake)
    with pytest.raises((FakeMistake, AssertionError)):  # noqa: PT012 - either of them
        run_branches(MANY, 40, 3, 2, {3, 8})
        come_together()
