"""POST /v1/completions: prompts of all kinds, echo, and log-probabilities in parallel lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from litestar.testing import TestClient

from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, TokenEvent
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api import tiny
from tests.api.fake_engine import Batch, FakeEngine, build_app, make_model, say, score
from tests.api.sse import chunks

HELLO, WORLD, END = 262, 267, tiny.IM_END


def tokens(text: str) -> list[int]:
    return make_model(FakeEngine()).tokenizer.encode(text, parse_special=True)


def texts(found: list[Any], index: int = 0) -> str:
    choices = [c["choices"][0] for c in found if c["choices"]]
    return "".join(c["text"] for c in choices if c["index"] == index)


def scoring_prompt(request: GenerateRequest) -> Sequence[Batch]:
    """Scores the prompt in two pieces, then says " world"."""
    wanted = request.sampling.prompt_logprobs
    scores = tuple(score(token, wanted) for token in request.prompt.token_ids[1:])
    world = TokenEvent(
        request_id=0,
        token_ids=(WORLD,) if request.sampling.max_tokens else (),
        logprobs=(score(WORLD, wanted),) if request.sampling.max_tokens else None,
        prompt_logprobs=scores[1:],
        finish_reason=FinishReason.LENGTH,
    )
    return [(TokenEvent(request_id=0, prompt_logprobs=scores[:1]),), (world,)]


def test_a_place_without_a_token_has_no_log_probability(complete: Any, engine: FakeEngine) -> None:
    """Such are those where rows of embeddings stand."""

    def script(request: GenerateRequest) -> Sequence[Batch]:
        scores = (None, *(score(token, 1) for token in request.prompt.token_ids[2:]))
        reason = FinishReason.LENGTH
        return [(TokenEvent(request_id=0, prompt_logprobs=scores, finish_reason=reason),)]

    engine.script = script
    prompt = [HELLO, WORLD, HELLO]
    wanted = {"echo": True, "logprobs": 1, "prompt_logprobs": 1, "max_tokens": 0}
    (choice,) = complete(prompt=prompt, **wanted).json()["choices"]
    assert [each is None for each in choice["logprobs"]["token_logprobs"]] == [True, True, False]
    assert [each is None for each in choice["logprobs"]["top_logprobs"]] == [True, True, False]
    assert len(choice["logprobs"]["tokens"]) == len(prompt)
    assert [each is None for each in choice["prompt_logprobs"]] == [True, True, False]


def test_a_plain_answer_has_openais_shape(complete: Any) -> None:
    body = complete().json()
    assert body.pop("id").startswith("cmpl-")
    assert body == {
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "system_fingerprint": "rocmforge-0.1.0-fake",
        "choices": [{"index": 0, "text": "hello world", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 3,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


def test_a_stream_ends_with_reason_usage_and_done(complete: Any) -> None:
    found = chunks(complete(stream=True, stream_options={"include_usage": True}).text)
    assert [c["choices"][0]["text"] for c in found[:-1]] == ["hello", " world", ""]
    assert [c["choices"][0]["finish_reason"] for c in found[:-1]] == [None, None, "stop"]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["total_tokens"] == 4
    assert all(c["object"] == "text_completion" for c in found)


def test_usage_so_far_is_in_every_chunk_if_asked_for(complete: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = chunks(complete(stream=True, stream_options=options).text)
    assert [c["usage"]["completion_tokens"] for c in found] == [1, 2, 3, 3]
    assert [c["usage"]["prompt_tokens"] for c in found] == [1, 1, 1, 1]
    assert "".join(c["choices"][0]["text"] for c in found[:-1]) == "hello world"


def test_sixteen_tokens_are_the_default(complete: Any, engine: FakeEngine) -> None:
    complete()
    assert engine.submitted[0].sampling.max_tokens == 16


def test_special_tokens_are_parsed_because_the_prompt_is_the_clients_own(
    complete: Any, engine: FakeEngine
) -> None:
    complete(prompt="<|im_start|>user")
    assert engine.submitted[0].prompt.token_ids == (tiny.IM_START, *tokens("user"))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hello", [(HELLO,)]),
        (["hello"], [(HELLO,)]),
        (["hello", "hello world"], [(HELLO,), (HELLO, WORLD)]),
        ([7, 8, 9], [(7, 8, 9)]),
        ([[7, 8], [9]], [(7, 8), (9,)]),
    ],
)
def test_prompts_come_as_text_or_token_ids_alone_or_in_batches(
    complete: Any, engine: FakeEngine, prompt: Any, expected: list[tuple[int, ...]]
) -> None:
    body = complete(prompt=prompt).json()
    assert [request.prompt.token_ids for request in engine.submitted] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))


def test_choices_of_a_batch_are_numbered_prompt_by_prompt(
    complete: Any, engine: FakeEngine
) -> None:
    body = complete(prompt=[[7], [8]], n=2, echo=True, seed=3).json()
    assert [request.prompt.token_ids for request in engine.submitted] == [(7,), (7,), (8,), (8,)]
    seeds = [request.sampling.seed for request in engine.submitted]
    assert seeds[:2] == seeds[2:]
    first, second = (make_model(engine).tokenizer.decode([i]) for i in (7, 8))
    echoed = [choice["text"].removesuffix("hello world") for choice in body["choices"]]
    assert echoed == [first, first, second, second]


def test_echo_repeats_the_prompt_as_it_came(complete: Any) -> None:
    assert complete(prompt="hello ", echo=True).json()["choices"][0]["text"] == "hello hello world"


def test_echo_streams_the_prompt_first(complete: Any) -> None:
    found = chunks(complete(prompt="user ", echo=True, stream=True).text)
    assert found[0]["choices"][0]["text"] == "user "
    assert texts(found) == "user hello world"


def test_echo_of_token_ids_spells_them_out(complete: Any) -> None:
    assert complete(prompt=[HELLO, WORLD], echo=True).json()["choices"][0]["text"] == (
        "hello worldhello world"
    )


def test_log_probabilities_are_parallel_lists(complete: Any) -> None:
    logprobs = complete(logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["hello", " world"],
        "token_logprobs": [-0.25, -0.875],
        "top_logprobs": [{"hello": -0.25, "wo": -1.25}, {" world": -0.875, "é": -1.875}],
        "text_offset": [0, 5],
    }


def test_zero_log_probabilities_means_the_chosen_token_only(complete: Any) -> None:
    logprobs = complete(logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"hello": -0.25}, {" world": -0.875}]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_log_probabilities_scores_the_prompt(
    complete: Any, engine: FakeEngine, stream: bool
) -> None:
    engine.script = scoring_prompt
    response = complete(prompt="hello world\n", echo=True, logprobs=1, max_tokens=1, stream=stream)
    assert engine.submitted[0].sampling.prompt_logprobs == 1
    parts = (
        [c["choices"][0]["logprobs"] for c in chunks(response.text)]
        if stream
        else [response.json()["choices"][0]["logprobs"]]
    )
    joined = {key: [value for part in parts if part for value in part[key]] for key in parts[0]}
    assert joined == {
        "tokens": ["hello", " world", "\n", " world"],
        "token_logprobs": [None, -0.875, -1.0, -0.875],
        "top_logprobs": [None, {" world": -0.875}, {"\n": -1.0}, {" world": -0.875}],
        "text_offset": [0, 5, 11, 12],
    }


def test_offsets_count_special_tokens_that_a_prompt_spells_out(
    complete: Any, engine: FakeEngine
) -> None:
    engine.script = scoring_prompt
    prompt = "<|im_start|>hello world<|im_end|>"
    body = complete(prompt=prompt, echo=True, logprobs=1, max_tokens=0).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["<|im_start|>", "hello", " world", "<|im_end|>"]
    assert logprobs["text_offset"] == [prompt.index(token) for token in logprobs["tokens"]]


def test_a_prompt_can_be_scored_without_generating(complete: Any, engine: FakeEngine) -> None:
    engine.script = scoring_prompt
    body = complete(prompt="hello world\n", echo=True, logprobs=1, max_tokens=0).json()
    assert body["choices"][0]["text"] == "hello world\n"
    assert body["choices"][0]["logprobs"]["tokens"] == ["hello", " world", "\n"]
    assert body["usage"]["completion_tokens"] == 0


def test_tokens_that_are_no_text_by_themselves_are_spelled_in_bytes(
    complete: Any, engine: FakeEngine
) -> None:
    first, second = tokens("\N{GRINNING FACE}")
    engine.script = say([first], [second], [END])
    choice = complete(logprobs=0).json()["choices"][0]
    assert choice["text"] == "\N{GRINNING FACE}"
    assert choice["logprobs"]["tokens"] == ["bytes:\\xf0\\x9f\\x98", "bytes:\\x80"]
    assert choice["logprobs"]["text_offset"] == [0, 0]


def test_the_best_of_several_is_the_most_probable(complete: Any, engine: FakeEngine) -> None:
    # By the ids' last digits the mean log-probabilities are -5/16, 0, -1/8 and -1/8.
    said = iter([[290, 265], [290, 290], [271, 271], [281, 281]])
    engine.script = lambda request: say(*[[token] for token in next(said)], [END])(request)
    body = complete(n=2, best_of=4).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert [choice["text"] for choice in body["choices"]] == [
        make_model(engine).tokenizer.decode(ids) for ids in ([290, 290], [271, 271])
    ]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 12
    assert len({request.sampling.seed for request in engine.submitted}) == 4


def test_best_of_is_at_least_n_and_not_streamed(complete: Any) -> None:
    assert complete(n=3, best_of=2).json()["error"]["param"] == "best_of"
    assert complete(best_of=2, stream=True).json()["error"]["param"] == "best_of"
    assert complete(n=2, best_of=2, stream=True).status_code == 200


def test_prompt_log_probabilities_as_vllm_has_them(complete: Any, engine: FakeEngine) -> None:
    engine.script = scoring_prompt
    (choice,) = complete(prompt=[262, 267, 5], prompt_logprobs=1).json()["choices"]
    assert choice["text"] == " world"
    assert choice["prompt_logprobs"] == [
        None,
        {"267": {"logprob": -7 / 8, "rank": 1, "decoded_token": " world"}},
        {"5": {"logprob": -5 / 8, "rank": 1, "decoded_token": "&"}},
    ]
    assert choice["logprobs"] is None


def test_an_echo_has_as_many_top_logprobs_as_were_asked_for(
    complete: Any, engine: FakeEngine
) -> None:
    engine.script = scoring_prompt
    (choice,) = complete(
        prompt=[262, 267], echo=True, logprobs=1, prompt_logprobs=3, max_tokens=0
    ).json()["choices"]
    assert [top and len(top) for top in choice["logprobs"]["top_logprobs"]] == [None, 1]
    assert len(choice["prompt_logprobs"][1]) == 3


def test_prompt_log_probabilities_are_not_streamed(complete: Any) -> None:
    assert complete(prompt_logprobs=1, stream=True).json()["error"]["param"] == "prompt_logprobs"


def test_a_suffix_is_put_where_the_model_expects_it(engine: FakeEngine) -> None:
    data = tiny.metadata()
    names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    data["tokenizer.ggml.tokens"][-3:] = names
    prefix, suffix, middle = range(tiny.VOCAB_SIZE - 3, tiny.VOCAB_SIZE)
    model = make_model(engine, tokenizer=Tokenizer(read_tokenizer(data)))
    with TestClient(build_app(model, ApiSettings())) as client:
        body = {"model": "tiny", "prompt": "hello", "suffix": " world<|im_end|>"}
        answer = client.post("/v1/completions", json=body).json()
        refused = client.post("/v1/completions", json=body | {"echo": True})
    end = model.tokenizer.encode("<|im_end|>", parse_special=False)
    assert engine.submitted[0].prompt.token_ids == (prefix, HELLO, suffix, WORLD, *end, middle)
    assert answer["choices"][0]["text"] == "hello world"
    assert refused.json()["error"]["param"] == "suffix"
