"""Tokenizers and vectors of the BERT family against llama.cpp's, and ids of the original one."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.protocol import LoadOptions
from rocmforge.engine.ipc.params import Pooling
from rocmforge.gguf.reader import open_gguf
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.models.pooling import PoolingType
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge_reference.backend import create
from tests.data.models.text.tiny_encoders import by_name, write_with_byte_level_bpe
from tests.data.text.make_encoder_goldens import LINES, PRE_TOKENIZERS
from tests.data.text.make_goldens import digest, texts
from tests.support.models.encoder_steps import encoder_step, run
from tests.support.models.loading import load_file

GOLDENS = Path(__file__).parents[2] / "data/text"
DIGESTS: dict[str, dict[str, list[str]]] = json.loads((GOLDENS / "encoder_tokens.json").read_text())
VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (GOLDENS / "encoder_vectors.json").read_text()
)

# Where llama.cpp is not BERT: it drops the vowels of syllables that Unicode decomposes, reads
# U+0085 as a letter and U+2581 as its own mark of a word, and spells words of any length.
LLAMA_CPP_DIFFERS = {
    "ggml-vocab-bert-bge.gguf": re.compile(r"[가-힣\u0900-\u097f\x85▁]|\w{101}"),
    "ggml-vocab-nomic-bert-moe.gguf": re.compile(r"(?!)"),
}


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_random_text_is_tokenised_as_llama_cpp_does(name: str, llama_cpp_source: Path) -> None:
    tokenizer = Tokenizer(read_tokenizer(open_gguf(llama_cpp_source / "models" / name).metadata))
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
        tokenizer = Tokenizer(
            read_tokenizer(open_gguf(llama_cpp_source / "models" / name).metadata)
        )
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


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_texts_become_the_vectors_of_llama_cpp(
    name: str, llama_cpp_source: Path, tmp_path: Path
) -> None:
    gpt2 = llama_cpp_source / "models/ggml-vocab-gpt-2.gguf"
    model = by_name(name)
    path = write_with_byte_level_bpe(model, PRE_TOKENIZERS[name], gpt2, tmp_path)
    with open_gguf(path) as file:
        tokenizer = Tokenizer(read_tokenizer(file.metadata))
    prompts = [tokenizer.encode_whole(line) for line in LINES]
    assert prompts == [row["ids"] for row in VECTORS[name]]
    options = LoadOptions(
        device=None,
        max_context=128,
        max_sequences=len(prompts),
        max_batched_tokens=512,
        kv_blocks=None,
        kv_dtype="auto",
        memory_utilization=0.9,
    )
    pooling = Pooling.CLS if model.keys["pooling_type"] == PoolingType.CLS else Pooling.MEAN
    with closing(load_file(create(), path, options)) as runner:
        found = run(runner, encoder_step(0, prompts, pooling))
    expected = np.array([row["vector"] for row in VECTORS[name]])
    cosines = (found / np.linalg.norm(found, axis=1, keepdims=True)) @ (
        expected / np.linalg.norm(expected, axis=1, keepdims=True)
    ).T
    assert cosines.diagonal().min() > 0.99999
    assert cosines[~np.eye(len(prompts), dtype=bool)].max() < 0.98
