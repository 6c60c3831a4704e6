"""`rocmforge inspect` on real files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from rocmforge.cli import main
from rocmforge.settings import Settings
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf


@pytest.mark.model
def test_json_names_architecture_quantisation_and_memory(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(smollm2_path), "--json", "--max-context", "1024"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"] == "llama"
    assert [share["type"] for share in report["quantisation"]] == ["Q4_1", "Q8_0", "F32"]
    # 30 layers, keys and values, 3 KV heads of 64
    assert report["kv_bytes"]["f16"] == 1024 * 30 * 2 * 3 * 64 * 2
    assert report["not_supported"] is None


def test_a_name_that_looks_like_markup_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, {"general.architecture": "[/red]", "general.name": "[bold]"}, {})
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "Architecture '[/red]' is not supported" in " ".join(shown.split())
    assert "[bold]" in shown


def test_of_a_model_with_experts_it_says_how_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(by_name("glm4moe"), tmp_path)
    assert main(["inspect", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "feed-forward 72 or 3 of 8 experts of 40 and one of 40 for all tokens" in shown
    assert "can be served yes" in shown
    assert main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["config"]["layers"][1]["experts"]["num_chosen"] == 3


@pytest.mark.model
def test_the_table_shows_the_chat_template_as_it_is(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(smollm2_path)]) == 0
    assert "{% for message in messages %}" in capsys.readouterr().out


def test_an_unsupported_architecture_is_shown_with_the_reason(
    llama_cpp_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(llama_cpp_source / "models/ggml-vocab-falcon.gguf")]) == 0
    assert "Architecture 'falcon' is not supported" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "said", "tokens"),
    [
        # A seventh of its layers keep all, and in six groups a sequence has 7 blocks of 32 tokens.
        ("gemma3", "release what a window of 7 tokens has left behind", (32768 + 6 * 7 * 32) / 7),
        # Three blocks of its layer without a window are five of those with one.
        (
            "gemma4-e",
            "release what a window of 7 tokens has left behind",
            (32768 + 3 * 3 * 96) * 20 / 44,
        ),
        ("gemma4", "keep all blocks: their keys and values differ in size", 32768),
        ("llama", "", 32768),
    ],
)
def test_it_counts_what_layers_with_a_window_keep(
    name: str, said: str, tokens: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = by_name(name)
    long = replace(recipe, config=recipe.config | {"max_position_embeddings": 32768})
    assert main(["inspect", str(write_model(long, tmp_path)), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["windows"].startswith(said)
    layers = report["config"]["layers"]
    sizes = [(layer["num_kv_heads"], layer["key_dim"], layer["value_dim"]) for layer in layers]
    of_token = {
        "f32": sum(heads * (key + value) * 4 for heads, key, value in sizes),
        "f16": sum(heads * (key + value) * 2 for heads, key, value in sizes),
        "int8": sum(heads * (key + 4 + value + 4) for heads, key, value in sizes),
        "k8v4": sum(heads * (key + 4 + value // 2 + 4) for heads, key, value in sizes),
    }
    assert report["kv_bytes"] == {kind: int(tokens * size) for kind, size in of_token.items()}


def test_it_counts_caches_of_every_type_that_can_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(write_model(by_name("llama"), tmp_path)), "--json"]) == 0
    types = set(get_args(get_type_hints(Settings)["kv_dtype"])) - {"auto"}
    assert set(json.loads(capsys.readouterr().out)["kv_bytes"]) == types
