"""Experts in files: kept together, fused or apart; and files that are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import BadFolder, BadGguf, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.models.layer_config import ExpertsConfig, RouterFunction
from rocmforge.models.weights import load_weights, present, walk
from rocmforge.opening import open_checkpoint
from tests.data.models.text.expert_weights import fuse_experts
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, hf_weights
from tests.data.models.text.tiny_folders import folder_config, write_folder
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import Value, write_gguf
from tests.support.files.safetensors_writer import write_safetensors

Tensors = dict[str, Any]
EXPERTS = ExpertsConfig(
    num_experts=8,
    num_chosen=3,
    intermediate_size=40,
    router=RouterFunction.SOFTMAX,
    normalised=True,
)


def apart(tensors: Tensors) -> Tensors:
    """With a tensor for each expert, as old files have them."""
    found: Tensors = {}
    for name, values in tensors.items():
        if "_exps" in name:
            stem = name.removesuffix("_exps.weight")
            found |= {f"{stem}.{expert}.weight": own for expert, own in enumerate(values)}
        else:
            found[name] = values
    return found


def fused(tensors: Tensors) -> Tensors:
    """With gate and up of an expert as one, gate first."""
    found = dict(tensors)
    for name in tensors:
        if name.endswith("ffn_gate_exps.weight"):
            stem = name.removesuffix("_exps.weight")
            parts = [found.pop(name), found.pop(f"{stem.replace('gate', 'up')}_exps.weight")]
            found[f"{stem}_up_exps.weight"] = np.concatenate(parts, axis=1)
    return found


def loaded(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    with open_checkpoint(path) as checkpoint:
        weights = load_weights(checkpoint.config, checkpoint.weights, Tensor.to_float32)
    return {place.path: values for place, values in walk(weights)}


def write(
    folder: Path, tensors: Tensors, name: str = "qwen3moe", keys: Mapping[str, Value] | None = None
) -> Path:
    return write_gguf(folder / "m.gguf", {**gguf_metadata(by_name(name)), **(keys or {})}, tensors)


@pytest.mark.parametrize("layout", [apart, fused])
def test_the_layouts_of_files_lead_to_the_same_weights(
    layout: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    tensors = gguf_tensors(by_name("qwen3moe"))
    expected = loaded(write(tmp_path, tensors))
    found = loaded(write(tmp_path, layout(tensors)))
    assert expected["layers.1.experts.gate"].shape == (8, 40, 48)
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        np.testing.assert_array_equal(found[path], values)


def test_a_folder_may_have_experts_in_one_tensor_as_transformers_has_them(tmp_path: Path) -> None:
    model = by_name("qwen3moe")
    folder = write_folder(model, tmp_path / "m")
    expected = loaded(folder)
    write_safetensors(folder / "model.safetensors", fuse_experts(hf_weights(model)))
    found = loaded(folder)
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        np.testing.assert_array_equal(found[path], values)


def test_experts_that_a_file_keeps_apart_are_not_read_to_open_it(tmp_path: Path) -> None:
    path = write(tmp_path, apart(gguf_tensors(by_name("qwen3moe"))))
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.weights["layers.0.experts.down"]
        part = tensor.slice(0, 2, 4).slice(1, 8, 16).slice(-1, 0, 8)
        assert (tensor.shape, part.shape) == ((8, 48, 40), (2, 8, 8))
        assert (tensor.nbytes, part.nbytes) == (4 * 8 * 48 * 40, 4 * 2 * 8 * 8)
        whole = tensor.to_float32()
        np.testing.assert_array_equal(part.to_float32(), whole[2:4, 8:16, :8])
        np.testing.assert_array_equal(tensor.data.view(np.float32), whole)
        with pytest.raises(UnsupportedTensor, match=r"0:9 of axis 0"):
            tensor.slice(0, 0, 9)


def change(name: str, values: Any) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: values}


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: values for key, values in tensors.items() if key != name}


def zeros(*shape: int) -> npt.NDArray[np.float32]:
    return np.zeros(shape, np.float32)


BAD_TENSORS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "router rows": (change("blk.0.ffn_gate_inp.weight", zeros(7, 48)), r"ffn_gate_inp.*\(7, 48\)"),
    "no router": (without("blk.1.ffn_gate_inp.weight"), r"blk\.1\.ffn_gate_inp\.weight.*missing"),
    "no down": (without("blk.0.ffn_down_exps.weight"), "ffn_down_exps.*missing"),
    "experts": (change("blk.0.ffn_up_exps.weight", zeros(7, 40, 48)), r"up_exps.*\(7, 40, 48\)"),
    "two axes": (change("blk.0.ffn_up_exps.weight", zeros(40, 48)), r"up_exps.*\(40, 48\)"),
    "dense too": (change("blk.0.ffn_up.weight", zeros(72, 48)), "ffn_up.*not a part of qwen3moe"),
    "bias": (change("blk.0.exp_probs_b.bias", zeros(8)), "exp_probs_b.*not a part of qwen3moe"),
    "fused too": (change("blk.0.ffn_gate_up_exps.weight", zeros(8, 80, 48)), "another tensor is"),
    "fused rows": (
        lambda tensors: {**fused(tensors), "blk.0.ffn_gate_up_exps.weight": zeros(8, 79, 48)},
        r"\(8, 79, 48\), the configuration asks for \(8, 80, 48\)",
    ),
    "one is missing": (
        lambda tensors: without("blk.0.ffn_up.3.weight")(apart(tensors)),
        "ffn_up_exps.*that of expert 3 is missing",
    ),
    "one differs": (
        lambda tensors: {**apart(tensors), "blk.0.ffn_up.3.weight": zeros(39, 48)},
        r"blk\.0\.ffn_up\.3\.weight.*\(39, 48\)",
    ),
    "apart, too": (
        change("blk.0.ffn_up.0.weight", zeros(40, 48)),
        r"blk\.0\.ffn_up_exps\.weight.*blk\.0\.ffn_up\.0\.weight and others are there, too",
    ),
}


OF_GPT_OSS = (
    *("attn_sinks.weight", "attn_q.bias", "attn_output.bias", "ffn_gate_inp.bias"),
    *("ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_down_exps.bias"),
)


@pytest.mark.parametrize("name", OF_GPT_OSS)
def test_gpt_oss_without_its_biases_or_sinks_is_refused_by_name(name: str, tmp_path: Path) -> None:
    tensors = without(f"blk.1.{name}")(gguf_tensors(by_name("gpt-oss")))
    with pytest.raises(UnsupportedTensor, match=rf"blk\.1\.{name}.*missing"):
        open_checkpoint(write(tmp_path, tensors, "gpt-oss"))


def test_ling_with_rows_of_attention_that_do_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    tensors = gguf_tensors(by_name("bailingmoe2"))
    path = write(tmp_path, change("blk.1.attn_qkv.weight", zeros(127, 48))(tensors), "bailingmoe2")
    with pytest.raises(UnsupportedTensor, match=r"blk\.1\.attn_qkv.*\(127, 48\).*\(128, 48\)"):
        open_checkpoint(path)


def test_fused_biases_of_experts_are_cut_as_their_matrices(tmp_path: Path) -> None:
    tensors = gguf_tensors(by_name("gpt-oss"))
    expected = loaded(write(tmp_path, tensors, "gpt-oss"))
    both = fused(tensors)
    for layer in range(3):
        parts = [both.pop(f"blk.{layer}.ffn_{part}_exps.bias") for part in ("gate", "up")]
        both[f"blk.{layer}.ffn_gate_up_exps.bias"] = np.concatenate(parts, axis=1)
    found = loaded(write(tmp_path, both, "gpt-oss"))
    for path, values in expected.items():
        np.testing.assert_array_equal(found[path], values)


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_a_file_with_bad_tensors_of_experts_is_refused_by_name(case: str, tmp_path: Path) -> None:
    mutate, reason = BAD_TENSORS[case]
    path = write(tmp_path, mutate(gguf_tensors(by_name("qwen3moe"))))
    with pytest.raises(UnsupportedTensor, match=reason):
        open_checkpoint(path)


BAD_KEYS: list[tuple[dict[str, Value], str]] = [
    ({"expert_count": "eight"}, "expert_count"),
    ({"expert_used_count": 9}, "expert_used_count.*9 experts of a token, of 8"),
    ({"expert_used_count": 0}, "expert_used_count"),
    ({"expert_group_count": 3}, "expert_group_count.*3 groups do not divide 8 experts"),
    ({"expert_group_count": 2, "expert_group_used_count": 3}, "expert_group_used_count.*3 of 2"),
    ({"expert_group_count": 4, "expert_group_used_count": 1}, "3 experts of a token, of 2"),
    ({"expert_weights_scale": -1.0}, "expert_weights_scale"),
    ({"expert_weights_scale": float("nan")}, "expert_weights_scale"),
    ({"expert_feed_forward_length": 0}, "expert_feed_forward_length"),
    ({"expert_shared_count": -1.0}, "expert_shared_count"),
    ({"leading_dense_block_count": True}, "leading_dense_block_count"),
]


@pytest.mark.parametrize(("keys", "reason"), BAD_KEYS)
def test_a_file_with_bad_numbers_of_experts_is_refused_by_key(
    keys: dict[str, Value], reason: str, tmp_path: Path
) -> None:
    prefixed = {f"qwen3moe.{key}": value for key, value in keys.items()}
    path = write(tmp_path, gguf_tensors(by_name("qwen3moe")), keys=prefixed)
    with pytest.raises(BadGguf, match=reason):
        open_checkpoint(path)


def test_a_router_that_we_do_not_have_is_refused(tmp_path: Path) -> None:
    keys = {"qwen3moe.expert_gating_func": 4}
    path = write(tmp_path, gguf_tensors(by_name("qwen3moe")), keys=keys)
    with pytest.raises(UnsupportedArchitecture, match=r"a router of kind 4 .*expert_gating_func"):
        open_checkpoint(path)


def test_a_family_without_experts_is_refused_with_them(tmp_path: Path) -> None:
    path = write(tmp_path, gguf_tensors(by_name("qwen2")), "qwen2", {"qwen2.expert_count": 8})
    with pytest.raises(UnsupportedArchitecture, match=r"qwen2 with 8 experts .*expert_count"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_experts_per_tok": 9}, "'num_experts_per_tok': 9 experts of a token, of 8"),
        ({"n_group": 3}, "'n_group': 3 groups do not divide 8 experts"),
        ({"n_group": 2, "topk_group": 3}, "'topk_group': 3 of 2 groups"),
        ({"routed_scaling_factor": 0}, "'routed_scaling_factor'"),
        ({"num_local_experts": -1}, "'num_local_experts': -1 is no count"),
    ],
)
def test_a_folder_with_bad_numbers_of_experts_is_refused_by_key(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_folder(by_name("qwen3moe"), tmp_path / "m", config=changes)
    with pytest.raises(BadFolder, match=reason):
        open_checkpoint(folder)


def test_a_folder_with_another_router_is_refused(tmp_path: Path) -> None:
    config = {"scoring_func": "sigmoid"}
    folder = write_folder(by_name("qwen3moe"), tmp_path / "m", config=config)
    with pytest.raises(UnsupportedArchitecture, match="the router 'sigmoid'"):
        open_checkpoint(folder)


@pytest.mark.parametrize("function", ["sigmoid", "noaux_tc"])
def test_a_folder_may_name_the_router_of_its_family(function: str, tmp_path: Path) -> None:
    folder = write_folder(by_name("dots1"), tmp_path / "m", config={"scoring_func": function})
    with open_checkpoint(folder) as checkpoint:
        experts = present(checkpoint.config.layers[1].experts)
    assert experts.router is RouterFunction.SIGMOID


def test_a_folder_may_have_layers_without_experts(tmp_path: Path) -> None:
    model = by_name("qwen3moe")
    folder = write_folder(model, tmp_path / "m", config={"mlp_only_layers": [1]})
    with pytest.raises(UnsupportedTensor, match=r"layers\.1\.mlp\.gate_proj\.weight.*missing"):
        open_checkpoint(folder)


def test_layers_that_predict_further_tokens_are_left_out_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = gguf_tensors(by_name("glm4moe"))
    expected = loaded(write(tmp_path, tensors, "glm4moe"))
    of_prediction = {
        "blk.3.nextn.eh_proj.weight": zeros(48, 96),
        "blk.3.attn_norm.weight": zeros(48),
    }
    keys: dict[str, Value] = {"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 1}
    with caplog.at_level("INFO"):
        found = loaded(write(tmp_path, tensors | of_prediction, "glm4moe", keys))
    assert "1 layers for multi-token prediction are not used" in caplog.text
    assert found.keys() == expected.keys()
    with pytest.raises(UnsupportedTensor, match=r"blk\.3\..*with 3 layers"):
        loaded(write(tmp_path, tensors | of_prediction, "glm4moe"))


def test_layers_of_a_folder_that_predict_further_tokens_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = by_name("glm4moe")
    config = {"num_nextn_predict_layers": 1}
    folder = write_folder(model, tmp_path / "m", config=config)
    expected = loaded(folder)
    name = "model.layers.3.eh_proj.weight"
    write_safetensors(folder / "model.safetensors", {**hf_weights(model), name: zeros(48, 96)})
    with caplog.at_level("INFO"):
        assert loaded(folder).keys() == expected.keys()
    assert "1 layers for multi-token prediction are not used" in caplog.text
    (folder / "config.json").write_text(json.dumps(folder_config(model)))
    with pytest.raises(UnsupportedTensor, match="eh_proj"):
        loaded(folder)


def test_of_experts_a_step_reads_those_that_its_tokens_choose() -> None:
    assert EXPERTS.share_chosen(0) == 0
    assert EXPERTS.share_chosen(1) == pytest.approx(3 / 8)
    assert EXPERTS.share_chosen(2) == pytest.approx(1 - (5 / 8) ** 2)
    assert EXPERTS.share_chosen(512) == pytest.approx(1)


def test_every_layer_has_the_experts_of_the_file(tmp_path: Path) -> None:
    tensors = gguf_tensors(by_name("qwen3moe"))
    with open_checkpoint(write(tmp_path, tensors)) as checkpoint:
        assert [layer.experts for layer in checkpoint.config.layers] == [EXPERTS] * 2
    keys: dict[str, Value] = {
        "qwen3moe.expert_gating_func": 2,
        "qwen3moe.expert_weights_scale": 2.5,
    }
    with open_checkpoint(write(tmp_path, tensors, keys=keys)) as checkpoint:
        found = present(checkpoint.config.layers[1].experts)
    assert found == replace(EXPERTS, router=RouterFunction.SIGMOID, scale=2.5)
