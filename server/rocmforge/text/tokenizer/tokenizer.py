"""Text to token ids and back, from nothing but what a checkpoint says of its tokenizer."""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple, Self

from tokenizers import Encoding

from rocmforge.checkpoint.tokenizer import LIBRARY_MODEL, TokenizerData, TokenType
from rocmforge.errors import BadTokenizer, InvalidParameter
from rocmforge.text.tokenizer import bpe, library, spm, unigram, wordpiece
from rocmforge.text.tokenizer.encoded_texts import OwnTexts
from rocmforge.text.tokenizer.infill import InfillTokens
from rocmforge.text.tokenizer.pretokenizers import PreTokenizer, pretokenizer
from rocmforge.text.tokenizer.specials import SpecialTokens
from rocmforge.text.tokenizer.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_MODELS = ("gpt2", "gemma4", "llama", "bert", "t5")

# Whether the characters [start, end) may form a control token.
Trust = Callable[[int, int], bool]

_GAP: Final = -1  # is no token


class PieceTables(NamedTuple):
    """Text and bytes of all tokens, by id.

    Attributes:
        text: The token's text; None if its bytes are no UTF-8 text of their own.
        data: The token's bytes.
    """

    text: tuple[str | None, ...]
    data: tuple[bytes, ...]

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> Self:
        """Makes both tables."""
        return cls(tuple(_text_or_none(piece) for piece in pieces), tuple(pieces))


class Tokenizer:
    """One model's tokenizer. Immutable, and safe to use from several threads.

    Attributes:
        vocab_size: Number of tokens in the vocabulary.
        bos_id: Begin-of-sequence token, if the model has one.
        start_ids: BOS, and what follows it before a text, such as GLM-4's `<sop>`.
        eos_ids: Tokens that end a generation; the file's own EOS token first.
        special_ids: Control tokens: never the result of tokenising plain text, and left out of
            decoded text unless asked for.
        adds_bos: Whether prompts start with BOS.
        infill: Tokens of fill-in-the-middle prompts, if the model has them.
        adds_eos: Whether training sequences ended with EOS; `encode` never appends it, because a
            prompt is there to be continued.
    """

    def __init__(self, data: TokenizerData) -> None:
        """Builds the tokenizer that a file describes.

        Args:
            data: What the file says.

        Raises:
            BadTokenizer: something is missing, or of a kind we do not have.
        """
        vocabulary = Vocabulary.of(data)
        adds_bos = adds_eos = False
        has_leading_space = vocabulary.model in ("bert", "t5")
        piece: Callable[[str, TokenType], bytes] = spm.piece_bytes
        # Token ids by the model's own, where these differ.
        self._ids: tuple[int, ...] | None = None
        if vocabulary.model == "llama":
            self._model = spm.build(vocabulary)
            adds_bos = True
        elif vocabulary.model == "bert":
            self._model = wordpiece.build(
                vocabulary, lowercase=data.lowercase, strip_accents=data.strip_accents
            )
            adds_bos = adds_eos = True
        elif vocabulary.model == "t5":
            self._model, self._ids = unigram.build(vocabulary, data.charsmap)
            adds_eos = True
        elif vocabulary.model in ("gpt2", "gemma4"):
            rules = _rules(vocabulary)
            self._model = bpe.build(vocabulary, data.merges, rules)
            adds_bos = rules.adds_bos
            piece = spm.piece_bytes if rules.sentencepiece else bpe.piece_bytes
        elif vocabulary.model == LIBRARY_MODEL:
            built = library.build(vocabulary, data.definition)
            self._model, self._ids, piece = built.model, built.ids, built.piece
            has_leading_space = built.has_leading_space
        else:
            raise BadTokenizer(
                f"The tokenizer model {vocabulary.model!r} (tokenizer.ggml.model of a GGUF file) "
                f"is not supported. Supported: {', '.join(_MODELS)}."
            )
        # The model for texts behind a special token; another than for the first only if a space is
        # put before the first word of a prompt and no other.
        self._inner = built.inner if vocabulary.model == LIBRARY_MODEL else self._model
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.start_ids = () if self.bos_id is None else (self.bos_id, *data.behind_bos)
        self.eos_ids = vocabulary.eos_ids
        self.adds_bos = _given(data.adds_bos, adds_bos) and self.bos_id is not None
        self.adds_eos = _given(data.adds_eos, adds_eos)
        self.infill = InfillTokens.find(vocabulary.tokens, data.infill_ids)
        self.special_ids = frozenset(vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN))
        self._tokens = vocabulary.tokens
        self._control = {self._tokens[index]: index for index in self.special_ids}
        raw = {TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED}
        if data.escapes_user_defined and piece is spm.piece_bytes:
            raw.remove(TokenType.USER_DEFINED)
        pieces = [
            token.encode() if type_ in raw else piece(token, type_)
            for token, type_ in zip(vocabulary.tokens, vocabulary.types, strict=True)
        ]
        self._all_pieces = PieceTables.of(pieces)
        self._shown_pieces = PieceTables.of(
            [b"" if index in self.special_ids else piece for index, piece in enumerate(pieces)]
        )
        self._space_prefix = vocabulary.model == "llama" and data.adds_space_prefix
        self._prefixes_start_only = data.prefixes_start_only
        self._has_leading_space = self._space_prefix or has_leading_space
        # RoBERTa and what comes of it was trained on pairs with two separators.
        adds_separator = _given(data.adds_separator, vocabulary.model != "bert")
        self._separator = vocabulary.separator_id if adds_separator else None
        self._strips_after = data.strips_after | (
            _ids_that_strip(vocabulary) if data.strips_after_special else frozenset()
        )
        # SentencePiece looks for tokens in text whose spaces it has replaced.
        self._replaces_spaces = data.escapes_user_defined and vocabulary.model == "llama"
        user_defined = vocabulary.ids_of(TokenType.USER_DEFINED)
        self._user_defined = self._matcher(user_defined)
        self._all_special = self._matcher((*self.special_ids, *user_defined))

    def encode(self, text: str, *, parse_special: bool, add_bos: bool | None = None) -> list[int]:
        """Tokenises a text; the long part runs without the GIL.

        Args:
            text: Any text.
            parse_special: Whether spellings of control tokens become those tokens. Leave it off
                for text that anyone but the operator wrote. User-defined tokens are ordinary
                vocabulary and are always found.
            add_bos: Whether to put BOS in front; None for the model's own rule.

        Raises:
            InvalidParameter: the text has lone surrogates, so it has no UTF-8 form.
        """
        parts = self._parts(text, (lambda start, end: True) if parse_special else None)
        adds_bos = self.adds_bos if add_bos is None else add_bos
        return self._encode_parts(parts, add_bos=adds_bos).tolist()

    def encode_whole(self, text: str, limit: int | None = None) -> list[int]:
        """Tokenises a text to be read, not continued: with EOS, where the model was trained so.

        Nothing in it is a control token.

        Args:
            text: Any text.
            limit: How many of its own tokens to keep; None for all.
        """
        begin = self.start_ids if self.adds_bos else ()
        return [*begin, *self._plain(text, limit), *self._end]

    def encode_pair(self, first: str, second: str, limit: int | None = None) -> list[int]:
        """Tokenises two texts that a model is to compare, as `[CLS] first [SEP] second [SEP]`.

        Nothing in them is a control token. `limit` is for the second text.
        """
        middle = [] if self._separator is None else [self._separator]
        return [*self.encode_whole(first), *middle, *self._plain(second, limit), *self._end]

    def _plain(self, text: str, limit: int | None) -> list[int]:
        return self.encode(text, parse_special=False, add_bos=False)[:limit]

    @property
    def _end(self) -> list[int]:
        """The ids that `encode_whole` appends."""
        return [self.eos_ids[0]] if self.adds_eos and self.eos_ids else []

    def encode_trusted(
        self, text: str, trust: Trust, *, add_bos: bool = False, known: OwnTexts | None = None
    ) -> array[int]:
        """Tokenises text of which only some characters may form control tokens.

        Args:
            text: Any text.
            trust: Called with the start and the end of each spelling of a control token.
            add_bos: Whether to put BOS in front.
            known: What was tokenised before; what is new comes to it. None: nothing was.
        """
        return self._encode_parts(self._parts(text, trust), add_bos=add_bos, known=known)

    def encode_around(self, texts: Sequence[tuple[str, Trust]]) -> list[list[int]]:
        """Tokenises a text that something is put into which is no text, as an image is.

        Args:
            texts: What stands before, between and behind these things, each as `encode_trusted`
                takes it. Their tokens are those that they have around control tokens.
        """
        parts: list[str | int] = []
        for text, trust in texts:
            parts += [*self._parts(text, trust), _GAP]
        ids = self._encode_parts(parts, add_bos=False)
        found: list[list[int]] = [[]]
        for index in ids:
            if index == _GAP:
                found.append([])
            else:
                found[-1].append(index)
        return found[:-1]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Decodes a whole sequence. Bytes that are not UTF-8 become U+FFFD.

        The space that the model puts before a text is taken off again.
        """
        data = self.decode_bytes(ids, skip_special=skip_special)
        if self._has_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = True) -> bytes:
        """Returns the bytes of tokens, wherever in a text they stand."""
        pieces = self.piece_tables(skip_special=skip_special).data
        return b"".join([pieces[self._checked(index)] for index in ids])

    def piece_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one token; for a control token, its spelling."""
        return self._all_pieces.data[self._checked(token_id)]

    def piece_tables(self, *, skip_special: bool) -> PieceTables:
        """Returns text and bytes of tokens by id; empty for control tokens if `skip_special`."""
        return self._shown_pieces if skip_special else self._all_pieces

    def special_tokens(self) -> dict[str, str]:
        """Returns the spellings of `bos_token`, `eos_token` and so on, for chat templates."""
        named = {"bos_token": self.bos_id, "eos_token": next(iter(self.eos_ids), None)}
        return {name: self._tokens[index] for name, index in named.items() if index is not None}

    def control_token(self, text: str) -> int | None:
        """Returns the control token with this spelling, if there is one."""
        return self._control.get(text)

    def token(self, token_id: int) -> str:
        """Returns a token as the file spells it."""
        return self._tokens[self._checked(token_id)]

    def _checked(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidParameter(
                f"Token id {token_id} is outside the vocabulary of {self.vocab_size} tokens."
            )
        return token_id

    def _matcher(self, ids: Iterable[int]) -> SpecialTokens:
        return SpecialTokens({self._searched(self._tokens[index]): index for index in ids})

    def _searched(self, text: str) -> str:
        """Returns the text, of the same length, as tokens are looked for in it."""
        return text.replace(" ", spm.SPACE) if self._replaces_spaces else text

    def _parts(self, text: str, trust: Trust | None) -> list[str | int]:
        """Cut text into special tokens and the runs of text between them."""
        matcher = self._user_defined if trust is None else self._all_special
        searched = self._searched(text)
        parts: list[str | int] = []
        begin = position = 0
        while (found := matcher.search(searched, position)) is not None:
            start, end, token_id = found
            if trust is not None and token_id in self.special_ids and not trust(start, end):
                shorter = self._user_defined.match(searched, start)
                if shorter is None:
                    position = start + 1
                    continue
                start, end, token_id = shorter
            if start > begin:
                parts.append(text[begin:start])
            parts.append(token_id)
            begin = position = end
            if token_id in self._strips_after:
                begin = position = _after_space(text, end)
        if begin < len(text):
            parts.append(text[begin:])
        return parts

    def _encode_parts(
        self, parts: list[str | int], *, add_bos: bool, known: OwnTexts | None = None
    ) -> array[int]:
        texts = []
        after_special = True
        for part in parts:
            if isinstance(part, int):
                after_special = not self._prefixes_start_only
                continue
            texts.append(" " + part if self._space_prefix and after_special else part)
            after_special = False
        is_start = bool(parts) and isinstance(parts[0], str)
        try:
            encoded: Iterator[Sequence[int]] = (
                self._own_ids(texts, is_start=is_start)
                if known is None
                else self._remembered_ids(texts, known, is_start=is_start)
            )
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidParameter(
                "The text holds a lone surrogate (half of a UTF-16 pair), so it is not Unicode "
                "text. Send it as UTF-8."
            ) from error
        ids = array("i", self.start_ids if add_bos else ())
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(next(encoded))
        return ids

    def _remembered_ids(
        self, texts: list[str], known: OwnTexts, *, is_start: bool
    ) -> Iterator[Sequence[int]]:
        """Returns the ids of each text, from what is known of them where that is possible.

        Equal texts are looked for once: those between roles and messages come with each of them.
        """
        # The beginning of a prompt may have other tokens than the same text elsewhere.
        first, rest = (texts[:1], texts[1:]) if is_start else ([], texts)
        keys = {text: known.key_of(text) for text in dict.fromkeys(rest)}
        ids = {text: found for text, key in keys.items() if (found := known.find(key)) is not None}
        missing = [text for text in keys if text not in ids]
        encoded = self._own_ids([*first, *missing], is_start=is_start)
        first_ids = list(islice(encoded, len(first)))
        for text, new in zip(missing, encoded, strict=True):
            known.keep(keys[text], new)
            ids[text] = new
        return chain(first_ids, (ids[text] for text in rest))

    def _own_ids(self, texts: list[str], *, is_start: bool) -> Iterator[list[int]]:
        """Returns the ids of each text."""
        encoded, renumbered = self._encode_texts(texts, is_start=is_start), self._ids
        if renumbered is None:
            return (each.ids for each in encoded)
        return ([renumbered[index] for index in each.ids] for each in encoded)

    def _encode_texts(self, texts: list[str], *, is_start: bool) -> Iterator[Encoding]:
        """Yields the texts' own tokens; the first begins the prompt if `is_start`."""
        with library.failures_named():
            if not is_start or self._inner is self._model:
                return iter(self._inner.encode_batch_fast(texts, add_special_tokens=False))
            first = self._model.encode_batch_fast(texts[:1], add_special_tokens=False)
            return chain(first, self._inner.encode_batch_fast(texts[1:], add_special_tokens=False))


def _text_or_none(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


_SPACE = re.compile(r"[ \t\n\v\f\r]*")


def _after_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None
    return match.end()


def _rules(vocabulary: Vocabulary) -> PreTokenizer:
    if vocabulary.model == "gpt2" and not vocabulary.pre:
        logger.warning(
            "The GGUF file does not say which pre-tokenizer its vocabulary needs "
            "(tokenizer.ggml.pre). "
            "The default splits text in a way that may cost quality: convert the model anew."
        )
    return pretokenizer("gemma4" if vocabulary.model == "gemma4" else vocabulary.pre)


def _ids_that_strip(vocabulary: Vocabulary) -> frozenset[int]:
    """Returns the special tokens of Phi-3 that swallow the white space behind them."""
    special = vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    keep = {"<unk>", "<s>", "<|endoftext|>"}
    return frozenset(index for index in special if vocabulary.tokens[index] not in keep)


def _given(stated: bool | None, usual: bool) -> bool:
    return usual if stated is None else stated
