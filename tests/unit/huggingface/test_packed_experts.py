"""The experts of gpt-oss as its folders have them: read as late as can be, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from rocmforge.checkpoint.tensor import Derived, Stack
from rocmforge.errors import BadFolder, UnsupportedArchitecture, UnsupportedTensor
from rocmforge.huggingface.packed_experts import PackedMatrix
from rocmforge.opening import open_checkpoint
from tests.data.models.text.model_files import hf_weights
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import by_name
from tests.support.files.safetensors_writer import write_safetensors

PREFIX = "model.layers.1.mlp.experts."
NUMBERS = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
"""What the codes of MXFP4 stand for."""

Weights = dict[str, Any]


def test_codes_and_scales_are_brought_into_the_order_of_gguf() -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (5, 3, 16), np.uint8)
    scales = rng.integers(100, 140, (5, 3), np.uint8)
    matrix = PackedMatrix("m", blocks, scales)
    expected = np.empty((5, 96))
    for row, column in np.ndindex(5, 96):
        block, place = divmod(column, 32)
        code = blocks[row, block, place // 2] >> 4 * (place % 2) & 15
        expected[row, column] = NUMBERS[code] * 2.0 ** (scales[row, block] - 127.0)
    assert (matrix.shape, matrix.nbytes) == ((5, 96), 5 * 3 * 17)
    found = dequantize(matrix.data, GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(matrix.to_float32(), expected)
    np.testing.assert_array_equal(matrix.slice(0, 1, 4).to_float32(), expected[1:4])
    np.testing.assert_array_equal(matrix.slice(-1, 32, 64).to_float32(), expected[:, 32:64])
    with pytest.raises(UnsupportedTensor, match="2:6 of axis 0"):
        matrix.slice(0, 2, 6)


@pytest.mark.parametrize("name", ["gpt-oss", "gpt-oss-mxfp4"])
def test_rows_of_an_expert_are_made_when_they_are_asked_for(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_folder(by_name(name), tmp_path / "m")) as checkpoint:
        for part in ("gate", "up", "down"):
            stack = checkpoint.weights[f"layers.0.experts.{part}"]
            assert isinstance(stack, Stack)
            assert all(isinstance(one, Derived) for one in stack.parts)
            one = stack.parts[3]
            whole = one.to_float32()
            np.testing.assert_array_equal(one.slice(0, 5, 9).to_float32(), whole[5:9])
            assert one.nbytes == one.data.nbytes
        bias = checkpoint.weights["layers.0.experts.up_bias"]
        some = bias.slice(0, 2, 4).slice(-1, 5, 9)
        np.testing.assert_array_equal(some.to_float32(), bias.to_float32()[2:4, 5:9])


def change(name: str, values: Any) -> Callable[[Weights], Weights]:
    return lambda weights: {**weights, PREFIX + name: values}


def without(name: str) -> Callable[[Weights], Weights]:
    return lambda weights: {key: own for key, own in weights.items() if key != PREFIX + name}


def codes(*shape: int) -> Any:
    return np.zeros(shape, np.uint8)


BAD = {
    "no scales": (without("down_proj_scales"), "down_proj_scales.*missing"),
    "no codes": (without("gate_up_proj_blocks"), "gate_up_proj_blocks.*missing"),
    "no bias": (without("gate_up_proj_bias"), "gate_proj_bias.*missing"),
    "three axes": (change("down_proj_blocks", codes(6, 64, 48)), r"\(6, 64, 48\), not \[experts"),
    "odd rows": (change("gate_up_proj_blocks", codes(6, 191, 2, 16)), r"\(6, 191, 2, 16\), not"),
    "codes": (change("down_proj_blocks", codes(6, 64, 3, 8)), r"\(6, 64, 3, 8\), not"),
    "scales": (change("down_proj_scales", codes(6, 64, 2)), r"down_proj_scales.*\(6, 64, 2\), but"),
    "bias": (
        change("gate_up_proj_bias", np.zeros((6, 191), np.float32)),
        r"gate_up_proj_bias.*\(6, 191\), not one of 2 axes, the last of them of gate and up",
    ),
    "bytes elsewhere": (change("down_proj_bias", codes(6, 64)), "down_proj_bias.*of type U8"),
    "twice": (
        change("down_proj", np.zeros((6, 96, 64), np.float32)),
        "down_proj.*another tensor",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_experts_are_refused_by_name(case: str, tmp_path: Path) -> None:
    mutate, reason = BAD[case]
    model = by_name("gpt-oss-mxfp4")
    folder = write_folder(model, tmp_path / "m")
    write_safetensors(folder / "model.safetensors", mutate(hf_weights(model)))
    with pytest.raises(UnsupportedTensor, match=reason):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "error", "reason"),
    [
        ({"swiglu_limit": 5.0}, UnsupportedArchitecture, "swiglu_limit 5.0"),
        ({"swiglu_alpha": 1.0}, UnsupportedArchitecture, "swiglu_alpha 1.0"),
        ({"quantization_config": {"quant_method": "fp8"}}, BadFolder, "quantised .fp8."),
    ],
)
def test_experts_that_compute_otherwise_are_refused(
    config: Weights, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    folder = write_folder(by_name("gpt-oss-mxfp4"), tmp_path / "m", config=config)
    with pytest.raises(error, match=reason):
        open_checkpoint(folder)


def test_mxfp4_is_refused_in_folders_of_others(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    folder = write_folder(by_name("qwen3moe"), tmp_path / "m", config=config)
    with pytest.raises(BadFolder, match=r"quantised .mxfp4."):
        open_checkpoint(folder)
