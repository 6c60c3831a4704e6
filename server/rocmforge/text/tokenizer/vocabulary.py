"""The vocabulary of a model: pieces, their types and scores, and the ids that mean something.

The end-of-generation set follows llama.cpp (`src/llama-vocab.cpp`), because the files themselves
often name only one of several tokens that end a turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmforge.checkpoint.tokenizer import TokenizerData, TokenType
from rocmforge.errors import BadTokenizer

# Token texts that end a generation wherever they occur in a vocabulary.
_END_OF_GENERATION = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>"),
        *("<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>"),
        *("[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>"),
        *("<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
        # Fill-in-the-middle tokens after which a file, not a turn, has ended.
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>"),
        *("<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    }
)

# Where all tokens of a set are there, `<|end|>` ends a message but not the turn.
_MESSAGE_FORMATS = (
    frozenset({"<|return|>", "<|call|>"}),
    frozenset({"<|calls|>", "<|flush|>"}),
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens as the file spells them; index is the token id.

    `scores` is empty where the file has none. `eos_ids` starts with the file's own EOS token. What
    BERT calls CLS and SEP are BOS and EOS here; `separator_id` stands between two texts.
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    scores: tuple[float, ...]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    unknown_id: int | None
    separator_id: int | None

    @classmethod
    def of(cls, data: TokenizerData) -> Vocabulary:
        """Returns the vocabulary with all tokens that end a generation, whatever the file says."""
        enders = _enders(data.tokens)
        # Some converters mark tokens that end a turn as ordinary text; plain text must not be
        # able to spell them.
        types = tuple(
            TokenType.CONTROL if index in enders else type_
            for index, type_ in enumerate(data.types)
        )
        return cls(
            model=data.model,
            pre=data.pre,
            tokens=data.tokens,
            types=types,
            scores=data.scores,
            bos_id=data.bos_id,
            eos_ids=tuple(dict.fromkeys([*data.end_ids, *sorted(enders)])),
            unknown_id=data.unknown_id,
            separator_id=data.separator_id,
        )

    def ids_of(self, *types: TokenType) -> tuple[int, ...]:
        """Ids of all tokens that have one of these types, ascending."""
        return tuple(index for index, type_ in enumerate(self.types) if type_ in types)

    @property
    def unknown_token(self) -> int:
        """The token for what no other spells; raises BadTokenizer if there is none."""
        if self.unknown_id is None:
            raise BadTokenizer(
                "The tokenizer does not name its unknown token (unk_token or unk_id of "
                "tokenizer.json, tokenizer.ggml.unknown_token_id of a GGUF file)."
            )
        return self.unknown_id

    def check_byte_tokens(self) -> None:
        """Raise BadTokenizer unless there is a token for every byte, spelled like `<0x0A>`."""
        missing = {f"<0x{byte:02X}>" for byte in range(256)}.difference(self.tokens)
        if missing:
            raise BadTokenizer(
                f"The SentencePiece vocabulary lacks {len(missing)} of 256 byte tokens, "
                f"for example {min(missing)}."
            )


def _enders(tokens: tuple[str, ...]) -> frozenset[int]:
    """Returns tokens that end a generation because of how they are spelled."""
    ids = {token: index for index, token in enumerate(tokens) if token in _END_OF_GENERATION}
    for together in _MESSAGE_FORMATS:
        if together <= ids.keys():
            ids.pop("<|end|>", None)
    if "<|tool_response>" in ids:
        ids.pop("</s>", None)  # there it is the HTML tag that ends struck-through text
    return frozenset(ids.values())
