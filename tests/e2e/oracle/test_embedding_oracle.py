"""Embeddings of real models, through the engine, against llama.cpp's."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.backend.arrays import Float32Array
from rocmforge.engine.ipc.params import Pooling, SamplingParams
from rocmforge_reference.backend import create
from tests.support.engine.core import Request, make_core, vectors_of
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.large]

ORACLE = Path(__file__).parents[2] / "data/models/oracle/embeddings.json"
CLOSE = 0.998  # llama.cpp rounds activations to int8 before each product, which costs 0.001


def unit(vector: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return vector.astype(np.float64) / np.linalg.norm(vector)


def embeddings(path: Path, requests: Sequence[Request]) -> list[Float32Array]:
    """Vectors from the engine, which cuts prompts."""
    options = replace(
        SMALL, max_sequences=len(requests), max_batched_tokens=16, kv_blocks=None, kv_dtype="f32"
    )
    with closing(load_file(create(), path, options)) as runner:
        return vectors_of(make_core(runner, options), requests)


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_pooled_states_point_where_llama_cpps_do(
    model: str, request: pytest.FixtureRequest
) -> None:
    rows = [row for row in json.loads(ORACLE.read_text()) if row["model"] == model]
    found = embeddings(
        request.getfixturevalue(f"{model}_path"),
        [
            (row["ids"], SamplingParams(max_tokens=0, pooling=Pooling(row["pooling"])))
            for row in rows
        ],
    )
    expected = [unit(np.frombuffer(base64.b64decode(row["vector"]), "<f2")) for row in rows]
    cosines = np.stack([unit(vector) for vector in found]) @ np.stack(expected).T
    assert cosines.diagonal().min() > CLOSE
    others = cosines[~np.eye(len(rows), dtype=bool)]
    assert others.max() < 0.99, "texts and kinds of pooling must be told apart"
