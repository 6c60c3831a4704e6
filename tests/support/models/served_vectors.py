"""Embeddings of a live server on the HIP backend against one on the reference backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from tests.support.processes.server import LiveServer


def assert_served_vectors_are_the_references(
    model: Path, texts: Sequence[str], folder: Path
) -> None:
    """Vectors of length 1 that point where the reference's do, each text's elsewhere."""
    got, expected = (_served(model, texts, backend, folder) for backend in ("hip", "reference"))
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-5)
    assert (got * expected).sum(axis=1).min() > 0.9999
    assert (got @ expected.T)[~np.eye(len(texts), dtype=bool)].max() < 0.99


def _served(model: Path, texts: Sequence[str], backend: str, folder: Path) -> npt.NDArray[Any]:
    command = (
        *("-m", "rocmforge", "serve", str(model), "--port", "{port}", "--backend", backend),
        *("--max-context", "64", "--max-sequences", "4", "--max-batched-tokens", "32"),
        *("--served-model-name", "embed"),
    )
    with LiveServer(command, folder / f"{backend}.log") as server:
        body = {"model": "embed", "input": list(texts)}
        answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60.0)
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]])
