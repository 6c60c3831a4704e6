"""What the wiring decides itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rocmforge.engine.client.client import AsyncEngine
from rocmforge.engine_options import engine_config, load_options, token_pieces
from rocmforge.errors import BadTokenizer, ConfigurationError
from rocmforge.gguf.tokenizer import read_tokenizer
from rocmforge.model_front import open_model, read_front
from rocmforge.settings import Settings
from rocmforge.text.tokenizer.tokenizer import Tokenizer
from rocmforge.wiring import build_model
from tests.data.models.text.model_files import hf_weights, write_model
from tests.data.models.text.tiny_encoders import VOCABULARY
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import by_name
from tests.support.files.safetensors_writer import write_safetensors
from tests.support.files.tokenizer_files import pieces, write_tokenizer
from tests.support.models.predicting import write_predicting
from tests.support.models.speaking import write_speaking
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


def test_a_decoder_that_ranks_has_the_prompt_of_its_template(tmp_path: Path) -> None:
    folder = write_folder(by_name("qwen3"), tmp_path / "m")
    roles = "".join(
        f"{{% for m in messages if m.role == '{role}' %}}<{role}>{{{{ m.content }}}}{{% endfor %}}"
        for role in ("system", "query", "document")
    )
    write_tokenizer(folder, pieces(VOCABULARY), chat_template=roles)
    (folder / "modules.json").write_text('[{"type": "x.LogitScore", "path": "1_LogitScore"}]')
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore/config.json").write_text('{"true_token_id": 5}')
    prompts = {"prompts": {"web": "Find it."}, "default_prompt_name": "web"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    head = read_front(str(folder), Settings()).rank_head
    assert head is not None
    assert head.prompt == "<system>Find it.<query>{query}<document>{document}"
    assert not head.weight[1].any(), "there is no word for no"


def test_a_model_that_was_found_is_not_looked_for_again(tmp_path: Path) -> None:
    folder = write_folder(by_name("qwen3"), tmp_path / "m")
    write_tokenizer(folder, pieces(VOCABULARY))
    assert read_front("a name that stands for nothing", Settings(), folder).path == folder


def test_a_model_with_states_checks_draft_tokens_if_the_operator_wants_any(tmp_path: Path) -> None:
    folder = write_folder(by_name("lfm2"), tmp_path / "m")
    write_tokenizer(folder, pieces(VOCABULARY))
    for tokens in (0, 4):
        settings = Settings(prompt_lookup_tokens=tokens, max_sequences=8)
        front = read_front(str(folder), settings)
        assert build_model(front, settings).checks_drafts is (tokens > 0)
        options = load_options(settings, 128, causal=True)
        assert options.running_slots(front.config) == 8 + 4 * tokens


def test_a_model_without_a_predictor_is_refused_if_one_is_to_draft(tmp_path: Path) -> None:
    folder = write_folder(by_name("glm4moe"), tmp_path / "m")
    write_tokenizer(folder, pieces(VOCABULARY))
    with pytest.raises(ConfigurationError, match="has no predictor of further tokens"):
        read_front(str(folder), Settings(draft_model="mtp"))


def test_the_engine_is_told_to_load_a_predictor_unless_something_else_would_be_lost(
    tmp_path: Path,
) -> None:
    model = by_name("glm4moe")
    weights, size = hf_weights(model), model.config["hidden_size"]
    layer = {name: each for name, each in weights.items() if "layers.2." in name}
    layer = {name.replace("layers.2.", "layers.3."): each for name, each in layer.items()}
    norms = dict.fromkeys(("enorm", "hnorm"), np.ones(size, np.float32))
    mine = norms | {"eh_proj": np.ones((size, 2 * size), np.float32)}
    place = {f"model.layers.3.{name}.weight": each for name, each in mine.items()}
    folder = write_folder(model, tmp_path / "m", config={"num_nextn_predict_layers": 1})
    write_safetensors(folder / "model.safetensors", weights | layer | place)
    write_tokenizer(folder, pieces(VOCABULARY))
    wanted = Settings(draft_tokens=3, prompt_lookup_tokens=2)
    for changes, predicts, without in (
        ({}, True, 2),
        ({"draft_model": "mtp"}, True, None),
        ({"draft_model": "mtp", "cache_dir": "blocks"}, True, None),
        ({"draft_model": "none"}, False, None),
        ({"tensor_parallel": 2}, False, None),
        ({"host_cache": "1GiB"}, True, 2),
        ({"cache_dir": "blocks"}, True, 2),
    ):
        settings = msgspec.structs.replace(wanted, **changes)
        front = read_front(str(folder), settings)
        config = engine_config(front, settings)
        assert front.config.predicts is config.predicts is predicts
        assert config.drafts_without_predictor == without
        assert config.options.draft_tokens == (3 if predicts else 2)
        assert build_model(front, settings).draft_model_tokens == 3 * predicts


def test_a_folder_that_lacks_a_file_is_named_once(tmp_path: Path) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    with pytest.raises(BadTokenizer, match="there is neither") as caught:
        read_front(str(folder), Settings())
    assert caught.value.message.count(str(folder)) == 1


def test_the_predictor_of_a_model_with_states_drafts_by_default(tmp_path: Path) -> None:
    path = write_predicting(by_name("qwen35"), tmp_path / "m.gguf")
    for draft, predicts in (("auto", True), ("none", False), ("mtp", True)):
        with open_model(path, Settings(draft_model=draft)) as checkpoint:
            assert checkpoint.config.predicts is predicts


def test_a_model_with_states_cannot_draft(tmp_path: Path) -> None:
    folders = [write_folder(by_name(name), tmp_path / name) for name in ("llama", "lfm2")]
    for folder in folders:
        write_tokenizer(folder, pieces(VOCABULARY))
    with pytest.raises(ConfigurationError, match="lfm2 cannot draft: it has states"):
        read_front(str(folders[0]), Settings(draft_model=str(folders[1])))


def test_the_engine_is_told_which_tower_to_load(tmp_path: Path) -> None:
    folder = write_folder(by_name("llama"), tmp_path / "m")
    write_tokenizer(folder, pieces(VOCABULARY))
    front, settings = read_front(str(folder), Settings()), Settings(mmproj="tower.gguf")
    config = engine_config(front, settings)
    assert config.mmproj == Path("tower.gguf")
    assert AsyncEngine(config)._supervisor._start_message().mmproj == "tower.gguf"
    with pytest.raises(ConfigurationError, match="leave --mmproj out"):
        read_front(str(folder), settings)


@pytest.mark.parametrize(
    "changes", [{}, {"draft_model": "small.gguf"}, {"host_cache": "1GiB"}, {"cache_dir": "x"}]
)
def test_windows_release_blocks_whatever_is_beside_them(changes: dict[str, Any]) -> None:
    settings = msgspec.structs.replace(Settings(), **changes)
    assert load_options(settings, 128, causal=True).releases_windows


def test_what_is_wrong_with_a_file_names_it_whichever_of_several_it_is(tmp_path: Path) -> None:
    good, bad = write_speaking(tmp_path, "llama"), write_model(by_name("qwen3"), tmp_path)
    for settings in (Settings(), Settings(draft_model=str(bad))):
        with pytest.raises(BadTokenizer) as error:
            read_front(str(bad if settings == Settings() else good), settings)
        assert error.value.message.startswith(f"{bad}: The file has no tokenizer")
