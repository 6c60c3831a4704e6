"""Messages survive the wire however it cuts them; garbage does not get through."""

from __future__ import annotations

import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rocmforge import errors
from rocmforge.engine.ipc import wire
from rocmforge.engine.ipc.messages import (
    Cancel,
    Command,
    Fatal,
    LoadFailed,
    Progress,
    RecordSteps,
    Report,
    Shutdown,
    Start,
    StepReport,
    describe_error,
    rebuild_error,
)
from rocmforge.engine.ipc.params import (
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
    TokenPieces,
)
from rocmforge.engine.ipc.status import EngineStats
from rocmforge.engine.ipc.totals import Totals
from rocmforge.engine.ipc.wire import FrameReader, encode
from rocmforge.errors import BadGguf, EngineError, ModelNotFound, RocmForgeError
from tests.support.engine.spans import image, prompt_of
from tests.unit.engine.helpers import options, request

COMMANDS: list[Command] = [
    Start(
        backend="auto",
        model="m.gguf",
        options=options(),
        max_waiting=1,
        max_score_rows=2,
        max_stall_ns=3,
        prefix_cache=True,
        log_level="INFO",
        log_format="text",
        totals=Totals(steps=5),
        vocabulary=TokenPieces(pieces=(b"a", b"\xff"), special_ids=(1,), eos_ids=(1,)),
    ),
    request(
        3,
        [1, 2, 3],
        SamplingParams(max_tokens=4, seed=2**64 - 1, logit_bias=((1, -float("inf")),)),
        deadline_ns=2**62,
    ),
    request(4, prompt_of([1, 2], image(1, 3), [4]), SamplingParams(max_tokens=4)),
    Cancel(request_id=3),
    RecordSteps(requests=(3, 4), until=128),
    Shutdown(),
]
REPORTS: list[Report] = [
    Progress(stage="reading", fraction=0.5),
    LoadFailed(kind="BadGguf", message="no", fields={"offset": 3, "path": "m"}),
    StepReport(
        events=(
            TokenEvent(request_id=1, token_ids=(4,), recorded=bytes(range(160))),
            TokenEvent(
                request_id=2,
                logprobs=(TokenLogprob(token_id=1, logprob=-0.5, top=((1, -0.5),)),),
                prompt_logprobs=(None, TokenLogprob(token_id=1, logprob=-0.5, top=())),
                finish_reason=FinishReason.STOP,
            ),
        ),
        stats=EngineStats(running=2),
    ),
    Fatal(message="gone", events=()),
]


@given(st.lists(st.sampled_from(COMMANDS)), st.lists(st.integers(1, 40), min_size=1))
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(
    messages: list[Command], sizes: list[int]
) -> None:
    reader: FrameReader[Command] = FrameReader(Command)
    data = b"".join(encode(message) for message in messages)
    received: list[Command] = []
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        received.extend(reader.feed(data[:size]))
        data = data[size:]
        turn += 1
    assert received == messages


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_every_report_survives(report: Report) -> None:
    reader: FrameReader[Report] = FrameReader(Report)
    assert list(reader.feed(encode(report))) == [report]


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waits_for_more(data: bytes) -> None:
    reader: FrameReader[Command] = FrameReader(Command)
    try:
        messages = list(reader.feed(data))
    except EngineError:
        return
    assert all(isinstance(message, msgspec.Struct) for message in messages)


def test_the_rows_of_many_images_fit_into_a_message() -> None:
    span = image(1, 1)
    rows = bytes(64 << 20)
    large = structs.replace(span, rows=memoryview(rows), num_rows=len(rows) // len(span.rows))
    data = encode(request(1, prompt_of([1], large), SamplingParams(max_tokens=4)))
    reader: FrameReader[Command] = FrameReader(Command)
    pieces = (data[start : start + (1 << 20)] for start in range(0, len(data), 1 << 20))
    (message,) = [message for piece in pieces for message in reader.feed(piece)]
    assert isinstance(message, GenerateRequest)
    assert message.prompt.spans[1] == large


def test_an_announced_length_beyond_the_bound_is_refused_at_once() -> None:
    reader: FrameReader[Command] = FrameReader(Command)
    with pytest.raises(EngineError, match="4294967295 bytes"):
        list(reader.feed(b"\xff\xff\xff\xff"))


def test_a_message_beyond_the_bound_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 10)
    with pytest.raises(EngineError, match="Progress of"):
        encode(Progress(stage="x" * 100, fraction=0.0))


def test_an_error_keeps_its_class_text_and_fields_across_the_process_boundary() -> None:
    for error in (
        BadGguf("m.gguf", "truncated", offset=12),
        ModelNotFound("a", ("b", "c")),
        errors.QueueFull("full", retry_after_s=1.5),
    ):
        (failure,) = FrameReader[Report](Report).feed(encode(describe_error(error)))
        assert isinstance(failure, LoadFailed)
        rebuilt = rebuild_error(failure)
        assert type(rebuilt) is type(error)
        assert str(rebuilt) == str(error)
        assert vars(rebuilt) == vars(error)


def test_every_error_class_can_be_rebuilt() -> None:
    classes = [
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, RocmForgeError)
    ]
    assert len(classes) > 20
    for each in classes:
        rebuilt = rebuild_error(LoadFailed(kind=each.__name__, message="text", fields={}))
        assert type(rebuilt) is each
        assert str(rebuilt) == "text"
