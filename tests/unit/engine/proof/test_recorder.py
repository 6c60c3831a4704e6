"""Which steps are drawn, and what is recorded in them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec import structs

from rocmforge.engine.ipc.messages import RecordSteps
from rocmforge.engine.ipc.params import (
    FinishReason,
    GenerateRequest,
    Pooling,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
)
from rocmforge.engine.ipc.prompt import Prompt, embedding_span
from rocmforge.engine.ipc.recorded import TOP
from rocmforge.engine.proof.messages import Sample
from rocmforge.engine.proof.recorder import LONGEST, STRETCH, Recorder
from tests.support.engine.recording import rows_of
from tests.support.engine.requests import asked

KEY = b"k" * 16
FOUND = TokenLogprob(token_id=7, logprob=-1.0, top=tuple((i, -float(i)) for i in range(TOP)))


class Sink:
    """Remembers what it is told; has room for so many that are recorded at once."""

    def __init__(self, room: int = 1000) -> None:
        self._room = room
        self.num_recorded: Callable[[], int] = lambda: 0
        self.samples: list[Sample] = []
        self.refused = 0
        self.skipped = 0
        self.nans = 0

    def hand_in(self, sample: Sample) -> None:
        self.samples.append(sample)

    def admits(self, tokens: int) -> bool:
        is_admitted = self.num_recorded() < self._room
        self.refused += not is_admitted
        return is_admitted

    def skip(self) -> None:
        self.skipped += 1

    def found_nan(self) -> None:
        self.nans += 1


def recording(rate: float, sink: Sink, key: bytes = KEY) -> Recorder:
    recorder = Recorder(rate, key, sink)
    sink.num_recorded = lambda: recorder.num_recorded
    return recorder


def request(number: int, sampling: SamplingParams | None = None) -> GenerateRequest:
    sampling = sampling or SamplingParams(max_tokens=9)
    return structs.replace(asked([1, 2, 3], sampling), request_id=number)


def event(number: int, count: int = 1, *, is_recorded: bool = True) -> TokenEvent:
    rows = rows_of([FOUND] * count) if is_recorded else b""
    return TokenEvent(request_id=number, token_ids=(7,) * count, recorded=rows)


def said(recorder: Recorder, steps: int) -> list[RecordSteps]:
    """What the recorder says when so many steps have been computed."""
    told: list[RecordSteps] = []
    recorder.advance(steps, told.append)
    return told


def opened(recorder: Recorder, request: GenerateRequest) -> list[RecordSteps]:
    told: list[RecordSteps] = []
    recorder.open(request, told.append)
    return told


def test_stretches_of_steps_are_drawn_at_the_rate_and_by_the_key() -> None:
    drawn = []
    for key in (KEY, b"other key of it."):
        recorder = recording(0.05, Sink(), key)
        opened(recorder, request(1))
        stretches = range(1, 20_000)
        drawn.append({each for each in stretches if said(recorder, each * STRETCH)})
    assert [len(each) for each in drawn] == [pytest.approx(1000, abs=120)] * 2
    assert len(drawn[0] & drawn[1]) < 120, "which ones is a matter of the key"
    ends = np.array(sorted(drawn[0]))
    assert np.diff(ends, prepend=0, append=20_000).max() < 250, "they lie everywhere"


def test_all_requests_of_a_stretch_are_recorded_together_until_its_end() -> None:
    recorder = recording(1.0, Sink())
    (first,) = opened(recorder, request(1))
    assert (first.requests, first.until) == ((1,), STRETCH)
    (second,) = opened(recorder, request(2))
    assert (second.requests, second.until) == ((1, 2), STRETCH)
    assert said(recorder, 5) == [], "nothing is new"
    (following,) = said(recorder, STRETCH - 1)
    assert (following.requests, following.until) == ((1, 2), 2 * STRETCH)
    recorder.close(1)
    (last,) = said(recorder, 5 * STRETCH)
    assert (last.requests, last.until) == ((2,), 6 * STRETCH)


def test_what_was_recorded_in_a_stretch_is_one_sample() -> None:
    sink = Sink()
    recorder = recording(1.0, sink)
    opened(recorder, request(3))
    recorder.note(event(3, is_recorded=False))
    recorder.note(event(3))
    recorder.note(event(3, 2))
    assert not sink.samples
    recorder.note(event(3, is_recorded=False))
    (sample,) = sink.samples
    assert (sample.number, sample.tokens, sample.first) == (3, (1, 2, 3, 7, 7, 7, 7), 4)
    assert [place.top for place in sample.places()] == [FOUND.top] * 3
    assert {place.token_id for place in sample.places()} == {7}
    recorder.note(event(3))
    recorder.close(3)
    _, behind = sink.samples
    assert (len(behind.tokens), behind.first, behind.num_places) == (9, 8, 1)


def test_a_request_that_goes_on_in_the_next_drawn_stretch_is_one_sample() -> None:
    sink = Sink(room=1)
    recorder = recording(1.0, sink)
    opened(recorder, request(1))
    for _ in range(3):
        recorder.note(event(1))
    (told,) = said(recorder, STRETCH)
    assert told.requests == (1,), "it has its room already"
    recorder.note(event(1))
    recorder.close(1)
    (sample,) = sink.samples
    assert sample.num_places == 4


def test_if_there_is_room_for_some_the_key_chooses_among_those_that_have_begun() -> None:
    chosen = []
    for key in (KEY, b"other key of it."):
        sink = Sink(room=8)
        recorder = recording(1.0, sink, key)
        for number in range(100):
            opened(recorder, request(number))
        for number in range(50):  # the others wait: they may not take all the room
            recorder.note(event(number, is_recorded=False))
        before = sink.refused
        (told,) = said(recorder, STRETCH)
        begun = {each for each in told.requests if each < 50}
        assert len(begun) == 8
        assert sink.refused - before == 100 - len(told.requests)
        chosen.append(begun)
    assert chosen[0] != chosen[1]


def test_room_is_free_again_once_a_sample_is_handed_in() -> None:
    sink = Sink(room=1)
    recorder = recording(1.0, sink)
    opened(recorder, request(1))
    recorder.note(event(1))
    assert not opened(recorder, request(2))
    said(recorder, STRETCH)
    recorder.close(1)
    assert recorder.num_recorded == 0
    assert opened(recorder, request(3))


def test_nothing_is_recorded_of_others() -> None:
    sink = Sink()
    recorder = recording(0.0, sink)
    assert not opened(recorder, request(1))
    assert not said(recorder, STRETCH)
    recorder.note(event(1, is_recorded=False))
    recorder.close(1)
    recorder = recording(1.0, sink)
    for other in (
        SamplingParams(max_tokens=0, pooling=Pooling.MEAN),
        SamplingParams(max_tokens=0, prompt_logprobs=1),
    ):
        assert not opened(recorder, request(2, other))
    assert not sink.samples


def test_a_request_that_is_not_admitted_is_served_as_it_is_and_watched_for_nans() -> None:
    sink = Sink(room=0)
    recorder = recording(1.0, sink)
    assert not opened(recorder, request(1))
    assert (sink.refused, recorder.num_recorded) == (1, 0)
    recorder.note(TokenEvent(request_id=1, finish_reason=FinishReason.ERROR, is_without_token=True))
    assert sink.nans == 1


def test_prompts_with_embeddings_are_skipped_and_counted() -> None:
    sink = Sink()
    recorder = recording(1.0, sink)
    span = embedding_span(np.ones((1, 4), np.float32), placeholder=0)
    assert not opened(recorder, structs.replace(request(1), prompt=Prompt(spans=(span,))))
    assert sink.skipped == 1
    recorder.note(event(1, is_recorded=False))
    recorder.note(TokenEvent(request_id=1, finish_reason=FinishReason.ERROR, is_without_token=True))
    recorder.close(1)
    assert sink.nans == 1, "that needs no computation"
    assert not sink.samples


def test_tokens_behind_the_longest_sequence_are_not_recorded() -> None:
    sink = Sink()
    recorder = recording(1.0, sink)
    opened(recorder, request(1))
    for _ in range(3):
        recorder.note(event(1, LONGEST // 2))
    recorder.close(1)
    (sample,) = sink.samples
    assert len(sample.tokens) == LONGEST
    assert (sample.first, sample.num_places) == (3, LONGEST - 3)


@pytest.mark.parametrize(
    ("sampling", "has_nan"),
    [
        (SamplingParams(max_tokens=9), True),
        (SamplingParams(max_tokens=9, logit_bias=((3, -5.0),)), True),
        (SamplingParams(max_tokens=9, logit_bias=((3, -float("inf")),)), False),
        (SamplingParams(max_tokens=9, grammar="{}"), False),
    ],
)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_request_that_allows_any_token_and_gets_none_has_met_a_nan(
    sampling: SamplingParams, has_nan: bool, is_recorded: bool
) -> None:
    sink = Sink()
    recorder = recording(0.0, sink)
    opened(recorder, request(1, sampling))
    recorder.note(event(1, 2, is_recorded=is_recorded))
    recorder.note(TokenEvent(request_id=1, finish_reason=FinishReason.ERROR, is_without_token=True))
    recorder.close(1)
    assert sink.nans == has_nan
    found = [(each.tokens, each.first, each.is_broken) for each in sink.samples]
    first = 3 if is_recorded else 5
    is_kept = has_nan or is_recorded
    assert found == ([((1, 2, 3, 7, 7), first, has_nan)] if is_kept else [])
