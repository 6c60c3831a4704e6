"""POST /v1/embeddings and /v1/rerank."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.types import ASGIApp

from rocmforge.api.answer import AnswerHead, json_answer
from rocmforge.api.body import read_json
from rocmforge.api.completion_plan import token_prompts
from rocmforge.api.convert import check_room, refuse_unsupported
from rocmforge.api.dependencies import ServiceDep
from rocmforge.api.disconnect import unless_client_leaves
from rocmforge.api.embeddings.schema import (
    MAX_INPUTS,
    Document,
    Embedding,
    EmbeddingList,
    EmbeddingsRequest,
    PromptUsage,
    Ranked,
    Ranking,
    RerankRequest,
)
from rocmforge.api.embeddings.vectors import Vector, check_embeds, embed, normalized, tokenize
from rocmforge.api.generation import now_ns
from rocmforge.api.service import Service
from rocmforge.errors import InvalidParameter, UnsupportedFeature
from rocmforge.models.pooling import PoolingType

Prompts = tuple[tuple[int, ...], ...]

_embeddings_decoder = msgspec.json.Decoder(EmbeddingsRequest)
_rerank_decoder = msgspec.json.Decoder(RerankRequest)


@post("/v1/embeddings", status_code=200)
async def create_embeddings(request: Request[Any, Any, Any], service: ServiceDep) -> ASGIApp:
    """Vectors of one or more texts."""
    arrival_ns = now_ns()
    wanted = await read_json(request, _embeddings_decoder)
    service = service.called(wanted.model)
    prompts = await service.offload(len(await request.body()), _embedding_prompts, service, wanted)
    head = AnswerHead.make(service, "embd-")
    vectors = await unless_client_leaves(request, embed(service, head.id, prompts, arrival_ns))
    data = [
        Embedding(index=index, embedding=_encoded(vector, wanted))
        for index, vector in enumerate(vectors)
    ]
    body = EmbeddingList(data=data, model=head.model, usage=_usage(prompts))
    return json_answer(body, head.id)


@post(["/v1/rerank", "/rerank"], status_code=200)
async def rerank(request: Request[Any, Any, Any], service: ServiceDep) -> ASGIApp:
    """Documents in the order in which they fit a query, by the cosine of their embeddings."""
    arrival_ns = now_ns()
    wanted = await read_json(request, _rerank_decoder)
    service = service.called(wanted.model)
    prompts = await service.offload(len(await request.body()), _rerank_prompts, service, wanted)
    head = AnswerHead.make(service, "rerank-")
    query, *documents = await unless_client_leaves(
        request, embed(service, head.id, prompts, arrival_ns)
    )
    results = [
        Ranked(index=index, relevance_score=float(query @ document))
        for index, document in enumerate(documents)
    ]
    if wanted.return_documents:
        for result, given in zip(results, wanted.documents, strict=True):
            result.document = Document(text=given) if isinstance(given, str) else given
    results.sort(key=lambda result: -result.relevance_score)
    body = Ranking(
        id=head.id, model=head.model, results=results[: wanted.top_n], usage=_usage(prompts)
    )
    return json_answer(body, head.id)


def _embedding_prompts(service: Service, wanted: EmbeddingsRequest) -> Prompts:
    service.check_model(wanted.model)
    size = check_embeds(service)
    if wanted.dimensions is not None and wanted.dimensions > size:
        raise InvalidParameter(
            f"'dimensions' is {wanted.dimensions}, but embeddings of this model have {size}.",
            param="dimensions",
        )
    prompts = token_prompts(service, wanted.input, "input", encode=partial(tokenize, service))
    if len(prompts) > MAX_INPUTS:
        raise InvalidParameter(
            f"'input' must not have more than {MAX_INPUTS} entries.", param="input"
        )
    return _checked(service, prompts, "input")


def _rerank_prompts(service: Service, wanted: RerankRequest) -> Prompts:
    service.check_model(wanted.model)
    refuse_unsupported(wanted, {"rank_fields": (["text"],)})
    if service.pooling in (PoolingType.NONE, PoolingType.RANK):
        reason = (
            "classification heads are not supported"
            if service.pooling is PoolingType.RANK
            else "its file declares no pooling, so it is not an embedding model"
        )
        raise UnsupportedFeature(
            f"The model {service.model!r} cannot rank: {reason}.", param="model"
        )
    check_embeds(service)
    texts = [given if isinstance(given, str) else given.text for given in wanted.documents]
    encode = partial(tokenize, service)
    query = token_prompts(service, wanted.query, "query", encode=encode)
    documents = token_prompts(service, [*texts], "documents", encode=encode)
    return _checked(service, query, "query") + _checked(service, documents, "documents")


def _checked(service: Service, prompts: Prompts, param: str) -> Prompts:
    for prompt in prompts:
        check_room(service, prompt, 0, param=param, prompt_param=param)
    return prompts


def _encoded(vector: Vector, wanted: EmbeddingsRequest) -> list[float] | str:
    if wanted.dimensions is not None:
        vector = normalized(vector[: wanted.dimensions])
    if wanted.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values


def _usage(prompts: Prompts) -> PromptUsage:
    count = sum(map(len, prompts))
    return PromptUsage(prompt_tokens=count, total_tokens=count)
