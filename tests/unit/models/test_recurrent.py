"""Layers with states in files: which they are, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import BadFolder, BadGguf, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.models.memory import kv_bytes_per_token, state_bytes
from rocmforge.opening import open_checkpoint
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, hf_weights, write_model
from tests.data.models.text.tiny_folders import folder_config, write_folder
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import Value, write_gguf
from tests.support.files.safetensors_writer import write_safetensors
from tests.unit.models.test_architectures import config_of


def counts(*values: int) -> Value:
    return np.array(values, np.int32)


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_convolution_remembers_all_inputs_but_the_newest(is_folder: bool, tmp_path: Path) -> None:
    write = write_model if not is_folder else lambda model, path: write_folder(model, path / "m")
    with open_checkpoint(write(by_name("lfm2"), tmp_path)) as checkpoint:
        config = checkpoint.config
        assert checkpoint.weights["layers.0.convolution.filter"].shape == (48, 3)
    assert [layer.state_shapes for layer in config.layers] == [((48, 2),), ()] * 2
    assert state_bytes(config) == 2 * 48 * 2 * 4
    assert kv_bytes_per_token(config, "f16") == 2 * (2 * 2 * 8) * 2, "of two layers alone"
    assert config.has_states


@pytest.mark.parametrize(
    ("name", "key", "value", "reason"),
    [
        ("lfm2", "shortconv.l_cache", 1, "a convolution of 1 inputs has no state"),
        ("lfm2", "shortconv.l_cache", 0, "0 is not positive"),
        ("lfm2", "attention.head_count_kv", counts(0, 2, 0, 3), "differs by layer"),
        ("lfm2", "attention.head_count_kv", counts(0, 2, 0), "no counts for 4 layers"),
        ("lfm2", "attention.head_count_kv", counts(0, -2, 0, 2), "no counts for 4 layers"),
        ("lfm2", "attention.head_count_kv", counts(0, 4, 0, 4), "4 does not divide"),
        ("lfm2", "attention.head_count_kv", counts(0, 0, 0, 0), "differs by layer"),
        ("llama", "attention.head_count_kv", counts(0, 2), "differs by layer"),
        ("qwen35", "ssm.conv_kernel", 1, "a convolution of 1 inputs has no state"),
        ("qwen35", "ssm.inner_size", 66, "4 heads do not divide 66"),
        ("qwen35", "ssm.time_step_rank", 1, "2 key heads do not divide them"),
        ("qwen3next", "attention.recurrent_layers", np.array([True]), "1 flags for 3 layers"),
        ("qwen3next", "rope.dimension_sections", counts(1, 1, 0, 0), "on several axes"),
    ],
)
def test_senseless_keys_are_refused(
    name: str, key: str, value: Value, reason: str, tmp_path: Path
) -> None:
    with pytest.raises((BadGguf, UnsupportedArchitecture), match=reason) as caught:
        config_of(tmp_path, name, {key: value})
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("lfm2", {"conv_L_cache": 1}, "'conv_L_cache': a convolution of 1 inputs"),
        ("lfm2", {"conv_bias": True}, "'conv_bias': convolutions with biases"),
        ("lfm2", {"layer_types": ["conv"]}, "'layer_types': not 4 times"),
        ("lfm2", {"layer_types": ["conv", "linear_attention"] * 2}, "'layer_types': not 4 times"),
        ("qwen35", {"layer_types": ["conv", "full_attention"] * 2}, "'layer_types': not 4 times"),
        ("qwen35", {"linear_num_value_heads": 3}, "'linear_num_value_heads': 2 key heads"),
    ],
)
def test_senseless_configurations_are_refused(
    name: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_folder(by_name(name), tmp_path / "m", config=changes)
    with pytest.raises(BadFolder, match=reason), open_checkpoint(folder):
        pass


def test_the_first_files_of_lfm2_say_the_same_in_other_words(tmp_path: Path) -> None:
    model = by_name("lfm2")
    words = {"layer_types": None, "full_attn_idxs": [1, 3], "tie_embedding": True}
    sizes = {"block_ff_dim": 70, "block_auto_adjust_ff_dim": True, "block_multiple_of": 24}
    older = {"tie_word_embeddings": None, "intermediate_size": None, **words, **sizes}
    with open_checkpoint(write_folder(model, tmp_path / "new")) as checkpoint:
        expected = checkpoint.config
    folder = write_folder(model, tmp_path / "new2" / "new", config=older | {"block_ff_dim": 100})
    with open_checkpoint(folder) as checkpoint:  # 2 / 3 of it, and then a multiple
        assert checkpoint.config == expected


@pytest.mark.parametrize("is_folder", [False, True])
def test_gated_delta_net_has_a_state_of_each_value_head(is_folder: bool, tmp_path: Path) -> None:
    write = write_model if not is_folder else lambda model, path: write_folder(model, path / "m")
    with open_checkpoint(write(by_name("qwen35"), tmp_path)) as checkpoint:
        config = checkpoint.config
    own = ((2 * 2 * 16 + 4 * 16, 3), (4, 16, 16))
    assert [layer.state_shapes for layer in config.layers] == [own] * 3 + [()]
    delta = config.layers[0].delta
    assert delta is not None
    assert delta.is_tiled is not is_folder


def test_a_period_says_which_layers_of_a_folder_have_attention(tmp_path: Path) -> None:
    changes = {"layer_types": None, "full_attention_interval": 2}
    folder = write_folder(by_name("qwen35moe"), tmp_path / "m", config=changes)
    with open_checkpoint(folder) as checkpoint:
        assert [bool(layer.delta) for layer in checkpoint.config.layers] == [True, False, True]


def test_both_layouts_of_qwen3_next_lead_to_the_same_weights(tmp_path: Path) -> None:
    model = by_name("qwen3next")
    tensors = gguf_tensors(model)
    older = {
        name: value
        for name, value in tensors.items()
        if not name.endswith(("attn_qkv.weight", "attn_gate.weight"))
    }
    for layer in range(2):
        name = f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight"
        older[f"blk.{layer}.ssm_in.weight"] = hf_weights(model)[name]
    files = [
        write_gguf(tmp_path / f"{n}.gguf", gguf_metadata(model), each)
        for n, each in enumerate((tensors, older))
    ]
    with open_checkpoint(files[0]) as new, open_checkpoint(files[1]) as old:
        assert new.weights.keys() == old.weights.keys()
        for path, tensor in new.weights.items():
            np.testing.assert_array_equal(tensor.to_float32(), old.weights[path].to_float32())


def test_rows_that_were_picked_are_cut_as_any(tmp_path: Path) -> None:
    with open_checkpoint(write_model(by_name("qwen35"), tmp_path)) as checkpoint:
        queries = checkpoint.weights["layers.3.attention.q"]
        values = queries.to_float32()
        assert queries.nbytes == values.nbytes == 64 * 48 * 4
        np.testing.assert_array_equal(queries.slice(0, 5, 33).to_float32(), values[5:33])
        np.testing.assert_array_equal(queries.slice(1, 8, 40).to_float32(), values[:, 8:40])
        for axis, stop in ((0, 65), (1, 49), (2, 1)):
            with pytest.raises(UnsupportedTensor):
                queries.slice(axis, 0, stop)


def test_a_projection_of_another_size_is_refused(tmp_path: Path) -> None:
    model = by_name("qwen35")
    tensors = gguf_tensors(model) | {"blk.3.attn_q.weight": np.zeros((64, 48), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", gguf_metadata(model), tensors)
    with pytest.raises(UnsupportedTensor, match=r"attn_q\.weight.*\(128, 48\)"):
        open_checkpoint(path)


def test_a_folder_with_images_is_read_as_its_text_part(tmp_path: Path) -> None:
    model = by_name("qwen35")
    text = folder_config(model)
    config = {"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 2}}
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    weights = {
        name.replace("model.", "model.language_model.", 1): value
        for name, value in hf_weights(model).items()
    }
    others = {"model.visual.merger.norm.weight": np.ones(4, np.float32)}
    others["mtp.fc.weight"] = np.ones((4, 4), np.float32)
    write_safetensors(folder / "model.safetensors", weights | others)
    plain = write_folder(model, tmp_path / "plain" / "m")
    with open_checkpoint(folder) as found, open_checkpoint(plain) as expected:
        assert found.config == expected.config
        assert found.weights.keys() == expected.weights.keys()
