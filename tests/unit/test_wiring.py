"""What the wiring decides itself."""

from __future__ import annotations

from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.wiring import token_pieces
from tests.unit.text.vocabularies import byte_level, sentencepiece


def tokenizer(metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer(read_tokenizer(metadata))


def test_vocabularies_that_spell_every_character_serve_grammars() -> None:
    for metadata in (byte_level(), sentencepiece()):
        pieces = token_pieces(tokenizer(metadata))
        assert pieces is not None
        assert pieces.eos_ids


def test_a_vocabulary_without_a_token_for_a_character_does_not() -> None:
    metadata = byte_level()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("{")] = "{{{"
    assert token_pieces(tokenizer(metadata)) is None


def test_a_vocabulary_without_an_end_does_not() -> None:
    metadata = byte_level(eos_token_id=None)
    for text in ("<|end|>", "<|end|>x"):  # ends by their names
        tokens = metadata["tokenizer.ggml.tokens"]
        tokens[tokens.index(text)] = text.replace("end", "note")
    assert token_pieces(tokenizer(metadata)) is None
