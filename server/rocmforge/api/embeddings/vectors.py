"""Texts to vectors of length 1, through the engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rocmforge.api.answer import collect
from rocmforge.api.generation import Generation
from rocmforge.api.plan import Plan
from rocmforge.api.service import Service
from rocmforge.engine.params import Pooling, SamplingParams
from rocmforge.errors import UnsupportedFeature
from rocmforge.models.pooling import PoolingType

Vector = npt.NDArray[np.float32]

AT_ONCE = 32
"""Inputs of one request that are in the engine at a time, so that it does not fill the queue."""

_POOLING = {
    PoolingType.NONE: Pooling.LAST,  # a model that only speaks says most at the end
    PoolingType.MEAN: Pooling.MEAN,
    PoolingType.CLS: Pooling.CLS,
    PoolingType.LAST: Pooling.LAST,
}


def check_embeds(service: Service) -> int:
    """The size of the vectors.

    Raises:
        UnsupportedFeature: the model or the backend cannot give any.
        NotReady: that is not known yet.
    """
    if service.pooling not in _POOLING:
        raise UnsupportedFeature(
            f"The model {service.model!r} gives scores, not embeddings.", param="model"
        )
    runner = service.runner
    if not runner.hidden_size:
        raise UnsupportedFeature(
            f"The backend {runner.backend!r} cannot return hidden states, so embeddings are not "
            "available on this server.",
            param="model",
        )
    return runner.hidden_size


def tokenize(service: Service, text: str) -> list[int]:
    """A text as the model was trained to embed it. Nothing in it is a control token."""
    tokenizer = service.tokenizer
    ids = tokenizer.encode(text, parse_special=False)
    return [*ids, tokenizer.eos_ids[0]] if tokenizer.adds_eos and tokenizer.eos_ids else ids


async def embed(
    service: Service, request_id: str, prompts: Sequence[tuple[int, ...]], arrival_ns: int
) -> list[Vector]:
    """The vector of each prompt, [D].

    Raises:
        CapacityError, EngineError: as `Generation`.
    """
    sampling = SamplingParams(
        max_tokens=0, pooling=_POOLING[service.pooling], adapter=service.adapter
    )
    vectors: list[Vector] = []
    for first in range(0, len(prompts), AT_ONCE):
        some = tuple(prompts[first : first + AT_ONCE])
        plan = Plan(prompts=some, sampling=sampling, n=1, stop=())
        generation = Generation.start(service, request_id, plan, arrival_ns)
        try:
            pieces = await collect(generation)
        finally:
            generation.close()
        for piece in sorted(pieces, key=lambda piece: piece.index):
            assert piece.embedding is not None, "the engine was asked for an embedding"
            vectors.append(normalized(np.frombuffer(piece.embedding, np.float32)))
    return vectors


def normalized(vector: Vector) -> Vector:
    """The same direction, length 1; a vector of zeros stays one."""
    length = np.linalg.norm(vector)
    return vector / length if length else vector
