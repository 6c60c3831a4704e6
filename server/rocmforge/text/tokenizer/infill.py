"""Fill-in-the-middle: which tokens mark the parts of such a prompt (Bavarian et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocmforge.text.tokenizer.vocabulary import Metadata

# How families of models spell each mark. Older files do not name the tokens.
_SPELLINGS = {
    "pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>"),
        *("<PRE>", "▁<PRE>", "<|code_prefix|>"),
    ),
    "suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>"),
        *("<SUF>", "▁<SUF>", "<|code_suffix|>"),
    ),
    "mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>"),
        *("<MID>", "▁<MID>", "<|code_middle|>"),
    ),
}


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The tokens before the text in front of the gap, before the text behind it, and at the end."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def find(cls, tokens: Sequence[str], metadata: Metadata) -> InfillTokens | None:
        """Finds the tokens that the file names, or else those with a known spelling.

        Args:
            tokens: the vocabulary.
            metadata: of the file; `tokenizer.ggml.fim_{pre,suf,mid}_token_id` count.

        Returns:
            None unless the model has all three.
        """
        ids = {token: index for index, token in enumerate(tokens)}
        found = []
        for part, spellings in _SPELLINGS.items():
            named = metadata.get(f"tokenizer.ggml.fim_{part}_token_id")
            if not isinstance(named, int) or not 0 <= named < len(tokens):
                named = next((ids[text] for text in spellings if text in ids), None)
            if named is None:
                return None
            found.append(named)
        return cls(*found)

    def prompt(self, before: Sequence[int], behind: Sequence[int]) -> tuple[int, ...]:
        """Returns the token ids after which the model writes what is missing."""
        return (self.prefix, *before, self.suffix, *behind, self.middle)
