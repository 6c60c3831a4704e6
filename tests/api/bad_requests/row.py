"""What a row of the table is, and the requests that its rows make bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"

GOOD: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    COMPLETIONS: {"model": "tiny", "prompt": "hello", "max_tokens": 2},
    RESPONSES: {"model": "tiny", "input": "hello", "max_output_tokens": 2},
    MESSAGES: {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2,
    },
    COUNT_TOKENS: {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]},
    EMBEDDINGS: {"model": "tiny", "input": "hello"},
    RERANK: {"model": "tiny", "query": "hello", "documents": ["world"]},
    TOKENIZE: {"model": "tiny", "prompt": "hello"},
    DETOKENIZE: {"model": "tiny", "tokens": [1]},
}
"""For each endpoint that takes a body, one that it answers; but for /v1/rerank with this model."""

JSON: Mapping[str, str] = {"content-type": "application/json"}
LEFT_OUT = object()
CONTEXT = 32768  # of the server

# What /v1/messages calls the kinds of error.
_ANTHROPIC_TYPES = {
    404: "not_found_error",
    413: "request_too_large",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequest:
    """A request and the answer that it has to get.

    Attributes:
        says: What the message must contain, besides `param`.
    """

    path: str
    says: str
    param: str | None = None
    status: int = 400
    code: str = "invalid_value"
    content: Any = None  # bytes as they are; anything else as JSON; None = no body
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)

    @property
    def speaks_anthropic(self) -> bool:
        """Whether the answer has Anthropic's form."""
        return self.path.startswith(MESSAGES) or "anthropic-version" in self.headers

    @property
    def error_type(self) -> str:
        """The kind of error in the answer."""
        if self.speaks_anthropic:
            return _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.param or ''} {self.says[:40]}"


def wrong(path: str, fields: Mapping[str, Any], param: str, says: str, **answer: Any) -> BadRequest:
    """A good request with some fields replaced, or left out."""
    body = {**GOOD[path], **fields}
    body = {name: value for name, value in body.items() if value is not LEFT_OUT}
    return BadRequest(path=path, content=body, param=param, says=says, **answer)


def unsupported(path: str, fields: Mapping[str, Any], param: str, says: str = "not") -> BadRequest:
    """A good request that also asks for something that is not there."""
    return wrong(path, fields, param, says, code="unsupported_parameter")
