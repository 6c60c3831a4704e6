"""WordPiece and unigram tokenizers built from metadata."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.errors import BadTokenizer
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.unit.text.vocabularies import CONTROL, NORMAL, UNKNOWN, byte_level

WORDS = ["▁rain", "▁hello", "fall", "s", "▁über", "▁uber", "▁Rain", "▁,", "▁]", "▁[", "▁cls"]


def wordpiece(**changes: Any) -> dict[str, Any]:
    """WordPiece as older converters write it: CLS and SEP, and no flags."""
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] * 4 + [NORMAL] * len(WORDS),
        "tokenizer.ggml.cls_token_id": 1,
        "tokenizer.ggml.seperator_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def unigram(**changes: Any) -> dict[str, Any]:
    """A unigram vocabulary laid out like that of XLM-RoBERTa."""
    pieces = {"▁": -3.0, "▁a": -2.0, "b": -2.5, "c": -2.5, "▁ab": -4.0, "bc": -4.2, "▁abc": -9.0}
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0, 0, 0, 0, *pieces.values()], np.float32),
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [UNKNOWN] + [NORMAL] * len(pieces),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.seperator_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def spelled(metadata: dict[str, Any], text: str) -> list[str]:
    tokenizer = Tokenizer(read_tokenizer(metadata))
    return [tokenizer.token(index) for index in tokenizer.encode_whole(text)]


def test_words_are_spelled_with_the_longest_pieces_from_the_left() -> None:
    assert spelled(wordpiece(), "Hello, rainfalls") == [
        *("[CLS]", "▁hello", "▁,", "▁rain", "fall", "s", "[SEP]")
    ]


def test_a_word_that_no_pieces_spell_is_unknown_as_a_whole() -> None:
    assert spelled(wordpiece(), "rainbows hello") == ["[CLS]", "[UNK]", "▁hello", "[SEP]"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, ["▁rain", "▁uber"]),
        ({"normalizer.lowercase": False}, ["▁Rain", "▁über"]),
        ({"normalizer.strip_accents": False}, ["▁rain", "▁über"]),
    ],
)
def test_case_and_accents_are_what_the_file_says(
    flags: dict[str, bool], expected: list[str]
) -> None:
    assert spelled(wordpiece(**flags), "Rain über") == ["[CLS]", *expected, "[SEP]"]


def test_text_is_the_most_probable_of_all_spellings() -> None:
    assert spelled(unigram(), " abc  a ") == ["<s>", "▁a", "bc", "▁a", "</s>"]


def test_neighbouring_characters_that_no_piece_spells_are_one_unknown_token() -> None:
    assert spelled(unigram(), "xyb") == ["<s>", "▁", "<unk>", "b", "</s>"]


def test_pairs_have_a_second_separator_unless_the_file_says_otherwise() -> None:
    two = Tokenizer(read_tokenizer(unigram())).encode_pair("a", "b")
    assert two == [0, 5, 2, 2, 4, 6, 2]
    one = Tokenizer(read_tokenizer(unigram(add_sep_token=False))).encode_pair("a", "b")
    assert one == [0, 5, 2, 4, 6, 2]
    assert Tokenizer(read_tokenizer(wordpiece())).encode_pair("hello", ",") == [1, 5, 2, 11, 2]


def test_byte_level_vocabularies_of_encoders_join_pairs_as_roberta_does() -> None:
    tokenizer = Tokenizer(
        read_tokenizer(byte_level(add_bos_token=True, add_eos_token=True, seperator_token_id=9))
    )
    begin, end = tokenizer.bos_id, tokenizer.eos_ids[0]
    hello, world = (tokenizer.encode(text, parse_special=False, add_bos=False) for text in "hw")
    assert tokenizer.encode_pair("h", "w") == [begin, *hello, end, 9, *world, end]
    assert tokenizer.encode_whole("hhhh", limit=2) == [begin, *hello, *hello, end]


@given(st.text(), st.sampled_from([wordpiece(), unigram()]))
def test_text_never_becomes_a_control_token(text: str, metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer(read_tokenizer(metadata))
    text = text.join(["[CLS]", "</s>", "\uffff", "<unk>", " "])
    ids = tokenizer.encode(text, parse_special=False, add_bos=False)
    assert tokenizer.special_ids.intersection(ids) <= {3}, "unknown words are the exception"


def test_decoding_puts_spaces_between_words() -> None:
    tokenizer = Tokenizer(read_tokenizer(wordpiece()))
    ids = tokenizer.encode_whole("hello rainfall")
    assert tokenizer.decode(ids) == "hello rainfall"


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        (unigram(scores=[]), "no scores"),
        (unigram(scores=[float("nan")] * 11), "scores are missing"),
        (unigram(unknown_token_id=99), "unknown_token_id"),
        (unigram(precompiled_charsmap="x"), "array of bytes"),
        ({**wordpiece(), "tokenizer.ggml.normalizer.lowercase": 1}, "normalizer.lowercase"),
    ],
)
def test_broken_vocabularies_are_refused(metadata: dict[str, Any], what: str) -> None:
    with pytest.raises(BadTokenizer, match=what):
        Tokenizer(read_tokenizer(metadata))


def test_a_file_must_name_its_unknown_token_if_the_usual_one_is_not_there() -> None:
    metadata = wordpiece()
    del metadata["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(BadTokenizer, match="unknown_token_id"):
        Tokenizer(read_tokenizer(metadata))


def charsmap(*, value: int = 0, root: int = 256, child: int = 0x200, end: bytes = b"\0") -> Any:
    """A table that replaces "X" by "a": unit 0, its child for the letter, and the value there."""
    units = [0] * 0x400
    units[0] = root << 10
    place = 256 ^ ord("X")
    units[place] = ord("X") | 1 << 8 | child << 10
    units[place ^ 0x200] = 1 << 31 | value
    data = struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + b"a" + end
    return np.frombuffer(data, np.uint8)


def test_text_is_normalised_by_the_files_own_table() -> None:
    assert spelled(unigram(precompiled_charsmap=charsmap()), "Xbc") == ["<s>", "▁a", "bc", "</s>"]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (charsmap(value=2), "lies behind its end"),
        (charsmap(root=1 << 20), "a prefix leads out"),
        (charsmap(child=1 << 19), "leads out of it"),
        (charsmap(end=b"x"), "has no end"),
        (charsmap(end=b"\xff\0"), "no UTF-8"),
        (charsmap()[:3], "sizes"),
        (charsmap()[:4000], "sizes"),
    ],
)
def test_tables_that_lead_out_of_themselves_are_refused(table: Any, what: str) -> None:
    with pytest.raises(BadTokenizer, match=what):
        Tokenizer(read_tokenizer(unigram(precompiled_charsmap=table)))


@pytest.mark.slow
@given(st.data())
def test_a_table_with_changed_bytes_is_refused_or_works(data: st.DataObject) -> None:
    table = charsmap().copy()
    for _ in range(data.draw(st.integers(1, 4))):
        table[data.draw(st.integers(0, len(table) - 1))] = data.draw(st.integers(0, 255))
    try:
        tokenizer = Tokenizer(read_tokenizer(unigram(precompiled_charsmap=table)))
    except BadTokenizer:
        return
    tokenizer.encode_whole(data.draw(st.text(st.sampled_from("Xabc \0é"))))
