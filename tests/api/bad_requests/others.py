"""Mistakes in the smaller endpoints, and in what all of them share: bodies, headers, paths."""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.api.bad_requests.row import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    GOOD,
    JSON,
    LEFT_OUT,
    MESSAGES,
    RERANK,
    TOKENIZE,
    BadRequest,
    unsupported,
    wrong,
)

UNKNOWN: dict[str, Any] = {"status": 404, "code": "model_not_found"}
DEEP = 40_000

SMALLER_ENDPOINTS = [
    wrong(EMBEDDINGS, {"model": "no"}, "model", "'no'", **UNKNOWN),
    wrong(EMBEDDINGS, {"input": LEFT_OUT}, "input", "Missing"),
    wrong(EMBEDDINGS, {"input": ""}, "input", "must not be empty"),
    wrong(EMBEDDINGS, {"input": []}, "input", "length >= 1"),
    wrong(EMBEDDINGS, {"input": {}}, "input", "got `object`"),
    wrong(EMBEDDINGS, {"input": ["a", 1]}, "input", "list of lists of token ids"),
    wrong(EMBEDDINGS, {"input": [["a"]]}, "input[0][0]", "Expected `int`"),
    wrong(EMBEDDINGS, {"input": [2**70]}, "input", "vocabulary of 1000 tokens"),
    wrong(EMBEDDINGS, {"input": ["a"] * 2049}, "input", "more than 2048 entries"),
    wrong(
        EMBEDDINGS,
        {"input": "x" * 40_000},
        "input",
        "but the prompt has 40000",
        code="context_length_exceeded",
    ),
    wrong(EMBEDDINGS, {"encoding_format": "int8"}, "encoding_format", "'base64', 'float'"),
    wrong(EMBEDDINGS, {"dimensions": 0}, "dimensions", ">= 1"),
    wrong(EMBEDDINGS, {"dimensions": 7}, "dimensions", "have 6"),
    wrong(RERANK, {"model": "no"}, "model", "'no'", **UNKNOWN),
    unsupported(RERANK, {}, "model", "'tiny' cannot rank: it declares no pooling"),
    wrong(RERANK, {"query": 5}, "query", "Expected `str`"),
    wrong(RERANK, {"documents": []}, "documents", "length >= 1"),
    wrong(RERANK, {"documents": [{"title": "x"}]}, "documents[0].text", "Missing"),
    wrong(RERANK, {"top_n": 0}, "top_n", ">= 1"),
    wrong(TOKENIZE, {"model": "no"}, "model", "'no'", **UNKNOWN),
    wrong(TOKENIZE, {"prompt": LEFT_OUT}, "prompt", "either 'prompt' or 'messages'"),
    wrong(TOKENIZE, {"prompt": 1}, "prompt", "Expected `str | null`"),
    wrong(TOKENIZE, {"messages": []}, "prompt", "either 'prompt' or 'messages'"),
    wrong(TOKENIZE, {"prompt": None, "messages": []}, "messages", "must not be empty"),
    wrong(
        TOKENIZE, {"prompt": None, "messages": [{"role": "x"}]}, "messages[0].role", "'assistant'"
    ),
    wrong(DETOKENIZE, {"model": "no"}, "model", "'no'", **UNKNOWN),
    wrong(DETOKENIZE, {"tokens": LEFT_OUT}, "tokens", "Missing"),
    wrong(DETOKENIZE, {"tokens": [1000]}, "tokens", "vocabulary of 1000 tokens"),
    wrong(DETOKENIZE, {"tokens": ["a"]}, "tokens[0]", "Expected `int`"),
    BadRequest(path="/v1/models/no", method="GET", param="model", says="tiny", **UNKNOWN),
    BadRequest(
        path="/v1/models/no",
        method="GET",
        param="model",
        says="tiny",
        headers={"anthropic-version": "2023-06-01"},
        **UNKNOWN,
    ),
]

MODELS = [
    *(
        BadRequest(path=f"/v1/models/{command}", param="model", says="Available: tiny", **UNKNOWN)
        for command in ("no/load", "no/unload", "tiny/paint")
    ),
    *(
        BadRequest(path=path, content={"model": "no"}, param="model", says="'no'", **UNKNOWN)
        for path in ("/models/load", "/models/unload")
    ),
    BadRequest(path="/models/load", content={}, param="model", says="Missing"),
    BadRequest(path="/models/unload", content={"model": 5}, param="model", says="got `int`"),
]


def body(content: bytes, says: str, param: str | None = None) -> list[BadRequest]:
    """The same broken body for two endpoints, one of either kind."""
    return [
        BadRequest(path=path, content=content, says=says, param=param) for path in (CHAT, MESSAGES)
    ]


BODIES = [
    *body(b"", "not valid JSON: Input data was truncated"),
    # Without a body nothing needs to be declared either.
    *(
        BadRequest(path=path, says="not valid JSON: Input data was truncated", headers={})
        for path in GOOD
    ),
    *body(b"{", "not valid JSON: Input data was truncated"),
    *body(b"[]", "must be a JSON object. Expected `object`, got `array`"),
    *body(b'"text"', "got `str`"),
    *body(b"null", "got `null`"),
    *body(b"{'model': 'tiny'}", "object keys must be strings (byte 1)"),
    *body(b'{"model": "tiny",}', "trailing comma"),
    *body(json.dumps(GOOD[CHAT]).encode() + b" and", "trailing characters"),
    *body(b'{"model": NaN}', "invalid character (byte 10)"),
    *body(b'{"temperature": Infinity}', "invalid character (byte 16)"),
    *body(b'{"temperature": 1e999}', "Number out of range", "temperature"),
    *body(b'{"max_tokens": ' + b"9" * 5000 + b"}", "Integer value out of range", "max_tokens"),
    *body(b'{"model": "\\ud800"}', "not valid JSON"),
    *body(b'{"model": "tiny\xff"}', "not valid UTF-8"),
    *body(b'{"model": "\xed\xa0\x80"}', "not valid UTF-8"),
    *body(b"\xef\xbb\xbf{}", "invalid character (byte 0)"),  # a byte order mark
    *body('{"model": "tiny"}'.encode("utf-16"), "invalid character (byte 0)"),
    *body(b"\x00", "invalid character (byte 0)"),
    *body(gzip.compress(b'{"model": "tiny"}'), "invalid character (byte 0)"),
    *body(b'{"x": ' + b"[" * DEEP + b"]" * (DEEP - 1), "nested too deeply"),
    *body(b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}", "got `array`", "messages[0]"),
    *(
        BadRequest(
            path=path,
            content=b'{"model": "' + b"x" * (16 << 20) + b'"}',
            says="larger than 16777216 bytes",
            status=413,
            code="request_too_large",
        )
        for path in (CHAT, MESSAGES)
    ),
]


def sent(path: str, says: str, headers: dict[str, str], **answer: Any) -> BadRequest:
    """A good body, with headers that are not."""
    content = json.dumps(GOOD[path]).encode()
    return BadRequest(path=path, content=content, says=says, headers=headers, **answer)


NOT_JSON: dict[str, Any] = {"status": 415, "code": "unsupported_media_type"}
LATE: dict[str, Any] = {"status": 504, "code": "deadline_exceeded"}
TIMEOUT = "x-request-timeout"

HEADERS = [
    *(
        sent(path, "sent with Content-Type: application/json", headers, **NOT_JSON)
        for path in GOOD
        for headers in ({"content-type": "text/plain"},)
    ),
    sent(CHAT, "Content-Type: application/json", {}, **NOT_JSON),
    sent(CHAT, "in UTF-8", {"content-type": "application/json; charset=utf-16"}, **NOT_JSON),
    sent(CHAT, "in UTF-8", {"content-type": "application/x-www-form-urlencoded"}, **NOT_JSON),
    *(
        sent(path, "without Content-Encoding", {**JSON, "content-encoding": kind}, **NOT_JSON)
        for path in (CHAT, MESSAGES, EMBEDDINGS)
        for kind in ("gzip", "br")  # neither of which the body is
    ),
    *(
        sent(CHAT, "a number of seconds above 0", {**JSON, TIMEOUT: wrong}, param=TIMEOUT)
        for wrong in ("soon", "-1", "nan", "inf", "")
    ),
    sent(CHAT, "before its deadline", {**JSON, TIMEOUT: "1e-9"}, **LATE),
    sent(MESSAGES, "before its deadline", {**JSON, TIMEOUT: "1e-9"}, **LATE),
    BadRequest(
        path=COMPLETIONS,
        content={**GOOD[COMPLETIONS], "timeout": 1e-9, "n": 4},
        says="before its deadline",
        **LATE,
    ),
]


def path(method: str, where: str, says: str, status: int, code: str) -> BadRequest:
    return BadRequest(path=where, method=method, says=says, status=status, code=code, headers={})


PATHS = [
    *(path("GET", where, "takes POST only", 405, "method_not_allowed") for where in GOOD),
    *(path("PUT", where, "takes POST only", 405, "method_not_allowed") for where in (CHAT, RERANK)),
    path("PATCH", COUNT_TOKENS, "takes POST only", 405, "method_not_allowed"),
    *(
        path("POST", where, "takes GET", 405, "method_not_allowed")
        for where in ("/v1/models", "/health", "/ready", "/metrics", "/version")
    ),
    path("GET", "/v1/responses", "takes POST only", 405, "method_not_allowed"),
    path("GET", "/v1/responses/x/cancel", "takes POST only", 405, "method_not_allowed"),
    *(
        path("GET", where, "GET /openapi.json lists", 404, "unknown_url")
        for where in ("/v1/nothing", "/v2/models", "/v1/chat", "/v1/responses/a%2fb")
    ),
    # Of clients whose base URL lacks /v1, has it twice, or is that of another server.
    *(
        path(method, where, f"Did you mean {meant}? GET /openapi", 404, "unknown_url")
        for method, where, meant in (
            ("POST", "/chat/completions", CHAT),
            ("POST", "/completions", COMPLETIONS),
            ("POST", "/v1/v1/messages", MESSAGES),
            ("POST", "/anthropic/v1/messages/count_tokens", COUNT_TOKENS),
            ("POST", "/api/v1/chat/completions/", CHAT),
            ("POST", "/V1/Embeddings", EMBEDDINGS),
            ("GET", "/models", "/v1/models"),
            ("GET", "/v1/health", "/health"),
        )
    ),
    *(
        path("GET", where, "exist. GET /openapi.json", 404, "unknown_url")
        for where in ("/nothing", "/v1/responses/{response_id:str}/input_items/x")
    ),
    path("POST", "/v1/messages/batches", "This path does not exist", 404, "unknown_url"),
]

ROWS = [*SMALLER_ENDPOINTS, *MODELS, *BODIES, *HEADERS, *PATHS]
