"""Fill-in-the-middle tokens: found by name, or by how they are spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmforge.gguf.reader import open_gguf
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.infill import InfillTokens
from rocmforge.text.tokenizer.tokenizer import Tokenizer

UNNAMED = (None, None, None)


@pytest.mark.parametrize(
    "spellings",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ],
)
def test_known_spellings_are_found(spellings: tuple[str, str, str]) -> None:
    assert InfillTokens.find(["a", *reversed(spellings)], UNNAMED) == InfillTokens(3, 2, 1)


def test_a_vocabulary_without_all_three_has_none() -> None:
    assert InfillTokens.find(["<|fim_prefix|>", "<|fim_suffix|>"], UNNAMED) is None


def test_what_the_file_names_counts_more_than_spellings() -> None:
    tokens = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "x"]
    assert InfillTokens.find(tokens, (None, None, 3)) == InfillTokens(0, 1, 3)


def test_the_order_of_a_prompt() -> None:
    assert InfillTokens(7, 8, 9).prompt([1, 2], [3]) == (7, 1, 2, 8, 3, 9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("refact", (1, 3, 2)),
        ("starcoder", (1, 3, 2)),
        ("deepseek-coder", (32016, 32015, 32017)),
        ("llama-bpe", None),
    ],
)
def test_the_tokens_of_real_vocabularies(
    llama_cpp_source: Path, name: str, ids: tuple[int, int, int] | None
) -> None:
    """As `llama_vocab_fim_pre` and its siblings of llama.cpp find them."""
    with open_gguf(llama_cpp_source / f"models/ggml-vocab-{name}.gguf") as file:
        found = Tokenizer(read_tokenizer(file.metadata)).infill
    assert found == (None if ids is None else InfillTokens(*ids))
