"""A decoder that ranks: as llama.cpp's converter writes Qwen3-Reranker, and as a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.errors import BadTemplate, UnsupportedTensor
from rocmforge.models.rank_head import RankHead, read_rank_head
from rocmforge.opening import open_checkpoint
from tests.backend.conftest import Load
from tests.backend.driving import Chunk, make_step
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, hf_weights
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import GOLDEN_ROWS, PROMPT, by_name, goldens
from tests.support.files.gguf_writer import write_gguf
from tests.support.files.safetensors_writer import write_safetensors

LLAMA_CPP = 0.7008069
"""The first of two scores of PROMPT: llama-cpp-python 0.3.36 with this file, pooling type 4."""


HEAD = np.random.default_rng(3).standard_normal((2, 48)).astype(np.float32) * np.float32(0.3)


def write(folder: Path, **keys: Any) -> Path:
    model = by_name("qwen3")
    metadata = gguf_metadata(model) | {
        "qwen3.pooling_type": 4,
        "tokenizer.chat_templates": ["rerank"],
        "tokenizer.chat_template.rerank": "<Q>{query}<D>{document}!",
        **keys,
    }
    kept = {key: value for key, value in metadata.items() if value is not None}
    tensors = gguf_tensors(model) | {"cls.output.weight": HEAD}
    return write_gguf(folder / "ranker.gguf", kept, tensors)


def head_of(path: Path, prompt: str | None = None) -> RankHead | None:
    with open_checkpoint(path) as checkpoint:
        return read_rank_head(checkpoint, prompt)


def write_ranker(folder: Path, score: npt.NDArray[np.float32] | None) -> Path:
    """A folder whose decoder has a matrix of its own, or the tokens 5 and 9 that say yes and no."""
    model = by_name("qwen3")
    config = {} if score is None else {"architectures": ["Qwen3ForSequenceClassification"]}
    write_folder(model, folder, config=config)
    weights = hf_weights(model)
    if score is not None:
        del weights["lm_head.weight"]
        write_safetensors(folder / "model.safetensors", {**weights, "score.weight": score})
        return folder
    modules = [{"type": "cross_encoder.modules.logit_score.LogitScore", "path": "1_LogitScore"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    words = {"true_token_id": 5, "false_token_id": 9}
    (folder / "1_LogitScore/config.json").write_text(json.dumps(words))
    return folder


def relevance(load: Load, path: Path, prompt: str | None = None) -> float:
    """Of PROMPT."""
    runner = load(path).runner
    step = make_step(0, [Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=[])], runner.info.block_size)
    last = np.array([[len(PROMPT) - 1, len(PROMPT)]], np.int32)
    runner.submit(replace(step, hidden_ranges=last))
    hidden = runner.collect().hidden
    assert hidden is not None
    head = head_of(path, prompt)
    assert head is not None
    return head.relevance(hidden[0])


def test_relevance_of_the_last_state_is_that_of_llama_cpp(load: Load, tmp_path: Path) -> None:
    assert relevance(load, write(tmp_path)) == pytest.approx(LLAMA_CPP, abs=1e-3)


def test_a_folder_with_a_matrix_of_its_own_has_the_sigmoid_of_its_score(
    load: Load, tmp_path: Path
) -> None:
    folder = write_ranker(tmp_path / "m", HEAD[:1] - HEAD[1:])
    assert relevance(load, folder, "{query}{document}") == pytest.approx(LLAMA_CPP, abs=1e-3)


def test_a_folder_with_words_for_it_has_the_odds_of_transformers(
    load: Load, tmp_path: Path
) -> None:
    logits = goldens("qwen3")["logits"][GOLDEN_ROWS.index(len(PROMPT) - 1)]
    odds = np.exp(logits[5] - logits[9])
    folder = write_ranker(tmp_path / "m", None)
    found = relevance(load, folder, "{query}{document}")
    assert found == pytest.approx(odds / (1 + odds), abs=1e-5)


def test_a_model_that_can_only_rank_and_has_no_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTemplate, match="roles 'query' and 'document' with --chat-template"):
        head_of(write_ranker(tmp_path / "m", HEAD[:1]))
    assert head_of(write_ranker(tmp_path / "n", None)) is None, "it can chat"


def test_relevance_is_the_probability_of_yes() -> None:
    head = RankHead(np.array([[1, 0], [0, 1]], np.float32), "")
    assert head.relevance(np.array([2, 2], np.float32)) == pytest.approx(0.5)
    assert head.relevance(np.array([3, 2], np.float32)) == pytest.approx(np.e / (1 + np.e))
    assert head.relevance(np.array([-900, 900], np.float32)) == 0
    assert head.relevance(np.array([900, -900], np.float32)) == 1


def test_texts_with_blanks_in_them_are_not_filled_again() -> None:
    head = RankHead(np.zeros((2, 1), np.float32), "Q: {query}\nD: {document}\n")
    pieces = list(head.fill("{document}", "x"))
    assert "".join(piece for piece, _ in pieces) == "Q: {document}\nD: x\n"
    assert [piece for piece, is_own in pieces if not is_own] == ["{document}", "x"]


def test_a_file_without_a_prompt_for_it_has_no_head(tmp_path: Path) -> None:
    no_prompt: dict[str, Any] = {"tokenizer.chat_template.rerank": None}
    assert head_of(write(tmp_path, **no_prompt)) is None


def test_a_head_is_refused_where_the_file_does_not_say_that_it_ranks(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTensor, match=r"cls\.output"):
        head_of(write(tmp_path, **{"qwen3.pooling_type": 3}))
