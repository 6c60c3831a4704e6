"""Every architecture with experts against llama.cpp, which read the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmforge.models.weights import present
from tests.backend.conftest import Load
from tests.backend.driving import Chunk, Want
from tests.data.models.goldens.llama_cpp_goldens import (
    CONTINUED,
    MODELS,
    llama_cpp_golden,
    write_for_llama_cpp,
)
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import PROMPT

TOLERANCE = 1e-4
"""Of a log-probability; the files have five digits behind the point."""
BLOCKS = [3, 1, 2, 4]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_tokens_and_log_probabilities_are_those_of_llama_cpp(
    model: TinyModel, load: Load, tmp_path: Path
) -> None:
    golden = llama_cpp_golden(model.name)
    driver = load(write_for_llama_cpp(model, tmp_path))
    wants = [Want(token=row, target=token, num_logprobs=0) for row, token in enumerate(PROMPT[1:])]
    output = driver.run(Chunk(tokens=PROMPT, blocks=BLOCKS, wants=[*wants, Want(num_logprobs=0)]))
    tokens, logprobs = [int(output.token_ids[-1])], [*present(output.logprobs)]
    while len(tokens) < CONTINUED:
        start = len(PROMPT) + len(tokens) - 1
        chunk = Chunk(tokens=tokens[-1:], start=start, blocks=BLOCKS, wants=[Want(num_logprobs=0)])
        output = driver.run(chunk)
        tokens.append(int(output.token_ids[0]))
        logprobs.extend(present(output.logprobs))
    assert tokens == golden["tokens"]
    expected = golden["prompt_logprobs"] + golden["logprobs"]
    np.testing.assert_allclose(logprobs, expected, rtol=0, atol=TOLERANCE)
