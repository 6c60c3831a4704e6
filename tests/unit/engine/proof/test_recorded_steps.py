"""Recorder and engine together: which steps ask for log-probabilities, and what is told of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from rocmforge.backend.step import StepInput
from rocmforge.engine.ipc.messages import Command, RecordSteps
from rocmforge.engine.ipc.params import SamplingParams, TokenEvent, TokenLogprob
from rocmforge.engine.proof.messages import Sample
from rocmforge.engine.proof.recorder import STRETCH, Recorder
from tests.support.engine.core import make_core, submits
from tests.support.fakes.fake_backend import FakeConfig, FakeRunner
from tests.support.fakes.fake_model import continuation
from tests.unit.engine.helpers import options

KEY = b"k" * 16
STREAMS = 64
ANSWER = 50
VOCABULARY = 20  # so few that texts repeat, and drafts are made
PROMPT = (5, 6, 7, 5, 6, 7, 5, 6)


class Counting(FakeRunner):
    """Counts steps by the rows of them whose log-probabilities are wanted, and by all rows."""

    def __init__(self) -> None:
        chosen = options(STREAMS)
        super().__init__(
            FakeConfig(pipeline_depth=2, vocab_size=VOCABULARY),
            chosen.max_context,
            chosen.max_sequences,
            chosen.max_batched_tokens,
        )
        self.asked: Counter[tuple[int, int]] = Counter()

    def submit(self, step: StepInput) -> None:
        wants = step.sampling.num_logprobs >= 0
        self.asked[int(wants.sum()), len(wants)] += 1
        super().submit(step)


@dataclass
class Served:
    """Streams of one request after the other, seen by a recorder as a server's are."""

    samples: list[Sample] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    told: list[RecordSteps] = field(default_factory=list)
    asked: Counter[tuple[int, int]] = field(default_factory=Counter)

    def hand_in(self, sample: Sample) -> None:
        self.samples.append(sample)

    def admits(self, tokens: int) -> bool:
        return True

    def skip(self) -> None:
        raise AssertionError("there are no embeddings")

    def found_nan(self) -> None:
        raise AssertionError("there are no NaNs")


def serve(rate: float, steps: int, sampling: SamplingParams, num_streams: int = STREAMS) -> Served:
    served, runner, core_options = Served(), Counting(), options(STREAMS)
    recorder, core = Recorder(rate, KEY, served), make_core(runner, core_options)
    served.asked = runner.asked
    commands: list[Command] = []

    def send(record: RecordSteps) -> None:
        served.told.append(record)
        commands.append(record)

    def start(number: int) -> None:
        stream = (*PROMPT, number % 100, number // 100)
        length = sampling.max_tokens + number % 7
        (request,) = submits([(stream, structs.replace(sampling, max_tokens=length))])
        request = structs.replace(request, request_id=number)
        recorder.open(request, send)
        served.tokens[number], served.logprobs[number] = [*stream], []
        commands.append(request)

    def take(event: TokenEvent) -> None:
        assert event.error is None
        recorder.note(event)
        served.tokens[event.request_id] += event.token_ids
        served.logprobs[event.request_id] += event.logprobs or ()
        if event.finish_reason is not None:
            recorder.close(event.request_id)
            if count < steps:
                start(len(served.tokens))

    count = 0
    for number in range(num_streams):
        start(number)
    while commands or core.has_work:
        report = core.step([commands.pop(0) for _ in range(len(commands))])
        count = report.stats.totals.steps
        for event in report.events:
            take(event)
        recorder.advance(count, send)
    return served


def test_a_drawn_stretch_has_all_recorded_rows_of_its_steps_and_other_steps_have_none() -> None:
    served = serve(0.3, 4 * STRETCH, SamplingParams(max_tokens=ANSWER))
    ends, steps = {record.until for record in served.told}, served.asked.total()
    drawn = sum(min(end, steps) - (end - STRETCH) for end in ends)
    recorded = sum(count for (rows, _), count in served.asked.items() if rows)
    assert 0 < drawn < steps - STRETCH
    assert recorded == pytest.approx(drawn, abs=4 * len(ends))
    rows = sum(rows * count for (rows, _), count in served.asked.items())
    assert rows > 0.95 * sum(every * count for (rows, every), count in served.asked.items() if rows)
    assert sum(sample.num_places for sample in served.samples) == pytest.approx(rows, abs=STREAMS)
    firsts = Counter(sample.first - len(PROMPT) - 2 for sample in served.samples)
    assert firsts[0] > STREAMS, "requests that begin in a stretch are recorded from their beginning"
    assert len(firsts) > 10, "others where they are"


def test_at_a_rate_of_one_every_token_is_recorded_and_none_is_another() -> None:
    sampling = SamplingParams(max_tokens=3 * STRETCH, prompt_lookup_tokens=2)
    served, plain = (serve(rate, 1, sampling, num_streams=3) for rate in (1.0, 0.0))
    assert served.tokens == plain.tokens
    assert [sample.first for sample in served.samples] == [10] * 3
    assert sorted(sample.num_places - 3 * STRETCH for sample in served.samples) == [0, 1, 2]
    assert {sample.tokens for sample in served.samples} == {
        tuple(tokens) for tokens in plain.tokens.values()
    }
    assert not plain.samples
    assert {rows for rows, _ in plain.asked} == {0}
    assert served.tokens[0][10:] == continuation(
        served.tokens[0][:10], 3 * STRETCH, vocab_size=VOCABULARY
    )


def test_clients_get_the_log_probabilities_they_asked_for_and_the_sample_has_its_own() -> None:
    as_many = serve(0.0, 1, SamplingParams(max_tokens=20, num_logprobs=20), num_streams=1)
    for asked in (3, 25):
        served = serve(1.0, 1, SamplingParams(max_tokens=20, num_logprobs=asked), num_streams=1)
        assert [len(found.top) for found in served.logprobs[0]] == [asked] * 20
        (sample,) = served.samples
        assert [each.top for each in sample.places()] == [each.top for each in as_many.logprobs[0]]
        assert [each.token_id for each in sample.places()] == served.tokens[0][10:]
