"""A decoder with a classification head, as llama.cpp's converter writes Qwen3-Reranker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import UnsupportedTensor
from rocmforge.models.rank_head import RankHead, read_rank_head
from rocmforge.opening import open_checkpoint
from tests.backend.conftest import Load
from tests.backend.driving import Chunk, make_step
from tests.data.models.tiny_models import PROMPT, by_name, gguf_metadata, gguf_tensors
from tests.support.gguf_writer import write_gguf

LLAMA_CPP = 0.7008069
"""The first of two scores of PROMPT: llama-cpp-python 0.3.36 with this file, pooling type 4."""


def write(folder: Path, **keys: Any) -> Path:
    model = by_name("qwen3")
    head = np.random.default_rng(3).standard_normal((2, 48)).astype(np.float32) * np.float32(0.3)
    metadata = gguf_metadata(model) | {
        "qwen3.pooling_type": 4,
        "tokenizer.chat_templates": ["rerank"],
        "tokenizer.chat_template.rerank": "<Q>{query}<D>{document}!",
        **keys,
    }
    kept = {key: value for key, value in metadata.items() if value is not None}
    tensors = gguf_tensors(model) | {"cls.output.weight": head}
    return write_gguf(folder / "ranker.gguf", kept, tensors)


def head_of(path: Path) -> RankHead | None:
    with open_checkpoint(path) as checkpoint:
        return read_rank_head(checkpoint)


def test_relevance_of_the_last_state_is_that_of_llama_cpp(load: Load, tmp_path: Path) -> None:
    path = write(tmp_path)
    runner = load(path).runner
    step = make_step(0, [Chunk(tokens=PROMPT, blocks=[0, 1, 2], wants=[])], runner.info.block_size)
    last = np.array([[len(PROMPT) - 1, len(PROMPT)]], np.int32)
    runner.submit(replace(step, hidden_ranges=last))
    hidden = runner.collect().hidden
    assert hidden is not None
    head = head_of(path)
    assert head is not None
    assert head.relevance(hidden[0]) == pytest.approx(LLAMA_CPP, abs=1e-3)


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
