"""Fill-in-the-middle: which tokens mark the parts of such a prompt (Bavarian et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# How families of models spell each mark. Older files do not name the tokens.
_SPELLINGS = (
    (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>"),
        *("<PRE>", "▁<PRE>", "<|code_prefix|>"),
    ),
    (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>"),
        *("<SUF>", "▁<SUF>", "<|code_suffix|>"),
    ),
    (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>"),
        *("<MID>", "▁<MID>", "<|code_middle|>"),
    ),
)


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The tokens before the text in front of the gap, before the text behind it, and at the end."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def find(cls, tokens: Sequence[str], named_ids: Sequence[int | None]) -> InfillTokens | None:
        """Finds the tokens that the file names, or else those with a known spelling.

        Args:
            tokens: the vocabulary.
            named_ids: those that the file names, or None: prefix, suffix, middle.

        Returns:
            None unless the model has all three.
        """
        ids = {token: index for index, token in enumerate(tokens)}
        found = []
        for token_id, spellings in zip(named_ids, _SPELLINGS, strict=True):
            named = token_id
            if named is None:
                named = next((ids[text] for text in spellings if text in ids), None)
            if named is None:
                return None
            found.append(named)
        return cls(*found)

    def prompt(self, before: Sequence[int], behind: Sequence[int]) -> tuple[int, ...]:
        """Returns the token ids after which the model writes what is missing."""
        return (self.prefix, *before, self.suffix, *behind, self.middle)
