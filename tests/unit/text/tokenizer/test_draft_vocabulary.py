"""Which draft models may draft for a model: those with its tokens, but for padding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import ConfigurationError
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.draft_vocabulary import check_draft_vocabulary
from rocmforge.text.tokenizer.vocabulary import Vocabulary
from tests.unit.text.vocabularies import byte_level

MODEL = Vocabulary.of(read_tokenizer(byte_level()))


def longer(type_: TokenType) -> Vocabulary:
    """The vocabulary with two tokens more."""
    return replace(
        MODEL, tokens=(*MODEL.tokens, "[PAD1]", "[PAD2]"), types=(*MODEL.types, type_, type_)
    )


def test_the_same_tokens_will_do() -> None:
    check_draft_vocabulary(MODEL, MODEL)
    check_draft_vocabulary(MODEL, replace(MODEL, bos_id=None, scores=()))


def test_padding_of_either_is_no_difference() -> None:
    check_draft_vocabulary(MODEL, longer(TokenType.UNUSED))
    check_draft_vocabulary(longer(TokenType.UNUSED), MODEL)


def test_another_token_is_named() -> None:
    tokens = (*MODEL.tokens[:7], "other", *MODEL.tokens[8:])
    with pytest.raises(ConfigurationError, match=r"its token 7 is 'other', but the model's is"):
        check_draft_vocabulary(MODEL, replace(MODEL, tokens=tokens))


@pytest.mark.parametrize("is_draft", [False, True])
def test_tokens_that_only_one_has_are_named(is_draft: bool) -> None:
    more = longer(TokenType.NORMAL)
    pair = (MODEL, more) if is_draft else (more, MODEL)
    owner = "draft model" if is_draft else "model"
    with pytest.raises(ConfigurationError, match=rf"only the {owner} has .*'\[PAD1\]'"):
        check_draft_vocabulary(*pair)
