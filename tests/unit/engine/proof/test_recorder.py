"""Who is drawn, and what is recorded of them."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from rocmforge.engine.ipc.params import (
    FinishReason,
    GenerateRequest,
    Pooling,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
)
from rocmforge.engine.ipc.prompt import Prompt, embedding_span
from rocmforge.engine.proof.messages import Sample
from rocmforge.engine.proof.recorder import LONGEST, TOP, Recorder
from tests.support.requests import asked

KEY = b"k" * 16
FOUND = TokenLogprob(token_id=7, logprob=-1.0, top=tuple((i, -float(i)) for i in range(TOP)))


class Sink:
    """Remembers what it is told."""

    def __init__(self, *, admits: bool = True) -> None:
        self._admits = admits
        self.samples: list[Sample] = []
        self.skipped = 0
        self.nans = 0

    def hand_in(self, sample: Sample) -> None:
        self.samples.append(sample)

    def admits(self, tokens: int) -> bool:
        return self._admits

    def skip(self) -> None:
        self.skipped += 1

    def found_nan(self) -> None:
        self.nans += 1


def request(number: int, sampling: SamplingParams) -> GenerateRequest:
    return structs.replace(asked([1, 2, 3], sampling), request_id=number)


def event(number: int, count: int = 1) -> TokenEvent:
    return TokenEvent(request_id=number, token_ids=(7,) * count, logprobs=(FOUND,) * count)


def test_requests_are_drawn_at_the_rate_and_by_the_key() -> None:
    drawn = []
    for key in (KEY, b"other key of it."):
        recorder = Recorder(0.05, key, Sink())
        opened = (
            recorder.open(request(number, SamplingParams(max_tokens=1))) for number in range(20_000)
        )
        drawn.append({each.request_id for each in opened if each.sampling.num_logprobs == TOP})
    assert [len(each) for each in drawn] == [pytest.approx(1000, abs=120)] * 2
    assert len(drawn[0] & drawn[1]) < 120, "which requests is a matter of the key"


@pytest.mark.parametrize(("asked_for", "shown"), [(-1, None), (0, 0), (5, 5), (TOP, TOP)])
def test_clients_get_the_log_probabilities_they_asked_for(
    asked_for: int, shown: int | None
) -> None:
    sink = Sink()
    recorder = Recorder(1.0, KEY, sink)
    sampling = SamplingParams(max_tokens=4, num_logprobs=asked_for)
    assert recorder.open(request(3, sampling)).sampling.num_logprobs == TOP
    told = recorder.note(event(3))
    assert (None if told.logprobs is None else len(told.logprobs[0].top)) == shown
    recorder.note(event(3, 2))
    recorder.close(3)
    (sample,) = sink.samples
    assert (sample.tokens, sample.first) == ((1, 2, 3, 7, 7, 7), 3)
    assert sample.places == (FOUND,) * 3


def test_nothing_is_recorded_of_others() -> None:
    sink = Sink()
    recorder = Recorder(0.0, KEY, sink)
    mine = request(1, SamplingParams(max_tokens=4, num_logprobs=2))
    assert recorder.open(mine) is mine
    told = event(1)
    assert recorder.note(told) is told
    recorder.close(1)
    recorder = Recorder(1.0, KEY, sink)
    for other in (
        SamplingParams(max_tokens=0, pooling=Pooling.MEAN),
        SamplingParams(max_tokens=0, prompt_logprobs=1),
    ):
        assert recorder.open(request(2, other)).sampling is other
    assert not sink.samples


def test_a_request_that_is_not_admitted_is_served_as_it_is_and_watched_for_nans() -> None:
    sink = Sink(admits=False)
    recorder = Recorder(1.0, KEY, sink)
    mine = request(1, SamplingParams(max_tokens=4))
    assert recorder.open(mine) is mine
    assert recorder.num_recorded == 0
    recorder.note(TokenEvent(request_id=1, finish_reason=FinishReason.ERROR, is_without_token=True))
    assert sink.nans == 1


def test_prompts_with_embeddings_are_skipped_and_counted() -> None:
    sink = Sink()
    recorder = Recorder(1.0, KEY, sink)
    span = embedding_span(np.ones((1, 4), np.float32), placeholder=0)
    with_rows = structs.replace(
        request(1, SamplingParams(max_tokens=1)), prompt=Prompt(spans=(span,))
    )
    assert recorder.open(with_rows) is with_rows
    assert sink.skipped == 1


def test_tokens_behind_the_longest_sequence_are_not_recorded() -> None:
    sink = Sink()
    recorder = Recorder(1.0, KEY, sink)
    recorder.open(request(1, SamplingParams(max_tokens=LONGEST)))
    for _ in range(3):
        recorder.note(event(1, LONGEST // 2))
    recorder.close(1)
    (sample,) = sink.samples
    assert len(sample.tokens) == LONGEST
    assert len(sample.places) == LONGEST - 3


@pytest.mark.parametrize(
    ("sampling", "has_nan"),
    [
        (SamplingParams(max_tokens=9), True),
        (SamplingParams(max_tokens=9, logit_bias=((3, -5.0),)), True),
        (SamplingParams(max_tokens=9, logit_bias=((3, -float("inf")),)), False),
        (SamplingParams(max_tokens=9, grammar="{}"), False),
    ],
)
def test_a_request_that_allows_any_token_and_gets_none_has_met_a_nan(
    sampling: SamplingParams, has_nan: bool
) -> None:
    sink = Sink()
    recorder = Recorder(0.0, KEY, sink)
    recorder.open(request(1, sampling))
    recorder.note(TokenEvent(request_id=1, token_ids=(7, 8)))
    recorder.note(TokenEvent(request_id=1, finish_reason=FinishReason.ERROR, is_without_token=True))
    recorder.close(1)
    assert sink.nans == has_nan
    found = [(each.tokens, each.first, each.is_broken) for each in sink.samples]
    assert found == ([((1, 2, 3, 7, 8), 5, True)] if has_nan else [])
