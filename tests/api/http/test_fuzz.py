"""No body, however odd, is answered with a 5xx or leaves a sequence behind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocmforge.api.embeddings.schema import EmbeddingsRequest, RerankRequest
from rocmforge.api.generate.schema import ChatRequest, CompletionRequest
from rocmforge.api.messages.schema import MessagesRequest
from rocmforge.api.ops_schema import DetokenizeRequest, TokenizeRequest
from rocmforge.api.responses.schema import ResponsesRequest
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine

REQUESTS: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/embeddings": EmbeddingsRequest,
    "/v1/rerank": RerankRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}

numbers = st.one_of(
    st.integers(), st.integers(-2, 3), st.floats(allow_nan=False, allow_infinity=False)
)
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
        optional={"content": st.text(max_size=30) | anything, "tool_calls": anything},
    ),
    max_size=4,
)

items = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["message", "reasoning", "function_call", "function_call_output"]
            )
        },
        optional={
            "role": st.sampled_from(["user", "assistant", "developer"]),
            "content": st.text(max_size=30) | anything,
            "call_id": st.text(max_size=5),
            "name": st.text(max_size=5),
            "arguments": st.text(max_size=9),
            "output": st.text(max_size=9),
        },
    ),
    max_size=4,
)


def bodies(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies that are mostly valid, with a few fields of any type."""
    names = [field.name for field in msgspec.structs.fields(kind)]
    likely = {
        "model": st.just("tiny"),
        "messages": messages,
        "prompt": st.text(max_size=30) | anything,
        "max_tokens": st.integers(1, 9),
        "input": st.text(max_size=30) | items | anything,
        "tokens": st.lists(st.integers(0, 999), max_size=5),
    }
    usual = st.fixed_dictionaries({n: likely[n] for n in names if n in likely})
    odd = st.dictionaries(st.sampled_from(names), anything, max_size=3)
    return st.builds(lambda first, second: first | second, usual, odd)


@pytest.mark.parametrize("path", REQUESTS)
def test_odd_bodies(client: Client, engine: FakeEngine, path: str) -> None:
    @settings(
        max_examples=150,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(bodies(REQUESTS[path]))
    def check(body: dict[str, Any]) -> None:
        response = client.post(path, json=body)
        assert response.status_code < 500, response.text
        if response.status_code != 200:
            assert response.json()["error"]["message"]
        assert engine.live == set()

    check()


@pytest.mark.parametrize("path", REQUESTS)
def test_bytes_that_are_not_json(client: Client, path: str) -> None:
    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=60))
    def check(content: bytes) -> None:
        headers = {"content-type": "application/json"}
        assert client.post(path, content=content, headers=headers).status_code == 400

    check()
