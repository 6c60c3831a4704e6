"""The tokenizer of a folder: `tokenizer.json`, or a SentencePiece model where that is missing.

Files beside it say more of single tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rocmforge.checkpoint.tokenizer import LIBRARY_MODEL, TokenizerData, TokenType
from rocmforge.errors import BadTokenizer
from rocmforge.huggingface.files import sentencepiece
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.json_object import JsonObject
from rocmforge.huggingface.files.sentencepiece import SentencePieceModel

TOKENIZER: Final = "tokenizer.json"
SENTENCEPIECE: Final = "tokenizer.model"
_CONFIG: Final = "tokenizer_config.json"
_ADDED: Final = "added_tokens.json"
_SPECIAL_TOKENS: Final = "special_tokens_map.json"
MAX_TOKENIZER_BYTES: Final = 128 << 20
"""The largest known, of 260,000 tokens and their merges, has 34 MiB."""
_TEMPLATE: Final = "chat_template.jinja"
TEMPLATES: Final = "additional_chat_templates"
_TEMPLATE_SUFFIX: Final = ".jinja"
_PROCESSOR_TEMPLATE: Final = "chat_template.json"
_MAX_TEMPLATE_BYTES: Final = 1 << 20
_NAMED: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_PARTS: Final = ("normalizer", "pre_tokenizer", "model", "decoder")


@dataclass(frozen=True, slots=True)
class _Frame:
    """The tokens that are put around a text, and between two."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()


def read_tokenizer(
    folder: Folder, config: JsonObject, generation: JsonObject | None, vocab_size: int
) -> TokenizerData:
    """Reads and checks the tokenizer.

    Args:
        folder: The model's.
        config: Its `config.json`.
        generation: Its `generation_config.json`.
        vocab_size: Rows of the embedding. There may be fewer tokens, and tokens beyond them, which
            text cannot become.

    Raises:
        BadTokenizer: It is missing, of a kind that we do not have, or contradicts itself.
        BadFolder: A file is no valid JSON, or a value has the wrong type.
    """
    files = _TokenizerFiles(folder, config, generation, vocab_size)
    definition = folder.json(TOKENIZER, MAX_TOKENIZER_BYTES)
    if definition is not None:
        return _Reader(files, definition).read()
    data = folder.read(SENTENCEPIECE, sentencepiece.MAX_BYTES)
    if data is None:
        raise BadTokenizer(
            f"{folder.path}: there is neither {TOKENIZER} nor {SENTENCEPIECE}. AutoTokenizer."
            f"from_pretrained(...).save_pretrained(...) of Transformers writes {TOKENIZER} from "
            "other files."
        )
    return _read_sentencepiece(files, sentencepiece.read_model(data, folder.path / SENTENCEPIECE))


def describe_tokenizer(folder: Folder) -> str:
    """Returns the kind of the tokenizer and its file, or "none".

    Raises:
        BadFolder: `tokenizer.json` is no valid JSON.
    """
    definition = folder.json(TOKENIZER, MAX_TOKENIZER_BYTES)
    if definition is None:
        return "none" if folder.find(SENTENCEPIECE) is None else f"BPE/{SENTENCEPIECE}"
    model = definition.get_object("model")
    return f"{'none' if model is None else model.get_str('type', 'unknown')}/{TOKENIZER}"


def read_templates(folder: Folder) -> dict[str, str]:
    """Returns the chat templates by name; the one without a name is "default".

    As in Transformers, templates in files of their own stand for all in JSON files.

    Raises:
        BadFolder: A file is no text, no valid JSON, or a value has the wrong type.
    """
    found: dict[str, str] = {}
    config = folder.json(_CONFIG)
    processor = folder.json(_PROCESSOR_TEMPLATE)  # of models with images, before Transformers 5
    if processor is not None:
        found["default"] = processor.get_str("chat_template")
    if config is not None and isinstance(config.values.get("chat_template"), list):
        for entry in config.get_objects("chat_template"):
            found[entry.get_str("name")] = entry.get_str("template")
    elif config is not None and config.has("chat_template"):
        found["default"] = config.get_str("chat_template")
    files = {"default": _TEMPLATE}
    for path in folder.files_in(TEMPLATES, _TEMPLATE_SUFFIX):
        files[path.removeprefix(f"{TEMPLATES}/").removesuffix(_TEMPLATE_SUFFIX)] = path
    texts = {name: folder.text(path, _MAX_TEMPLATE_BYTES) for name, path in files.items()}
    return {name: text for name, text in texts.items() if text is not None} or found


class _TokenizerFiles:
    """The files beside the definition of a tokenizer."""

    def __init__(
        self, folder: Folder, config: JsonObject, generation: JsonObject | None, vocab_size: int
    ) -> None:
        self.folder = folder
        self.configs = [each for each in (generation, config) if each is not None]
        self.vocab_size = vocab_size
        self.own = folder.json(_CONFIG) or config.empty(_CONFIG)
        self.map = folder.json(_SPECIAL_TOKENS) or config.empty(_SPECIAL_TOKENS)


def _read_sentencepiece(files: _TokenizerFiles, model: SentencePieceModel) -> TokenizerData:
    """Reads a tokenizer as Transformers' LlamaTokenizer and GemmaTokenizer do."""
    named = {"bos_token": model.bos, "eos_token": model.eos, "unk_token": model.unknown}
    files.own = files.own.with_defaults({"add_bos_token": True, **named})
    kinds = dict(zip(model.pieces, model.types, strict=True))
    added = [
        {"id": index, "content": piece, "special": kind is TokenType.CONTROL}
        for index, (piece, kind) in enumerate(kinds.items())
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    path = files.folder.path / SENTENCEPIECE
    definition = JsonObject(
        path,
        {
            "added_tokens": [*added, *_tokens_beside(files, kinds)],
            "model": {
                "type": "BPE",
                "vocab": {piece: index for index, piece in enumerate(model.pieces)},
                "byte_fallback": True,
            },
        },
    )
    found = _Reader(files, definition).read()
    missing = len(found.tokens) - len(model.scores)
    return replace(
        found,
        model="llama",
        scores=(*model.scores, *(0.0,) * missing)[: len(found.tokens)],
        adds_space_prefix=model.adds_space_prefix,
        prefixes_start_only=not files.own.get_bool("legacy", True),
        definition={},
    )


def _tokens_beside(
    files: _TokenizerFiles, known: Mapping[str, TokenType]
) -> Iterator[Mapping[str, object]]:
    """Yields the tokens that were added to a vocabulary, as tokenizer.json has them."""
    more = files.folder.json(_ADDED)
    decoder = files.own.get_object("added_tokens_decoder")
    listed = {} if decoder is None else decoder.values
    for index in listed:
        assert decoder is not None
        token = decoder.get_object(index)
        if token is not None and token.get_str("content") not in known:
            if not (index.isascii() and index.isdecimal() and len(index) < 10):
                raise decoder.bad(index, "it is no token")
            yield {**token.values, "id": int(index)}
    if more is not None:
        for content in more.values:
            if content not in known and str(more.get_int(content)) not in listed:
                yield {"id": more.get_int(content), "content": content}


class _Reader:
    def __init__(self, files: _TokenizerFiles, definition: JsonObject) -> None:
        self._path = files.folder.path
        self._configs = files.configs
        self._definition = definition
        self._size = files.vocab_size
        self._own = files.own
        self._map = files.map
        self._model = definition.get_object("model") or definition.empty("model")

    def read(self) -> TokenizerData:
        ids = self._ids()
        added = [
            token
            for token in self._definition.get_objects("added_tokens")
            if self._added_id(token) < self._size
        ]
        ids.update((token.get_str("content"), self._added_id(token)) for token in added)
        tokens = self._by_id(ids)
        named = {name: ids.get(text) for name, text in self._named()}
        unknown = self._model.get_int("unk_id", None)
        if unknown is not None and 0 <= unknown < self._size:
            named["unk"] = unknown
        frame = self._frame(self._definition.get_object("post_processor"))
        bos = frame.before[0] if frame.before else named.get("bos", named.get("cls"))
        adds_bos = self._own.get_bool("add_bos_token", bool(frame.before))
        adds_eos = self._own.get_bool("add_eos_token", bool(frame.after))
        ends = (*frame.after[:1], named.get("eos"), *self._end_ids(), named.get("sep"))
        return TokenizerData(
            model=LIBRARY_MODEL,
            tokens=tokens,
            types=self._types(tokens, ids, added, named),
            bos_id=bos,
            behind_bos=frame.before[1:],
            end_ids=tuple(dict.fromkeys(found for found in ends if found is not None)),
            unknown_id=named.get("unk"),
            separator_id=frame.after[0] if frame.after else None,
            adds_bos=adds_bos and bos is not None,
            adds_eos=adds_eos,
            adds_separator=len(frame.between) > len(frame.after),
            strips_after=frozenset(
                self._added_id(token) for token in added if token.get_bool("rstrip", False)
            ),
            escapes_user_defined=True,
            definition={part: self._definition.values.get(part) for part in _PARTS},
        )

    def _ids(self) -> dict[str, int]:
        """Returns the ids of the model's own tokens, those within the embedding."""
        kind, vocabulary = self._model.get_str("type", "none"), self._model.values.get("vocab")
        if kind == "Unigram" and isinstance(vocabulary, list):
            pairs = [
                (entry[0], index)
                for index, entry in enumerate(vocabulary)
                if isinstance(entry, list)
                and len(entry) == 2
                and isinstance(entry[0], str)
                and type(entry[1]) in (int, float)
                and abs(entry[1]) < 1e300
            ]
            if len(pairs) != len(vocabulary):
                raise self._bad("not all of its unigram vocabulary are pairs of text and score")
            return dict(pairs[: self._size])
        if kind not in ("BPE", "WordPiece") or not isinstance(vocabulary, dict):
            raise self._bad(f"its model is of type {kind!r}; BPE, WordPiece and Unigram are read")
        if not all(type(token_id) is int and token_id >= 0 for token_id in vocabulary.values()):
            raise self._bad("not all ids of its vocabulary are numbers from 0")
        return {token: index for token, index in vocabulary.items() if index < self._size}

    def _by_id(self, ids: Mapping[str, int]) -> tuple[str, ...]:
        """Returns the tokens by id; rows of the embedding without a token are padding."""
        tokens: list[str | None] = [None] * self._size
        for token, index in ids.items():
            if tokens[index] is not None or not token:
                raise self._bad(f"the token {index} has two spellings, or none")
            tokens[index] = token
        return tuple(
            f"[PAD{index}]" if token is None else token for index, token in enumerate(tokens)
        )

    def _added_id(self, token: JsonObject) -> int:
        found = token.get_int("id")
        if found < 0:
            raise token.bad("id", f"{found} is no token")
        return found

    def _types(
        self,
        tokens: tuple[str, ...],
        ids: Mapping[str, int],
        added: list[JsonObject],
        named: Mapping[str, int | None],
    ) -> tuple[TokenType, ...]:
        types = [TokenType.NORMAL if token in ids else TokenType.UNUSED for token in tokens]
        if self._model.get_bool("byte_fallback", False):
            for byte in range(256):
                if (index := ids.get(f"<0x{byte:02X}>")) is not None:
                    types[index] = TokenType.BYTE
        for token in added:
            is_special = token.get_bool("special", False)
            if not is_special and token.get_bool("single_word", False):
                raise self._bad(f"the token {token.get_str('content')!r} stands for whole words")
            index = self._added_id(token)
            types[index] = TokenType.CONTROL if is_special else TokenType.USER_DEFINED
        for name, found in named.items():
            if found is not None:
                types[found] = TokenType.UNKNOWN if name == "unk" else TokenType.CONTROL
        return tuple(types)

    def _named(self) -> Iterator[tuple[str, str]]:
        """Yields the tokens that have a use of their own, as `tokenizer_config.json` says."""
        for name in _NAMED:
            key = f"{name}_token"
            place = self._own if self._own.has(key) else self._map
            if isinstance(place.values.get(key), dict):
                token = place.get_object(key)
                assert token is not None
                yield name, token.get_str("content")
            elif (text := place.get_str(key, None)) is not None:
                yield name, text
        unknown = self._model.values.get("unk_token")
        if isinstance(unknown, str):
            yield "unk", unknown

    def _end_ids(self) -> Iterator[int]:
        """Yields the tokens that end an answer, by the configurations."""
        key = "eos_token_id"
        for config in self._configs:
            values = config.values.get(key)
            found = config.get_list(key) if isinstance(values, list) else (values,)
            for token_id in found or ():
                if token_id is None:
                    continue
                if type(token_id) is not int or token_id < 0:
                    raise config.bad(key, f"{token_id!r} is no token")
                if token_id < self._size:
                    yield token_id

    def _frame(self, processor: JsonObject | None) -> _Frame:
        if processor is None:
            return _Frame()
        match processor.get_str("type", ""):
            case "Sequence":
                parts = processor.get_objects("processors")
                frames = [frame for part in parts if (frame := self._frame(part)) != _Frame()]
                return frames[-1] if frames else _Frame()
            case "TemplateProcessing":
                return self._template(processor)
            case "BertProcessing" | "RobertaProcessing" as kind:
                first, last = (self._pair_id(processor, key) for key in ("cls", "sep"))
                return _Frame((first,), (last,), (last,) * (1 + (kind == "RobertaProcessing")))
            case "ByteLevel":
                return _Frame()
            case other:
                raise self._bad(f"its post_processor is of type {other!r}, which is not supported")

    def _template(self, processor: JsonObject) -> _Frame:
        before, after = self._around(processor, "single")
        pair = [*self._pieces(processor, "pair")] if processor.has("pair") else []
        places = [place for place, found in enumerate(pair) if found is None]
        between = [found for found in pair[places[0] : places[-1]] if found] if places else []
        return _Frame(before, after, tuple(token for ids in between for token in ids))

    def _around(self, processor: JsonObject, key: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pieces = [*self._pieces(processor, key)]
        if pieces.count(None) != 1:
            raise processor.bad(key, "it does not hold one text")
        place = pieces.index(None)
        parts = (pieces[:place], pieces[place + 1 :])
        before, after = (tuple(token for ids in part if ids for token in ids) for part in parts)
        return before, after

    def _pieces(self, processor: JsonObject, key: str) -> Iterator[tuple[int, ...] | None]:
        """Yields the ids of each piece; None for a text."""
        tokens = processor.get_object("special_tokens") or processor.empty("special_tokens")
        for piece in processor.get_objects(key):
            special = piece.get_object("SpecialToken")
            if special is None:
                yield None
                continue
            name = special.get_str("id")
            ids = (tokens.get_object(name) or tokens.empty(name)).get_list("ids") or ()
            found = tuple(token for token in ids if type(token) is int and 0 <= token < self._size)
            if not found or len(found) != len(ids):
                raise tokens.bad(name, "it names no tokens of the vocabulary")
            yield found

    def _pair_id(self, processor: JsonObject, key: str) -> int:
        found = processor.get_list(key) or ()
        token = found[1] if len(found) == 2 else None
        if type(token) is not int or not 0 <= token < self._size:
            raise processor.bad(key, "it is no token and its number")
        return token

    def _bad(self, reason: str) -> BadTokenizer:
        return BadTokenizer(f"{self._path / TOKENIZER}: {reason}.")
