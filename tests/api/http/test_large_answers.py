"""Answers of megabytes: what is computed once, what is refused, and where they are put together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from rocmforge.engine.ipc.params import GenerateRequest, TokenEvent
from tests.api.conftest import Client
from tests.api.fake_engine import Batch, FakeEngine, say, scored
from tests.api.sse import events

PROMPT = [262, 267, 5]
SCORED_WORD = scored(say([262]))


@pytest.fixture
def scoring(engine: FakeEngine) -> FakeEngine:
    engine.script = SCORED_WORD
    return engine


def asked_for_scores(engine: FakeEngine) -> list[int]:
    return [each.sampling.prompt_logprobs for each in engine.submitted]


# --- once ---


def test_a_prompt_is_scored_for_its_first_choice_only(complete: Any, scoring: FakeEngine) -> None:
    prompts = [PROMPT, [5, 262]]
    answered = complete(prompt=prompts, n=3, prompt_logprobs=2, logprobs=1, max_tokens=1).json()
    assert asked_for_scores(scoring) == [2, -1, -1] * 2
    for number, prompt in enumerate(prompts):
        (alone,) = complete(prompt=prompt, prompt_logprobs=2, logprobs=1, max_tokens=1).json()[
            "choices"
        ]
        for choice in answered["choices"][3 * number : 3 * number + 3]:
            assert choice["prompt_logprobs"] == alone["prompt_logprobs"]


def test_an_echo_has_the_same_scores_in_every_choice(complete: Any, scoring: FakeEngine) -> None:
    choices = complete(prompt=PROMPT, n=3, echo=True, logprobs=1, max_tokens=1).json()["choices"]
    assert asked_for_scores(scoring) == [1, -1, -1]
    assert choices[0]["logprobs"]["token_logprobs"][1] is not None
    assert [choice["logprobs"] for choice in choices] == [choices[0]["logprobs"]] * 3


def test_the_best_ones_have_the_scores_of_their_prompt(complete: Any, scoring: FakeEngine) -> None:
    (best,) = complete(prompt=PROMPT, best_of=3, prompt_logprobs=1, max_tokens=1).json()["choices"]
    assert asked_for_scores(scoring) == [1, -1, -1]
    assert len(best["prompt_logprobs"]) == len(PROMPT)


def test_a_chat_is_scored_once(chat: Any, scoring: FakeEngine) -> None:
    found = chat(n=3, prompt_logprobs=1).json()["prompt_logprobs"]
    assert asked_for_scores(scoring) == [1, -1, -1]
    assert len(found) == len(scoring.submitted[0].prompt.token_ids)


def test_a_streamed_echo_waits_for_the_scores_of_its_prompt(
    complete: Any, engine: FakeEngine
) -> None:
    def script(request: GenerateRequest) -> Sequence[Batch | Exception]:
        words = say([262], [267])(request)
        if request.sampling.prompt_logprobs < 0:
            return words
        part = [(TokenEvent(request_id=0),)] * 5  # five wake-ups for the prompt
        return [*part, *SCORED_WORD(request)[:1], *words]

    engine.script = script
    fields = {"prompt": PROMPT, "n": 3, "echo": True, "logprobs": 1, "max_tokens": 2}
    chunks = events(complete(stream=True, **fields).text)
    assert asked_for_scores(engine) == [1, -1, -1]
    first: dict[int, Any] = {}
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        first.setdefault(choice["index"], choice)
    assert sorted(first) == [0, 1, 2]
    assert first[0]["logprobs"]["token_logprobs"][1] is not None
    assert [each["logprobs"] for each in first.values()] == [first[0]["logprobs"]] * 3
    said = [(chunk["choices"][0]["index"], chunk["choices"][0]["text"]) for chunk in chunks[:-1]]
    for number in range(3):
        whole = "".join(text for index, text in said if index == number)
        assert whole == "hello world&hello"


# --- limits ---


LONG = [5] * 1500


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": LONG, "n": 32, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": [LONG] * 32, "prompt_logprobs": 20}, "prompt_logprobs"),
        ({"prompt": LONG, "n": 32, "echo": True, "logprobs": 20}, "logprobs"),
        ({"prompt": LONG, "n": 32, "echo": True, "logprobs": 20, "stream": True}, "logprobs"),
        ({"prompt": [5], "n": 128, "logprobs": 20, "max_tokens": 2000}, "logprobs"),
        ({"prompt": [[5]] * 100, "logprobs": 20, "max_tokens": 2000}, "logprobs"),
    ],
)
def test_a_completion_of_too_many_log_probabilities_is_a_400_that_names_them(
    fields: dict[str, Any], param: str, complete: Any, engine: FakeEngine
) -> None:
    answered = complete(**fields)
    assert answered.status_code == 400
    error = answered.json()["error"]
    assert error["param"] == param
    assert f"'{param}'" in error["message"]
    assert "000" in error["message"], "the limit"
    assert engine.submitted == []


def test_so_is_a_chat(chat: Any, engine: FakeEngine) -> None:
    answered = chat(n=128, logprobs=True, top_logprobs=20)
    assert answered.status_code == 400
    assert answered.json()["error"]["param"] == "top_logprobs"
    assert engine.submitted == []


def test_one_choice_may_have_what_its_context_holds(chat: Any, engine: FakeEngine) -> None:
    assert chat(logprobs=True, top_logprobs=20).status_code == 200


# --- off the loop ---


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads in which answers are encoded."""
    seen: set[str] = set()
    encode = msgspec.json.encode

    def record(body: Any) -> bytes:
        seen.add(threading.current_thread().name)
        return encode(body)

    monkeypatch.setattr(msgspec.json, "encode", record)
    return seen


def test_a_large_answer_is_put_together_in_a_worker_thread(
    complete: Any, client: Client, scoring: FakeEngine, threads: set[str]
) -> None:
    found = complete(prompt=LONG, prompt_logprobs=20, max_tokens=1).json()
    assert len(found["choices"][0]["prompt_logprobs"]) == len(LONG)
    assert all(name.startswith("text") for name in threads)
    assert threads


def test_a_small_answer_is_not(complete: Any, scoring: FakeEngine, threads: set[str]) -> None:
    complete(prompt=PROMPT, prompt_logprobs=20, max_tokens=1)
    assert threads
    assert not any(name.startswith("text") for name in threads)
