"""Prompts with rows of embeddings, as tests make them up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.engine.ipc.params import SamplingParams, TokenLogprob
from rocmforge.engine.ipc.prompt import EmbeddingSpan, Prompt, TokenSpan, embedding_span, token_span
from rocmforge.engine.ipc.status import EngineStats
from rocmforge_reference.ops import rms_norm
from tests.data.models.text.model_files import hf_weights
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT
from tests.support.engine.core import make_core, reports
from tests.support.fakes.fake_model import HIDDEN_SIZE

PLACEHOLDER = 2
# Two begin alike for more than a block; together they are preempted where there are few blocks.
PROMPTS = (PROMPT[:34], PROMPT[7:9], PROMPT[20:39], PROMPT[:38])
PLACES = (
    [range(3, 21), range(21, 30)],
    [range(2)],
    [range(1)],
    [range(3, 21), range(21, 30), range(37, 38)],
)


def image(number: int, count: int, placeholder: int = PLACEHOLDER) -> EmbeddingSpan:
    """`count` rows that no other number or count has, as wide as the fake backend's."""
    rows = np.random.default_rng((number, count)).standard_normal((count, HIDDEN_SIZE))
    return embedding_span(rows.astype(np.float32), placeholder)


def prompt_of(*parts: EmbeddingSpan | TokenSpan | Sequence[int]) -> Prompt:
    """A prompt of spans and of token ids."""
    return Prompt(
        spans=tuple(
            part if isinstance(part, EmbeddingSpan | TokenSpan) else token_span(part)
            for part in parts
        )
    )


def embedded(
    ids: Sequence[int], table: Float32Array, places: Sequence[range], placeholder: int = PLACEHOLDER
) -> Prompt:
    """A prompt that says the same as these tokens, but in rows of the table at some places.

    Args:
        ids: of the tokens.
        table: what a decoder begins with for each token, [V, hidden_size].
        places: positions of the spans of embeddings, in order.
        placeholder: the id that stands there.
    """
    parts: list[EmbeddingSpan | Sequence[int]] = []
    start = 0
    for place in places:
        parts += [ids[start : place.start]] if place.start > start else []
        rows = table[list(ids[place.start : place.stop])]
        parts.append(embedding_span(rows, placeholder))
        start = place.stop
    return prompt_of(*parts, *([ids[start:]] if start < len(ids) else []))


def begun_with(model: TinyModel) -> Float32Array:
    """A tiny model's rows for each token: its table, scaled or normed, [V, hidden_size]."""
    weights, config = hf_weights(model), model.config
    scale = math.sqrt(config["hidden_size"]) if model.is_gemma else 1.0
    # All of the residual is divided by the scale of what is added to it.
    scale *= config.get("embedding_multiplier", 1) / config.get("residual_multiplier", 1)
    own = ("model.embed_tokens.weight", "backbone.embeddings.weight")
    table = next(weights[name] for name in own if name in weights)
    if model.architecture == "muse-glimmer":
        return rms_norm(table, np.ones(table.shape[1], np.float32), config["rms_norm_eps"])
    return table * np.float32(scale)


@dataclass
class Answer:
    """What a request got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)


def answers(
    runner: Runner,
    options: LoadOptions,
    prompts: Sequence[Sequence[int] | Prompt],
    sampling: SamplingParams,
) -> tuple[list[Answer], EngineStats]:
    """What an engine of its own gives for these prompts at once, and what it counted."""
    found = [Answer() for _ in prompts]
    stats = EngineStats()
    for report in reports(make_core(runner, options), [(each, sampling) for each in prompts]):
        stats = report.stats
        for event in report.events:
            assert event.error is None
            answer = found[event.request_id]
            answer.tokens += event.token_ids
            answer.logprobs += event.logprobs or ()
            answer.prompt_logprobs += event.prompt_logprobs or ()
    return found, stats
