"""Checks that a draft model has the tokens of the model that it drafts for."""

from __future__ import annotations

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import ConfigurationError
from rocmforge.text.tokenizer.vocabulary import Vocabulary


def check_draft_vocabulary(model: Vocabulary, draft: Vocabulary) -> None:
    """Compares token by token; what only the longer one has must be padding.

    Models of one family differ there, because each embedding is padded to a size of its own.

    Raises:
        ConfigurationError: a token differs; names the first.
    """
    for token_id, (ours, theirs) in enumerate(zip(model.tokens, draft.tokens, strict=False)):
        if ours != theirs:
            raise ConfigurationError(
                f"The draft model has another vocabulary: its token {token_id} is {theirs!r}, but "
                f"the model's is {ours!r}. Take a smaller model of the same family."
            )
    longer, name = (draft, "draft model")
    if len(model.tokens) > len(draft.tokens):
        longer, name = (model, "model")
    for token_id in range(min(len(model.tokens), len(draft.tokens)), len(longer.tokens)):
        if longer.types[token_id] is not TokenType.UNUSED:
            raise ConfigurationError(
                f"The draft model has another vocabulary, of {len(draft.tokens)} tokens instead of "
                f"{len(model.tokens)}: only the {name} has token {token_id}, "
                f"{longer.tokens[token_id]!r}, which is not padding. Take a smaller model of the "
                "same family."
            )
