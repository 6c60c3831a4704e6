"""Tokenizers of folders, compared with the library that `tokenizer.json` is written for."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from rocmforge.checkpoint.tokenizer import TokenType
from rocmforge.errors import BadFolder, BadTokenizer
from rocmforge.gguf.tokenizer import read_tokenizer as read_gguf_tokenizer
from rocmforge.huggingface.files.folder import MAX_FILES, Folder
from rocmforge.huggingface.tokenizer import read_templates, read_tokenizer
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.data.models.text.tiny_encoders import VOCABULARY
from tests.support.files.tokenizer_files import KINDS, TEXT, pieces, write_tokenizer
from tests.unit.text.vocabularies import byte_level

SPECIAL = {
    "byte level": "<|im_start|>user\nHi<|im_end|>\n<tool_call>",
    "Llama 2": "<s> one</s>two <s>",
    "Mistral": "<s>[INST]  one [INST] two</s> three",
    "WordPiece": "[CLS] one [SEP] two",
    "unigram": "<s> one </s> two",
}
TEXTS = (
    TEXT,
    "",
    " ",
    "  two  spaces ",
    "line\n\n\tbreaks\r\n",
    "😀 and \u0301 marks, ﬁ ligature",
    "<0x41> [PAD9] ▁▁ \uffff",
)


@cache
def library(kind: str) -> tokenizers.Tokenizer:
    return KINDS[kind]()


def read(
    path: Path, generation: dict[str, Any] | None = None, size: int | None = None
) -> Tokenizer:
    """The tokenizer of a folder."""
    (path / "config.json").write_text("{}")
    (path / "generation_config.json").write_text(json.dumps(generation or {}))
    folder = Folder(path)
    count = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size()
    found = folder.json("generation_config.json")
    return Tokenizer(read_tokenizer(folder, folder.config(), found, size or count))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    found = {}
    for kind in KINDS:
        path = tmp_path_factory.mktemp("tokenizer")
        write_tokenizer(path, library(kind))
        found[kind] = read(path)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_texts_become_the_librarys_tokens(kind: str, ours: dict[str, Tokenizer]) -> None:
    for text in (*TEXTS, SPECIAL[kind], f"{SPECIAL[kind]} {TEXT[:50]}"):
        expected = library(kind).encode(text, add_special_tokens=False).ids
        if kind == "WordPiece":
            expected = untruncated(kind).encode(text, add_special_tokens=False).ids
        assert ours[kind].encode(text, parse_special=True, add_bos=False) == expected, text


@cache
def untruncated(kind: str) -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer.from_str(library(kind).to_str())
    found.no_truncation()
    return found


@given(
    text=st.text(st.characters(codec="utf-8"), max_size=30) | st.text("ab c.<>|\n▁#", max_size=20)
)
@pytest.mark.parametrize("kind", KINDS)
def test_any_text_becomes_the_librarys_tokens(
    kind: str, text: str, ours: dict[str, Tokenizer]
) -> None:
    expected = untruncated(kind).encode(text, add_special_tokens=False).ids
    assert ours[kind].encode(text, parse_special=True, add_bos=False) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_clients_become_no_special_tokens(kind: str, ours: dict[str, Tokenizer]) -> None:
    tokenizer = ours[kind]
    for text in (SPECIAL[kind], *map(tokenizer.token, tokenizer.special_ids)):
        ids = tokenizer.encode(text, parse_special=False, add_bos=False)
        allowed = {3} if kind == "unigram" else {1} if kind == "WordPiece" else set()
        assert tokenizer.special_ids.intersection(ids) <= allowed, "only the unknown token"


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_put_together_are_the_text(kind: str, ours: dict[str, Tokenizer]) -> None:
    text = "The quick fox jumps over 17 dogs."
    ids = ours[kind].encode(text, parse_special=False, add_bos=False)
    expected = untruncated(kind).decode(ids)
    if kind == "WordPiece":  # the library's decoder also joins what looks like English
        expected = "the quick fox jumps over 17 dogs ."
    assert ours[kind].decode(ids) == expected
    assert b"".join(map(ours[kind].piece_bytes, ids)).decode().lstrip() == expected


@pytest.mark.parametrize("kind", ["WordPiece", "unigram"])
def test_texts_to_be_read_and_pairs_are_framed_as_by_the_library(
    kind: str, ours: dict[str, Tokenizer]
) -> None:
    one, two = "the cat sat on the mat", "over the lazy dog"
    plain = untruncated(kind)
    assert ours[kind].encode_whole(one) == plain.encode(one).ids
    assert ours[kind].encode_pair(one, two) == plain.encode(one, two).ids


@pytest.mark.parametrize(("kind", "bos"), [("byte level", "<|endoftext|>"), ("Llama 2", "<s>")])
def test_prompts_begin_as_the_template_of_the_file_says(
    kind: str, bos: str, ours: dict[str, Tokenizer]
) -> None:
    assert ours[kind].encode("one", parse_special=False) == library(kind).encode("one").ids
    assert ours[kind].bos_id == library(kind).token_to_id(bos)


@pytest.mark.parametrize("pre", ["chatglm-bpe", "glm4"])
def test_texts_begin_with_both_tokens_of_glm_4(pre: str, tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(library("byte level").to_str())
    tokenizer.add_special_tokens(["[gMASK]", "<sop>"])
    start = [tokenizer.token_to_id(text) for text in ("[gMASK]", "<sop>")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[gMASK] <sop> $A",
        special_tokens=list(zip(("[gMASK]", "<sop>"), start, strict=True)),
    )
    write_tokenizer(tmp_path, tokenizer)
    folder = read(tmp_path)
    assert folder.encode("one", parse_special=False) == tokenizer.encode("one").ids
    assert folder.encode_whole("one") == tokenizer.encode("one").ids
    metadata = byte_level(pre=pre, add_bos_token=False)  # as the converter writes it
    for text in ("[gMASK]", "<sop>"):
        metadata["tokenizer.ggml.tokens"].append(text)
        metadata["tokenizer.ggml.token_type"].append(TokenType.CONTROL)
    file = Tokenizer(read_gguf_tokenizer(metadata))
    for each in (folder, file):
        assert [each.token(index) for index in each.start_ids] == ["[gMASK]", "<sop>"]
        ids = each.encode("one", parse_special=False)
        assert ids[2:] == each.encode("one", parse_special=False, add_bos=False)
        assert tuple(ids[:2]) == each.start_ids
        assert each.encode("[gMASK]<sop>one", parse_special=True, add_bos=False) == ids


def test_tokenizer_config_may_say_otherwise_and_names_tokens(tmp_path: Path) -> None:
    eos = {"content": "<|im_end|>", "special": True}
    write_tokenizer(tmp_path, library("byte level"), add_bos_token=False, eos_token=eos)
    tokenizer = read(tmp_path)
    assert not tokenizer.adds_bos
    assert tokenizer.eos_ids[0] == library("byte level").token_to_id("<|im_end|>")
    assert tokenizer.special_tokens()["eos_token"] == "<|im_end|>"


def test_answers_end_at_all_tokens_that_the_configurations_name(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, library("Llama 2"), eos_token="</s>")
    assert read(tmp_path, {"eos_token_id": [2, 300]}).eos_ids == (2, 300)
    assert read(tmp_path, {"eos_token_id": 300}).eos_ids == (2, 300)


def test_special_tokens_map_of_older_folders_counts(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, library("Llama 2"))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert read(tmp_path).eos_ids == (2,)


def test_rows_of_the_embedding_without_a_token_are_padding(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, library("WordPiece"))
    count = library("WordPiece").get_vocab_size()
    tokenizer = read(tmp_path, size=count + 3)
    assert tokenizer.vocab_size == count + 3
    assert tokenizer.token(count + 2) == f"[PAD{count + 2}]"
    ids = tokenizer.encode(f"[PAD{count + 2}]", parse_special=True, add_bos=False)
    assert max(ids) < count


def test_tokens_beyond_the_embedding_are_left_out(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, library("byte level"))
    count = library("byte level").get_vocab_size()
    tokenizer = read(tmp_path, size=count - 1)  # <tool_call> is the last
    assert tokenizer.vocab_size == count - 1
    assert max(tokenizer.encode("<tool_call>", parse_special=True)) < count - 1


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("model", "type"), "WordLevel", "its model is of type 'WordLevel'"),
        (("model",), None, "its model is of type 'none'"),
        (("model", "vocab"), {"a": -1}, "not all ids of its vocabulary are numbers"),
        (("model", "vocab"), {"a": "b"}, "not all ids of its vocabulary are numbers"),
        (("model", "vocab"), {"a": 0, "b": 0}, "the token 0 has two spellings"),
        (("model", "merges"), [["a"]], "tokenizer.json cannot be used"),
        (("model", "merges"), None, "The merges of tokenizer.json are no list"),
        (("model", "unk_token"), ["<unk>"], "The unk_token of tokenizer.json is no text"),
        (("pre_tokenizer",), {"type": "Nonsense"}, "tokenizer.json cannot be used"),
        (("post_processor",), {"type": "Nonsense"}, "its post_processor is of type 'Nonsense'"),
        (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "is broken"),
        (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "%"}, "precompiled_char"),
        (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "é"}, "precompiled_char"),
        (
            ("normalizer",),
            {"type": "Sequence", "normalizers": [{"type": "Precompiled"}]},
            "is broken",
        ),
    ],
)
def test_a_definition_that_cannot_be_used_is_refused(
    place: tuple[str, ...], value: Any, reason: str, tmp_path: Path
) -> None:
    definition = json.loads(library("byte level").to_str())
    inner = definition
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(BadTokenizer) as caught:
        Tokenizer(read_tokenizer(Folder(tmp_path), empty(tmp_path), None, 700))
    assert reason in str(caught.value)


@pytest.mark.parametrize("score", ["1", None, [], True, pytest.param(10**400, id="huge")])
def test_a_score_that_is_no_number_is_refused(score: Any, tmp_path: Path) -> None:
    definition = json.loads(library("unigram").to_str())
    definition["model"]["vocab"][5][1] = score
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(BadTokenizer, match="pairs of text and score"):
        read_tokenizer(Folder(tmp_path), empty(tmp_path), None, 700)


def test_a_vocabulary_that_names_no_unknown_token_is_refused_with_the_keys(tmp_path: Path) -> None:
    definition = json.loads(library("unigram").to_str())
    definition["model"]["unk_id"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(BadTokenizer, match=r"unk_token or unk_id of tokenizer\.json"):
        Tokenizer(read_tokenizer(Folder(tmp_path), empty(tmp_path), None, 700))


def test_a_word_piece_vocabulary_without_its_unknown_token_is_refused(tmp_path: Path) -> None:
    definition = json.loads(library("WordPiece").to_str())
    definition["model"]["unk_token"] = "nowhere"
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(BadTokenizer, match="is not in its vocabulary"):
        Tokenizer(read_tokenizer(Folder(tmp_path), empty(tmp_path), None, 700))


def test_a_decoder_whose_type_is_a_list_is_none_that_we_know(tmp_path: Path) -> None:
    definition = json.loads(library("WordPiece").to_str()) | {"decoder": {"type": ["ByteLevel"]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer(read_tokenizer(Folder(tmp_path), empty(tmp_path), None, 700))
    expected = untruncated("WordPiece").encode("the cat").ids
    assert tokenizer.encode("the cat", parse_special=False) == expected[:-1], "without the end"


@pytest.mark.parametrize(
    ("place", "value"),
    [("unk_token", "nowhere"), ("pre_tokenizer", {"type": "FixedLength", "length": 0})],
)
def test_what_the_library_cannot_do_with_a_text_is_said(
    place: str, value: Any, tmp_path: Path
) -> None:
    definition = json.loads(library("Llama 2").to_str())
    definition["model"]["byte_fallback"] = False
    (definition["model"] if place == "unk_token" else definition)[place] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer(read_tokenizer(Folder(tmp_path), empty(tmp_path), None, 700))
    with pytest.raises(BadTokenizer, match=r"tokenizer\.json cannot be used"):
        tokenizer.encode("\uffff", parse_special=False)


def test_an_unknown_token_has_the_number_that_is_in_the_embedding(tmp_path: Path) -> None:
    definition = json.loads(library("WordPiece").to_str())
    definition["model"]["vocab"]["[UNK]"] = 5000
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer(read_tokenizer(Folder(tmp_path), empty(tmp_path), None, 700))
    assert tokenizer.encode("☃", parse_special=False, add_bos=False) == [1]


def empty(path: Path) -> Any:
    """A configuration without values."""
    (path / "config.json").write_text("{}")
    return Folder(path).config()


def test_a_folder_without_tokenizer_json_is_refused_with_the_way_to_it(tmp_path: Path) -> None:
    reason = r"there is neither tokenizer\.json nor tokenizer\.model\. AutoTokenizer"
    with pytest.raises(BadTokenizer, match=reason):
        read_tokenizer(Folder(tmp_path), empty(tmp_path), None, 10)


def test_an_end_token_that_is_none_is_refused_with_its_key(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, library("Llama 2"))
    with pytest.raises(BadFolder, match="'eos_token_id': 'x' is no token"):
        read(tmp_path, {"eos_token_id": ["x"]})


@pytest.mark.parametrize(
    ("config", "file", "templates"),
    [
        ({}, None, {}),
        ({"chat_template": "{{ a }}"}, None, {"default": "{{ a }}"}),
        ({"chat_template": "{{ a }}"}, "{{ b }}", {"default": "{{ b }}"}),
        (
            {
                "chat_template": [
                    {"name": "default", "template": "{{ a }}"},
                    {"name": "tool_use", "template": "{{ t }}"},
                ]
            },
            None,
            {"default": "{{ a }}", "tool_use": "{{ t }}"},
        ),
    ],
)
def test_chat_templates_are_found_where_folders_have_them(
    config: dict[str, Any], file: str | None, templates: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if file is not None:
        (tmp_path / "chat_template.jinja").write_text(file)
    assert read_templates(Folder(tmp_path)) == templates


def test_a_template_may_be_in_a_json_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text('{"chat_template": "{{ p }}"}')
    assert read_templates(Folder(tmp_path)) == {"default": "{{ p }}"}


def test_templates_in_files_of_their_own_stand_for_those_of_the_configuration(
    tmp_path: Path,
) -> None:
    listed = [{"name": name, "template": "{{ a }}"} for name in ("default", "rag", "tool_use")]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    assert set(read_templates(Folder(tmp_path))) == {"default", "rag", "tool_use"}
    (tmp_path / "chat_template.jinja").write_text("{{ b }}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("{{ t }}")
    (tmp_path / "additional_chat_templates/notes.txt").write_text("")
    assert read_templates(Folder(tmp_path)) == {"default": "{{ b }}", "tool_use": "{{ t }}"}


@pytest.mark.parametrize("damage", ["a link out of it", "too many", "no folder"])
def test_a_folder_of_templates_that_makes_no_sense_is_refused(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    inner = folder / "additional_chat_templates"
    folder.mkdir()
    if damage == "no folder":
        inner.write_text("")
    else:
        inner.mkdir()
    if damage == "a link out of it":
        (tmp_path / "secret").write_text("secret")
        (inner / "tool_use.jinja").symlink_to(tmp_path / "secret")
    if damage == "too many":
        for index in range(MAX_FILES + 1):
            (inner / f"{index}.txt").write_text("")
    with pytest.raises(BadFolder, match="additional_chat_templates"):
        read_templates(Folder(folder))


def test_a_special_token_that_is_spelled_like_a_word_is_none_in_texts(tmp_path: Path) -> None:
    tokenizer = pieces(VOCABULARY)
    tokenizer.add_special_tokens(["the"])
    write_tokenizer(tmp_path, tokenizer, unk_token="[UNK]")
    found, special = read(tmp_path), tokenizer.token_to_id("the")
    assert special in found.special_ids
    assert special not in found.encode("the cat", parse_special=False)
    assert special in found.encode("the cat", parse_special=True)
