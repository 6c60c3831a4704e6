"""The wire format of /v1/embeddings (OpenAI's) and /v1/rerank (Jina's and Cohere's)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rocmforge.api.generate.schema import TokenIds

MAX_INPUTS = 2048


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """Body of POST /v1/embeddings."""

    model: str
    input: str | Annotated[list[str | int | TokenIds], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one input, of length 1: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class PromptUsage(msgspec.Struct, kw_only=True):
    """Tokens of a request that generates none."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    """Answer of POST /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PromptUsage


class Document(msgspec.Struct, kw_only=True):
    """A text to be ranked."""

    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    """Body of POST /v1/rerank."""

    model: str
    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_INPUTS)]
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=1)] | None = None  # the rest is left out
    rank_fields: Any = None  # known and not supported


class Ranked(msgspec.Struct, kw_only=True):
    """One document and how well it fits the query."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class Ranking(msgspec.Struct, kw_only=True):
    """Answer of POST /v1/rerank: the best documents first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PromptUsage
