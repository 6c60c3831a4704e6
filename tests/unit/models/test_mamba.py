"""Models with Mamba-2 in files: which layers they have, and what is refused by name."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import BadFolder, BadGguf, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.models.config import ModelConfig
from rocmforge.models.memory import kv_bytes_per_token
from rocmforge.models.weights import take
from rocmforge.opening import open_checkpoint
from tests.data.models.text.expert_weights import stack_experts
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, hf_weights
from tests.data.models.text.tiny_folders import folder_config, write_folder
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import Value, write_gguf
from tests.support.files.safetensors_writer import write_safetensors
from tests.unit.models.test_architectures import config_of


def folder_of(name: str, path: Path, **changes: Any) -> ModelConfig:
    """The configuration of a folder with changes; None takes a key away."""
    with open_checkpoint(write_folder(by_name(name), path / "m", config=changes)) as checkpoint:
        return checkpoint.config


def parts(config: ModelConfig) -> str:
    """The parts of each layer."""
    return " ".join(
        "*" * bool(layer.num_heads)
        + "M" * bool(layer.mamba)
        + "-" * bool(layer.intermediate_size)
        + "E" * bool(layer.experts)
        for layer in config.layers
    )


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("granitehybrid", "ME *E ME"),
        ("granitehybrid-dense", "M- M- *-"),
        ("nemotron_h", "M - M * -"),
        ("nemotron_h_moe", "M E * E M"),
    ],
)
def test_layers_have_the_parts_that_files_name(
    is_folder: bool, name: str, expected: str, tmp_path: Path
) -> None:
    config = folder_of(name, tmp_path) if is_folder else config_of(tmp_path, name)
    assert parts(config) == expected
    remembering = next(layer for layer in config.layers if layer.mamba)
    assert remembering.state_shapes == ((6 * 16 + 2 * 2 * 16, 3), (6, 16, 16))
    head_dim = 8 if name.startswith("granite") else 12
    assert kv_bytes_per_token(config, "f16") == 2 * (2 * 2 * head_dim), "of one layer alone"
    assert (config.rope is None) is (name != "granitehybrid-dense")


def test_scales_of_granite_are_taken_into_what_others_have_too(tmp_path: Path) -> None:
    with open_checkpoint(write_folder(by_name("granitehybrid"), tmp_path / "m")) as checkpoint:
        config, stored = checkpoint.config, checkpoint.weights["output_norm"].to_float32()
        taken = take(config, checkpoint.weights).output_norm
        assert taken is not None
        np.testing.assert_allclose(taken.to_float32(), stored / 1.5, rtol=1e-6)
    assert config.embedding_scale == pytest.approx(6 / 0.4)
    assert config.norm_eps == pytest.approx(1e-5 / 0.4**2)
    assert config.layers[0].mamba is not None
    assert config.layers[0].mamba.norm_eps == 1e-5, "its norm is not of the residual"
    assert config.layers[1].attention_scale == 0.25


def counts(*values: int) -> Value:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("name", "key", "value", "reason"),
    [
        ("granitehybrid", "ssm.group_count", 4, "4 groups do not divide 6 heads"),
        ("granitehybrid", "ssm.inner_size", 97, "6 heads do not divide 97"),
        ("granitehybrid", "ssm.conv_kernel", 1, "a convolution of 1 inputs has no state"),
        ("granitehybrid", "residual_scale", -1.0, "-1.0 is no factor"),
        ("granitehybrid", "attention.scale", inf, "inf is no factor"),
        ("nemotron_h", "feed_forward_length", counts(0, 72), "no counts for 5 layers"),
        ("granitehybrid", "moe_latent_size", 24, "experts in a space of 24 features"),
        ("nemotron_h_moe", "moe_latent_size", np.int32(-1), "-1 is negative"),
        ("nemotron_h_moe", "expert_used_count", counts(0, 3, 0, 2, 0), "differ by layer"),
    ],
)
def test_senseless_keys_are_refused(
    name: str, key: str, value: Value, reason: str, tmp_path: Path
) -> None:
    with pytest.raises((BadGguf, UnsupportedArchitecture), match=reason) as caught:
        config_of(tmp_path, name, {key: value})
    assert key in str(caught.value)


PATTERN = {"layers_block_type": None, "num_hidden_layers": None}


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("granitehybrid", {"mamba_n_groups": 4}, "4 groups do not divide 6 heads"),
        ("granitehybrid", {"layer_types": ["mamba", "moe", "mamba"]}, "'layer_types': not 3 times"),
        ("granitehybrid", {"residual_multiplier": 0}, "0.0 is not positive"),
        ("granitehybrid", {"time_step_limit": [0.001, inf]}, "'time_step_limit': steps"),
        ("granitehybrid", {"time_step_limit": [0.0, 0.1]}, "'time_step_limit': steps"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "the activation 'silu'"),
        ("nemotron_h", {**PATTERN, "hybrid_override_pattern": "M-X*-"}, "'X' is no kind of layer"),
        ("granitehybrid", {"moe_latent_size": 24}, "a space of 24 features .moe_latent_size"),
    ],
)
def test_senseless_configurations_are_refused(
    name: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises((BadFolder, UnsupportedArchitecture), match=reason):
        folder_of(name, tmp_path, **changes)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("granitehybrid", {"layer_types": ["mamba", "attention", "mamba"]}),
        ("granitehybrid", {"mamba_d_head": "auto", "position_embedding_type": "nope"}),
        ("granitehybrid", {"time_step_limit": [0.0, inf]}),  # which JSON does not have
        ("nemotron_h", PATTERN | {"hybrid_override_pattern": "M-M*-"}),
        ("nemotron_h_moe", PATTERN | {"hybrid_override_pattern": "ME*EM"}),
    ],
)
def test_other_words_for_the_same_say_the_same(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    assert folder_of(name, tmp_path / "other", **changes) == folder_of(name, tmp_path)


@pytest.mark.parametrize("name", ["granitehybrid", "nemotron_h_moe"])
def test_tensors_as_transformers_5_names_them_are_the_same_weights(
    name: str, tmp_path: Path
) -> None:
    renamed = {}
    for theirs, weight in stack_experts(hf_weights(by_name(name))).items():
        new = theirs.replace("backbone.", "model.").replace("moe.router.layer.", "moe.router.")
        new = new.replace(
            "block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"
        )
        new = new.replace(
            "block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj"
        )
        if "mixer.experts." in new:
            new = new.removesuffix(".weight")
        renamed[new] = weight
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(folder_config(by_name(name))))
    write_safetensors(folder / "model.safetensors", renamed)
    plain = write_folder(by_name(name), tmp_path / "m")
    with open_checkpoint(folder) as found, open_checkpoint(plain) as expected:
        assert found.weights.keys() == expected.weights.keys()
        for path, tensor in expected.weights.items():
            np.testing.assert_array_equal(found.weights[path].to_float32(), tensor.to_float32())


def test_a_model_that_begins_with_experts_is_refused(tmp_path: Path) -> None:
    kinds = ["moe", "linear_attention", "full_attention", "moe", "linear_attention"]
    with pytest.raises(UnsupportedArchitecture, match="first layer has experts only"):
        folder_of("nemotron_h_moe", tmp_path, layers_block_type=kinds)


def test_a_bias_that_we_do_not_add_is_refused(tmp_path: Path) -> None:
    model = by_name("granitehybrid")
    tensors = gguf_tensors(model) | {"blk.0.ssm_in.bias": np.zeros(262, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", gguf_metadata(model), tensors)
    with pytest.raises(UnsupportedTensor, match=r"blk\.0\.ssm_in\.bias"):
        open_checkpoint(path)
