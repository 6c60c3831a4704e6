"""What a request gets does not depend on what else the engine does.

The fake runner recomputes every token from what the cache holds and `continuation` says what it
should be, so equality here means that every position, slot, block and source row was right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.engine.schedule import step_costs
from rocmforge.engine.schedule.limits import SchedulerLimits
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import continuation, prompt_logprobs
from tests.unit.engine.helpers import Bench, limits, request

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def tokens(n: int, seed: int = 0) -> list[int]:
    return Random(seed).choices(range(1000), k=n)


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: list[int]
    sampling: SamplingParams


PROMPTS = st.builds(
    lambda shared, own: [5] * shared + own,  # many share a beginning
    st.integers(0, 20),
    st.lists(st.integers(0, 999), min_size=1, max_size=20),
)
SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 20),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    prompt_logprobs=st.sampled_from([-1, -1, 0, 2]),
    num_logprobs=st.sampled_from([-1, -1, 0, 3]),
    prompt_lookup_tokens=st.sampled_from([0, 0, 1, 4, 9]),
    adapter=st.sampled_from([-1, -1, 0, 1]),
    draft_model_tokens=st.sampled_from([0, 1, 3, 3, 5]),
)
ARRIVALS = st.lists(
    st.builds(Arrival, st.integers(0, 15), PROMPTS, SAMPLINGS), min_size=1, max_size=10
)
CONFIGS = st.builds(
    lambda depth, block_size, spare, vocab_size: FakeConfig(
        pipeline_depth=depth,
        block_size=block_size,
        num_blocks=-(-60 // block_size) + spare,  # the longest request just fits
        max_context=60,
        vocab_size=vocab_size,
        token_ns=20,
    ),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([0, 3, 500]),
    st.sampled_from([2, 3, 1000]),  # with few tokens, draft tokens are often accepted
)
DRAFTS = st.builds(
    lambda depth, block_size, num_blocks, max_context, wrong, missing: FakeConfig(
        pipeline_depth=depth,
        block_size=block_size,
        num_blocks=num_blocks,
        max_context=max_context,
        wrong_one_in=wrong,
        vocab_size=1000 - missing,
    ),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([16, 500, 500]),
    st.sampled_from([30, 60, 60]),
    st.sampled_from([None, None, 3]),
    st.sampled_from([0, 0, 0, 500]),
)
LIMITS = st.builds(
    lambda sequences, more, rows, cache, stall_ns: SchedulerLimits(
        max_sequences=sequences,
        max_batched_tokens=sequences + more,
        max_waiting=100,
        max_score_rows=rows,
        prefix_cache=cache,
        max_stall_ns=stall_ns,
    ),
    st.integers(1, 6),
    st.integers(0, 40),
    st.sampled_from([1, 7, 100]),
    st.booleans(),
    st.sampled_from([0, 1, 1200]),  # a step of the fake takes 1,000, and 20 more for each token
)


def check(arrival: Arrival, bench: Bench, request_id: int, vocab_size: int) -> None:
    result, sampling = bench.results[request_id], arrival.sampling
    seed = sampling.seed if sampling.temperature > 0 else 0
    assert result.token_ids == continuation(
        arrival.prompt,
        sampling.max_tokens,
        seed=seed,
        vocab_size=vocab_size,
        adapter=sampling.adapter,
    )
    assert result.last is not None
    assert result.last.finish_reason is FinishReason.LENGTH
    if sampling.prompt_logprobs >= 0:
        assert [entry.logprob for entry in result.prompt_logprobs] == prompt_logprobs(
            arrival.prompt
        )
        assert [entry.token_id for entry in result.prompt_logprobs] == arrival.prompt[1:]
        assert all(len(entry.top) == sampling.prompt_logprobs for entry in result.prompt_logprobs)
    if sampling.num_logprobs >= 0:
        everything = prompt_logprobs(arrival.prompt + result.token_ids)
        expected = everything[len(arrival.prompt) - 1 :]
        assert [entry.logprob for entry in result.logprobs] == expected
        assert all(len(entry.top) == sampling.num_logprobs for entry in result.logprobs)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(ARRIVALS, CONFIGS, LIMITS, st.none() | DRAFTS)
def test_output_does_not_depend_on_company_chunks_preemption_prefixes_drafts_or_depth(
    arrivals: list[Arrival], config: FakeConfig, chosen: SchedulerLimits, draft: FakeConfig | None
) -> None:
    if draft is not None and config.vocab_size < 1000:
        draft = replace(draft, vocab_size=config.vocab_size)
    bench = Bench(config, chosen, draft=draft)
    for count in range(1, chosen.max_sequences + 1):  # drafting begins when decoding was timed
        few = SamplingParams(max_tokens=4)
        bench.run(*[request(100 * count + i, [7, i], few) for i in range(count)])
    for step in range(16):
        bench.submit(
            *[
                request(i, arrival.prompt, arrival.sampling)
                for i, arrival in enumerate(arrivals)
                if arrival.step == step
            ]
        )
    bench.finish()
    event(f"preempted: {bench.stats.totals.preemptions > 0}")
    event(f"prefix hit: {bench.stats.totals.prefix_hit_tokens > 0}")
    event(f"draft accepted: {bench.stats.totals.accepted_tokens > 0}")
    event(f"model's draft accepted: {bench.stats.totals.model_accepted_tokens > 0}")
    for i, arrival in enumerate(arrivals):
        check(arrival, bench, i, config.vocab_size)


@DEPTHS
def test_requests_that_do_not_fit_together_preempt_each_other_and_still_end_right(
    depth: int,
) -> None:
    bench = Bench(FakeConfig(pipeline_depth=depth, block_size=4, num_blocks=12, max_context=48))
    prompts = [tokens(10, seed) for seed in range(4)]
    results = bench.run(
        *[request(i, p, SamplingParams(max_tokens=30)) for i, p in enumerate(prompts)]
    )
    assert bench.stats.totals.preemptions > 0
    for i, prompt in enumerate(prompts):
        assert results[i].token_ids == continuation(prompt, 30)


@DEPTHS
def test_a_second_request_with_the_same_prompt_computes_only_its_end(depth: int) -> None:
    bench = Bench(FakeConfig(pipeline_depth=depth, block_size=4))
    prompt = tokens(41)
    bench.run(request(0, prompt, SamplingParams(max_tokens=3)))
    computed = bench.stats.totals.prefill_tokens
    results = bench.run(request(1, prompt, SamplingParams(max_tokens=3)))
    assert bench.stats.totals.prefill_tokens - computed == 1
    assert results[1].last is not None
    assert results[1].last.cached_tokens == 40
    assert results[1].token_ids == continuation(prompt, 3)


def test_what_was_found_of_a_prompt_is_told_with_the_first_token() -> None:
    bench, prompt = Bench(FakeConfig(block_size=4)), tokens(41)
    bench.run(request(0, prompt, SamplingParams(max_tokens=3)))
    wanted = SamplingParams(max_tokens=3)
    first, *others, last = [
        each
        for commands in ([request(1, prompt, wanted)], [], [], [], [])
        for each in bench.core.step(commands).events
    ]
    for told in (first, last):
        assert told.cached_tokens == 40
        assert told.timing is not None
        assert told.timing.first_token_ns > 0
    assert first.finish_reason is None
    assert [each.timing for each in others] == [None]


def test_a_conversation_that_goes_on_finds_its_own_answer_in_the_cache() -> None:
    bench = Bench(FakeConfig(block_size=4))
    prompt = tokens(10)
    answer = bench.run(request(0, prompt, SamplingParams(max_tokens=20)))[0].token_ids
    longer = [*prompt, *answer, 1, 2, 3]
    last = bench.run(request(1, longer, SamplingParams(max_tokens=1)))[1].last
    assert last is not None
    assert last.cached_tokens == 28, "29 of the 30 tokens were computed: seven full blocks"


def test_a_prompt_of_whole_blocks_computes_its_last_block_again() -> None:
    bench = Bench(FakeConfig(block_size=4))
    prompt = tokens(8)
    bench.run(request(0, prompt, SamplingParams(max_tokens=1)))
    last = bench.run(request(1, prompt, SamplingParams(max_tokens=1)))[1].last
    assert last is not None
    assert last.cached_tokens == 4


def test_prompts_are_scored_in_full_although_the_cache_holds_them() -> None:
    bench = Bench(FakeConfig(block_size=4))
    prompt = tokens(30)
    bench.run(request(0, prompt, SamplingParams(max_tokens=1)))
    result = bench.run(request(1, prompt, SamplingParams(max_tokens=1, prompt_logprobs=0)))[1]
    assert [entry.logprob for entry in result.prompt_logprobs] == prompt_logprobs(prompt)
    assert result.last is not None
    assert result.last.cached_tokens == 0


@DEPTHS
@pytest.mark.parametrize("length", [1, 2, 100])
def test_scoring_without_output_ends_after_the_prompt(depth: int, length: int) -> None:
    bench = Bench(FakeConfig(pipeline_depth=depth))
    prompt = tokens(length)
    result = bench.run(request(0, prompt, SamplingParams(max_tokens=0, prompt_logprobs=1)))[0]
    assert result.token_ids == []
    assert [entry.logprob for entry in result.prompt_logprobs] == prompt_logprobs(prompt)
    assert result.last is not None
    assert result.last.finish_reason is FinishReason.LENGTH


def test_no_output_and_no_scores_is_answered_without_a_step() -> None:
    bench = Bench()
    result = bench.run(request(0, tokens(5), SamplingParams(max_tokens=0)))[0]
    assert result.last is not None
    assert bench.stats.totals.steps == 0


@DEPTHS
def test_the_first_eos_ends_a_sequence_and_is_its_last_token(depth: int) -> None:
    prompt = tokens(5)
    expected = continuation(prompt, 10)
    bench = Bench(FakeConfig(pipeline_depth=depth))
    result = bench.run(request(0, prompt, SamplingParams(max_tokens=50), eos_ids=(expected[6],)))[0]
    assert result.token_ids == expected[:7]
    assert result.last is not None
    assert result.last.finish_reason is FinishReason.STOP


def test_ignore_eos_goes_on_but_a_stop_token_still_ends() -> None:
    prompt = tokens(5)
    expected = continuation(prompt, 10)
    sampling = SamplingParams(max_tokens=50, ignore_eos=True, stop_token_ids=(expected[8],))
    result = Bench().run(request(0, prompt, sampling, eos_ids=(expected[3],)))[0]
    assert result.token_ids == expected[:9]


@DEPTHS
def test_min_tokens_forbids_the_end_until_then_and_not_later(depth: int) -> None:
    prompt = tokens(5)
    free = continuation(prompt, 3)
    eos = (free[0], free[2])
    kept = continuation(prompt, 4, forbidden=eos)
    after = continuation(prompt + kept, 1)[0]
    sampling = SamplingParams(max_tokens=5, min_tokens=4)
    bench = Bench(FakeConfig(pipeline_depth=depth))
    result = bench.run(request(0, prompt, sampling, eos_ids=(*eos, after)))[0]
    assert kept[0] != free[0], "the case is about a token that is really forbidden"
    assert result.token_ids[:4] == continuation(prompt, 4, forbidden=(*eos, after))


def test_a_forbidden_token_stays_forbidden() -> None:
    prompt = tokens(5)
    banned = continuation(prompt, 1)[0]
    sampling = SamplingParams(max_tokens=20, logit_bias=((banned, -float("inf")),))
    result = Bench().run(request(0, prompt, sampling))[0]
    assert result.token_ids == continuation(prompt, 20, forbidden=(banned,))


@DEPTHS
def test_nan_ends_its_own_sequence_only_and_leaves_nothing_in_the_cache(depth: int) -> None:
    prompt = tokens(9)
    bad = continuation(prompt, 3)[2]
    bench = Bench(FakeConfig(pipeline_depth=depth, block_size=4, nan_token=bad))
    other = [token for token in tokens(9, seed=1) if token != bad]
    results = bench.run(
        request(0, prompt, SamplingParams(max_tokens=20)),
        request(1, other, SamplingParams(max_tokens=20)),
    )
    assert results[0].token_ids == continuation(prompt, 3)
    assert results[0].last is not None
    assert results[0].last.finish_reason is FinishReason.ERROR
    assert "NaN" in (results[0].last.error or "")
    assert results[1].token_ids == continuation(other, 20)
    again = bench.run(request(2, prompt, SamplingParams(max_tokens=1)))[2].last
    assert again is not None
    assert again.cached_tokens == 0


def test_a_request_that_cannot_be_taken_fails_alone() -> None:
    too_large = SamplingParams(max_tokens=5, logit_bias=((2**40, 1.0),))
    results = Bench().run(
        request(0, [1, 2], SamplingParams(max_tokens=5)), request(1, [1, 2], too_large)
    )
    assert results[0].token_ids == continuation([1, 2], 5)
    assert results[1].last is not None
    assert results[1].last.finish_reason is FinishReason.ERROR
    assert "OverflowError" in (results[1].last.error or "")


@DEPTHS
def test_a_cancelled_request_frees_its_blocks_within_the_step(depth: int) -> None:
    bench = Bench(FakeConfig(pipeline_depth=depth))
    bench.submit(request(0, tokens(40), SamplingParams(max_tokens=100)))
    for _ in range(5):
        bench.step()
    assert bench.stats.blocks_used > 0
    bench.step(Cancel(request_id=0))
    assert bench.stats.blocks_used == 0
    last = bench.finish()[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.CANCELLED


def test_cancelling_what_is_unknown_or_over_changes_nothing() -> None:
    bench = Bench()
    bench.run(request(0, tokens(4), SamplingParams(max_tokens=2)))
    bench.step(Cancel(request_id=0), Cancel(request_id=99))
    assert bench.results[0].token_ids == continuation(tokens(4), 2)


@DEPTHS
def test_a_deadline_ends_running_and_waiting_requests(depth: int) -> None:
    bench = Bench(FakeConfig(pipeline_depth=depth), limits(max_sequences=1))
    sampling = SamplingParams(max_tokens=1000)
    bench.submit(*[request(i, tokens(4, i), sampling, deadline_ns=50) for i in range(2)])
    while bench.clock.now_ns < 49:
        bench.step()
    assert [result.last for result in bench.results.values()] == [None, None]
    bench.step()
    for result in bench.finish().values():
        assert result.last is not None
        assert result.last.finish_reason is FinishReason.DEADLINE
    assert bench.results[0].token_ids == continuation(tokens(4), len(bench.results[0].token_ids))


@DEPTHS
def test_timing_says_when_a_request_was_scheduled_first_answered_and_done(depth: int) -> None:
    bench = Bench(FakeConfig(pipeline_depth=depth))
    last = bench.run(request(0, tokens(4), SamplingParams(max_tokens=3)))[0].last
    assert last is not None
    assert last.timing is not None
    assert last.timing.arrival_ns == 0
    assert last.timing.scheduled_ns == 2, "the first step"
    assert last.timing.first_token_ns == 1 + depth
    assert last.timing.finished_ns == 3 + depth


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2]), st.sampled_from([24, 400]))
def test_random_submits_cancels_and_deadlines_leave_no_block_behind(
    seed: int, depth: int, num_blocks: int
) -> None:
    random = Random(seed)
    config = FakeConfig(pipeline_depth=depth, block_size=4, num_blocks=num_blocks, max_context=96)
    bench = Bench(config, limits(max_sequences=6, max_batched_tokens=16))
    requests: list[GenerateRequest] = []
    for step in range(120):
        commands: list[GenerateRequest | Cancel] = []
        if random.random() < 0.5:
            prompt = [7] * random.randrange(12) + random.choices(
                range(1000), k=random.randrange(1, 30)
            )
            deadline = step + random.randrange(1, 60) if random.random() < 0.3 else None
            requests.append(
                request(
                    len(requests),
                    prompt,
                    SamplingParams(max_tokens=random.randrange(1, 40)),
                    deadline_ns=deadline,
                )
            )
            commands.append(requests[-1])
        if requests and random.random() < 0.4:
            commands.append(Cancel(request_id=random.choice(requests).request_id))
        bench.step(*commands)
    for each in requests:
        if random.random() < 0.5:
            bench.step(Cancel(request_id=each.request_id))
    bench.finish()
    for each in requests:
        produced = bench.results[each.request_id].token_ids
        assert produced == continuation(each.prompt.token_ids, len(produced))


@pytest.mark.slow
def test_two_hundred_cancels_under_load_leave_zero_blocks_and_clean_books() -> None:
    random = Random(3)
    bench = Bench(FakeConfig(pipeline_depth=2, block_size=4, num_blocks=300, max_context=300))
    sampling = SamplingParams(max_tokens=200)
    bench.submit(*[request(i, tokens(random.randrange(1, 80), i), sampling) for i in range(200)])
    order = random.sample(range(200), 200)
    for request_id in order:
        bench.step(Cancel(request_id=request_id))
    assert bench.stats.blocks_used == 0
    bench.finish()


@DEPTHS
def test_costs_are_learnt_while_a_step_runs_and_not_when_its_tokens_are_there(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nobody waits longer for a first token of every third or fourth prompt."""
    happened: list[str] = []

    def noting(name: str, of: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            happened.append(name)
            return of(*args)

        return call

    config = FakeConfig(pipeline_depth=depth, step_ns=1000, token_ns=10)
    bench = Bench(config, replace(limits(), max_stall_ns=30_000_000))
    monkeypatch.setattr(step_costs, "_fit", noting("fit", step_costs._fit))
    for name in ("submit", "collect"):
        monkeypatch.setattr(bench.runner, name, noting(name, getattr(bench.runner, name)))
    for number in range(12):
        bench.run(request(number, tokens(2 + number), SamplingParams(max_tokens=1)))
    before = {one for one, other in pairwise(happened) if other == "fit"}
    assert before == {"submit"}
