"""Requests with images: a fake tower makes rows that a fake runner hashes out of its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import RunnerInfo
from rocmforge.backend.step import StepInput, StepOutput
from rocmforge.engine.ipc.messages import Cancel
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import ImageSpan, Prompt, embedding_span, image_span, token_span
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.waiting import images
from rocmforge.engine.waiting.images import WaitingImages
from rocmforge.models.vision.config import ProcessorConfig, ProcessorKind, Resampling
from rocmforge.models.vision.image import ImageTile
from tests.support.fakes.fake_backend import FakeConfig
from tests.support.fakes.fake_model import HIDDEN_SIZE, contents, continuation
from tests.unit.engine.helpers import Bench, limits, request

PLACEHOLDER = 2
PROCESSOR = ProcessorConfig(
    kind=ProcessorKind.GEMMA3,
    tile=8,
    resampling=Resampling.BILINEAR,
    patch=2,
    merge=2,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
ROW_BYTES = 4 * PROCESSOR.tile_rows * HIDDEN_SIZE
SHORT = SamplingParams(max_tokens=5)
NAN_IMAGE = 66


def rows_of(patches: bytes) -> np.ndarray:
    """What the fake tower makes of a tile."""
    rng = np.random.default_rng(crc32(patches))
    shape = PROCESSOR.tile_rows, HIDDEN_SIZE
    return rng.standard_normal(shape, dtype=np.float32)


def tile(number: int) -> ImageSpan:
    rows, columns = PROCESSOR.grid
    patches = bytes([number]) * (rows * columns * PROCESSOR.patch_features)
    made = ImageTile(patches=patches, grid=PROCESSOR.grid, num_rows=PROCESSOR.tile_rows)
    return image_span(made, PLACEHOLDER)


class FakeTower:
    """Makes rows of numbers that no other tile has, and counts its steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []  # the number of each tile
        self.made: list[Float32Array] = []  # the rows of each
        self._running: StepInput | None = None

    @property
    def info(self) -> RunnerInfo:
        raise AssertionError("nobody asks")

    def submit(self, step: StepInput) -> None:
        assert self._running is None, "one at a time"
        assert step.hidden_ranges.tolist() == [[4 * n, 4 * n + 4] for n in range(4)]
        assert sorted(step.token_ids.tolist()) == list(range(16))
        self._running = step

    def collect(self) -> StepOutput:
        step, self._running = self._running, None
        assert step is not None
        number = round((float(step.patches[0, 0]) * 0.5 + 0.5) * 255)
        self.steps.append(number)
        hidden = rows_of(bytes([number]) * step.patches.size)
        if number == NAN_IMAGE:
            hidden[1, 0] = np.nan
        self.made.append(hidden)
        return StepOutput(
            step_id=step.step_id,
            token_ids=np.zeros(0, np.int32),
            logprobs=None,
            top_ids=None,
            top_logprobs=None,
            device_ns=1000,
            hidden=hidden,
        )

    def close(self) -> None:
        pass


class Shown:
    """A bench with a tower."""

    def __init__(self, kept: int = 8, config: FakeConfig | None = None) -> None:
        self.tower = FakeTower()
        totals = Totals()
        images = WaitingImages(self.tower, PROCESSOR, totals, kept * ROW_BYTES)
        self.bench = Bench(config, limits(), images=images, totals=totals)

    def answer(self, number: int, *parts: Sequence[int] | int) -> list[int]:
        return self.bench.run(asked(number, *parts))[number].token_ids


def prompt_of(*parts: Sequence[int] | int) -> Prompt:
    return Prompt(
        spans=tuple(tile(part) if isinstance(part, int) else token_span(part) for part in parts)
    )


def asked(
    number: int, *parts: Sequence[int] | int, sampling: SamplingParams = SHORT
) -> GenerateRequest:
    return request(number, prompt_of(*parts), sampling)


def expected(*parts: Sequence[int] | int, count: int = 5) -> list[int]:
    """The tokens of a prompt in which the rows stood from the beginning."""
    spans = [
        embedding_span(rows_of(span.patches), PLACEHOLDER) if isinstance(span, ImageSpan) else span
        for span in prompt_of(*parts).spans
    ]
    return continuation(contents(Prompt(spans=tuple(spans))), count)


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_are_those_of_prompts_with_the_rows(depth: int) -> None:
    shown = Shown(config=FakeConfig(pipeline_depth=depth))
    assert shown.answer(0, [5, 6], 7, [8]) == expected([5, 6], 7, [8])


def test_different_images_behind_one_text_have_different_answers() -> None:
    shown = Shown(config=FakeConfig(block_size=4))
    found = [shown.answer(number, [5, 6, 7, 8], number, [3, 4]) for number in range(3)]
    assert found == [expected([5, 6, 7, 8], number, [3, 4]) for number in range(3)]
    assert len(set(map(tuple, found))) == 3


def test_lines_of_an_image_have_tokens_between_them() -> None:
    lined = structs.replace(tile(1), lines=2, breaks=(3, 4))
    prompt = Prompt(spans=(token_span((5, 6)), lined, token_span((7,))))
    assert prompt.token_ids == (5, 6, 2, 2, 3, 4, 2, 2, 7)
    rows = rows_of(lined.patches)
    first, second = (embedding_span(part, PLACEHOLDER) for part in (rows[:2], rows[2:]))
    spans = (prompt.spans[0], first, token_span((3, 4)), second, prompt.spans[2])
    shown = Shown(config=FakeConfig(block_size=4))
    wanted = continuation(contents(Prompt(spans=spans)), 5)
    for number, cached in enumerate((0, 8)):
        found = shown.bench.run(request(number, prompt, SHORT))[number]
        assert found.token_ids == wanted
        assert found.last is not None
        assert found.last.cached_tokens == cached
    other = structs.replace(lined, breaks=(), lines=1)
    assert shown.bench.run(request(2, Prompt(spans=(other,)), SHORT))[2].token_ids == expected(1)
    assert shown.tower.steps == [1]


def test_an_image_is_computed_once_however_often_it_is_shown() -> None:
    shown = Shown(config=FakeConfig(block_size=4))
    assert shown.answer(0, 1, [5], 1) == expected(1, [5], 1)
    assert shown.answer(1, [9], 1) == expected([9], 1)
    first, second = asked(2, 2, [1]), asked(3, 2, 1)
    shown.bench.run(first, second)
    assert shown.tower.steps == [1, 2]
    totals = shown.bench.stats.totals
    assert (totals.image_tiles, totals.images_found, totals.tower_ns) == (2, 2, 2000)


def test_rows_of_a_tower_reach_the_model_without_a_copy() -> None:
    shown = Shown(config=FakeConfig(block_size=4))
    steps: list[StepInput] = []
    submit = shown.bench.runner.submit

    def watch(step: StepInput) -> None:
        steps.append(step)
        submit(step)

    shown.bench.runner.submit = watch  # type: ignore[method-assign]
    for number in range(2):  # the second one finds them among those that are kept
        shown.answer(number, [number], 1, [5], 2)
    pieces = [piece for step in steps for piece in step.embedding_rows]
    assert sum(map(len, pieces)) == 4 * PROCESSOR.tile_rows
    for piece in pieces:
        assert any(np.shares_memory(piece, rows) for rows in shown.tower.made)


def test_an_image_in_the_prefix_cache_is_found_there() -> None:
    shown = Shown(config=FakeConfig(block_size=4))
    shown.answer(0, [5, 6, 7, 8], 1, [3, 4])
    shown.answer(1, [5, 6, 7, 8], 1, [9])
    last = shown.bench.results[1].last
    assert last is not None
    assert last.cached_tokens == 8


def test_rows_are_kept_within_a_bound_and_those_shown_last_stay() -> None:
    shown = Shown(kept=2)
    for number, image in enumerate([1, 2, 1, 3, 1, 2]):
        shown.answer(number, [5], image)
    assert shown.tower.steps == [1, 2, 3, 2]


def test_a_request_keeps_its_rows_while_it_waits_for_others() -> None:
    shown = Shown(kept=1)
    parts = [part for number in range(5) for part in (number, [9])]
    assert shown.answer(0, *parts) == expected(*parts)


def test_sequences_go_on_while_a_tower_works() -> None:
    """One tile between two steps: somebody's next token waits for no more."""
    shown = Shown()
    running = request(0, Prompt(spans=(token_span((5, 6)),)), SamplingParams(max_tokens=50))
    shown.bench.submit(running)
    shown.bench.submit(asked(1, *range(10, 16), [9]))
    for count in range(2, 8):
        assert len(shown.tower.steps) == count - 2
        assert len(shown.bench.results[0].token_ids) == count
        shown.bench.step()
    results = shown.bench.finish()
    assert results[1].token_ids == expected(*range(10, 16), [9])


def test_a_request_may_end_while_it_waits() -> None:
    shown = Shown()
    late = structs.replace(asked(2, 3, 4, [9]), deadline_ns=3)
    shown.bench.submit(asked(1, 1, 2, [9]), late)
    shown.bench.step(Cancel(request_id=1))
    results = shown.bench.finish()
    ends = [results[number].last for number in (1, 2)]
    assert [end and end.finish_reason for end in ends] == [
        FinishReason.CANCELLED,
        FinishReason.DEADLINE,
    ]
    assert shown.answer(3, 1, [9]) == expected(1, [9])
    assert shown.tower.steps == [1]  # which had begun for the first of them


def test_an_image_that_becomes_nan_ends_those_who_show_it() -> None:
    shown = Shown()
    results = shown.bench.run(asked(0, NAN_IMAGE, [9]), asked(1, 1, [9]))
    last = results[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.ERROR
    assert "NaN or infinity" in (last.error or "")
    assert results[1].token_ids == expected(1, [9])


def test_the_next_image_is_prepared_while_the_tower_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, seen = Shown(), list[str]()

    def logged(what: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def outer(*args: Any) -> Any:
            seen.append(what)
            return inner(*args)

        return outer

    monkeypatch.setattr(images, "image_step", logged("prepare", images.image_step))
    for name in ("submit", "collect"):
        monkeypatch.setattr(shown.tower, name, logged(name, getattr(shown.tower, name)))
    results = shown.bench.run(asked(0, 7, [9]), asked(1, 8, [9]))
    assert seen == ["prepare", "submit", "prepare", "collect", "submit", "collect"]
    assert [results[number].token_ids for number in (0, 1)] == [
        expected(number, [9]) for number in (7, 8)
    ]


def test_an_image_that_nobody_asks_for_any_more_costs_no_tower() -> None:
    shown = Shown()
    results = shown.bench.run(asked(0, NAN_IMAGE, 7, [9]), asked(1, 8, [9]))
    assert results[0].last is not None
    assert results[0].last.finish_reason is FinishReason.ERROR
    assert results[1].token_ids == expected(8, [9])
    assert shown.tower.steps == [NAN_IMAGE, 8]


def test_a_request_that_is_resumed_goes_on_from_its_tokens() -> None:
    whole = expected([5], 1, [6], count=12)
    shown = Shown()
    sampling = SamplingParams(max_tokens=12)
    again = structs.replace(
        asked(0, [5], 1, [6], sampling=sampling), generated_ids=tuple(whole[:7])
    )
    assert shown.bench.run(again)[0].token_ids == whole[7:]


CONVERSATIONS = 8
LONG = SamplingParams(max_tokens=14)


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(
        st.lists(st.integers(0, 3), min_size=1, max_size=3),
        min_size=CONVERSATIONS,
        max_size=CONVERSATIONS,
    ),
    arrivals=st.lists(st.integers(0, 12), min_size=CONVERSATIONS, max_size=CONVERSATIONS),
    cancelled=st.dictionaries(st.integers(0, CONVERSATIONS - 1), st.integers(0, 30), max_size=3),
    killed=st.none() | st.integers(1, 30),
    blocks=st.sampled_from([24, 30, 200]),
    depth=st.sampled_from([1, 2]),
)
def test_conversations_with_images_are_answered_as_alone_whatever_happens(
    parts: list[list[int]],
    arrivals: list[int],
    cancelled: dict[int, int],
    killed: int | None,
    blocks: int,
    depth: int,
) -> None:
    """They arrive at any time, are preempted, cancelled, and go on in another engine."""
    # The same text before different images, and the same image in several places.
    prompts: list[list[Sequence[int] | int]] = [
        [[5, 6, 7, 8, 9], *tiles, [number, 3]] for number, tiles in enumerate(parts)
    ]
    answers = [expected(*prompt, count=LONG.max_tokens) for prompt in prompts]
    config = FakeConfig(block_size=4, num_blocks=blocks, pipeline_depth=depth)
    shown, said = Shown(config=config), [list[int]() for _ in prompts]
    ended: set[int] = set()

    def note() -> None:
        for number, result in shown.bench.results.items():
            said[number] += result.token_ids
            result.token_ids.clear()
            if result.last is not None:
                ended.add(number)

    def submitted(number: int) -> GenerateRequest:
        again = tuple(said[number])
        return structs.replace(asked(number, *prompts[number], sampling=LONG), generated_ids=again)

    step = 0
    while step <= max(arrivals) or shown.bench.core.has_work:
        if step == killed:
            waiting = [number for number in shown.bench.results if number not in ended]
            shown = Shown(config=config)
            shown.bench.submit(*map(submitted, waiting))
            note()
        shown.bench.step(
            *(submitted(number) for number, at in enumerate(arrivals) if at == step),
            *(Cancel(request_id=number) for number, at in cancelled.items() if at == step),
        )
        note()
        step += 1
    for number, answer in enumerate(answers):
        if number in cancelled:
            assert said[number] == answer[: len(said[number])]
        else:
            assert said[number] == answer
    computed = len(shown.tower.steps)
    assert computed == len(set(shown.tower.steps)), "a tile was computed twice"
    assert shown.answer(99, *prompts[0]) == answers[0][: SHORT.max_tokens]
    known = set(shown.tower.steps[:computed])
    assert known.isdisjoint(shown.tower.steps[computed:]), "a second look costs no tower"


def test_everybody_ends_with_the_engine() -> None:
    shown = Shown()
    shown.bench.submit(asked(0, 1, 2, [9]))
    fatal = shown.bench.core.fail("the device is gone")
    assert [event.finish_reason for event in fatal.events] == [FinishReason.DIED]
