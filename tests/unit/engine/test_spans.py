"""Prompts with rows of embeddings between their tokens, such as images have.

The fake runner hashes every context back out of its cache, rows of embeddings too: what a request
gets shows whether any block held something else than its own prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec import structs

from rocmforge.engine.ipc.params import Pooling, ProcessorUse, SamplingParams, Share
from rocmforge.engine.ipc.prompt import EmbeddingSpan, Prompt, TokenSpan, token_prompt, token_span
from rocmforge.engine.schedule.batch import build_step
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.schedule.step_builder import StepBuilder
from rocmforge.engine.sequence import sequence as sequence_module
from rocmforge.engine.sequence.block_keys import BlockKey, chain_key
from rocmforge.engine.sequence.drafting import DraftMethod
from rocmforge.engine.sequence.embeddings import Embeddings
from rocmforge.engine.sequence.sequence import Sequence as EngineSequence
from tests.support.engine.spans import PLACEHOLDER, image, prompt_of
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import contents, continuation, prompt_logprobs
from tests.unit.engine.helpers import Bench, limits, request

BLOCK = 4

# Few different ones, so that many prompts begin alike. The placeholder is a token, too.
SPANS: st.SearchStrategy[list[EmbeddingSpan | TokenSpan]] = st.lists(
    st.sampled_from(
        [
            token_span((1,)),
            token_span((PLACEHOLDER,)),
            token_span((1, PLACEHOLDER, PLACEHOLDER)),
            *(image(0, 1), image(0, 3), image(1, 3), image(0, 9)),
        ]
    ),
    min_size=1,
    max_size=6,
)
PROMPTS = st.builds(lambda spans: prompt_of(*spans), SPANS)
PAIRS = SPANS.flatmap(
    lambda spans: st.tuples(
        st.just(prompt_of(*spans)),
        PROMPTS | st.builds(lambda mixed: prompt_of(*mixed), st.permutations(spans)),
    )
)


def keys_of(prompt: Prompt, block_size: int = BLOCK) -> list[BlockKey]:
    """The keys of a prompt's full blocks."""
    seq = EngineSequence(request(0, prompt, SamplingParams(max_tokens=1)), block_size)
    return [seq.block_key(block) for block in range(len(prompt) // block_size)]


def check_keys(one: Prompt, other: Prompt, block_size: int) -> None:
    """Blocks of two prompts have one key exactly if the prompts are the same up to their ends."""
    first, second = contents(one), contents(other)
    pairs = zip(keys_of(one, block_size), keys_of(other, block_size), strict=False)
    for number, (ours, theirs) in enumerate(pairs, start=1):
        end = number * block_size
        assert (ours == theirs) == (first[:end] == second[:end]), f"block {number - 1}"


@settings(max_examples=3 * settings().max_examples)
@given(PAIRS, st.sampled_from([1, 2, 4, 8]))
def test_blocks_have_one_key_exactly_if_tokens_and_embeddings_so_far_are_the_same(
    pair: tuple[Prompt, Prompt], block_size: int
) -> None:
    check_keys(*pair, block_size)


def _tokens_only(parent: BlockKey, tokens: object, embeddings: bytes) -> BlockKey:
    return chain_key(parent, tokens)  # type: ignore[arg-type]


def _identities_only(self: Embeddings, start: int, end: int) -> bytes:
    return b"".join(span.identity for span, _, _ in self._pieces(start, end))


def _places_only(self: Embeddings, start: int, end: int) -> bytes:
    return repr([(first - start, stop) for _, first, stop in self._pieces(start, end)]).encode()


@pytest.mark.parametrize(
    ("place", "name", "mistake", "one", "other"),
    [
        (
            *(sequence_module, "chain_key", _tokens_only),
            *(prompt_of(image(0, 4)), prompt_of([PLACEHOLDER] * 4)),
        ),
        (
            *(Embeddings, "identity", _places_only),
            *(prompt_of(image(0, 4)), prompt_of(image(1, 4))),
        ),
        (
            *(Embeddings, "identity", _identities_only),
            *(prompt_of([PLACEHOLDER], image(0, 3)), prompt_of(image(0, 3), [PLACEHOLDER])),
        ),
    ],
    ids=["tokens only", "no identities", "no offsets"],
)
def test_a_key_that_left_something_out_would_be_found(
    place: object,
    name: str,
    mistake: Callable[..., bytes],
    one: Prompt,
    other: Prompt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_keys(one, other, BLOCK)
    monkeypatch.setattr(place, name, mistake)
    with pytest.raises(AssertionError, match="block 0"):
        check_keys(one, other, BLOCK)


CONFIGS = st.builds(
    lambda depth, block_size, spare: FakeConfig(
        pipeline_depth=depth,
        block_size=block_size,
        num_blocks=-(-72 // block_size) + spare,  # the longest request just fits
        max_context=72,
        vocab_size=3,  # drafts are often accepted
    ),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0, 3, 500]),
)
LIMITS = st.builds(
    lambda sequences, more, rows: SchedulerLimits(
        max_sequences=sequences,
        max_batched_tokens=sequences + more,
        max_waiting=100,
        max_score_rows=rows,
    ),
    st.integers(1, 6),
    st.integers(0, 40),
    st.sampled_from([1, 7, 100]),
)
SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 20),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    prompt_logprobs=st.sampled_from([-1, -1, 0]),
    prompt_lookup_tokens=st.sampled_from([0, 0, 4]),
    draft_model_tokens=st.sampled_from([0, 3]),
    temperature=st.just(0.0),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 15), PROMPTS, SAMPLINGS), min_size=1, max_size=10),
    CONFIGS,
    LIMITS,
    st.booleans(),
)
def test_no_sequence_ever_reads_the_embeddings_of_another(
    arrivals: list[tuple[int, Prompt, SamplingParams]],
    config: FakeConfig,
    chosen: SchedulerLimits,
    has_draft: bool,
) -> None:
    bench = Bench(config, chosen, draft=config if has_draft else None)
    for step in range(16):
        bench.submit(
            *[
                request(i, prompt, sampling)
                for i, (arrival, prompt, sampling) in enumerate(arrivals)
                if arrival == step
            ]
        )
    bench.finish()
    event(f"preempted: {bench.stats.totals.preemptions > 0}")
    event(f"prefix hit: {bench.stats.totals.prefix_hit_tokens > 0}")
    for i, (_, prompt, sampling) in enumerate(arrivals):
        expected = continuation(contents(prompt), sampling.max_tokens, vocab_size=3)
        assert bench.results[i].token_ids == expected
        if sampling.prompt_logprobs >= 0:
            assert bench.results[i].prompt_scores == expected_scores(prompt)


def expected_scores(prompt: Prompt) -> list[float | None]:
    """What scoring a prompt gives: nothing where a row stands."""
    whole = contents(prompt)
    scores: list[float | None] = list(prompt_logprobs(whole))
    return [
        score if token < 1 << 30 else None for token, score in zip(whole[1:], scores, strict=True)
    ]


def run(
    bench: Bench, number: int, prompt: Prompt, share: Share | None = None, max_tokens: int = 5
) -> int:
    """Runs a request, checks what it gets, and returns how many tokens were found in the cache."""
    asked = request(number, prompt, SamplingParams(max_tokens=max_tokens))
    if share is not None:
        asked = structs.replace(asked, share=share)
    result = bench.run(asked)[number]
    assert result.token_ids == continuation(contents(prompt), max_tokens)
    assert result.last is not None
    return result.last.cached_tokens


BEFORE, BEHIND = [7, 8, 9, 7, 8], [3, 4, 5]
CAT, DOG = image(1, 10), image(2, 10)


@pytest.mark.parametrize(
    ("other", "cached"),
    [
        (prompt_of(BEFORE, CAT, BEHIND), 16),
        (prompt_of(BEFORE, CAT, [6, 6, 6]), 12),
        (prompt_of(BEFORE, DOG, BEHIND), 4),
        (token_prompt([*BEFORE, *[PLACEHOLDER] * 10, *BEHIND]), 4),
        (prompt_of(BEFORE, image(1, 10, placeholder=3), BEHIND), 4),
        (prompt_of(BEFORE[:4], CAT, BEHIND), 4),
        (prompt_of(BEFORE, image(1, 10), BEHIND), 16),
    ],
    ids=[
        *("the same", "other text behind", "another image", "no image", "another placeholder"),
        *("an earlier place", "equal rows"),
    ],
)
def test_a_prompt_finds_the_blocks_that_hold_the_very_same(other: Prompt, cached: int) -> None:
    bench = Bench(FakeConfig(block_size=BLOCK))
    assert run(bench, 0, prompt_of(BEFORE, CAT, BEHIND)) == 0
    assert run(bench, 1, other) == cached


def test_images_are_not_shared_between_keys() -> None:
    bench = Bench(FakeConfig(block_size=BLOCK))
    prompt = prompt_of(CAT, BEHIND)
    assert run(bench, 0, prompt, Share(key=1)) == 0
    assert run(bench, 1, prompt, Share(key=2)) == 0
    assert run(bench, 2, prompt, Share(key=2)) == 12


def test_choices_of_one_prompt_compute_its_image_once() -> None:
    bench = Bench(FakeConfig(block_size=BLOCK))
    prompt = prompt_of(image(3, 40), BEHIND)
    sampling = SamplingParams(max_tokens=5, temperature=1.0)
    results = bench.run(*[request(i, prompt, structs.replace(sampling, seed=i)) for i in range(4)])
    assert bench.stats.totals.prefill_tokens == 43 + 3 * 3
    for seed, result in results.items():
        assert result.token_ids == continuation(contents(prompt), 5, seed=seed)


@pytest.mark.parametrize("budget", range(1, 14))
@pytest.mark.parametrize("depth", [1, 2])
def test_a_chunk_may_begin_and_end_anywhere_in_an_image(budget: int, depth: int) -> None:
    chosen = limits(max_sequences=1, max_batched_tokens=budget)
    bench = Bench(FakeConfig(pipeline_depth=depth), chosen)
    run(bench, 0, prompt_of([5], CAT, [6], DOG))


def test_an_image_that_was_preempted_is_computed_again() -> None:
    bench = Bench(FakeConfig(block_size=BLOCK, num_blocks=12, max_context=48))
    prompts = [prompt_of([5], image(number, 9)) for number in range(4)]
    results = bench.run(
        *[request(i, p, SamplingParams(max_tokens=30)) for i, p in enumerate(prompts)]
    )
    assert bench.stats.totals.preemptions > 0
    for i, prompt in enumerate(prompts):
        assert results[i].token_ids == continuation(contents(prompt), 30)


@pytest.mark.parametrize("done", range(5))
def test_another_engine_goes_on_behind_an_image(done: int) -> None:
    prompt = prompt_of(BEFORE, CAT)
    expected = continuation(contents(prompt), 5)
    whole = request(0, prompt, SamplingParams(max_tokens=5))
    rest = Bench().run(structs.replace(whole, generated_ids=tuple(expected[:done])))[0]
    assert rest.token_ids == expected[done:]


def test_rows_of_embeddings_have_no_log_probability_but_what_follows_them_has() -> None:
    prompt = prompt_of(BEFORE, CAT, BEHIND)
    result = Bench().run(request(0, prompt, SamplingParams(max_tokens=0, prompt_logprobs=0)))[0]
    assert result.prompt_scores == expected_scores(prompt)
    assert [score is None for score in result.prompt_scores] == (
        [False] * 4 + [True] * 10 + [False] * 3
    )


def test_placeholders_are_not_tokens_that_penalties_have_seen() -> None:
    sampling = SamplingParams(max_tokens=4, repetition_penalty=1.5)
    prompt = prompt_of(BEFORE, CAT, BEHIND)
    seq = EngineSequence(request(0, prompt, sampling), BLOCK)
    assert seq.seen is not None
    assert set(seq.seen.tokens.tolist()) == {*BEFORE, *BEHIND}
    Bench().run(request(0, prompt, sampling))  # the fake runner compares them with the cache


def step_of(prompt: Prompt, sampling: SamplingParams) -> tuple[Sequence[int], int, int]:
    """History, number of prompt tokens in it, and window, of the step that ends a prompt."""
    seq = EngineSequence(request(0, prompt, sampling), 16)
    seq.num_blocks = len(seq.block_ids)
    builder = StepBuilder(limits())
    builder.add(seq, len(prompt))
    processors = build_step(0, builder.chunks, 16).sampling.processors
    assert processors is not None
    return (
        processors.history.tolist(),
        int(processors.prompt_lengths[0]),
        int(processors.windows[0]),
    )


@pytest.mark.parametrize(
    ("window", "history"), [(-1, [*BEFORE, *BEHIND]), (4, [8, *BEHIND]), (99, [*BEFORE, *BEHIND])]
)
def test_the_history_of_processors_has_no_placeholders(window: int, history: list[int]) -> None:
    uses = (ProcessorUse(name="any", numbers=(), window=window),)
    found = step_of(prompt_of(BEFORE, CAT, BEHIND), SamplingParams(max_tokens=2, processors=uses))
    assert found == (history, len(history), len(history))


def test_a_draft_model_is_not_asked_behind_an_image() -> None:
    seq = EngineSequence(
        request(0, prompt_of(BEFORE, CAT), SamplingParams(max_tokens=9, draft_model_tokens=3)),
        BLOCK,
    )
    assert seq.drafting is not None
    assert seq.drafting.limits[DraftMethod.MODEL] == 0
    assert seq.drafting.limits[DraftMethod.PREDICTOR] == 3, "it reads states, not the image"


def test_what_is_looked_up_for_drafts_has_no_two_placeholders_alike() -> None:
    seq = EngineSequence(
        request(0, prompt_of(BEFORE, CAT, BEHIND), SamplingParams(max_tokens=9)), BLOCK
    )
    shown = seq.known_tokens
    assert shown[:5].tolist() == BEFORE
    assert shown[15:].tolist() == BEHIND
    assert shown[5:15].max() < 0
    assert len(set(shown[5:15].tolist())) == 10


@pytest.mark.parametrize("kind", list(Pooling))
def test_the_vector_of_a_prompt_counts_its_image(kind: Pooling) -> None:
    sampling = SamplingParams(max_tokens=0, pooling=kind)
    vectors = {}
    for name, prompt in {"cat": prompt_of(CAT), "dog": prompt_of(DOG)}.items():
        last = (
            Bench(scheduler_limits=limits(max_batched_tokens=8))
            .run(request(0, prompt, sampling))[0]
            .last
        )
        assert last is not None
        assert last.embedding is not None
        vectors[name] = np.frombuffer(last.embedding, np.float32)
    assert (vectors["cat"] != vectors["dog"]).any()


def test_the_rows_of_a_step_are_those_of_its_chunks() -> None:
    prompt = prompt_of([5, 6], CAT, [7], DOG)
    seq = EngineSequence(request(0, prompt, SamplingParams(max_tokens=1)), BLOCK)
    seq.num_blocks = len(seq.block_ids)
    seq.num_computed = 9
    text = EngineSequence(request(1, token_prompt([1, 2, 3]), SamplingParams(max_tokens=1)), BLOCK)
    text.num_blocks = len(text.block_ids)
    builder = StepBuilder(limits())
    builder.add(text, 3)
    builder.add(seq, 6)
    step = build_step(0, builder.chunks, BLOCK)
    assert step.embedding_tokens.tolist() == [3, 4, 5, 7, 8]
    for rows, expected in zip(step.embedding_rows, [CAT.values[7:], DOG.values[:2]], strict=True):
        np.testing.assert_array_equal(rows, expected)
    assert step.token_ids.tolist() == [1, 2, 3, 2, 2, 2, 7, 2, 2]


def test_a_prompt_shows_placeholders_where_rows_stand() -> None:
    prompt = prompt_of([5, 6], CAT)
    assert prompt.token_ids == (5, 6, *[PLACEHOLDER] * 10)
    assert len(prompt) == 12
    assert prompt.embeddings == ((2, CAT),)
    assert Prompt(spans=(token_span((5,)),)) == token_prompt([5])
