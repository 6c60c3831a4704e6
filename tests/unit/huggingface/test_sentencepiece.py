"""`tokenizer.model` without `tokenizer.json`, compared with what SentencePiece makes of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import BadFolder, BadTokenizer
from rocmforge.huggingface.files.folder import Folder
from rocmforge.huggingface.files.sentencepiece import read_model
from rocmforge.huggingface.tokenizer import describe_tokenizer, read_tokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.data.text import make_goldens
from tests.support.files.sentencepiece_writer import model_bytes, pieces_of
from tests.support.files.tokenizer_files import llama_2

GOLDENS: dict[str, Any] = json.loads(
    Path(make_goldens.__file__).with_name("sentencepiece.json").read_text(encoding="utf-8")
)
LLAMA = pieces_of(GOLDENS["llama"]["pieces"])
SIZE = len(LLAMA)
PATH = Path("tokenizer.model")


def folder_of(path: Path, data: bytes, **files: Any) -> Folder:
    """A folder with the model and JSON files, by their names."""
    (path / "tokenizer.model").write_bytes(data)
    for name, values in {"config": {}, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return Folder(path)


def tokenizer(path: Path, data: bytes, size: int = SIZE, **files: Any) -> Tokenizer:
    folder = folder_of(path, data, **files)
    return Tokenizer(read_tokenizer(folder, folder.config(), None, size))


@pytest.mark.parametrize("name", GOLDENS)
def test_texts_become_the_tokens_of_sentencepiece(name: str, tmp_path: Path) -> None:
    golden = GOLDENS[name]
    pieces = pieces_of(golden["pieces"], golden["user_defined"])
    data = model_bytes(pieces, dummy_prefix=name == "llama")
    found = tokenizer(tmp_path, data, len(pieces))
    ids = [found.encode(text, parse_special=False, add_bos=False) for text in make_goldens.texts()]
    assert [make_goldens.digest(each) for each in ids] == golden["digests"]
    for text, each in zip(make_goldens.texts(), ids, strict=True):
        assert found.decode(each) == text.replace("▁", " ")


def test_the_file_names_the_tokens_around_a_text(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, model_bytes(LLAMA))
    assert (found.bos_id, found.eos_ids, found.adds_bos, found.adds_eos) == (1, (2,), True, False)
    assert found.special_ids == {0, 1, 2}
    assert found.token(3) == "<0x00>"
    assert found.piece_bytes(3) == b"\0"
    other = tokenizer(tmp_path, model_bytes(LLAMA), tokenizer_config={"add_bos_token": False})
    assert not other.adds_bos
    swapped = model_bytes(LLAMA, trainer={41: 2, 42: 1})
    assert tokenizer(tmp_path, swapped).bos_id == 2
    none = tokenizer(tmp_path, model_bytes(LLAMA, trainer={41: -1}))
    assert (none.bos_id, none.adds_bos) == (None, False)


def test_tokens_that_were_added_are_found_in_texts(tmp_path: Path) -> None:
    decoder = {
        "1": {"content": "<s>", "special": True},
        str(SIZE): {"content": "[INST]", "special": True, "rstrip": True},
    }
    found = tokenizer(
        tmp_path,
        model_bytes(LLAMA),
        SIZE + 3,
        tokenizer_config={"added_tokens_decoder": decoder},
        added_tokens={"[INST]": SIZE, "<tool>": SIZE + 1, "<s>": 1},
    )
    assert found.control_token("[INST]") == SIZE
    plain = found.encode("the [INST]<tool>", parse_special=False)
    assert SIZE not in plain
    assert plain[-1] == SIZE + 1
    assert found.encode("[INST]  <tool>", parse_special=True) == [1, SIZE, SIZE + 1]
    assert found.token(SIZE + 2) == f"[PAD{SIZE + 2}]"


def test_a_line_in_a_tokens_name_is_a_space_for_added_tokens_too(tmp_path: Path) -> None:
    """As those of Gemma, which stand for runs of spaces."""
    added = {"added_tokens": {"▁▁▁": SIZE}}
    found = tokenizer(tmp_path, model_bytes(LLAMA), SIZE + 1, **added)
    assert found.piece_bytes(SIZE) == b"   "
    definition = json.loads(llama_2().to_str())
    size = llama_2().get_vocab_size()
    definition["added_tokens"].append(
        definition["added_tokens"][0] | {"id": size, "content": "▁▁▁", "special": False}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    folder = Folder(tmp_path)
    library = Tokenizer(read_tokenizer(folder, folder.config(), None, size + 1))
    assert library.piece_bytes(size) == b"   "


def test_a_space_is_put_behind_special_tokens_unless_the_tokenizer_is_not_legacy(
    tmp_path: Path,
) -> None:
    the = SIZE - len(GOLDENS["llama"]["pieces"]) + GOLDENS["llama"]["pieces"].index("▁the")
    for legacy in (True, False):
        config = {"legacy": legacy}
        found = tokenizer(tmp_path, model_bytes(LLAMA), tokenizer_config=config)
        assert found.encode("the", parse_special=True) == [1, the]
        behind = found.encode("<s>the", parse_special=True, add_bos=False)
        assert (behind == [1, the]) is legacy


def test_a_tokenizer_json_comes_first_and_both_are_described(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, model_bytes(LLAMA))
    assert describe_tokenizer(folder) == "BPE/tokenizer.model"
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {"a": 0}}}')
    assert describe_tokenizer(folder) == "WordPiece/tokenizer.json"
    assert read_tokenizer(folder, folder.config(), None, 1).tokens == ("a",)


NORMAL = TokenType.NORMAL


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "remove_extra_whitespaces"),
        (b"\xff" * 12, "a number has no end"),
        (b"\x0a\x7f", "cut short"),
        (b"\x0b", "a field is of a type that is none"),
        (model_bytes(LLAMA)[:-1], "cut short"),
        (model_bytes([]), "it has no tokens"),
        (model_bytes([("a", 0.0, NORMAL)] * 2), "or one twice"),
        (model_bytes([("", 0.0, NORMAL)]), "the token 0 has 0 characters"),
        (model_bytes([("a" * 1025, 0.0, NORMAL)]), "the token 0 has 1025 characters"),
        (model_bytes([("a", float("nan"), NORMAL)]), "the score nan"),
        (b"\x0a\x02\x0a\x00", "the token 0 has 0 characters"),
        (b"\x0a\x03\x0a\x01\xff", "the token 0 is no UTF-8 text"),
        (b"\x0a\x05\x0a\x01a\x10\x01", "the token 0 is not text and score"),
        (b"\x0a\x05\x0a\x01a\x18\x09", "the token 0 is of an unknown type"),
        (model_bytes(LLAMA, trainer={3: 1}), "it is of the kind unigram"),
        (model_bytes(LLAMA, trainer={3: 3}), "it is of the kind words"),
        (model_bytes(LLAMA, trainer={3: b"2"}), "it has bytes in place of a number"),
        (model_bytes(LLAMA, trainer={41: b"1"}), "it has bytes in place of a number"),
        (model_bytes(LLAMA, trainer={24: 1}), "treat_whitespace_as_suffix"),
        (model_bytes(LLAMA, normalizer={2: b"map"}), "precompiled_charsmap"),
        (model_bytes(LLAMA, normalizer={4: 1}), "remove_extra_whitespaces"),
        (model_bytes(LLAMA, normalizer={5: 0}), "escape_whitespaces"),
        (model_bytes(LLAMA[:100]), "lacks 159 of 256 byte tokens"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadTokenizer) as caught:
        tokenizer(tmp_path, data)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"added_tokens": {"<tool>": "a"}}, "of type str, not an integer"),
        ({"added_tokens": {"<tool>": -1}}, "-1 is no token"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "X"}}}}, "it is no token"),
        ({"tokenizer_config": {"added_tokens_decoder": {"1": "<tool>"}}}, "not an object"),
        ({"tokenizer_config": {"legacy": 1}}, "of type int, not a bool"),
    ],
)
def test_a_file_beside_it_that_makes_no_sense_is_refused(
    files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(BadFolder) as caught:
        tokenizer(tmp_path, model_bytes(LLAMA), SIZE + 1, **files)
    assert reason in str(caught.value)


@settings(max_examples=100)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 10**6),
)
def test_a_damaged_file_is_read_or_refused(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(model_bytes(LLAMA[:20] + LLAMA[-20:]))
    for at, byte in changes:
        data[at % len(data)] = byte
    kept = bytes(data) if cut % 2 else bytes(data[: cut % len(data)])
    try:
        model = read_model(kept, PATH)
    except BadTokenizer:
        return
    assert len(model.pieces) == len(model.scores) == len(model.types)
