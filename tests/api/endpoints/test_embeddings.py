"""/v1/embeddings and /v1/rerank: the right states, in the right form."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
from litestar.testing import TestClient

from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.engine.ipc.params import FinishReason, GenerateRequest, Pooling, TokenEvent
from rocmforge.errors import EngineError, QueueFull
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rank_head import RankHead
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api import tiny
from tests.api.fake_engine import (
    MAX_CONTEXT,
    RUNNER,
    FakeEngine,
    Script,
    build_app,
    make_model,
    tiny_text,
)
from tests.api.live import assert_settles
from tests.support.fakes.fake_model import HIDDEN_SIZE, hidden_states
from tests.support.processes.server import LiveServer

PATH = "/v1/embeddings"
EMBEDDING_RUNNER = replace(RUNNER, hidden_size=2)


@pytest.fixture
def sdk(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def engine() -> FakeEngine:
    """An engine whose embeddings are the number of tokens and 1."""
    return FakeEngine(script=embeds(), runner=EMBEDDING_RUNNER)


def embeds() -> Script:
    def script(request: GenerateRequest) -> list[tuple[TokenEvent, ...] | Exception]:
        vector = np.array([len(request.prompt.token_ids), 1], np.float32)
        event = TokenEvent(
            request_id=0, finish_reason=FinishReason.LENGTH, embedding=vector.tobytes()
        )
        return [(event,)]

    return script


def app_with(engine: FakeEngine, pooling: PoolingType) -> Any:
    return build_app(make_model(engine, pooling=pooling), ApiSettings(max_body_bytes=1_000_000))


def expected(ids: list[int]) -> Any:
    state = hidden_states(np.array(ids, np.int32))[-1]
    return state / np.linalg.norm(state)


def test_vectors_are_the_last_hidden_states_at_length_one(
    sdk: openai.OpenAI, live: LiveServer
) -> None:
    texts = ["hello", "hello world", "a" * 50]
    answer = sdk.embeddings.create(model="tiny", input=texts)  # the library asks for base64
    assert [item.index for item in answer.data] == [0, 1, 2]
    ids = [tiny_text()[0].encode(text, parse_special=False) for text in texts]
    for item, prompt in zip(answer.data, ids, strict=True):
        np.testing.assert_allclose(item.embedding, expected(prompt), rtol=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    assert_settles(live)


def test_numbers_and_base64_are_the_same(sdk: openai.OpenAI) -> None:
    floats = sdk.embeddings.create(model="tiny", input="hello", encoding_format="float")
    packed = sdk.embeddings.with_raw_response.create(
        model="tiny", input="hello", encoding_format="base64"
    )
    (item,) = packed.http_response.json()["data"]
    values = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    np.testing.assert_array_equal(np.array(floats.data[0].embedding, np.float32), values)
    assert len(values) == HIDDEN_SIZE


def test_token_ids_are_embedded_as_they_are(sdk: openai.OpenAI) -> None:
    one = sdk.embeddings.create(model="tiny", input=[1, 2, 3])
    several = sdk.embeddings.create(model="tiny", input=[[1, 2, 3], [7]])
    assert one.data[0].embedding == several.data[0].embedding
    np.testing.assert_allclose(several.data[1].embedding, expected([7]), rtol=1e-5)


def test_fewer_dimensions_are_the_first_ones_at_length_one(sdk: openai.OpenAI) -> None:
    whole = np.array(sdk.embeddings.create(model="tiny", input="hello").data[0].embedding)
    cut = sdk.embeddings.create(model="tiny", input="hello", dimensions=2).data[0].embedding
    np.testing.assert_allclose(cut, whole[:2] / np.linalg.norm(whole[:2]), rtol=1e-5)


def test_a_batch_may_be_larger_than_the_queue(slow: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{slow.url}/v1", api_key="none", max_retries=0) as client:
        inputs = [[i % 900] for i in range(70)]  # 16 run and 8 wait there
        answer = client.embeddings.create(model="tiny", input=inputs)
    for item, prompt in zip(answer.data, inputs, strict=True):
        np.testing.assert_allclose(item.embedding, expected(prompt), rtol=1e-5)
    assert_settles(slow)


class NarrowEngine(FakeEngine):
    """Takes as many sequences at once as it has places."""

    places = 3
    most_live = 0

    def submit(self, *args: Any, **options: Any) -> Any:
        if len(self.live) >= self.places:
            raise QueueFull("full", retry_after_s=1.0)
        handle = super().submit(*args, **options)
        self.most_live = max(self.most_live, len(self.live))
        return handle


def test_inputs_are_admitted_in_pieces_that_fit() -> None:
    engine = NarrowEngine(script=embeds(), runner=EMBEDDING_RUNNER)
    with TestClient(app_with(engine, PoolingType.LAST)) as client:
        answer = client.post(PATH, json={"model": "tiny", "input": [[1] * n for n in range(1, 9)]})
    lengths = [vector["embedding"] for vector in answer.json()["data"]]
    assert [round(x / y) for x, y in lengths] == list(range(1, 9))
    assert engine.most_live <= 3
    assert engine.live == set()


@pytest.mark.parametrize(("sequences", "tokens"), [(2, None), (None, 40)])
def test_a_key_may_send_more_inputs_than_it_may_run_at_once(
    sequences: int | None, tokens: int | None
) -> None:
    engine = NarrowEngine(script=embeds(), runner=EMBEDDING_RUNNER)
    (key,) = given_keys(["secret"])
    key = replace(key, max_sequences=sequences, tokens_per_minute=tokens)
    model = make_model(engine, pooling=PoolingType.LAST)
    inputs = [[1] * n for n in range(1, 9)]  # 36 tokens, which count once
    with TestClient(build_app(model, ApiSettings(), Keyring([key]))) as client:
        client.headers["authorization"] = "Bearer secret"
        answer = client.post(PATH, json={"model": "tiny", "input": inputs})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["data"]) == 8
    assert engine.most_live <= (sequences or 3)


def test_a_queue_without_any_room_is_too_many_requests() -> None:
    engine = NarrowEngine(script=embeds(), runner=EMBEDDING_RUNNER)
    engine.places = 0
    with TestClient(app_with(engine, PoolingType.LAST)) as client:
        assert client.post(PATH, json={"model": "tiny", "input": ["a", "b"]}).status_code == 429


@pytest.mark.parametrize(
    ("declared", "pooling"),
    [
        (PoolingType.NONE, Pooling.LAST),
        (PoolingType.MEAN, Pooling.MEAN),
        (PoolingType.CLS, Pooling.CLS),
        (PoolingType.LAST, Pooling.LAST),
    ],
)
def test_states_are_pooled_as_the_file_says(
    engine: FakeEngine, declared: PoolingType, pooling: Pooling
) -> None:
    with TestClient(app_with(engine, declared)) as client:
        answer = client.post(PATH, json={"model": "tiny", "input": "hello world"})
    assert answer.json()["data"][0]["embedding"] == pytest.approx([2 / 5**0.5, 1 / 5**0.5])
    sampling = engine.submitted[0].sampling
    assert (sampling.pooling, sampling.max_tokens) == (pooling, 0)


def test_texts_end_as_in_training_and_hold_no_control_tokens(engine: FakeEngine) -> None:
    data = tiny.metadata() | {"tokenizer.ggml.add_eos_token": True}
    model = make_model(engine, tokenizer=Tokenizer(read_tokenizer(data)))
    with TestClient(build_app(model, ApiSettings())) as client:
        client.post(PATH, json={"model": "tiny", "input": ["hello", "<|im_start|>"]})
    hello, spelled = (request.prompt.token_ids for request in engine.submitted)
    assert hello == (262, tiny.IM_END)
    assert spelled[-1] == tiny.IM_END
    assert tiny.IM_START not in spelled


def test_documents_come_in_the_order_of_their_cosines(engine: FakeEngine) -> None:
    body = {
        "model": "tiny",
        "query": "hello",
        "documents": ["hello world hello world", {"text": "hello"}, "hello world"],
        "return_documents": True,
        "top_n": 2,
    }
    with TestClient(app_with(engine, PoolingType.MEAN)) as client:
        answers = [client.post(path, json=body).json() for path in ("/v1/rerank", "/rerank")]
    for answer in answers:
        assert [result["index"] for result in answer["results"]] == [1, 2]
        first, second = answer["results"]
        assert first["relevance_score"] == pytest.approx(1)
        assert second["relevance_score"] == pytest.approx(3 / (2 * 5) ** 0.5)
        assert first["document"] == {"text": "hello"}
        assert answer["usage"]["total_tokens"] == 9


def ranker(scores: list[float], num_scores: int = 1) -> tuple[FakeEngine, Any]:
    """An engine with a head that gives these scores, and its application."""
    left = iter(scores)

    def script(request: GenerateRequest) -> list[tuple[TokenEvent, ...] | Exception]:
        score = np.array([next(left)] * num_scores, np.float32).tobytes()
        event = TokenEvent(request_id=0, finish_reason=FinishReason.LENGTH, embedding=score)
        return [(event,)]

    engine = FakeEngine(script=script, runner=replace(RUNNER, hidden_size=num_scores))
    model = make_model(engine, pooling=PoolingType.RANK, causal=False)
    return engine, build_app(model, ApiSettings())


def test_a_head_scores_pairs_of_query_and_document() -> None:
    engine, app = ranker([-1.5, 800.0, -800.0])
    body = {"model": "tiny", "query": "hello", "documents": ["a", "b", "<|im_end|>"]}
    with TestClient(app) as client:
        answer = client.post("/v2/rerank", json=body).json()
    found = [(result["index"], result["relevance_score"]) for result in answer["results"]]
    assert found == [(1, 1.0), (0, pytest.approx(1 / (1 + np.exp(1.5)))), (2, 0.0)]
    tokenizer = tiny_text()[0]
    for request, text in zip(engine.submitted, body["documents"], strict=True):
        assert list(request.prompt.token_ids) == tokenizer.encode_pair("hello", text)
        assert tiny.IM_END not in request.prompt.token_ids
        assert request.sampling.pooling is Pooling.CLS


@pytest.mark.parametrize("pooling", [PoolingType.RANK, PoolingType.MEAN])
def test_documents_are_cut_where_the_request_says(pooling: PoolingType) -> None:
    engine = FakeEngine(script=embeds(), runner=replace(RUNNER, hidden_size=1))
    body = {
        "model": "tiny",
        "query": "hello world hello",
        "documents": ["hello world " * MAX_CONTEXT, "hello"],
        "max_tokens_per_doc": 2,
    }
    model = make_model(engine, pooling=pooling, causal=False)
    with TestClient(build_app(model, ApiSettings())) as client:
        assert client.post("/v1/rerank", json=body).status_code == 200
    tokenizer = tiny_text()[0]
    found = [request.prompt.token_ids for request in engine.submitted][-2:]
    for ids, text in zip(found, ("hello world", "hello"), strict=True):
        pair = tokenizer.encode_pair("hello world hello", text)
        whole = tokenizer.encode_whole(text)
        assert list(ids) == (pair if pooling is PoolingType.RANK else whole)


def test_a_model_that_says_yes_or_no_reads_its_own_prompt() -> None:
    engine = FakeEngine(script=embeds(), runner=EMBEDDING_RUNNER)
    weight = np.array([[0.5, 0], [0, 1]], np.float32)  # the states are the length and 1
    head = RankHead(weight, "<|im_start|>{query} {document}<|im_end|>")
    model = make_model(engine, pooling=PoolingType.RANK, rank_head=head)
    body = {"model": "tiny", "query": "hello", "documents": ["world", "<|im_end|>"]}
    with TestClient(build_app(model, ApiSettings())) as client:
        answer = client.post("/v1/rerank", json=body).json()
        cut = client.post("/v1/rerank", json={**body, "max_tokens_per_doc": 3}).json()
        assert client.post(PATH, json={"model": "tiny", "input": "a"}).status_code == 400
    prompts = [request.prompt.token_ids for request in engine.submitted]
    for prompt in prompts:
        assert (prompt[0], prompt[-1]) == (tiny.IM_START, tiny.IM_END)
        assert tiny.IM_END not in prompt[:-1], "documents hold no control tokens"
    assert {request.sampling.pooling for request in engine.submitted} == {Pooling.LAST}
    assert {len(prompt) for prompt in prompts[2:]} < set(map(len, prompts))
    for result in answer["results"]:
        odds = np.exp(len(prompts[result["index"]]) / 2 - 1)
        assert result["relevance_score"] == pytest.approx(odds / (1 + odds))
    assert cut["usage"]["total_tokens"] < answer["usage"]["total_tokens"]


def test_a_model_with_one_score_ranks_and_writes_no_text() -> None:
    engine = FakeEngine(script=embeds(), runner=EMBEDDING_RUNNER)
    head = RankHead(np.array([[0.5, -1]], np.float32), "{query} {document}")
    model = make_model(engine, pooling=PoolingType.RANK, rank_head=head)
    assert model.capabilities == ("rerank",)
    body = {"model": "tiny", "query": "hello", "documents": ["world"]}
    with TestClient(build_app(model, ApiSettings())) as client:
        (result,) = client.post("/v1/rerank", json=body).json()["results"]
        refused = client.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
    odds = np.exp(len(engine.submitted[0].prompt.token_ids) / 2 - 1)
    assert result["relevance_score"] == pytest.approx(odds / (1 + odds))
    assert refused.status_code == 400
    assert "only ranks and generates no text. Use /v1/rerank" in refused.json()["error"]["message"]


def test_a_model_that_was_trained_for_neither_cannot_rank(engine: FakeEngine) -> None:
    body = {"model": "tiny", "query": "a", "documents": ["b"]}
    with TestClient(app_with(engine, PoolingType.NONE)) as client:
        error = client.post("/v1/rerank", json=body).json()["error"]
    assert (error["param"], error["code"]) == ("model", "unsupported_parameter")
    assert "'tiny' cannot rank" in error["message"]


def test_a_head_without_a_prompt_cannot_rank(engine: FakeEngine) -> None:
    body = {"model": "tiny", "query": "a", "documents": ["b"]}
    with TestClient(app_with(engine, PoolingType.RANK)) as client:
        error = client.post("/v1/rerank", json=body).json()["error"]
    assert "no classification head, or no prompt" in error["message"]
    assert engine.submitted == []


def test_a_model_that_tells_classes_apart_cannot_rank() -> None:
    engine, app = ranker([], num_scores=3)
    with TestClient(app) as client:
        body = {"model": "tiny", "query": "a", "documents": ["b"]}
        error = client.post("/v1/rerank", json=body).json()["error"]
    assert "3 classes" in error["message"]
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"documents": ["a", ""]}, "documents"),
        ({"documents": ["a " * MAX_CONTEXT]}, "documents"),
    ],
)
def test_pairs_that_cannot_be_read_are_refused(fields: dict[str, Any], param: str) -> None:
    engine, app = ranker([])
    with TestClient(app) as client:
        body = {"model": "tiny", "query": "a", "documents": ["b"], **fields}
        response = client.post("/v1/rerank", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
    ],
)
def test_encoders_generate_nothing_and_say_what_to_use(path: str, body: dict[str, Any]) -> None:
    engine, app = ranker([])
    with TestClient(app) as client:
        response = client.post(path, json={"model": "tiny", **body})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "encoder" in message
    assert "/v1/rerank" in message
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("runner", "pooling"), [(RUNNER, PoolingType.NONE), (EMBEDDING_RUNNER, PoolingType.RANK)]
)
def test_what_cannot_embed_says_so(runner: Any, pooling: PoolingType) -> None:
    engine = FakeEngine(runner=runner)
    with TestClient(app_with(engine, pooling)) as client:
        response = client.post(PATH, json={"model": "tiny", "input": "a"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "unsupported_parameter"
    assert ("/v1/rerank" in error["message"]) == (pooling is PoolingType.RANK)
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (PATH, {"input": None}, "input"),
        (PATH, {"input": ""}, "input"),
        (PATH, {"input": []}, "input"),
        (PATH, {"input": [""]}, "input"),
        (PATH, {"input": [[]]}, "input"),
        (PATH, {"input": ["a", [1]]}, "input"),
        (PATH, {"input": [1000]}, "input"),
        (PATH, {"input": ["a"] * 2049}, "input"),
        (PATH, {"input": [[1] * (MAX_CONTEXT + 1)]}, "input"),
        (PATH, {"encoding_format": "int8"}, "encoding_format"),
        (PATH, {"dimensions": 0}, "dimensions"),
        (PATH, {"dimensions": 3}, "dimensions"),
        ("/v1/rerank", {"query": ""}, "query"),
        ("/v1/rerank", {"documents": []}, "documents"),
        ("/v1/rerank", {"documents": ["a", ""]}, "documents"),
        ("/v1/rerank", {"documents": [{"title": "x"}]}, "documents[0].text"),
        ("/v1/rerank", {"top_n": 0}, "top_n"),
        ("/v1/rerank", {"rank_fields": ["title"]}, "rank_fields"),
    ],
)
def test_mistakes_are_refused_by_name(
    engine: FakeEngine, path: str, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "tiny", "input": "a", "query": "a", "documents": ["b"], **fields}
    with TestClient(app_with(engine, PoolingType.LAST)) as client:
        response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert engine.submitted == []


def test_a_failure_leaves_nothing_behind(engine: FakeEngine) -> None:
    engine.script = lambda request: [EngineError("secret")]
    with TestClient(app_with(engine, PoolingType.NONE)) as client:
        response = client.post(PATH, json={"model": "tiny", "input": ["a", "b", "c"]})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert engine.live == set()
