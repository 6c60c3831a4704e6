"""Requests for an engine's client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rocmforge.engine.ipc.params import GenerateRequest, SamplingParams
from rocmforge.engine.ipc.prompt import Prompt, token_prompt


def asked(prompt: Sequence[int] | Prompt, sampling: SamplingParams, **more: Any) -> GenerateRequest:
    """A request that arrives now, and that no token ends."""
    fields: dict[str, Any] = {"eos_ids": (), "arrival_ns": time.monotonic_ns(), **more}
    spans = prompt if isinstance(prompt, Prompt) else token_prompt(prompt)
    return GenerateRequest(prompt=spans, sampling=sampling, **fields)
