"""The tokens of a model are the same whether it comes as a folder or as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocmforge.engine_options import token_pieces
from rocmforge.gguf.reader import open_gguf
from rocmforge.gguf.tokenizer import read_tokenizer as read_gguf_tokenizer
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.data.models.text.tiny_encoders import VOCABULARY, by_name, write_encoder
from tests.support.files.tokenizer_files import TEXT, pieces, write_tokenizer

TEXTS = (TEXT, "", "  two  spaces\n\n\tand tabs", "😀 ﬁ \u0301", "<0x41> [SEP] <|im_end|> </s>")


def from_gguf(path: Path) -> Tokenizer:
    with open_gguf(path) as file:
        return Tokenizer(read_gguf_tokenizer(file.metadata))


def from_folder(path: Path, size: int) -> Tokenizer:
    (path / "config.json").write_text("{}")
    folder = Folder(path)
    return Tokenizer(read_tokenizer(folder, folder.config(), None, size))


def assert_equal(one: Tokenizer, other: Tokenizer) -> None:
    """In ids of texts, bytes of tokens, and all that is known of single ones."""
    for text in TEXTS:
        assert one.encode_whole(text) == other.encode_whole(text)
        for special in (False, True):
            ids = one.encode(text, parse_special=special)
            assert ids == other.encode(text, parse_special=special), text
            assert one.decode(ids) == other.decode(ids)
    for hidden in (False, True):
        tables = [each.piece_tables(skip_special=hidden) for each in (one, other)]
        assert tables[0] == tables[1]
    assert (one.bos_id, one.adds_bos, one.adds_eos) == (
        other.bos_id,
        other.adds_bos,
        other.adds_eos,
    )
    assert one.special_ids == other.special_ids
    assert set(one.eos_ids) == set(other.eos_ids)
    assert one.infill == other.infill


def test_word_pieces_of_an_encoder_are_the_same(tmp_path: Path) -> None:
    expected = from_gguf(write_encoder(by_name("bert"), tmp_path))
    write_tokenizer(tmp_path, pieces(VOCABULARY), unk_token="[UNK]")
    found = from_folder(tmp_path, len(VOCABULARY))
    assert_equal(found, expected)
    assert found.encode_pair("the cat", "a dog") == expected.encode_pair("the cat", "a dog")


def definition(tokenizer: Tokenizer, data: Any) -> dict[str, Any]:
    """The `tokenizer.json` that says what a GGUF file says."""
    document: dict[str, Any] = json.loads(tokenizer._model.to_str())
    if data.model == "llama" and data.adds_space_prefix:
        replace = document["normalizer"]
        prepend = {"type": "Prepend", "prepend": "▁"}
        document["normalizer"] = {"type": "Sequence", "normalizers": [prepend, replace]}
    document["added_tokens"] = [
        {
            "id": index,
            "content": data.tokens[index],
            "special": index in tokenizer.special_ids,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for index in sorted({*tokenizer.special_ids, *user_defined(data)})
    ]
    return document


def user_defined(data: Any) -> list[int]:
    """Tokens that are plain vocabulary and always found."""
    return [index for index, kind in enumerate(data.types) if kind.name == "USER_DEFINED"]


@pytest.mark.model
@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm"])
def test_tokens_of_known_vocabularies_are_the_same(
    name: str, llama_cpp_source: Path, tmp_path: Path
) -> None:
    with open_gguf(llama_cpp_source / f"models/ggml-vocab-{name}.gguf") as file:
        data = read_gguf_tokenizer(file.metadata)
    expected = Tokenizer(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition(expected, data)))
    config: dict[str, Any] = {"add_bos_token": expected.adds_bos}
    if data.bos_id is not None:
        config["bos_token"] = data.tokens[data.bos_id]
    if data.end_ids:
        config["eos_token"] = data.tokens[data.end_ids[0]]
    if data.unknown_id is not None:
        config["unk_token"] = data.tokens[data.unknown_id]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = from_folder(tmp_path, len(data.tokens))
    assert_equal(found, expected)
    assert token_pieces(found) == token_pieces(expected)
