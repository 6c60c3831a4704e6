"""The experts of Qwen3-VL as published and as Transformers writes them, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.checkpoint.tensor import Stack, Transposed
from rocmforge.errors import BadFolder, RocmForgeError, UnsupportedTensor
from rocmforge.models.checkpoint import Checkpoint
from rocmforge.opening import open_checkpoint
from tests.data.models.towers.tiny_picture_experts import QWEN3_VL_MOE
from tests.data.models.towers.tiny_tower import Tensors
from tests.data.models.towers.tower_files import hf_weights, write_tower_folder
from tests.support.files.safetensors_writer import write_safetensors

LAYERS = "model.language_model.layers."
TEXT = QWEN3_VL_MOE.config["text_config"]


def changed(folder: Path, text: Mapping[str, Any], weights: Tensors | None = None) -> Path:
    """The tiny model with changes to its text part; weights are those of a file."""
    model = replace(QWEN3_VL_MOE, config={**QWEN3_VL_MOE.config, "text_config": {**TEXT, **text}})
    path = write_tower_folder(model, folder / "m")
    if weights is not None:
        write_safetensors(path / "model.safetensors", weights)
    return path


def assert_as_in_transformers(checkpoint: Checkpoint, weights: Tensors) -> None:
    for index, layer in enumerate(checkpoint.config.layers):
        if layer.experts is None:
            continue
        stem = f"{LAYERS}{index}.mlp.experts."
        gate, up = np.split(weights[f"{stem}gate_up_proj"], 2, axis=1)
        expected = {"gate": gate, "up": up, "down": weights[f"{stem}down_proj"]}
        for part, values in expected.items():
            found = checkpoint.weights[f"layers.{index}.experts.{part}"]
            np.testing.assert_array_equal(found.to_float32(), values, err_msg=part)


def test_experts_as_published_are_turned_when_they_are_read(tmp_path: Path) -> None:
    with open_checkpoint(changed(tmp_path, {})) as checkpoint:
        assert_as_in_transformers(checkpoint, hf_weights(QWEN3_VL_MOE))
        stack = checkpoint.weights["layers.2.experts.up"]
        assert isinstance(stack, Stack)
        assert all(isinstance(one, Transposed) for one in stack.parts)


def test_experts_as_transformers_writes_them_are_the_same(tmp_path: Path) -> None:
    """It calls their number otherwise, and the weights of those chosen always add up to 1."""
    path, weights = changed(tmp_path, {}), hf_weights(QWEN3_VL_MOE)
    left_out = "num_experts", "norm_topk_prob"
    text = {key: value for key, value in TEXT.items() if key not in left_out}
    text["num_local_experts"] = TEXT["num_experts"]
    config = QWEN3_VL_MOE.config | {"text_config": text}
    (path / "config.json").write_text(json.dumps(config))
    write_safetensors(path / "model.safetensors", weights)
    with open_checkpoint(path) as checkpoint:
        assert_as_in_transformers(checkpoint, weights)
        experts = checkpoint.config.layers[0].experts
        assert experts is not None
        assert experts.normalised


def test_a_matrix_with_as_many_rows_as_columns_is_taken_as_it_is(tmp_path: Path) -> None:
    """As Transformers does; the other one still says which way it lies."""
    size = TEXT["hidden_size"] // 2
    model = replace(
        QWEN3_VL_MOE,
        config={
            **QWEN3_VL_MOE.config,
            "text_config": {**TEXT, "moe_intermediate_size": size},
        },
    )
    weights = hf_weights(model)
    stored = {
        name: np.ascontiguousarray(weight.swapaxes(1, 2))
        if name.endswith("s.down_proj")
        else weight
        for name, weight in weights.items()
    }
    path = changed(tmp_path, {"moe_intermediate_size": size}, stored)
    with open_checkpoint(path) as checkpoint:
        assert_as_in_transformers(checkpoint, weights)


@pytest.mark.parametrize(
    ("text", "with_experts"),
    [
        ({"mlp_only_layers": [1]}, [True, False, True]),
        ({"decoder_sparse_step": 2}, [False, True, False]),
    ],
)
def test_layers_may_have_a_network_instead(
    text: dict[str, Any], with_experts: list[bool], tmp_path: Path
) -> None:
    with open_checkpoint(changed(tmp_path, text)) as checkpoint:
        layers = checkpoint.config.layers
        assert [layer.experts is not None for layer in layers] == with_experts
        assert {layer.intermediate_size for layer in layers if layer.experts is None} == {160}
        for index, has_experts in enumerate(with_experts):
            assert (f"layers.{index}.experts.down" in checkpoint.weights) is has_experts
            assert (f"layers.{index}.feed_forward.down" in checkpoint.weights) is not has_experts


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("experts.gate_up_proj", zeros(4, 128, 190), r"0\.mlp\.experts\.gate_up_proj.*4, 128, 190"),
        ("experts.gate_up_proj", zeros(3, 128, 192), r"0\.mlp\.experts\.gate_up_proj.*3, 128, 192"),
        ("experts.gate_up_proj", zeros(512, 192), r"0\.mlp\.experts\.gate_up_proj.*512, 192"),
        ("experts.down_proj", zeros(4, 97, 128), r"0\.mlp\.experts\.down_proj.*4, 97, 128"),
        ("experts.down_proj", None, r"0\.mlp\.experts\.down_proj.*missing"),
        ("gate.weight", None, r"0\.mlp\.gate\.weight.*missing"),
        ("experts.gate_up_proj_bias", zeros(4, 192), "gate_up_proj_bias.*not a part of qwen3vlmoe"),
    ],
)
def test_bad_experts_are_refused_by_name(
    part: str, values: Any, message: str, tmp_path: Path
) -> None:
    weights, name = QWEN3_VL_MOE.stored(hf_weights(QWEN3_VL_MOE)), f"{LAYERS}0.mlp.{part}"
    weights.pop(name, None)
    with pytest.raises(UnsupportedTensor, match=message):
        open_checkpoint(changed(tmp_path, {}, weights | ({} if values is None else {name: values})))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"num_experts_per_tok": 5}, "num_experts_per_tok': 5 experts of a token, of 4"),
        ({"num_experts": 5}, r"gate_up_proj.*\(4, 128, 192\)"),
        ({"num_experts": None}, r"gate_up_proj.*asks for \(60, 192, 128\)"),  # as in Transformers
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"num_experts": 0}, r"layers\.0\.mlp"),
    ],
)
def test_numbers_of_experts_that_cannot_be_are_refused_by_name(
    text: dict[str, Any], message: str, tmp_path: Path
) -> None:
    weights = QWEN3_VL_MOE.stored(hf_weights(QWEN3_VL_MOE))
    path = changed(tmp_path, {})
    (path / "config.json").write_text(
        json.dumps(QWEN3_VL_MOE.config | {"text_config": {**TEXT, **text}})
    )
    write_safetensors(path / "model.safetensors", weights)
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(path)


def test_quantised_experts_are_refused(tmp_path: Path) -> None:
    path = changed(tmp_path, {})
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    (path / "config.json").write_text(json.dumps(QWEN3_VL_MOE.config | quantised))
    with pytest.raises(BadFolder, match=r"quantised .fp8."):
        open_checkpoint(path)
