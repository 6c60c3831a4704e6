"""Tokenizers built from metadata: what they do with text, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.errors import BadTokenizer, InvalidParameter
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.pretokenizers import known_kinds
from rocmforge.text.tokenizer.specials import SpecialTokens
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.unit.text.vocabularies import byte_level, sentencepiece

BYTE_LEVEL = Tokenizer(read_tokenizer(byte_level()))
SENTENCEPIECE = Tokenizer(read_tokenizer(sentencepiece()))


def spelled(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token(index) for index in ids]


def plain(tokenizer: Tokenizer, text: str) -> list[str]:
    return spelled(tokenizer, tokenizer.encode(text, parse_special=False, add_bos=False))


@given(st.text())
def test_byte_level_decoding_gives_the_text_back(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, parse_special=False)
    assert BYTE_LEVEL.decode(ids) == text


@given(st.text().filter(lambda text: "▁" not in text))
def test_sentencepiece_decoding_gives_the_text_back(text: str) -> None:
    ids = SENTENCEPIECE.encode(text, parse_special=False, add_bos=False)
    assert SENTENCEPIECE.decode(ids) == text


@given(st.text(), st.sampled_from([BYTE_LEVEL, SENTENCEPIECE]))
def test_text_never_becomes_a_control_token_unless_parsed(text: str, tokenizer: Tokenizer) -> None:
    text = text.join(["<|end|>", "<s>", "<|start|>"])
    ids = tokenizer.encode(text, parse_special=False, add_bos=False)
    assert not tokenizer.special_ids.intersection(ids)


def test_merges_apply_in_the_order_of_the_file() -> None:
    assert plain(BYTE_LEVEL, "hello world") == ["hello", "Ġworld"]
    assert plain(BYTE_LEVEL, "hellor") == ["hello", "r"]


def test_control_tokens_are_parsed_on_request_and_the_longest_wins() -> None:
    ids = BYTE_LEVEL.encode("h<|end|>x<|end|>", parse_special=True)
    assert spelled(BYTE_LEVEL, ids) == ["h", "<|end|>x", "<|end|>"]


@pytest.mark.parametrize("parse_special", [True, False])
def test_user_defined_tokens_are_always_parsed(parse_special: bool) -> None:
    ids = BYTE_LEVEL.encode("h<tool>", parse_special=parse_special)
    assert spelled(BYTE_LEVEL, ids) == ["h", "<tool>"]


def test_untrusted_spelling_of_a_control_token_still_has_its_user_defined_tokens() -> None:
    ids = BYTE_LEVEL.encode_trusted("<|end|><tool><|end|>", lambda start, end: start > 0).tolist()
    assert spelled(BYTE_LEVEL, ids) == [*"<|end|>", "<tool>", "<|end|>"]


def test_space_prefix_follows_the_start_and_special_tokens() -> None:
    ids = SENTENCEPIECE.encode("hello<s>hello", parse_special=True, add_bos=False)
    assert spelled(SENTENCEPIECE, ids) == ["▁hello", "<s>", "▁hello"]


def test_no_space_prefix_if_the_file_says_so() -> None:
    tokenizer = Tokenizer(read_tokenizer(sentencepiece(add_space_prefix=False)))
    assert plain(tokenizer, "hello") == ["h", "el", "lo"]


def test_sentencepiece_merges_runs_from_the_left() -> None:
    tokenizer = Tokenizer(read_tokenizer(sentencepiece(add_space_prefix=False)))
    assert plain(tokenizer, "aaaaa") == ["aa", "aaa"]


def test_equal_scores_merge_the_leftmost_pair() -> None:
    metadata = sentencepiece(add_space_prefix=False)
    scores = metadata["tokenizer.ggml.scores"]
    for token in ("aa", "aaa"):
        scores[metadata["tokenizer.ggml.tokens"].index(token)] = -1e9
    assert plain(Tokenizer(read_tokenizer(metadata)), "aaaaa") == ["aaa", "aa"]


def test_characters_outside_a_sentencepiece_vocabulary_become_bytes() -> None:
    assert plain(SENTENCEPIECE, "é") == ["▁", "<0xC3>", "<0xA9>"]


def test_text_that_spells_a_byte_token_stays_text() -> None:
    ids = SENTENCEPIECE.encode("<0x41>", parse_special=True, add_bos=False)
    assert SENTENCEPIECE.decode(ids) == "<0x41>"


@pytest.mark.parametrize(
    ("metadata", "adds_bos"),
    [
        (byte_level(), False),
        (byte_level(pre="llama-bpe"), True),
        (byte_level(pre="llama-bpe", add_bos_token=False), False),
        (byte_level(pre="llama-bpe", bos_token_id=None), False),
        (sentencepiece(), True),
    ],
)
def test_bos_rule(metadata: dict[str, object], adds_bos: bool) -> None:
    tokenizer = Tokenizer(read_tokenizer(metadata))
    assert tokenizer.adds_bos is adds_bos
    ids = tokenizer.encode("h", parse_special=False)
    assert (ids[0] == tokenizer.bos_id) is adds_bos


def test_decoding_leaves_out_control_tokens_unless_asked() -> None:
    ids = BYTE_LEVEL.encode("<|start|>hello<tool>", parse_special=True)
    assert BYTE_LEVEL.decode(ids) == "hello<tool>"
    assert BYTE_LEVEL.decode(ids, skip_special=False) == "<|start|>hello<tool>"


def test_pieces_are_bytes_even_where_they_are_no_text() -> None:
    ids = BYTE_LEVEL.encode("€", parse_special=False)
    assert b"".join(map(BYTE_LEVEL.piece_bytes, ids)) == "€".encode()
    assert len(ids) == 3


def test_bytes_that_are_not_utf8_decode_to_replacement_characters() -> None:
    ids = BYTE_LEVEL.encode("€", parse_special=False)[:1]
    assert BYTE_LEVEL.decode(ids) == "�"


def test_phi3_swallows_white_space_after_most_special_tokens() -> None:
    tokenizer = Tokenizer(read_tokenizer({**byte_level(), "general.name": "Phi-3 mini"}))
    ids = tokenizer.encode("<|end|> \n he", parse_special=True)
    assert spelled(tokenizer, ids) == ["<|end|>", "he"]


def test_tokens_that_end_a_generation() -> None:
    metadata = byte_level(eos_token_id=10)
    tokenizer = Tokenizer(read_tokenizer(metadata))
    assert spelled(tokenizer, list(tokenizer.eos_ids)) == ["Ċ", "<|end|>"]


def test_end_of_message_is_not_the_end_where_calls_end_turns() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"] += ["<|return|>", "<|call|>"]
    metadata["tokenizer.ggml.token_type"] += [3, 3]
    metadata["tokenizer.ggml.eos_token_id"] = len(metadata["tokenizer.ggml.tokens"]) - 2
    tokenizer = Tokenizer(read_tokenizer(metadata))
    assert spelled(tokenizer, list(tokenizer.eos_ids)) == ["<|return|>", "<|call|>"]


def test_tokens_that_end_turns_are_control_tokens_whatever_the_file_says() -> None:
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"].append("<|im_end|>")
    metadata["tokenizer.ggml.token_type"].append(4)
    tokenizer = Tokenizer(read_tokenizer(metadata))
    assert len(plain(tokenizer, "<|im_end|>")) == len("<|im_end|>")


def test_arrays_may_be_numpy_arrays() -> None:
    metadata = sentencepiece()
    for key, dtype in (("token_type", np.int32), ("scores", np.float32)):
        full = f"tokenizer.ggml.{key}"
        metadata[full] = np.array(metadata[full], dtype)
    assert plain(Tokenizer(read_tokenizer(metadata)), "hello") == ["▁hello"]


@pytest.mark.parametrize("kind", known_kinds())
def test_every_pretokenizer_kind_keeps_all_text(kind: str) -> None:
    text = "It's  HELLO世界 かな é\t12345 x=1;\n\n  — 123,456!!  don'T\r\n ไทย हिन्दी 'S \u3000."
    metadata = byte_level(pre=kind)
    metadata["tokenizer.ggml.tokens"] += ["▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata["tokenizer.ggml.token_type"] += [1, *[6] * 256]
    tokenizer = Tokenizer(read_tokenizer(metadata))
    ids = tokenizer.encode(text, parse_special=False, add_bos=False)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({}, "tokenizer.ggml.model is missing"),
        (byte_level(model="rwkv"), "'rwkv'"),
        (byte_level(model=7), "int, not a string"),
        (byte_level(pre="klingon"), "'klingon'"),
        (byte_level(tokens=[]), "missing or empty"),
        (byte_level(tokens=["a", 1]), "array of strings"),
        (byte_level(tokens=["a", "\udc80"]), "not UTF-8"),
        (byte_level(tokens=["a", "a"], token_type=None), "the same token twice"),
        (byte_level(merges=None), "no merges"),
        (byte_level(model="gemma4"), "256 of 256 byte tokens"),
        (byte_level(token_type=[1, 1]), "2 entries"),
        (byte_level(token_type="x"), "array of numbers"),
        (byte_level(bos_token_id=9999), "9999"),
        (byte_level(eos_token_id=True), "not an integer"),
        (byte_level(add_bos_token=1), "not a boolean"),
        (sentencepiece(scores=None), "no scores"),
        (sentencepiece(tokens=["a"], token_type=[1], scores=[0.0], bos_token_id=0,
                       eos_token_id=0), "256 of 256 byte tokens"),
    ],
)  # fmt: skip
def test_bad_metadata_is_refused_by_name(metadata: dict[str, object], named: str) -> None:
    with pytest.raises(BadTokenizer, match=named):
        Tokenizer(read_tokenizer(metadata))


def test_unknown_kinds_say_which_exist() -> None:
    with pytest.raises(BadTokenizer, match=r"Supported: .*smollm"):
        Tokenizer(read_tokenizer(byte_level(pre="klingon")))


@pytest.mark.parametrize("text", ["\ud83d", "ab\udfffc"])
def test_lone_surrogates_are_the_clients_mistake(text: str) -> None:
    with pytest.raises(InvalidParameter, match="surrogate"):
        BYTE_LEVEL.encode(text, parse_special=False)


@pytest.mark.parametrize("token_id", [-1, BYTE_LEVEL.vocab_size])
def test_ids_outside_the_vocabulary_are_the_clients_mistake(token_id: int) -> None:
    with pytest.raises(InvalidParameter, match="outside the vocabulary"):
        BYTE_LEVEL.decode([token_id])


def test_a_file_that_does_not_name_its_pre_tokenizer_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Tokenizer(read_tokenizer(byte_level()))
    assert caplog.text == ""
    Tokenizer(read_tokenizer(byte_level(pre=None)))
    assert "tokenizer.ggml.pre" in caplog.text


def test_special_tokens_that_begin_with_one_another_without_end_are_refused() -> None:
    with pytest.raises(BadTokenizer, match="begin with one another"):
        SpecialTokens({"a" * length: length for length in range(1, 1500)})
