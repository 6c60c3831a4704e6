"""Folders whose files were changed at random: each is read or refused, with a typed error.

JSON files get other values, and `tokenizer.model` other bytes.

Everything is done with them that `serve` does before it starts an engine. How many of each model is
said by $ROCMFORGE_TEST_MUTATIONS (default: 30, for CI).
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocmforge.errors import RocmForgeError
from rocmforge.models.rank_head import read_rank_head
from rocmforge.opening import describe, open_checkpoint
from rocmforge.text.template.rank_prompt import rank_prompt
from rocmforge.text.template.template import ChatTemplates
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from tests.data.models.text import tiny_encoders
from tests.data.models.text.tiny_encoders import VOCABULARY, TinyEncoder
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import by_name
from tests.support.files.sentencepiece_writer import model_bytes, pieces_of
from tests.support.files.tokenizer_files import KINDS, pieces, write_tokenizer

EXAMPLES = int(os.environ.get("ROCMFORGE_TEST_MUTATIONS", "30"))
FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    *("special_tokens_map.json", "modules.json", "1_Pooling/config.json"),
    *("1_LogitScore/config.json", "config_sentence_transformers.json", "tokenizer.model"),
)
PIECES = pieces_of(("▁t", "he", "▁the", "at", "on", "42", *"▁thecaosn42"), ["▁▁"])
YARN = by_name("llama-yarn-tuned")
MODELS: dict[str, TinyModel | TinyEncoder] = {
    "llama3-rope": by_name("llama3-rope"),
    "sentencepiece": replace(YARN, config={**YARN.config, "vocab_size": len(PIECES)}),
    "gemma3": by_name("gemma3"),
    "phi3-longrope-long": by_name("phi3-longrope-long"),
    "glm4moe": by_name("glm4moe"),
    "modern-bert": tiny_encoders.by_name("modern-bert"),
    "ranker": tiny_encoders.by_name("ranker"),
}

WORDS = {"true_token_id": 5, "false_token_id": 9}
TOKENIZERS = {"gemma3": "Mistral", "ranker": "unigram"}
"""Of models that have not that of BERT."""

values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 3, 97, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, 1e-320]),
    st.sampled_from(["", "a", "llama", "gelu", "yarn", "\x00", "é", "../x", "[CLS]", "BPE"]),
    st.sampled_from([[], {}, [1], ["a"], {"a": 1}, [[]], [None], {"type": "Sequence"}]),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folders")
    for name, model in MODELS.items():
        folder = write_folder(model, path / name)
        tokenizer = KINDS[TOKENIZERS[name]]() if name in TOKENIZERS else pieces(VOCABULARY)
        write_tokenizer(
            folder, tokenizer, eos_token="[SEP]", chat_template="{{ messages[0].content }}"
        )
        generation = {"temperature": 0.5, "top_k": 3, "eos_token_id": [2, 5]}
        (folder / "generation_config.json").write_text(json.dumps(generation))
        if name == "sentencepiece":
            (folder / "tokenizer.json").unlink()
            (folder / "tokenizer.model").write_bytes(model_bytes(PIECES))
        (folder / "special_tokens_map.json").write_text('{"unk_token": {"content": "[UNK]"}}')
        kind = "LogitScore" if name == "gemma3" else "Pooling"
        modules = [{"type": "models.Transformer"}, {"type": f"models.{kind}", "path": f"1_{kind}"}]
        (folder / "modules.json").write_text(json.dumps(modules))
        for each, config in (("Pooling", {"pooling_mode": "mean"}), ("LogitScore", WORDS)):
            (folder / f"1_{each}").mkdir()
            (folder / f"1_{each}/config.json").write_text(json.dumps(config))
        prompts = {"prompts": {"web": "Find it."}, "default_prompt_name": "web"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return path


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a document, of long lists only the first."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in list(value.items())[:60]:
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:6]):
            found += places(inner, (*path, index))
    return found


def changed(document: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = deepcopy(value)


def damaged(content: bytes, data: st.DataObject) -> bytes:
    """With a few bytes changed, most of them not in the tokens of bytes."""
    found, size = bytearray(content), len(content)
    places = st.integers(0, size - 1) | st.integers(size - 60, size - 1)
    for at in data.draw(st.lists(places, min_size=1, max_size=3)):
        found[at] = data.draw(st.integers(0, 255))
    return bytes(found[: data.draw(st.just(size) | st.integers(0, size))])


def front(folder: Path) -> None:
    """What `serve` and `inspect` do with a model before there is an engine."""
    with suppress(RocmForgeError):
        describe(folder)
    with suppress(RocmForgeError), open_checkpoint(folder) as checkpoint:
        checkpoint.identify()
        tokenizer = Tokenizer(checkpoint.read_tokenizer())
        templates = ChatTemplates.compile(checkpoint.chat_templates, tokenizer)
        read_rank_head(checkpoint, rank_prompt(templates, checkpoint.rank_instruction))
        tokenizer.decode(tokenizer.encode_whole("the cat sat on </s> [SEP] 42"))


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_a_changed_folder_is_read_or_refused(name: str, data: st.DataObject, folders: Path) -> None:
    folder = folders / f"{name}-changed"
    shutil.copytree(folders / name, folder, dirs_exist_ok=True)
    file = folder / data.draw(st.sampled_from([each for each in FILES if (folder / each).exists()]))
    if file.suffix == ".model":
        file.write_bytes(damaged(file.read_bytes(), data))
        front(folder)
        return
    document = json.loads(file.read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        where = places(document)
        if where:
            changed(document, data.draw(st.sampled_from(where)), data.draw(values))
    file.write_text(json.dumps(document))
    front(folder)
