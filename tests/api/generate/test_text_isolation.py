"""What one API key has sent is tokenised again for another: the time tells nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from litestar.testing import TestClient

from rocmforge.api.http.keys import Keyring, given_keys
from rocmforge.api.http.settings import ApiSettings
from rocmforge.text.tokenizer.encoded_texts import EncodedTexts
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.api.conftest import Client
from tests.api.fake_engine import FakeEngine, build_app, make_model

LONG = "hello " * 64
MESSAGES = {"messages": [{"role": "user", "content": LONG}]}
LIMITED = MESSAGES | {"max_tokens": 1}


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[Client]:
    keys = Keyring(given_keys(["alice", "bob"]))
    model = make_model(engine, declared_context=1 << 20, encoded_texts=EncodedTexts())
    with TestClient(build_app(model, ApiSettings(), keys)) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", LIMITED),
        ("messages", LIMITED),
        ("messages/count_tokens", MESSAGES),
        ("responses", {"input": LONG, "max_output_tokens": 1}),
    ],
)
def test_a_text_is_found_by_the_key_that_sent_it(
    path: str, body: dict[str, Any], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenised: list[str] = []
    encode = Tokenizer._encode_texts

    def noting(own: Tokenizer, texts: list[str], *, is_start: bool) -> Iterator[Any]:
        tokenised.extend(text for text in texts if LONG.strip() in text)
        return encode(own, texts, is_start=is_start)

    monkeypatch.setattr(Tokenizer, "_encode_texts", noting)
    counts = []
    for key in ("alice", "alice", "bob", "bob"):
        headers = {"authorization": f"Bearer {key}"}
        client.post(f"/v1/{path}", json={"model": "tiny", **body}, headers=headers)
        counts.append(len(tokenised))
    assert counts == [1, 1, 2, 2]
