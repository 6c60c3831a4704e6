"""POST /v1/embeddings and /v1/rerank."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.types import ASGIApp

from rocmforge.api.dependencies import ModelsDep
from rocmforge.api.embeddings.ranking import rank_prompts, relevance
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
from rocmforge.api.embeddings.vectors import (
    Prompts,
    Vector,
    check_embeds,
    check_fits,
    embed,
    normalized,
)
from rocmforge.api.generate.answer import LARGE_ANSWER, AnswerHead, json_answer
from rocmforge.api.generate.convert_completion import token_prompts
from rocmforge.api.http.body import read_json
from rocmforge.api.http.disconnect import unless_client_leaves
from rocmforge.errors import InvalidParameter
from rocmforge.fleet.model import ServedModel

_embeddings_decoder = msgspec.json.Decoder(EmbeddingsRequest)
_rerank_decoder = msgspec.json.Decoder(RerankRequest)


@post("/v1/embeddings", status_code=200)
async def create_embeddings(request: Request[Any, Any, Any], models: ModelsDep) -> ASGIApp:
    """Vectors of one or more texts."""
    wanted = await read_json(request, _embeddings_decoder)
    prepare = partial(_embedding_prompts, wanted=wanted)
    async with models.acquire(wanted.model, prepare) as (model, prompts):
        head = AnswerHead.make(model, "embd-")
        vectors = await unless_client_leaves(request, embed(model, head.id, prompts))

        def encode() -> ASGIApp:
            data = [
                Embedding(index=index, embedding=_encoded(vector, wanted))
                for index, vector in enumerate(vectors)
            ]
            body = EmbeddingList(data=data, model=head.model, usage=_usage(prompts))
            return json_answer(body, head.id)

        is_large = sum(map(len, vectors)) >= LARGE_ANSWER
        return await models.in_thread(encode) if is_large else encode()


@post(["/v1/rerank", "/v2/rerank", "/rerank"], status_code=200)
async def rerank(request: Request[Any, Any, Any], models: ModelsDep) -> ASGIApp:
    """Documents in the order in which they fit a query; see `ranking.relevance`."""
    wanted = await read_json(request, _rerank_decoder)
    prepare = partial(rank_prompts, wanted=wanted)
    async with models.acquire(wanted.model, prepare) as (model, prompts):
        head = AnswerHead.make(model, "rerank-")
        scores = await unless_client_leaves(request, relevance(model, head.id, prompts))
        results = [Ranked(index=index, relevance_score=score) for index, score in enumerate(scores)]
        if wanted.return_documents:
            for result, given in zip(results, wanted.documents, strict=True):
                result.document = Document(text=given) if isinstance(given, str) else given
        results.sort(key=lambda result: -result.relevance_score)
        body = Ranking(
            id=head.id, model=head.model, results=results[: wanted.top_n], usage=_usage(prompts)
        )
        return json_answer(body, head.id)


def _embedding_prompts(model: ServedModel, wanted: EmbeddingsRequest) -> Prompts:
    size = check_embeds(model)
    if wanted.dimensions is not None and wanted.dimensions > size:
        raise InvalidParameter(
            f"'dimensions' is {wanted.dimensions}, but embeddings of this model have {size}.",
            param="dimensions",
        )
    encode = model.tokenizer.encode_whole
    prompts = token_prompts(model, wanted.input, "input", encode=encode, check_count=_check_count)
    return check_fits(model, prompts, "input")


def _check_count(entries: int) -> None:
    if entries > MAX_INPUTS:
        raise InvalidParameter(
            f"'input' must not have more than {MAX_INPUTS} entries.", param="input"
        )


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
