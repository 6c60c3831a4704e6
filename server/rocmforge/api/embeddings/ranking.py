"""The relevance of documents to a query: by a classification head, or by cosine of embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from rocmforge.api.embeddings.schema import RerankRequest
from rocmforge.api.embeddings.vectors import (
    Prompts,
    check_embeds,
    check_fits,
    check_hidden,
    embed,
    pooled,
)
from rocmforge.api.generate.checks import refuse_unsupported
from rocmforge.api.generate.convert_completion import token_prompts
from rocmforge.api.generate.model import RequestedModel
from rocmforge.engine.ipc.params import Pooling
from rocmforge.errors import InvalidParameter, UnsupportedFeature
from rocmforge.fleet.model import ServedModel
from rocmforge.models.pooling import PoolingType
from rocmforge.models.rank_head import RankHead
from rocmforge.text.template.template import RenderedPrompt, encode_prompt
from rocmforge.text.tokenizer.tokenizer import Tokenizer


def rank_prompts(model: ServedModel, wanted: RerankRequest) -> Prompts:
    """Makes the prompts: pairs if the model has a head, else the query, then each document.

    Raises:
        UnsupportedFeature: the model cannot rank, or the request asks for what we do not have.
        InvalidParameter: a text is empty.
        ContextLengthExceeded: a text, or a query with a document, is too long.
    """
    refuse_unsupported(wanted, {"rank_fields": (["text"],)})
    texts = [given if isinstance(given, str) else given.text for given in wanted.documents]
    limit = wanted.max_tokens_per_doc
    if model.pooling is PoolingType.RANK:
        for param, text in (("query", wanted.query), *(("documents", text) for text in texts)):
            if not text:
                raise InvalidParameter(f"'{param}' must not be empty.", param=param)
        encode = _pair_tokenizer(model)
        pairs = tuple(tuple(encode(wanted.query, text, limit)) for text in texts)
        return check_fits(model, pairs, "documents")
    if model.pooling is PoolingType.NONE:
        raise UnsupportedFeature(
            f"The model {model.name!r} cannot rank: it declares no pooling, so it is "
            "neither a ranking nor an embedding model.",
            param="model",
        )
    check_embeds(model)
    whole = model.tokenizer.encode_whole
    query = token_prompts(model, wanted.query, "query", encode=whole)
    cut = partial(whole, limit=limit)
    documents = token_prompts(model, [*texts], "documents", encode=cut)
    return check_fits(model, query, "query") + check_fits(model, documents, "documents")


def _pair_tokenizer(model: ServedModel) -> Callable[[str, str, int | None], list[int]]:
    """Returns a function that makes a prompt of a query and some tokens of a document."""
    num_scores = check_hidden(model)
    if model.rank_head is not None:
        return partial(_fill, model.tokenizer, model.rank_head)
    if model.causal:
        reason = "it has no classification head, or no prompt for it"
    elif num_scores != 1:
        reason = f"it tells {num_scores} classes apart"
    else:
        return model.tokenizer.encode_pair
    raise UnsupportedFeature(f"The model {model.name!r} cannot rank: {reason}.", param="model")


def _fill(
    tokenizer: Tokenizer, head: RankHead, query: str, document: str, limit: int | None
) -> list[int]:
    if limit is not None:
        ids = tokenizer.encode(document, parse_special=False, add_bos=False)[:limit]
        document = tokenizer.decode(ids)
    pieces = list(head.fill(query, document))
    text = "".join([piece for piece, _ in pieces])
    trust = b"".join([bytes([is_own]) * len(piece) for piece, is_own in pieces])
    return encode_prompt(tokenizer, RenderedPrompt(text, trust)).tolist()


async def relevance(model: RequestedModel, request_id: str, prompts: Prompts) -> list[float]:
    """Computes the relevance of each document.

    Of a head, the sigmoid of its score, 0 to 1: what clients of Cohere and Jina expect, and what
    vLLM and text-embeddings-inference answer (llama.cpp answers the score itself). Of a model that
    says yes or no, the probability of yes. Without a head, the cosine, -1 to 1.

    Raises:
        CapacityError, EngineError: as `Generation`.
    """
    head = model.served.rank_head
    if head is not None:
        states = await pooled(model, request_id, prompts, Pooling.LAST)
        return [head.relevance(state) for state in states]
    if model.served.pooling is PoolingType.RANK:
        scores = await pooled(model, request_id, prompts, Pooling.CLS)
        return [_sigmoid(float(score[0])) for score in scores]
    query, *documents = await embed(model, request_id, prompts)
    return [float(query @ document) for document in documents]


def _sigmoid(score: float) -> float:
    if score < 0:  # the other form would overflow
        return math.exp(score) / (1 + math.exp(score))
    return 1 / (1 + math.exp(-score))
