"""Texts that were tokenised before are found by whoever sent them, and by nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocmforge.text.tokenizer.encoded_texts import ENTRY, EncodedTexts
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.support.models.vision import vision_text

LONG = "once upon a time " * 4
END = "<|im_end|>"


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes through the tokenizer itself."""
    seen: list[str] = []
    encode = Tokenizer._encode_texts

    def noting(own: Tokenizer, texts: list[str], *, is_start: bool) -> Iterator[Any]:
        seen.extend(texts)
        return encode(own, texts, is_start=is_start)

    monkeypatch.setattr(Tokenizer, "_encode_texts", noting)
    return seen


def encode(text: str, texts: EncodedTexts | None = None, whose: bytes = b"") -> list[int]:
    """The ids of a text, all of whose control tokens count."""
    tokenizer, _ = vision_text()
    known = None if texts is None else texts.of(whose)
    return tokenizer.encode_trusted(text, lambda start, end: True, known=known).tolist()


def test_only_new_messages_of_a_conversation_are_tokenised(tokenised: list[str]) -> None:
    texts = EncodedTexts()
    first, second = f"{END}{LONG}{END}and then{END}", f"{LONG}the end"
    encode(first, texts)
    assert tokenised == [LONG, "and then"]
    tokenised.clear()
    ids = encode(first + second, texts)
    assert tokenised == [second]
    assert ids == encode(first + second)


def test_the_beginning_of_a_prompt_is_not_that_of_a_message(tokenised: list[str]) -> None:
    """Vocabularies of SentencePiece begin with a space there."""
    texts = EncodedTexts()
    for _ in range(2):
        assert encode(LONG + END + LONG, texts) == encode(LONG + END + LONG)
    assert tokenised.count(LONG) == 2 + 1 + 2 + 2, "the second one was found, the first one never"


@pytest.mark.parametrize("start", ["user", END])
def test_equal_texts_of_a_prompt_are_tokenised_once(start: str, tokenised: list[str]) -> None:
    text = f"{start}user{LONG}{END}user{END}{LONG}{END}user{END}me"
    ids = encode(text, EncodedTexts())
    assert sorted(tokenised) == sorted(set(tokenised)), "some text came twice"
    assert ids == encode(text)


@pytest.mark.parametrize("other", [b"", b"another", LONG[:1].encode()])
def test_another_one_finds_nothing(other: bytes, tokenised: list[str]) -> None:
    """Else the time would tell what others have sent."""
    texts = EncodedTexts()
    encode(END + LONG, texts, b"one")
    tokenised.clear()
    encode(END + LONG, texts, other)
    assert tokenised == [LONG]
    assert texts.of(b"").key_of("x" + LONG) != texts.of(b"x").key_of(LONG)


def test_what_was_not_used_for_longest_is_given_up(tokenised: list[str]) -> None:
    many = len(encode(END + LONG)) + ENTRY
    texts = EncodedTexts(3 * many)
    for text in ("a", "b", "a", "c", "d"):  # a is younger than b
        encode(END + text + LONG[1:], texts)
    tokenised.clear()
    for text in ("a", "c", "d"):
        encode(END + text + LONG[1:], texts)
    assert not tokenised
    encode(END + "b" + LONG[1:], texts)
    assert len(tokenised) == 1
    tokenised.clear()
    encode(END + 40 * LONG, texts)  # more than there is room for
    encode(END + "b" + LONG[1:], texts)
    assert tokenised == [40 * LONG]
