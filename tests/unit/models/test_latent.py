"""Multi-head latent attention in files: their layouts, and those that are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from rocmforge.checkpoint.tensor import Transposed
from rocmforge.errors import BadFolder, BadGguf, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.models.layer_config import RouterFunction
from rocmforge.models.rope_config import RopeStyle
from rocmforge.models.weights import present
from rocmforge.opening import open_checkpoint
from tests.data.models.text.expert_weights import fuse_latent
from tests.data.models.text.model_files import gguf_tensors
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import Stored, Value
from tests.unit.models.test_experts import change, loaded, without, write, zeros

Tensors = dict[str, Any]
K_B, V_B, KV_B = (f"blk.0.attn_{name}.weight" for name in ("k_b", "v_b", "kv_b"))
V3 = gguf_tensors(by_name("deepseek-v3"))


def test_both_layouts_of_keys_and_values_lead_to_the_same_weights(tmp_path: Path) -> None:
    expected = loaded(write(tmp_path, V3, "deepseek-v3"))
    found = loaded(write(tmp_path, fuse_latent(V3), "deepseek-v3"))
    assert expected["layers.0.latent.k_b"].shape == (4, 32, 12)
    assert expected["layers.0.latent.v_b"].shape == (4, 20, 32)
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        np.testing.assert_array_equal(found[path], values)


def test_a_fused_matrix_of_quantised_blocks_is_transposed_as_halves(tmp_path: Path) -> None:
    tensors: Tensors = fuse_latent(V3)
    kind = GGMLQuantizationType.Q8_0
    stored = quantize(tensors[KV_B], kind)
    with open_checkpoint(
        write(tmp_path, tensors | {KV_B: Stored(stored, kind)}, "deepseek-v3")
    ) as checkpoint:
        keys = checkpoint.weights["layers.0.latent.k_b"]
        values = checkpoint.weights["layers.0.latent.v_b"]
        assert (keys.format.name, values.format.name) == ("f16", "q8_0")
        assert (keys.shape, keys.nbytes) == ((4, 32, 12), 4 * 32 * 12 * 2)
        of_heads = dequantize(stored, kind).reshape(4, 32, 32)
        np.testing.assert_array_equal(values.to_float32(), of_heads[:, 12:])
        halves = of_heads[:, :12].swapaxes(1, 2).astype(np.float16)
        np.testing.assert_array_equal(keys.to_float32(), halves)


@pytest.mark.parametrize(("axis", "stop"), [(0, 2), (1, 16), (2, 4), (-1, 8)])
def test_a_transposed_tensor_is_cut_as_any(axis: int, stop: int, tmp_path: Path) -> None:
    with open_checkpoint(write(tmp_path, fuse_latent(V3), "deepseek-v3")) as checkpoint:
        keys = checkpoint.weights["layers.1.latent.k_b"]
        assert isinstance(keys, Transposed)
        part = keys.slice(axis, 0, stop)
        expected = keys.to_float32().take(range(stop), axis)
        assert part.shape == expected.shape
        np.testing.assert_array_equal(part.to_float32(), expected)
        with pytest.raises(UnsupportedTensor, match="axis 3"):
            keys.slice(3, 0, 1)


BAD_TENSORS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "no k_b": (without(K_B), r"blk\.0\.attn_k_b\.weight.*missing"),
    "no v_b": (without(V_B), r"blk\.0\.attn_v_b\.weight.*missing"),
    "no q_a_norm": (without("blk.1.attn_q_a_norm.weight"), r"attn_q_a_norm\.weight.*missing"),
    "no kv_a": (without("blk.1.attn_kv_a_mqa.weight"), r"attn_kv_a_mqa\.weight.*missing"),
    "plain q": (change("blk.0.attn_q.weight", zeros(80, 48)), r"attn_q\.weight.*not a part of"),
    "keys": (change("blk.0.attn_k.weight", zeros(80, 48)), r"attn_k\.weight.*not a part of"),
    "k_b not transposed": (change(K_B, zeros(4, 12, 32)), r"attn_k_b.*\(4, 12, 32\)"),
    "heads": (change(V_B, zeros(3, 20, 32)), r"attn_v_b.*\(3, 20, 32\)"),
    "rank": (change("blk.0.attn_kv_a_mqa.weight", zeros(41, 48)), r"kv_a_mqa.*\(41, 48\)"),
    "fused, too": (change(KV_B, zeros(128, 32)), r"another tensor is layers\.0\.latent\.[kv]_b"),
    "fused rows": (
        lambda tensors: {**fuse_latent(tensors), KV_B: zeros(127, 32)},
        r"attn_kv_b.*\(127, 32\), the configuration asks for \(128, 32\)",
    ),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_a_file_with_bad_tensors_is_refused_by_name(case: str, tmp_path: Path) -> None:
    mutate, reason = BAD_TENSORS[case]
    with pytest.raises(UnsupportedTensor, match=reason):
        open_checkpoint(write(tmp_path, mutate(dict(V3)), "deepseek-v3"))


BAD_KEYS: list[tuple[dict[str, Value], str]] = [
    ({"attention.kv_lora_rank": 0}, "kv_lora_rank"),
    ({"attention.q_lora_rank": -1.0}, "q_lora_rank"),
    ({"attention.key_length_mla": 8}, "rope.dimension_count.*all 8 elements of a head rotate"),
    ({"attention.key_length_mla": 6}, "rope.dimension_count.*8 of 6 elements cannot rotate"),
    ({"rope.dimension_count": 7}, "rope.dimension_count"),
    ({"attention.value_length_mla": 0}, "value_length_mla"),
    ({"rope.scaling.yarn_log_multiplier": -0.1}, "yarn_log_multiplier"),
]


@pytest.mark.parametrize(("keys", "reason"), BAD_KEYS)
def test_a_file_with_bad_sizes_is_refused_by_key(
    keys: dict[str, Value], reason: str, tmp_path: Path
) -> None:
    prefixed = {f"deepseek2.{key}": value for key, value in keys.items()}
    with pytest.raises(BadGguf, match=reason):
        open_checkpoint(write(tmp_path, V3, "deepseek-v3", prefixed))


def test_scores_that_depend_on_the_position_are_refused(tmp_path: Path) -> None:
    keys = {"deepseek2.attention.temperature_scale": 0.1}
    with pytest.raises(UnsupportedArchitecture, match=r"scaled by position.*temperature_scale"):
        open_checkpoint(write(tmp_path, V3, "deepseek-v3", keys))


@pytest.mark.parametrize(
    ("name", "router"),
    [("deepseek-v2", RouterFunction.SOFTMAX), ("deepseek-v3", RouterFunction.SIGMOID)],
)
def test_the_bias_tells_the_router_of_a_file_that_does_not(
    name: str, router: RouterFunction, tmp_path: Path
) -> None:
    keys = {"deepseek2.expert_gating_func": 0}
    with open_checkpoint(write(tmp_path, gguf_tensors(by_name(name)), name, keys)) as checkpoint:
        assert present(checkpoint.config.layers[1].experts).router is router


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim"])
def test_a_folder_without_a_size_is_refused_by_key(key: str, tmp_path: Path) -> None:
    folder = write_folder(by_name("deepseek-v3"), tmp_path / "m", config={key: None})
    with pytest.raises(BadFolder, match=rf"'{key}': it is missing"):
        open_checkpoint(folder)


def test_a_folder_whose_groups_are_scored_otherwise_is_refused(tmp_path: Path) -> None:
    config = {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}
    folder = write_folder(by_name("deepseek-v2"), tmp_path / "m", config=config)
    with pytest.raises(UnsupportedArchitecture, match="group_limited_greedy"):
        open_checkpoint(folder)


def test_a_folder_says_which_elements_rotate_together(tmp_path: Path) -> None:
    config = {"rope_interleave": False}
    folder = write_folder(by_name("deepseek-v3"), tmp_path / "m", config=config)
    with open_checkpoint(folder) as checkpoint:
        assert present(checkpoint.config.rope).style is RopeStyle.NEOX


def test_a_folder_with_unknown_kinds_of_networks_is_refused(tmp_path: Path) -> None:
    config = {"mlp_layer_types": ["dense", "other"]}
    folder = write_folder(by_name("glm4-moe-lite"), tmp_path / "m", config=config)
    with pytest.raises(BadFolder, match="'mlp_layer_types': not 2 times dense or sparse"):
        open_checkpoint(folder)
