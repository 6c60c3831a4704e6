"""Tokenizers of the BERT family against llama.cpp's, and the ids of the original one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rocmforge.gguf.reader import open_gguf
from rocmforge.text.tokenizer import Tokenizer
from tests.data.text.make_goldens import digest, texts

GOLDENS = Path(__file__).parents[1] / "data/text/encoder_tokens.json"
DIGESTS: dict[str, dict[str, list[str]]] = json.loads(GOLDENS.read_text())

# Where llama.cpp is not BERT: it drops the vowels of syllables that Unicode decomposes, reads
# U+0085 as a letter and U+2581 as its own mark of a word, and spells words of any length.
LLAMA_CPP_DIFFERS = {
    "ggml-vocab-bert-bge.gguf": re.compile(r"[가-힣\u0900-\u097f\x85▁]|\w{101}"),
    "ggml-vocab-nomic-bert-moe.gguf": re.compile(r"(?!)"),
}


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_random_text_is_tokenised_as_llama_cpp_does(name: str, llama_cpp_source: Path) -> None:
    tokenizer = Tokenizer.from_metadata(open_gguf(llama_cpp_source / "models" / name).metadata)
    compared = 0
    for index, text in enumerate(texts()):
        if LLAMA_CPP_DIFFERS[name].search(text):
            continue
        plain = tokenizer.encode(text, parse_special=False, add_bos=False)
        assert digest(plain) == DIGESTS[name]["plain"][index], text
        assert digest(tokenizer.encode_whole(text)) == DIGESTS[name]["whole"][index], text
        compared += 1
    assert compared > 50


def test_pairs_are_joined_as_each_family_was_trained(llama_cpp_source: Path) -> None:
    spelled = {}
    for name in DIGESTS:
        tokenizer = Tokenizer.from_metadata(open_gguf(llama_cpp_source / "models" / name).metadata)
        ids = tokenizer.encode_pair("hello", "rain </s>")
        spelled[name] = [tokenizer.token(index) for index in ids]
    assert spelled["ggml-vocab-bert-bge.gguf"] == [
        *("[CLS]", "▁hello", "[SEP]"),
        *("▁rain", "▁<", "▁/", "▁s", "▁>", "[SEP]"),
    ]
    assert spelled["ggml-vocab-nomic-bert-moe.gguf"] == [
        *("<s>", "▁hell", "o", "</s>", "</s>"),
        *("▁rain", "▁", "</", "s", ">", "</s>"),
    ]
