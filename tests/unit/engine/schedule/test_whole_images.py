"""Rows that see each other both ways: no step computes a part of them, and all are computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rocmforge.backend.step import StepInput
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.prompt import EmbeddingSpan, Prompt, TokenSpan, token_span
from rocmforge.engine.schedule.limits import SchedulerLimits
from rocmforge.engine.sequence.embeddings import Embeddings
from rocmforge.errors import ConfigurationError
from tests.support.engine.spans import image, prompt_of
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import contents, continuation
from tests.unit.engine.helpers import Bench, request

ROWS = 40


def whole(number: int, rows: int = ROWS) -> EmbeddingSpan:
    return structs.replace(image(number, rows), both_ways=True)


def text(count: int, first: int = 5) -> TokenSpan:
    return token_span(range(first, first + count))


def limits(tokens: int, sequences: int = 4, stall_ns: int = 0) -> SchedulerLimits:
    return SchedulerLimits(
        max_sequences=sequences,
        max_batched_tokens=tokens,
        max_waiting=1000,
        whole_rows=ROWS,
        max_stall_ns=stall_ns,
    )


class Watched:
    """A bench whose steps are looked at: where does each sequence's part of it end?"""

    def __init__(self, config: FakeConfig, scheduler_limits: SchedulerLimits) -> None:
        self.bench = Bench(config, scheduler_limits)
        self.steps: list[StepInput] = []
        submit = self.bench.runner.submit

        def watch(step: StepInput) -> None:
            self.steps.append(step)
            submit(step)

        self.bench.runner.submit = watch  # type: ignore[method-assign]

    def answers(self, prompts: Sequence[Prompt], count: int = 5) -> list[list[int]]:
        sampling = SamplingParams(max_tokens=count)
        asked = [request(number, prompt, sampling) for number, prompt in enumerate(prompts)]
        results = self.bench.run(*asked)
        return [results[number].token_ids for number in range(len(prompts))]


def expected(prompts: Sequence[Prompt], count: int = 5) -> list[list[int]]:
    return [continuation(contents(prompt), count) for prompt in prompts]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=2, max_size=5),
    tokens=st.integers(ROWS + 4, 3 * ROWS),
    stall_ns=st.sampled_from([0, 2000]),
    blocks=st.sampled_from([24, 200]),
)
def test_no_step_ends_within_an_image_and_every_prompt_is_answered(
    lengths: list[int], tokens: int, stall_ns: int, blocks: int
) -> None:
    config = FakeConfig(block_size=16, num_blocks=blocks, token_ns=50, is_measured=True)
    watched = Watched(config, limits(tokens, stall_ns=stall_ns))
    prompts = [
        prompt_of(text(length), whole(number % 2), text(3, number), whole(2), text(2))
        for number, length in enumerate(lengths)
    ]
    assert watched.answers(prompts) == expected(prompts)
    for step in watched.steps:
        assert len(step.seen_ends) in (0, step.num_tokens)
        for place, end in zip(step.query_start[1:] - 1, step.context_len, strict=True):
            seen = step.seen_ends[place] if len(step.seen_ends) else end
            assert seen == end, "the last row of a chunk sees tokens that are not there"


def test_a_prompt_that_is_found_up_to_the_middle_of_an_image_goes_on_there() -> None:
    """Blocks that hold some rows were computed with all of them, and their keys say with which."""
    watched = Watched(FakeConfig(block_size=16), limits(64))
    prompts = [prompt_of(text(4), whole(0), text(9, number)) for number in (100, 200)]
    watched.answers(prompts[:1])
    first = request(7, prompts[1], SamplingParams(max_tokens=5))
    found = watched.bench.run(first)[7]
    assert found.token_ids == expected(prompts[1:])[0]
    assert found.last is not None
    assert found.last.cached_tokens == 32
    (step,) = (step for step in watched.steps if step.positions[0] == 32)
    assert step.seen_ends.tolist() == [44] * 12 + list(range(45, 54))


def test_another_image_in_its_place_is_not_found() -> None:
    watched = Watched(FakeConfig(block_size=16), limits(64))
    prompts = [prompt_of(text(4), whole(number), text(9)) for number in (0, 1)]
    watched.answers(prompts[:1])
    found = watched.bench.run(request(7, prompts[1], SamplingParams(max_tokens=5)))[7]
    assert found.last is not None
    assert found.last.cached_tokens == 0


def test_an_image_that_takes_longer_than_the_stall_is_computed_all_the_same() -> None:
    config = FakeConfig(block_size=16, step_ns=1000, token_ns=1000, is_measured=True)
    watched = Watched(config, limits(128, stall_ns=3000))
    running = request(0, prompt_of(text(5)), SamplingParams(max_tokens=60))
    watched.bench.submit(running)
    for _ in range(5):
        watched.bench.step()
    prompt = prompt_of(whole(0), text(4), whole(1), text(2))
    watched.bench.submit(request(1, prompt, SamplingParams(max_tokens=2)))
    for _ in range(12):
        watched.bench.step()
    assert watched.bench.results[1].token_ids == continuation(contents(prompt), 2)


def test_others_that_overtake_leave_room_for_an_image() -> None:
    """Half of the step would be too little for it, for as long as short prompts come."""
    config = FakeConfig(block_size=16, is_measured=True)
    watched = Watched(config, limits(ROWS + 12, sequences=8, stall_ns=10**9))
    bench = watched.bench
    long = prompt_of(text(100), *(part for n in range(3) for part in (whole(n), text(2))))
    bench.submit(request(0, long, SamplingParams(max_tokens=1)))
    number = 0
    while bench.results[0].last is None and number < 40:
        number += 2
        bench.submit(
            *(
                request(each, prompt_of(text(30, 7 * each)), SamplingParams(max_tokens=1))
                for each in (number, number + 1)
            )
        )
    assert number < 40
    bench.finish()


@pytest.mark.parametrize(
    ("start", "end", "last", "needed", "seen"),
    [
        (0, 3, 3, 1, None),
        (0, 4, 4, 1, None),
        (0, 5, 4, 1, [1, 2, 3, 4, 44]),
        (0, 44, 44, 1, [1, 2, 3, 4, *[44] * 40]),
        (4, 44, 44, 44, [44] * 40),
        (4, 43, 4, 44, [44] * 39),
        (20, 44, 44, 44, [44] * 24),
        (20, 43, 20, 44, [44] * 23),
        (43, 44, 44, 44, [44]),
        (43, 46, 46, 44, [44, 45, 46]),
        (44, 46, 46, 45, None),
    ],
)
def test_where_a_chunk_may_end(
    start: int, end: int, last: int, needed: int, seen: list[int] | None
) -> None:
    embeddings = Embeddings(prompt_of(text(4), whole(0), text(9)))
    assert embeddings.whole_end(start, end) == last
    assert embeddings.needed_end(start) == needed
    found = embeddings.seen_ends(start, end)
    assert (None if found is None else found.tolist()) == seen


def test_rows_that_see_one_way_may_be_cut() -> None:
    embeddings = Embeddings(prompt_of(text(4), image(0, ROWS), text(9)))
    assert embeddings.whole_end(0, 20) == 20
    assert embeddings.needed_end(4) == 5
    assert embeddings.seen_ends(0, 53) is None


def test_a_step_that_has_no_room_for_an_image_beside_its_sequences_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="room for the 40 rows of an image"):
        limits(ROWS + 3, sequences=4)
    assert np.array_equal(limits(ROWS + 4).whole_rows, ROWS)
