"""Texts to vectors of length 1, through the engine."""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt

from rocmforge.api.generate.answer import collect
from rocmforge.api.generate.checks import check_room
from rocmforge.api.generate.generation import Generation
from rocmforge.api.generate.model import RequestedModel
from rocmforge.api.generate.prepared_request import PreparedRequest
from rocmforge.engine.ipc.params import Pooling, SamplingParams
from rocmforge.engine.ipc.prompt import token_prompt
from rocmforge.errors import QueueFull, RateLimited, UnsupportedFeature
from rocmforge.fleet.model import ServedModel
from rocmforge.models.pooling import PoolingType

Vector = npt.NDArray[np.float32]
Prompts = tuple[tuple[int, ...], ...]

AT_ONCE = 32
"""Inputs of one request that are in the engine at a time, so that it does not fill the queue."""
_PAUSE_S = 0.05
_PATIENCE_S = 30.0
"""How long one that is half done waits for room in the queue: this in all, so long at a time."""

_POOLING = {
    PoolingType.NONE: Pooling.LAST,  # a model that only speaks says most at the end
    PoolingType.MEAN: Pooling.MEAN,
    PoolingType.CLS: Pooling.CLS,
    PoolingType.LAST: Pooling.LAST,
}


def check_embeds(model: ServedModel) -> int:
    """Returns the size of the vectors.

    Raises:
        UnsupportedFeature: the model or the backend cannot give any.
        NotReady: that is not known yet.
    """
    if model.pooling is PoolingType.RANK:
        raise UnsupportedFeature(
            f"The model {model.name!r} ranks documents and gives no embeddings. Use /v1/rerank.",
            param="model",
        )
    return check_hidden(model)


def check_hidden(model: ServedModel) -> int:
    """Returns how many numbers the model gives for a prompt; raises as `check_embeds`."""
    size = model.hidden_size
    if not size:
        raise UnsupportedFeature(
            f"The backend {model.runner.backend!r} cannot return hidden states, so embeddings "
            "are not available on this server.",
            param="model",
        )
    return size


def check_fits(model: ServedModel, prompts: Prompts, param: str) -> Prompts:
    """Returns the prompts; raises ContextLengthExceeded if one is too long."""
    for prompt in prompts:
        check_room(model, prompt, 0, param=param, prompt_param=param)
    return prompts


async def embed(model: RequestedModel, request_id: str, prompts: Prompts) -> list[Vector]:
    """Computes the embedding of each prompt, [D], of length 1.

    Raises:
        CapacityError, EngineError: as `Generation`.
    """
    pooling = _POOLING[model.served.pooling]
    vectors = await pooled(model, request_id, prompts, pooling)
    return [normalized(vector) for vector in vectors]


async def pooled(
    model: RequestedModel, request_id: str, prompts: Prompts, pooling: Pooling
) -> list[Vector]:
    """Computes the pooled state of each prompt, float32 [D].

    The engine gets as many at a time as its queue and the caller's key let in. Once the first are
    done, the others wait for room.

    Raises:
        CapacityError, EngineError: as `Generation`.
    """
    sampling = SamplingParams(max_tokens=0, pooling=pooling, adapter=model.adapter)
    size = _at_once(model)
    waited_s = 0.0
    vectors: list[Vector] = []
    while len(vectors) < len(prompts):
        some = prompts[len(vectors) : len(vectors) + size]
        prepared = PreparedRequest(
            prompts=tuple(map(token_prompt, some)), sampling=sampling, n=1, stop=()
        )
        try:
            generation = Generation.start(model, request_id, prepared)
        except (QueueFull, RateLimited):
            if len(some) > 1:
                size = len(some) // 2
                continue
            if not vectors or waited_s > _PATIENCE_S:
                raise
            await asyncio.sleep(_PAUSE_S)
            waited_s += _PAUSE_S
            continue
        try:
            pieces = await collect(generation)
        finally:
            generation.close()
        for piece in sorted(pieces, key=lambda piece: piece.index):
            assert piece.embedding is not None, "the engine was asked for an embedding"
            vectors.append(np.frombuffer(piece.embedding, np.float32))
    return vectors


def _at_once(model: RequestedModel) -> int:
    caller = model.origin.caller
    if caller is None or caller.key.max_sequences is None:
        return AT_ONCE
    return min(AT_ONCE, caller.key.max_sequences)


def normalized(vector: Vector) -> Vector:
    """Scales to length 1; a vector of zeros stays one."""
    length = np.linalg.norm(vector)
    return vector / length if length else vector
