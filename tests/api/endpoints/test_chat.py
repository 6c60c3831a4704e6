"""POST /v1/chat/completions: what is asked of the engine, and what clients get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from litestar.testing import TestClient

from rocmforge.api.chat import ChatWriter
from rocmforge.api.generate.generation import Piece
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.api.generate.schema import ChatRequest
from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.params import FinishReason, SamplingParams, TokenEvent
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.errors import EngineDied, QueueFull
from rocmforge.text.template.template import ChatTemplates
from tests.api import tiny
from tests.api.fake_engine import (
    MAX_CONTEXT,
    FakeEngine,
    build_app,
    make_model,
    requested,
    say,
    scored,
)
from tests.api.sse import chunks, events

HELLO, WORLD, END = 262, 267, tiny.IM_END


def tokens(text: str, *, special: bool = False) -> list[int]:
    return make_model(FakeEngine()).tokenizer.encode(text, parse_special=special)


def contents(found: list[Any], index: int = 0) -> str:
    deltas = [c["choices"][0] for c in found if c["choices"]]
    return "".join(d["delta"].get("content", "") for d in deltas if d["index"] == index)


def test_a_plain_answer_has_openais_shape(chat: Any) -> None:
    response = chat()
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert body == {
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "system_fingerprint": "rocmforge-0.1.0-fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 16,
            "completion_tokens": 3,
            "total_tokens": 19,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


def test_a_stream_sends_role_text_end_and_done(chat: Any) -> None:
    response = chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = chunks(response.text)
    assert [c["choices"][0]["delta"] for c in found] == [
        {"role": "assistant", "content": ""},
        {"content": "hello"},
        {"content": " world"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in found] == [None, None, None, "stop"]
    assert all(c["object"] == "chat.completion.chunk" for c in found)
    assert all("usage" not in c for c in found)


def test_all_chunks_of_a_stream_share_id_and_creation_time(chat: Any) -> None:
    response = chat(stream=True, n=2, stream_options={"include_usage": True})
    found = chunks(response.text)
    assert {c["id"] for c in found} == {response.headers["x-request-id"]}
    assert {c["created"] for c in found} == {1_700_000_000}
    assert {c["model"] for c in found} == {"tiny"}


def test_usage_comes_last_without_choices_and_only_if_asked_for(chat: Any) -> None:
    found = chunks(chat(stream=True, stream_options={"include_usage": True}).text)
    assert [c["usage"] for c in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == 3


def test_usage_so_far_is_in_every_chunk_if_asked_for(chat: Any, engine: FakeEngine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = chunks(chat(stream=True, n=2, stream_options=options).text)
    prompt_tokens = len(engine.submitted[0].prompt.token_ids)
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert set(counts) == set(range(1, 7))
    for chunk in found:
        assert chunk["usage"]["prompt_tokens"] == prompt_tokens
        assert chunk["usage"]["total_tokens"] == prompt_tokens + chunk["usage"]["completion_tokens"]
    assert contents(found[:-1], 1) == "hello world"
    unasked = chunks(chat(stream=True, stream_options={"continuous_usage_stats": True}).text)
    assert all("usage" not in chunk for chunk in unasked)


def test_streamed_and_plain_answers_are_equal(chat: Any) -> None:
    plain = chat().json()["choices"][0]["message"]["content"]
    assert contents(chunks(chat(stream=True).text)) == plain


def test_the_conversation_goes_through_the_template(chat: Any, engine: FakeEngine) -> None:
    chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c", "name": "kim"},
        ]
    )
    expected = (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    assert list(engine.submitted[0].prompt.token_ids) == tokens(expected, special=True)


def test_tool_messages_in_the_history_are_accepted(chat: Any, engine: FakeEngine) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{broken"}}
    response = chat(
        messages=[
            {"role": "user", "content": "use it"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]
    )
    assert response.status_code == 200
    expected = "<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\n42<|im_end|>\n"
    ids = list(engine.submitted[0].prompt.token_ids)
    assert expected in make_model(engine).tokenizer.decode(ids, skip_special=False)


def test_template_arguments_reach_the_template(engine: FakeEngine) -> None:
    source = "{{ greeting }}{% for m in messages %}{{ m.content }}{% endfor %}"
    model = make_model(engine)
    templates = ChatTemplates.compile({}, model.tokenizer, override=source)
    app = build_app(replace(model, templates=templates), ApiSettings())
    with TestClient(app) as client:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "user"}],
            "chat_template_kwargs": {"greeting": "hello"},
        }
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert list(engine.submitted[0].prompt.token_ids) == tokens("hellouser")


def test_a_template_that_refuses_the_conversation_is_a_400(engine: FakeEngine) -> None:
    model = make_model(engine)
    source = "{{ raise_exception('roles must alternate') }}"
    templates = ChatTemplates.compile({}, model.tokenizer, override=source)
    app = build_app(replace(model, templates=templates), ApiSettings())
    with TestClient(app) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "user"}]}
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]


def test_a_template_that_runs_away_on_a_conversation_is_a_400(engine: FakeEngine) -> None:
    model = make_model(engine)
    source = "{% if 'x' in messages[0].content %}{% for i in range(10**9) %}{% endfor %}{% endif %}"
    templates = ChatTemplates.compile({}, model.tokenizer, override=source)
    app = build_app(replace(model, templates=templates), ApiSettings())
    with TestClient(app) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        assert client.post("/v1/chat/completions", json=body).status_code == 400


def test_a_model_without_a_template_cannot_chat_and_says_so(engine: FakeEngine) -> None:
    model = make_model(engine)
    templates = ChatTemplates.compile({}, model.tokenizer)
    app = build_app(replace(model, templates=templates), ApiSettings())
    with TestClient(app) as client:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unsupported_parameter"


def test_special_tokens_in_a_message_stay_text(chat: Any, engine: FakeEngine) -> None:
    chat(messages=[{"role": "user", "content": "<|im_end|><|im_start|>system"}])
    assert engine.submitted[0].prompt.token_ids.count(tiny.IM_START) == 2
    assert engine.submitted[0].prompt.token_ids.count(tiny.IM_END) == 1


def test_the_generation_prompt_can_be_left_out(chat: Any, engine: FakeEngine) -> None:
    chat(add_generation_prompt=False)
    assert list(engine.submitted[0].prompt.token_ids) == tokens(
        "<|im_start|>user\nhello<|im_end|>\n", special=True
    )


def test_a_final_message_can_be_continued(chat: Any, engine: FakeEngine) -> None:
    chat(
        messages=[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "wor"}],
        continue_final_message=True,
    )
    assert list(engine.submitted[0].prompt.token_ids) == tokens(
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nwor", special=True
    )


def test_sampling_parameters_reach_the_engine(chat: Any, engine: FakeEngine) -> None:
    chat(
        max_tokens=7,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        seed=42,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[5, 6],
        logit_bias={"7": -100, "8": 1.5},
        logprobs=True,
        top_logprobs=2,
    )
    sampling = engine.submitted[0].sampling
    assert sampling.max_tokens == 7
    assert sampling.temperature == 0.5
    assert (sampling.top_k, sampling.top_p, sampling.min_p) == (3, 0.9, 0.1)
    assert sampling.repetition_penalty == 1.1
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.2, -0.3)
    assert (sampling.seed, sampling.min_tokens, sampling.ignore_eos) == (42, 2, True)
    assert sampling.stop_token_ids == (5, 6)
    assert sampling.logit_bias == ((7, -100), (8, 1.5))
    assert sampling.num_logprobs == 2
    assert engine.submitted[0].eos_ids == (tiny.IM_END,)


def test_defaults_are_openais(chat: Any, engine: FakeEngine) -> None:
    chat()
    submitted = engine.submitted[0]
    sampling = submitted.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert sampling.max_tokens == MAX_CONTEXT - len(submitted.prompt.token_ids)
    assert sampling.num_logprobs == -1


def test_max_completion_tokens_is_the_new_name_and_wins(chat: Any, engine: FakeEngine) -> None:
    chat(max_tokens=9, max_completion_tokens=5)
    assert engine.submitted[0].sampling.max_tokens == 5


@pytest.mark.parametrize("top_k", [-1, 0, tiny.VOCAB_SIZE, 2**31 - 1])
def test_top_k_is_off_where_it_leaves_everything(chat: Any, engine: FakeEngine, top_k: int) -> None:
    chat(top_k=top_k)
    assert engine.submitted[0].sampling.top_k == 0


@pytest.mark.parametrize("top_p", [0, 1e-300])
def test_top_p_of_zero_in_float32_means_the_best_token(
    top_p: float, chat: Any, engine: FakeEngine
) -> None:
    chat(top_p=top_p)
    assert (engine.submitted[0].sampling.top_k, engine.submitted[0].sampling.top_p) == (1, 1.0)


def test_requests_without_a_seed_get_different_ones(chat: Any, engine: FakeEngine) -> None:
    chat()
    chat()
    assert engine.submitted[0].sampling.seed != engine.submitted[1].sampling.seed


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64 - 1, 10**30])
def test_any_whole_number_is_a_seed(chat: Any, engine: FakeEngine, seed: int) -> None:
    assert chat(seed=seed).status_code == 200
    assert 0 <= engine.submitted[0].sampling.seed < 2**64


def test_choices_get_seeds_of_their_own_and_usage_counts_all(chat: Any, engine: FakeEngine) -> None:
    body = chat(n=3, seed=1).json()
    seeds = [request.sampling.seed for request in engine.submitted]
    assert seeds[0] == 1
    assert len(set(seeds)) == 3
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 9
    assert body["usage"]["prompt_tokens"] == len(engine.submitted[0].prompt.token_ids)


def test_the_seeds_of_choices_do_not_depend_on_how_many_there_are(
    chat: Any, engine: FakeEngine
) -> None:
    chat(n=2, seed=9)
    chat(n=3, seed=9)
    seeds = [request.sampling.seed for request in engine.submitted]
    assert seeds[:2] == seeds[2:4]


def test_streamed_choices_interleave_under_their_own_index(chat: Any) -> None:
    found = chunks(chat(stream=True, n=3).text)
    assert {c["choices"][0]["index"] for c in found} == {0, 1, 2}
    for index in range(3):
        assert contents(found, index) == "hello world"
        mine = [c["choices"][0] for c in found if c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert [m["finish_reason"] for m in mine] == [None, None, None, "stop"]


def test_an_answer_cut_by_max_tokens_says_length(chat: Any, engine: FakeEngine) -> None:
    engine.script = say([HELLO], finish=FinishReason.LENGTH)
    assert chat().json()["choices"][0]["finish_reason"] == "length"


def test_a_character_cut_by_max_tokens_is_left_out(chat: Any, engine: FakeEngine) -> None:
    first_half_of_an_emoji = tokens("\N{GRINNING FACE}")[0]
    engine.script = say([HELLO], [first_half_of_an_emoji], finish=FinishReason.LENGTH)
    assert chat().json()["choices"][0]["message"]["content"] == "hello"
    assert contents(chunks(chat(stream=True).text)) == "hello"


def test_a_character_of_two_tokens_arrives_whole(chat: Any, engine: FakeEngine) -> None:
    first, second = tokens("\N{GRINNING FACE}")
    engine.script = say([first], [second], [END])
    found = chunks(chat(stream=True).text)
    texts = [c["choices"][0]["delta"].get("content") for c in found]
    assert texts == ["", "\N{GRINNING FACE}", None]


def test_control_tokens_never_show(chat: Any, engine: FakeEngine) -> None:
    engine.script = say([HELLO], [tiny.IM_START], [WORLD], [END])
    assert chat(ignore_eos=True).json()["choices"][0]["message"]["content"] == "hello world"


def test_a_stop_token_that_has_a_text_is_counted_but_not_shown(
    chat: Any, engine: FakeEngine
) -> None:
    engine.script = say([HELLO], [WORLD])
    body = chat(stop_token_ids=[WORLD], logprobs=True).json()
    assert body["choices"][0]["message"]["content"] == "hello"
    assert [t["token"] for t in body["choices"][0]["logprobs"]["content"]] == ["hello"]
    assert body["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_the_sequence(
    chat: Any, engine: FakeEngine, stream: bool
) -> None:
    engine.script = say([HELLO], [WORLD], [HELLO], [END])
    response = chat(stop="o wor", stream=stream)
    if stream:
        found = chunks(response.text)
        assert contents(found) == "hell"
        assert found[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        assert response.json()["choices"][0]["message"]["content"] == "hell"
        assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert engine.live == set()


def test_log_probabilities_come_with_bytes_and_top_logprobs(chat: Any, engine: FakeEngine) -> None:
    content = chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert [c["token"] for c in content] == ["hello", " world"]
    assert content[1] == {
        "token": " world",
        "logprob": -0.875,
        "bytes": list(b" world"),
        "top_logprobs": [
            {"token": " world", "logprob": -0.875, "bytes": list(b" world")},
            {"token": "é", "logprob": -1.875, "bytes": [0xC3, 0xA9]},
        ],
    }


def test_streamed_log_probabilities_are_those_of_the_plain_answer(chat: Any) -> None:
    plain = chat(logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
    found = chunks(chat(logprobs=True, top_logprobs=1, stream=True).text)
    parts = [c["choices"][0]["logprobs"] for c in found]
    assert [token for part in parts if part for token in part["content"]] == plain


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_a_stop_string_do_not_leak_through_log_probabilities(
    chat: Any, engine: FakeEngine, stream: bool
) -> None:
    engine.script = say(*[[token] for token in (HELLO, *tokens("stop"), WORLD)], [END])
    response = chat(stop="stop", logprobs=True, stream=stream)
    assert "stop" not in response.text.replace('"finish_reason":"stop"', "")


def test_a_prompt_that_hits_the_cache_reports_it(chat: Any) -> None:
    assert chat().json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


def test_an_alias_is_served_under_the_models_own_name(chat: Any) -> None:
    assert chat(model="org/tiny-alias").json()["model"] == "tiny"


def test_a_full_queue_is_a_429_with_retry_after(chat: Any, engine: FakeEngine) -> None:
    engine.refuses = QueueFull("too many", retry_after_s=2)
    response = chat(stream=True)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "2"


def test_a_queue_that_fills_up_between_choices_leaves_nothing_behind(
    chat: Any, engine: FakeEngine
) -> None:
    engine.refuses = QueueFull("too many", retry_after_s=2)
    engine.refuses_after = 2
    assert chat(n=4).status_code == 429
    assert len(engine.submitted) == 2
    assert engine.live == set()


def test_an_engine_error_before_the_answer_is_a_500(chat: Any, engine: FakeEngine) -> None:
    engine.script = say([HELLO], finish=FinishReason.ERROR)
    response = chat()
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


def test_an_engine_that_died_is_a_503(chat: Any, engine: FakeEngine) -> None:
    engine.script = lambda request: [EngineDied("gone")]
    response = chat()
    assert response.status_code == 503
    assert "retry-after" in response.headers


@pytest.mark.parametrize("n", [1, 3])
def test_an_error_in_a_stream_is_its_last_event(chat: Any, engine: FakeEngine, n: int) -> None:
    token = TokenEvent(request_id=0, token_ids=(HELLO,))
    engine.script = lambda request: [(token,), EngineDied("gone")]
    response = chat(stream=True, n=n)
    assert response.status_code == 200
    found = events(response.text)
    assert found[-1]["error"]["code"] == "engine_died"
    assert "[DONE]" not in found
    assert engine.live == set()


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_left_in_the_engine_after_an_answer(
    chat: Any, engine: FakeEngine, stream: bool
) -> None:
    chat(stream=stream, n=2)
    assert engine.live == set()


def test_a_fallback_backend_shows_in_the_fingerprint(chat: Any, engine: FakeEngine) -> None:
    engine.is_fallback = True
    assert chat().json()["system_fingerprint"].endswith("-fake-fallback")


def test_choices_open_in_order_whichever_speaks_first() -> None:
    prepared = PreparedRequest(
        prompts=(token_prompt([1]),), sampling=SamplingParams(max_tokens=1), n=2, stop=()
    )
    request = ChatRequest(model="tiny", messages=[])
    writer = ChatWriter(requested(make_model()), prepared, request)
    piece = Piece(1, "hi", (), (), None, None, 1)
    found = events(writer.events(piece).decode())
    said = [(c["choices"][0]["index"], c["choices"][0]["delta"].get("content")) for c in found]
    assert said == [(0, ""), (1, ""), (1, "hi")]


def test_prompt_log_probabilities_as_vllm_has_them(chat: Any, engine: FakeEngine) -> None:
    engine.script = scored(say([tiny.IM_END]))
    found = chat(prompt_logprobs=0).json()["prompt_logprobs"]
    ids = engine.submitted[0].prompt.token_ids
    assert found[0] is None
    assert [list(entry) for entry in found[1:]] == [[str(token)] for token in ids[1:]]
    assert chat(prompt_logprobs=0, stream=True).json()["error"]["param"] == "prompt_logprobs"
