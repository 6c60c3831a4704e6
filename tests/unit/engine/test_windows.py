"""Blocks of layers with a window: how many a sequence holds, who finds them, and who gets them.

The fake runner keeps of each slot which group wrote it, and checks what every window sees.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.backend.windows import context_blocks, window_blocks
from rocmforge.engine.cache.blocks import BlockAllocator
from rocmforge.engine.cache.window_blocks import WindowBlocks
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.engine.sequence.sequence import Sequence
from rocmforge.engine.sequence.windows import SequenceWindows
from tests.support.fakes.fake_backend import FakeConfig, FakeMistake, make_runner
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import Bench, limits, request

BLOCK, WINDOW, GROUPS, STEP = 4, 10, 2, 24
VOCAB = 8  # so few that drafts are found, most of them wrong
OF_STEP, OF_SEQUENCE = STEP // BLOCK, window_blocks(WINDOW, BLOCK)
FOUR = limits(max_sequences=4, max_batched_tokens=STEP)
END = 96  # of a message


def config(num_blocks: int, **fields: Any) -> FakeConfig:
    """A fake model with windows."""
    sizes = {"block_size": BLOCK, "num_blocks": num_blocks, "max_context": 1024} | fields
    return FakeConfig(**sizes, vocab_size=VOCAB, window_groups=GROUPS, window=WINDOW)


def ask(number: int, prompt: list[int], tokens: int = 4, *, drafts: int = 0) -> GenerateRequest:
    """A request that draws so many tokens, in a chat whose messages end with `END`."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, prompt_lookup_tokens=drafts)
    return request(number, prompt, sampling, eos_ids=(END,))


def words(number: int, count: int) -> list[int]:
    """So many tokens, others for each number, and no end of a message among them."""
    return [(number * 31 + i * 7 + i * i) % END for i in range(count)]


def follows(prompt: list[int], tokens: int) -> list[int]:
    """What follows a prompt."""
    return continuation(prompt, tokens, vocab_size=VOCAB)


def cached(bench: Bench, *requests: GenerateRequest) -> list[int]:
    """How many tokens of each prompt were found, when they run together."""
    bench.run(*requests)
    found = []
    for each in requests:
        result, prompt = bench.results[each.request_id], list(each.prompt.token_ids)
        assert result.last is not None
        found.append(result.last.cached_tokens)
        assert result.token_ids == follows(prompt, each.sampling.max_tokens)
    return found


def held(bench: Bench) -> list[SequenceWindows]:
    """The windows of all running sequences."""
    running = bench.core._scheduler.running
    return [seq.windows for seq in running if seq.windows is not None]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_long_sequence_holds_no_more_than_its_window_and_a_step(depth: int) -> None:
    bench = Bench(config(512, pipeline_depth=depth), FOUR)
    bench.submit(ask(0, words(1, 700), 200))
    most = least = 0
    while bench.core.has_work:
        bench.step()
        for windows in held(bench):
            most = max(most, windows.stop - windows.first)
            least = windows.stop - windows.first
    assert most <= -(-(WINDOW + 2 * STEP) // BLOCK) + 1
    assert least <= -(-(WINDOW + 2) // BLOCK) + 1
    assert bench.results[0].token_ids == follows(words(1, 700), 200)


def test_more_sequences_fit_than_if_all_layers_kept_everything() -> None:
    """Four of 200 tokens: 50 blocks of each of three groups."""
    num_blocks = 4 * (50 + GROUPS * OF_SEQUENCE) + GROUPS * OF_STEP
    bench = Bench(config(num_blocks, max_context=256), FOUR)
    cached(bench, *(ask(n, words(n, 150), 46) for n in range(4)))
    assert bench.stats.totals.preemptions == 0
    assert num_blocks < 4 * 50 * (1 + GROUPS)


def test_a_conversation_goes_on_from_the_end_of_its_last_answer() -> None:
    bench = Bench(config(512), FOUR)
    prompt = [*words(1, 101), END, 5]
    assert cached(bench, ask(0, prompt, 50)) == [0]
    answer = bench.results[0].token_ids
    assert cached(bench, ask(1, [*prompt, *answer, *words(2, 9)])) == [152]


def test_an_answer_that_is_left_out_costs_no_more_than_itself() -> None:
    """Even if others needed the blocks that windows have left behind."""
    bench = Bench(config(160), FOUR)
    prompt = [*words(1, 101), END, 5]
    cached(bench, ask(0, prompt, 50))
    cached(bench, ask(1, words(2, 280)))
    assert cached(bench, ask(2, [*prompt[:102], *words(3, 9)])) == [100]


def test_the_third_prompt_goes_on_where_the_first_two_parted() -> None:
    bench = Bench(config(176), FOUR)
    common = words(1, 50)
    cached(bench, ask(0, [*common, *words(2, 100)]))
    cached(bench, ask(9, words(9, 190)))  # gets what the first has left behind, but not its end
    cached(bench, ask(1, [*common, *words(3, 100)]))
    cached(bench, ask(8, words(8, 190)))
    assert cached(bench, ask(2, [*common, *words(4, 30)])) == [48]


def test_without_the_blocks_of_a_window_a_prefix_ends_before_it() -> None:
    allocator = BlockAllocator(64)
    windows = WindowBlocks(allocator, BLOCK, window=WINDOW, groups=GROUPS, step_tokens=STEP)
    seq = Sequence(ask(0, words(1, 60)), BLOCK)
    windows.begin(seq, 0, 0)
    seq.num_computed = 60
    windows.advance(seq)
    assert seq.windows is not None
    for block in range(15):
        windows.publish(seq, block)
    assert [windows.reach(seq, count) for count in (0, 1, 15)] == [0, 1, 15]
    allocator.forget(int(seq.windows.tables[1, 9]))
    assert [windows.reach(seq, count) for count in range(9, 15)] == [9, 9, 9, 9, 13, 14]
    allocator.forget(int(seq.windows.tables[0, 0]))
    assert [windows.reach(seq, count) for count in (1, 2, 3, 4)] == [0, 0, 0, 4]


def test_what_a_nan_has_touched_is_not_found_even_if_it_was_released() -> None:
    prompt = words(1, 40)
    bench = Bench(config(512, nan_token=follows(prompt, 30)[20]), FOUR)
    bench.run(ask(0, prompt, 30))
    last = bench.results[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.ERROR
    assert bench.stats.blocks_cached == 0


def test_draft_tokens_are_checked_and_taken_back() -> None:
    bench = Bench(config(512, pipeline_depth=2), FOUR)
    cached(bench, *(ask(n, words(n, 30), 60, drafts=8) for n in range(4)))
    drafted, accepted = bench.stats.totals.draft_counts
    assert drafted > accepted + 30


def test_a_context_leaves_room_for_its_window_and_a_step() -> None:
    bench = Bench(config(100), FOUR)
    room = 100 - GROUPS * (OF_SEQUENCE + OF_STEP)
    assert bench.core.max_context == room * BLOCK
    assert context_blocks(make_runner(config(100), 64, 4, STEP).info, STEP) == room
    assert cached(bench, ask(0, words(1, room * BLOCK - 20), 20)) == [0]


TREES = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.integers(0, 3),
        st.integers(0, 60),
        st.integers(1, 40),
        st.sampled_from([0, 0, 6]),
    ),
    min_size=1,
    max_size=12,
)
Tree = list[tuple[int, int, int, int, int]]


def run_branches(tree: Tree, num_blocks: int, depth: int, cancelled: set[int]) -> None:
    """Runs prompts that begin alike, some cancelled soon, and checks every answer."""
    sizes = config(num_blocks, max_context=256, pipeline_depth=depth)
    bench = Bench(sizes, FOUR)
    prompts = {}
    for number, (start, branch, rest, tokens, drafts) in enumerate(tree):
        prompt = [*words(0, start), END, *words(branch, rest)]
        if len(prompt) + tokens > bench.core.max_context:
            continue
        prompts[number] = prompt, tokens
        bench.submit(ask(number, prompt, tokens, drafts=drafts))
        if number - 1 in cancelled and number - 1 in prompts:
            bench.step(Cancel(number - 1))
    for number, result in bench.finish().items():
        prompt, tokens = prompts[number]
        assert result.last is not None
        if result.last.finish_reason is not FinishReason.CANCELLED:
            assert result.token_ids == follows(prompt, tokens)


@given(TREES, st.integers(90, 170), st.integers(1, 2), st.sets(st.integers(0, 11)))
@settings(max_examples=40)
def test_whatever_is_found_preempted_or_cancelled_every_window_holds_what_it_sees(
    tree: Tree, num_blocks: int, depth: int, cancelled: set[int]
) -> None:
    run_branches(tree, num_blocks, depth, cancelled)


def run_all() -> None:
    """Runs what the planted mistakes are found by."""
    run_branches(
        [(50 - n % 3, n % 4, 7 * n % 60, 5 + 3 * n, 6 * (n % 3 == 0)) for n in range(12)],
        *(110, 2, {3, 8}),
    )
    bench = Bench(config(124, max_context=256, pipeline_depth=2), FOUR)
    cached(bench, *(ask(n, words(n, 100), 60, drafts=8) for n in range(4)))
    assert bench.stats.totals.preemptions
    bench = Bench(config(512), FOUR)
    cached(bench, ask(0, words(1, 60)))
    blocks = bench.core._scheduler._cache._allocator
    gone = blocks.find(Sequence(ask(0, words(1, 60)), BLOCK).block_key(12) + bytes([1]))
    assert gone is not None
    blocks.forget(gone)
    assert cached(bench, ask(1, words(1, 60))) == [48]


def test_the_runs_of_the_planted_mistakes_are_right_without_them() -> None:
    run_all()


def too_early(windows: WindowBlocks, position: int) -> int:
    """Takes a window for a block shorter than it is."""
    return max(0, position - WINDOW + 1 + BLOCK) // BLOCK


def any_prefix(windows: WindowBlocks, seq: Sequence, count: int) -> int:
    """Begins behind the last block whose content is found, whatever a window sees before it."""
    return next((end for end in range(count, 0, -1) if windows._find(seq, end - 1) is not None), 0)


def at_once(windows: WindowBlocks, seq: Sequence) -> None:
    """Releases blocks that the step which is being scheduled still reads."""
    REAL_ADVANCE(windows, seq)
    windows.slide(seq)


def stale(windows: WindowBlocks, seq: Sequence) -> None:
    """Leaves the table of a sequence as it was when its next block is given to it."""
    assert seq.windows is not None
    before = seq.windows.tables.copy()
    REAL_ADVANCE(windows, seq)
    seq.windows.tables[:] = before


def of_drafts(windows: WindowBlocks, seq: Sequence) -> None:
    """Takes draft tokens for tokens that stay."""
    known, seq.num_known = seq.num_known, seq.num_computed
    REAL_SLIDE(windows, seq)
    seq.num_known = known


REAL_ADVANCE, REAL_SLIDE = WindowBlocks.advance, WindowBlocks.slide
PLANTED = {
    "a block is released one too early": ("first_seen", too_early),
    "a window is found in part": ("reach", any_prefix),
    "a block is released by the step that reads it": ("advance", at_once),
    "an entry of a table is stale": ("advance", stale),
    "blocks behind draft tokens are released": ("slide", of_drafts),
    "nothing is withheld": ("withheld", property(lambda _: 0)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistakes_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WindowBlocks, *PLANTED[name])
    with pytest.raises((FakeMistake, AssertionError, KeyError, IndexError)):
        run_all()
