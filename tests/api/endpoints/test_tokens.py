"""POST /tokenize and /detokenize."""

from __future__ import annotations

import pytest

from tests.api import tiny
from tests.api.conftest import Client
from tests.api.fake_engine import MAX_CONTEXT

HELLO, WORLD = 262, 267


def test_a_text_becomes_token_ids(client: Client) -> None:
    response = client.post("/tokenize", json={"model": "tiny", "prompt": "hello world"})
    assert response.json() == {
        "count": 2,
        "max_model_len": MAX_CONTEXT,
        "tokens": [HELLO, WORLD],
        "token_strs": None,
    }


def test_special_tokens_are_text_where_the_request_says_so(client: Client) -> None:
    def tokens(**fields: bool) -> list[int]:
        body = {"prompt": "<|im_end|>", **fields}
        found: list[int] = client.post("/tokenize", json=body).json()["tokens"]
        return found

    assert tokens() == tokens(parse_special=True) == [tiny.IM_END]
    as_text = tokens(parse_special=False)
    assert tiny.IM_END not in as_text
    assert client.post("/detokenize", json={"tokens": as_text}).json()["prompt"] == "<|im_end|>"


def test_parsing_special_tokens_is_no_choice_for_conversations(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "parse_special": False}
    response = client.post("/tokenize", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "parse_special"


def test_token_strings_come_as_the_vocabulary_spells_them(client: Client) -> None:
    body = {"prompt": "hello world", "return_token_strs": True}
    assert client.post("/tokenize", json=body).json()["token_strs"] == ["hello", "Ġworld"]


def test_a_conversation_goes_through_the_template(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "add_generation_prompt": False}
    tokens = client.post("/tokenize", json=body).json()["tokens"]
    text = client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text == "<|im_start|>user\nhello<|im_end|>\n"


@pytest.mark.parametrize("text", ["hello world", "café 😀", "<|im_end|>", "a\x00b", ""])
def test_a_text_comes_back_as_it_was(client: Client, text: str) -> None:
    tokens = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}


def test_special_tokens_are_parsed(client: Client) -> None:
    tokens = client.post("/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"]
    assert tokens == [tiny.IM_END]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_an_unknown_model_is_a_404(client: Client, path: str) -> None:
    body = {"model": "other", "prompt": "a", "tokens": [1]}
    assert client.post(path, json=body).status_code == 404


def test_a_long_text_is_tokenised_in_a_worker_thread_to_the_same_ids(client: Client) -> None:
    long = client.post("/tokenize", json={"prompt": "hello" * 4000}).json()["tokens"]
    assert long == [HELLO] * 4000


def test_what_clients_that_tokenise_over_http_need(client: Client) -> None:
    info = client.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"]) == ("<|bos|>", "<|im_end|>")
    assert info["chat_template"] == tiny.CHATML
    assert info["vocab_size"] == tiny.VOCAB_SIZE
