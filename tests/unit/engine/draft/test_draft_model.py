"""Drafts by a second model: what they save, what they leave unchanged, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.engine.constraint.grammar import Grammars
from rocmforge.engine.draft.draft_model import DraftModel
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import FinishReason, Pooling, ProcessorUse, SamplingParams
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.sequence.sequence import Sequence, Status
from rocmforge.errors import BackendError
from tests.support.fakes.fake_backend import FakeConfig, make_runner
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.constraint.test_grammar import PIECES, VOCAB_SIZE, lark
from tests.unit.engine.helpers import Bench, Clock, limits, request

pytestmark = pytest.mark.slow

PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplingParams(max_tokens=60, temperature=0, draft_model_tokens=4)
SAMPLED = SamplingParams(max_tokens=60, seed=7, draft_model_tokens=4)
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def run(bench: Bench, *samplings: SamplingParams) -> list[list[int]]:
    requests = [request(i, [*PROMPT, i], sampling) for i, sampling in enumerate(samplings)]
    return [result.token_ids for result in bench.run(*requests).values()]


def expected(sampling: SamplingParams, number: int = 0) -> list[int]:
    seed = sampling.seed if sampling.temperature > 0 else 0
    return continuation([*PROMPT, number], sampling.max_tokens, seed=seed)


@DEPTHS
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_draft_that_sees_alike_draws_alike(depth: int, sampling: SamplingParams) -> None:
    config = FakeConfig(pipeline_depth=depth)
    bench = Bench(config, draft=config)
    assert run(bench, sampling) == [expected(sampling)]
    stats = bench.stats
    assert stats.totals.model_accepted_tokens == stats.totals.model_drafted_tokens > 40
    assert stats.totals.steps == 60 - stats.totals.model_accepted_tokens


@DEPTHS
def test_rejected_tokens_cost_steps_and_nothing_else(depth: int) -> None:
    config = FakeConfig(pipeline_depth=depth, block_size=4)
    bench = Bench(config, draft=replace(config, wrong_one_in=4))
    samplings = [msgspec.structs.replace(SAMPLED, seed=seed) for seed in range(6)]
    assert run(bench, *samplings) == [expected(each, i) for i, each in enumerate(samplings)]
    stats = bench.stats
    # After a rejected token the draft model is as good as before: three of four are accepted,
    # if all before them were.
    assert 0.45 < stats.totals.model_accepted_tokens / stats.totals.model_drafted_tokens < 0.8
    assert stats.totals.model_accepted_tokens > stats.totals.decode_tokens / 3


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 5), st.lists(st.integers(0, 9), max_size=9)),
        max_size=6,
    ),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 4]),
)
def test_it_drafts_from_what_came_whatever_it_drafted_before(
    rounds: list[tuple[int, int, list[int]]], depth: int, block_size: int
) -> None:
    """Some draft tokens are accepted, and other tokens follow that it did not see coming."""
    runner = make_runner(FakeConfig(pipeline_depth=depth, block_size=block_size), 400, 8, 64)
    model = DraftModel(runner, limits(), 1000, Clock(), Totals())
    sequence = Sequence(request(0, PROMPT, msgspec.structs.replace(GREEDY, max_tokens=200)), 16)
    sequence.status = Status.RUNNING
    tokens = list(PROMPT)
    for count, right, others in rounds:
        (drafted,) = model.draft([(sequence, count)])
        assert drafted.tolist() == continuation(tokens, count)
        for token in [*drafted.tolist()[:right], *others]:
            sequence.append(token)
            tokens.append(token)
    model.check_integrity()


def test_a_draft_that_is_always_wrong_is_given_up() -> None:
    config = FakeConfig(pipeline_depth=2)
    bench = Bench(config, draft=replace(config, wrong_one_in=1))
    long = msgspec.structs.replace(GREEDY, max_tokens=600)
    assert run(bench, long) == [expected(long)]
    assert bench.stats.totals.model_accepted_tokens == 0
    assert bench.stats.totals.model_drafted_tokens < 60


def test_nothing_is_drafted_where_checking_costs_more_than_it_saves() -> None:
    filled = FakeConfig(token_ns=1_000_000)  # each token adds its full time to a step
    bench = Bench(filled, draft=FakeConfig(wrong_one_in=2))
    assert run(bench, *[GREEDY] * 8) == [expected(GREEDY, i) for i in range(8)]
    drafted = bench.stats.totals.model_drafted_tokens
    bench = Bench(FakeConfig(), draft=FakeConfig(wrong_one_in=2))
    run(bench, *[GREEDY] * 8)
    assert drafted < bench.stats.totals.model_drafted_tokens / 4


def test_a_sequence_without_draft_tokens_keeps_two_steps_in_flight() -> None:
    calls = []
    for draft in (None, FakeConfig(wrong_one_in=1)):
        bench = Bench(FakeConfig(pipeline_depth=2), draft=draft)
        long = msgspec.structs.replace(GREEDY, max_tokens=400)
        bench.submit(request(0, PROMPT, long))
        count = 0
        while bench.core.has_work:
            bench.step()
            count += 1
        calls.append(count)
    without, with_bad_draft = calls
    assert with_bad_draft < without * 1.2


def test_draft_tokens_end_before_a_stop_token_and_the_last_token() -> None:
    stop = expected(GREEDY)[17]
    sampling = msgspec.structs.replace(GREEDY, stop_token_ids=(stop,))
    bench = Bench(draft=FakeConfig())
    assert run(bench, sampling) == [expected(GREEDY)[:18]]
    for max_tokens in range(1, 12):
        few = msgspec.structs.replace(GREEDY, max_tokens=max_tokens)
        assert run(Bench(draft=FakeConfig()), few) == [expected(few)]


@DEPTHS
def test_the_drafts_follow_a_grammar(depth: int) -> None:
    grammar = lark('start: ("ab" | "ba" | "1"){20,40} ";"')
    config = FakeConfig(pipeline_depth=depth, vocab_size=VOCAB_SIZE)
    answers, rates = [], []
    for prompt_lookup_tokens in (0, 4):
        bench = Bench(config, grammars=Grammars(PIECES, VOCAB_SIZE), draft=config)
        sampling = [
            SamplingParams(
                max_tokens=90, seed=i, grammar=grammar, draft_model_tokens=prompt_lookup_tokens
            )
            for i in range(5)
        ]
        results = bench.run(
            *[request(i, [1, 2, i], each, eos_ids=(262,)) for i, each in enumerate(sampling)]
        )
        answers.append([result.token_ids for result in results.values()])
        stats = bench.stats
        rates.append(stats.totals.model_accepted_tokens / max(stats.totals.model_drafted_tokens, 1))
    assert answers[0] == answers[1]
    assert rates[1] > 0.9  # without masks, nearly all draft tokens would be rejected


def test_a_prompt_is_read_in_chunks_while_the_sequence_goes_on() -> None:
    prompt = list(range(500))
    bench = Bench(FakeConfig(), limits(max_batched_tokens=64), draft=FakeConfig())
    result = bench.run(request(0, prompt, GREEDY))[0]
    assert result.token_ids == continuation(prompt, 60)
    assert bench.stats.totals.model_accepted_tokens > 20


def test_equal_beginnings_are_computed_once_by_the_draft_too() -> None:
    prompt = list(range(200))
    bench = Bench(FakeConfig(), limits(max_batched_tokens=64), draft=FakeConfig())
    drafted: list[int] = []
    for number in range(2):
        bench.run(request(number, prompt, GREEDY))
        drafted.append(bench.stats.totals.model_drafted_tokens - sum(drafted))
    assert drafted[1] > drafted[0]  # the second did not have to catch up first


def test_who_finds_no_room_in_the_drafts_cache_goes_without() -> None:
    bench = Bench(FakeConfig(), draft=FakeConfig(block_size=4, num_blocks=20))
    assert run(bench, *[GREEDY] * 6) == [expected(GREEDY, i) for i in range(6)]
    assert bench.stats.totals.model_accepted_tokens > 0


@pytest.mark.parametrize(
    "draft",
    [FakeConfig(max_context=20), FakeConfig(vocab_size=400), FakeConfig(nan_token=44)],
    ids=["a shorter context", "fewer tokens", "NaN"],
)
def test_a_draft_model_that_cannot_go_on_drafts_no_more(draft: FakeConfig) -> None:
    bench = Bench(FakeConfig(), draft=draft)
    assert run(bench, *[SAMPLED] * 3) == [expected(SAMPLED, i) for i in range(3)]


def test_sequences_that_end_early_leave_no_block_in_the_drafts_cache() -> None:
    bench = Bench(FakeConfig(pipeline_depth=2), draft=FakeConfig(pipeline_depth=2))
    bench.submit(
        request(0, PROMPT, GREEDY),
        request(1, PROMPT, GREEDY, deadline_ns=9),
        request(2, PROMPT, GREEDY),
    )
    for _ in range(7):
        bench.step()
    bench.step(Cancel(request_id=2))
    results = bench.finish()  # looks at every block after each step
    assert results[0].token_ids == continuation(PROMPT, 60)
    reasons = [result.last.finish_reason for result in results.values() if result.last]
    assert reasons == [FinishReason.LENGTH, FinishReason.DEADLINE, FinishReason.CANCELLED]


def test_a_preempted_sequence_gets_draft_tokens_again_later() -> None:
    tight = FakeConfig(block_size=4, num_blocks=24, max_context=80)
    bench = Bench(tight, draft=replace(tight, num_blocks=1000))
    assert run(bench, *[SAMPLED] * 4) == [expected(SAMPLED, i) for i in range(4)]
    assert bench.stats.totals.preemptions > 0
    assert bench.stats.totals.model_accepted_tokens > 0


def test_penalties_and_biases_hold_in_drafted() -> None:
    banned = expected(SAMPLED)[3]
    sampling = msgspec.structs.replace(
        SAMPLED, presence_penalty=0.5, logit_bias=((banned, float("-inf")),)
    )
    bench = Bench(draft=FakeConfig())
    (answer,) = run(bench, sampling)
    assert answer == continuation([*PROMPT, 0], 60, seed=SAMPLED.seed, forbidden=(banned,))
    stats = bench.stats
    assert stats.totals.model_accepted_tokens == stats.totals.model_drafted_tokens > 0


@pytest.mark.parametrize("done", [0, 1, 17])
def test_a_request_that_goes_on_in_a_new_engine_gets_draft_tokens(done: int) -> None:
    sampling = msgspec.structs.replace(SAMPLED, frequency_penalty=0.5)
    whole = expected(sampling)
    rest = msgspec.structs.replace(
        request(0, [*PROMPT, 0], sampling), generated_ids=tuple(whole[:done])
    )
    bench = Bench(FakeConfig(block_size=4), draft=FakeConfig())
    assert bench.run(rest)[0].token_ids == whole[done:]
    stats = bench.stats
    assert stats.totals.model_accepted_tokens == stats.totals.model_drafted_tokens > 20


def test_embeddings_and_scored_prompts_go_along() -> None:
    config = FakeConfig(pipeline_depth=2)
    bench = Bench(config, draft=config)
    pooled = SamplingParams(max_tokens=0, pooling=Pooling.MEAN, draft_model_tokens=4)
    scored = msgspec.structs.replace(GREEDY, prompt_logprobs=1, num_logprobs=2)
    results = bench.run(
        request(0, PROMPT, pooled), request(1, PROMPT, scored), request(2, PROMPT, GREEDY)
    )
    assert results[0].last is not None
    assert results[0].last.embedding is not None
    plain = Bench(config).run(request(1, PROMPT, scored))[1]
    assert results[1].token_ids == results[2].token_ids == plain.token_ids
    assert results[1].logprobs == plain.logprobs
    assert results[1].prompt_logprobs == plain.prompt_logprobs


def test_a_sequence_with_logits_processors_gets_no_draft_tokens() -> None:
    use = ProcessorUse(name="walk", numbers=(1.0,))
    bench = Bench(draft=FakeConfig())
    run(bench, msgspec.structs.replace(GREEDY, processors=(use,)))
    assert bench.stats.totals.model_drafted_tokens == 0


def test_prompt_lookup_goes_first_until_the_model_is_right_more_often() -> None:
    few = FakeConfig(vocab_size=2)
    both = msgspec.structs.replace(GREEDY, prompt_lookup_tokens=4, max_tokens=200)
    bench = Bench(few, draft=few)
    result = bench.run(request(0, [0, 1, 1, 0], both))[0]
    assert result.token_ids == continuation([0, 1, 1, 0], 200, vocab_size=2)
    stats = bench.stats
    assert 0 < stats.totals.drafts < stats.totals.model_drafts
    assert stats.totals.model_accepted_tokens == stats.totals.model_drafted_tokens > 0


@pytest.mark.parametrize(
    "broken", [FakeConfig(fail_submit=2), FakeConfig(fail_collect=2)], ids=["submit", "collect"]
)
def test_a_failing_draft_ends_the_engine(broken: FakeConfig) -> None:
    bench = Bench(draft=broken)
    bench.submit(request(0, PROMPT, GREEDY))
    with pytest.raises(BackendError, match="planted"):
        bench.finish()
    bench.take(bench.core.fail("the draft failed").events)
    last = bench.results[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.DIED
