"""Embeddings of real models, through the engine, against llama.cpp's."""

from __future__ import annotations

import base64
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.core import EngineCore
from rocmforge.engine.messages import Submit
from rocmforge.engine.params import GenerateRequest, Pooling, SamplingParams
from rocmforge.engine.plan import SchedulerLimits
from rocmforge_reference.backend import create

pytestmark = pytest.mark.model

ORACLE = Path(__file__).parents[1] / "data/models/oracle/embeddings.json"
CLOSE = 0.998  # llama.cpp rounds activations to int8 before each product, which costs 0.001


def unit(data: bytes, dtype: str) -> Any:
    vector = np.frombuffer(data, dtype).astype(np.float64)
    return vector / np.linalg.norm(vector)


def embeddings(path: Path, prompts: list[GenerateRequest]) -> dict[int, Any]:
    options = LoadOptions(
        device=None,
        max_context=64,
        max_sequences=len(prompts),
        max_batched_tokens=16,  # prompts are cut
        kv_blocks=None,
        kv_dtype="f32",
        memory_utilization=0.9,
    )
    limits = SchedulerLimits(max_sequences=len(prompts), max_batched_tokens=16, max_waiting=0)
    with closing(create().load(path, options, lambda stage, share: None)) as runner:
        core = EngineCore(runner, limits, lambda: 1)
        events = [*core.step([Submit(request=prompt) for prompt in prompts]).events]
        while core.has_work:
            events += core.step().events
    return {event.request_id: unit(event.embedding or b"", "f4") for event in events}


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_pooled_states_point_where_llama_cpps_do(
    model: str, request: pytest.FixtureRequest
) -> None:
    rows = [row for row in json.loads(ORACLE.read_text()) if row["model"] == model]
    found = embeddings(
        request.getfixturevalue(f"{model}_path"),
        [
            GenerateRequest(
                request_id=number,
                prompt_ids=tuple(row["ids"]),
                sampling=SamplingParams(max_tokens=0, pooling=Pooling(row["pooling"])),
                eos_ids=(),
                arrival_ns=0,
            )
            for number, row in enumerate(rows)
        ],
    )
    expected = np.stack([unit(base64.b64decode(row["vector"]), "<f2") for row in rows])
    cosines = np.stack([found[number] for number in range(len(rows))]) @ expected.T
    assert cosines.diagonal().min() > CLOSE
    others = cosines[~np.eye(len(rows), dtype=bool)]
    assert others.max() < 0.99, "texts and kinds of pooling must be told apart"
