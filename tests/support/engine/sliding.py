"""Sequences that are longer than a window, through an engine that releases blocks behind it."""

from __future__ import annotations

from typing import Final

from rocmforge.backend.protocol import LoadOptions, Runner
from rocmforge.engine.ipc.params import SamplingParams
from rocmforge.engine.ipc.status import EngineStats
from tests.support.engine.core import make_core, tokens_of

_TEXT: Final = tuple(7 * index % 89 for index in range(300))


def slide(
    runner: Runner,
    options: LoadOptions,
    count: int = 8,
    max_tokens: int = 20,
    length: int = 50,
    draft: Runner | None = None,
    temperature: float = 1.0,
) -> tuple[list[list[int]], EngineStats]:
    """Answers to prompts at once, and to the same ones again, and what was counted.

    Some begin alike. What the second ones begin with is found, if it was not given to others.
    Tiny models repeat one token if none is drawn, whatever they have read.
    """
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        ignore_eos=True,
        draft_model_tokens=0 if draft is None else options.draft_tokens,
    )
    prompts = [_TEXT[n % 3 : n % 3 + length + 4 * n] for n in range(count)]
    core = make_core(runner, options, draft=draft)
    requests = [(prompt, sampling) for prompt in prompts]
    first, _ = tokens_of(core, requests)
    again, stats = tokens_of(core, requests)
    return first + again, stats
