"""Adapter files: what they change, and refusals that name file and tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import BadAdapter, ConfigurationError, ModelFileNotFound
from rocmforge.gguf.adapter import read_adapter
from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.config.reading import read_config
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.config import ModelConfig
from rocmforge.models.lora import Adapter, AdapterSpec, parse_adapters
from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_adapters import (
    TinyAdapter,
    adapter_metadata,
    gguf_adapter,
    hf_pairs,
    write_adapter,
)
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.text.tiny_models import DENSE_MODELS, by_name
from tests.support.files.gguf_writer import write_gguf

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def config_of(model: TinyModel, folder: Path) -> ModelConfig:
    with open_gguf(write_model(model, folder)) as file:
        return read_config(file)


def read(config: ModelConfig, path: Path, scale: float = 1.0) -> Adapter:
    return read_adapter(config, AdapterSpec(name="a", path=str(path), scale=scale))


@pytest.mark.parametrize("model", DENSE_MODELS, ids=lambda model: model.name)
def test_every_projection_of_every_architecture_is_found(model: TinyModel, tmp_path: Path) -> None:
    recipe = TinyAdapter()
    config = config_of(model, tmp_path)
    adapter = read(config, write_adapter(tmp_path / "a.gguf", model, recipe), scale=0.5)
    assert {place.path for place in adapter.changes} == {
        f"layers.{layer}.{part}"
        for layer in range(model.config["num_hidden_layers"])
        for part in (
            *("attention.q", "attention.k", "attention.v", "attention.output"),
            *("feed_forward.gate", "feed_forward.up", "feed_forward.down"),
        )
    }
    for low_rank in adapter.changes.values():
        assert low_rank.rank == recipe.rank
        assert low_rank.scale == 0.5 * 6.0 / 4


def test_adapters_change_the_attention_of_a_model_with_experts(tmp_path: Path) -> None:
    model, recipe = (
        by_name("qwen3moe"),
        TinyAdapter(targets=("q_proj", "k_proj", "v_proj", "o_proj")),
    )
    adapter = read(config_of(model, tmp_path), write_adapter(tmp_path / "a.gguf", model, recipe))
    assert {place.name for place in adapter.changes} == {
        f"attention.{part}" for part in ("q", "k", "v", "output")
    }


def test_an_adapter_of_experts_is_refused_by_name(tmp_path: Path) -> None:
    config = config_of(by_name("qwen3moe"), tmp_path)
    keys = {**adapter_metadata(by_name("qwen3moe"), TinyAdapter())}
    tensors = {
        f"blk.1.ffn_up_exps.weight.lora_{part}": np.zeros(shape, np.float32)
        for part, shape in (("a", (8, 4, 48)), ("b", (8, 40, 4)))
    }
    path = write_gguf(tmp_path / "a.gguf", keys, tensors)
    with pytest.raises(BadAdapter, match=r"ffn_up_exps\.weight' is not a matrix that adapters can"):
        read(config, path)


def test_a_fused_tensor_is_cut_into_its_matrices(tmp_path: Path) -> None:
    model, recipe = by_name("phi3"), TinyAdapter()
    adapter = read(config_of(model, tmp_path), write_adapter(tmp_path / "a.gguf", model, recipe))
    a, b = hf_pairs(model, recipe)["model.layers.1.self_attn.qkv_proj.weight"]
    factors = {place.path: low_rank.factors() for place, low_rank in adapter.changes.items()}
    q, k, v = (factors[f"layers.1.attention.{part}"] for part in ("q", "k", "v"))
    np.testing.assert_array_equal(np.concatenate([q[1], k[1], v[1]]), b)
    assert all((part == a).all() for part, _ in (q, k, v))
    gate, up = (factors[f"layers.0.feed_forward.{part}"][1] for part in ("gate", "up"))
    _, b = hf_pairs(model, recipe)["model.layers.0.mlp.gate_up_proj.weight"]
    np.testing.assert_array_equal(np.concatenate([gate, up]), b)


def test_an_adapter_may_change_a_few_matrices_only(tmp_path: Path) -> None:
    model, recipe = by_name("llama"), TinyAdapter(targets=("1.self_attn.q_proj",))
    adapter = read(config_of(model, tmp_path), write_adapter(tmp_path / "a.gguf", model, recipe))
    assert [place.path for place in adapter.changes] == ["layers.1.attention.q"]


def _rename(old: str, new: str) -> Change:
    return lambda keys, tensors: tensors.update({new: tensors.pop(old)})


def _set(name: str, value: object) -> Change:
    return lambda keys, tensors: (keys if name in keys else tensors).update({name: value})


Q = "blk.0.attn_q.weight"
BAD: dict[str, tuple[Change, str | None, str]] = {
    "a model": (lambda keys, _: keys.pop("general.type"), None, "general.type is 'model'"),
    "another kind": (_set("general.type", "mmproj"), None, "general.type is 'mmproj'"),
    "not LoRA": (_set("adapter.type", "control"), None, "type 'control'"),
    "no type": (lambda keys, _: keys.pop("adapter.type"), None, "'adapter.type' is missing"),
    "another architecture": (
        _set("general.architecture", "qwen2"),
        None,
        "it is for qwen2 models, and this is a llama model",
    ),
    "alpha is text": (_set("adapter.lora.alpha", "6"), None, "'adapter.lora.alpha' is a string"),
    "alpha is infinite": (_set("adapter.lora.alpha", float("inf")), None, "alpha is inf"),
    "activated LoRA": (
        lambda keys, _: keys.update({"adapter.alora.invocation_tokens": np.array([1, 2], "u4")}),
        None,
        "begins to act at certain tokens",
    ),
    "no tensors": (lambda _, tensors: tensors.clear(), None, "it has no tensors"),
    "half a pair": (lambda _, tensors: tensors.pop(f"{Q}.lora_b"), f"{Q}.lora_b", "is missing"),
    "other half": (lambda _, tensors: tensors.pop(f"{Q}.lora_a"), f"{Q}.lora_a", "is missing"),
    "another tensor": (
        _rename(f"{Q}.lora_a", Q),
        Q,
        "ends neither in .lora_a nor in .lora_b",
    ),
    "a layer too many": (
        _rename(f"{Q}.lora_a", "blk.2.attn_q.weight.lora_a"),
        "blk.2.attn_q.weight.lora_a",
        "'blk.2.attn_q.weight' is not a matrix of llama models with 2 layers",
    ),
    "a norm": (
        _rename(f"{Q}.lora_a", "blk.0.attn_norm.weight.lora_a"),
        "blk.0.attn_norm.weight.lora_a",
        "not a matrix",
    ),
    "the embedding": (
        _rename(f"{Q}.lora_a", "token_embd.weight.lora_a"),
        "token_embd.weight.lora_a",
        "embedding or the output matrix are not supported",
    ),
    "the output": (
        _rename(f"{Q}.lora_b", "output.weight.lora_b"),
        "output.weight.lora_b",
        "embedding or the output matrix are not supported",
    ),
    "wrong width": (
        _set(f"{Q}.lora_a", np.zeros((4, 50), np.float32)),
        f"{Q}.lora_a",
        "its shape is (4, 50), not (rank, 48) with a rank up to 1024",
    ),
    "vector": (_set(f"{Q}.lora_a", np.zeros(48, np.float32)), f"{Q}.lora_a", "shape is (48,)"),
    "huge rank": (
        _set(f"{Q}.lora_a", np.zeros((1025, 48), np.float32)),
        f"{Q}.lora_a",
        "with a rank up to 1024",
    ),
    "wrong height": (
        _set(f"{Q}.lora_b", np.zeros((47, 4), np.float32)),
        f"{Q}.lora_b",
        "its shape is (47, 4), not (48, 4)",
    ),
    "two ranks": (
        _set(f"{Q}.lora_b", np.zeros((48, 8), np.float32)),
        f"{Q}.lora_b",
        "its shape is (48, 8), not (48, 4)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    change, tensor, reason = BAD[case]
    model = by_name("llama")
    keys: dict[str, Any] = dict(adapter_metadata(model, TinyAdapter()))
    tensors: dict[str, Any] = dict(gguf_adapter(model, TinyAdapter()))
    change(keys, tensors)
    path = write_gguf(tmp_path / "bad.gguf", keys, tensors)
    config = config_of(model, tmp_path)
    with pytest.raises(BadAdapter) as caught:
        read(config, path)
    assert caught.value.tensor == tensor
    assert caught.value.path == str(path)
    assert str(path) in caught.value.message
    assert reason in caught.value.message


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(b"{}" * 50)
    with pytest.raises(BadAdapter, match="not a valid GGUF file"):
        read(config_of(by_name("llama"), tmp_path), path)


def test_an_adapter_in_the_place_of_a_model_is_told_where_it_belongs(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", by_name("llama"), TinyAdapter())
    with open_gguf(path) as file, pytest.raises(BadAdapter, match=r"with --lora NAME=.*a\.gguf"):
        read_checkpoint(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFound, match=r"none\.gguf"):
        read(config_of(by_name("llama"), tmp_path), tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("text", "name", "path", "scale"),
    [
        ("sql=/a/b.gguf", "sql", "/a/b.gguf", 1.0),
        ("sql=/a/b.gguf:0.5", "sql", "/a/b.gguf", 0.5),
        ("sql=/a/b.gguf:-2", "sql", "/a/b.gguf", -2.0),
        ("org/x-1.b=C:/a=b:c.gguf", "org/x-1.b", "C:/a=b:c.gguf", 1.0),
        ("a=b:nan", "a", "b:nan", 1.0),
    ],
)
def test_an_option_is_name_path_and_scale(text: str, name: str, path: str, scale: float) -> None:
    assert parse_adapters([text]) == (AdapterSpec(name=name, path=path, scale=scale),)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["sql.gguf"], "not of the form name=path"),
        (["sql="], "not of the form name=path"),
        (["=sql.gguf"], "the name '' must begin"),
        (["a:b=sql.gguf"], "the name 'a:b' must begin"),
        (["a=1.gguf", "a=2.gguf"], "names two adapters 'a'"),
    ],
)
def test_an_option_that_is_none_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        parse_adapters(texts)
