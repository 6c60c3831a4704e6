"""Sizes of towers that no kernel has become larger, with zeros."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from rocmforge.checkpoint.formats import FORMATS
from rocmforge.checkpoint.tensor import Tensor, float32_tensor
from rocmforge.errors import UnsupportedArchitecture
from rocmforge.models.weights import take
from rocmforge.opening import open_checkpoint
from rocmforge_hip.device.heads import FULL_HEADS
from rocmforge_hip.load.supported import check_sizes
from rocmforge_hip.weights.fitting import PaddedTensor, fit_tower
from tests.data.models.towers.tiny_gemma4_unified import GEMMA4_UNIFIED
from tests.data.models.towers.tiny_internvl import INTERNVL_6B
from tests.data.models.towers.tiny_towers import GEMMA3
from tests.data.models.towers.tower_files import write_tower_folder
from tests.support.operands.weights import ggml_type


def test_a_tower_gets_the_sizes_that_there_are_kernels_for(tmp_path: Path) -> None:
    with open_checkpoint(write_tower_folder(GEMMA3, tmp_path / "model")) as checkpoint:
        assert checkpoint.tower is not None
        old = checkpoint.tower.config
        weights = take(old, checkpoint.tower.weights)
        config, fitted = fit_tower(old, weights, FULL_HEADS)
        assert {layer.key_dim for layer in config.layers} == {80}
        assert {layer.value_dim for layer in config.layers} == {80}
        assert {layer.intermediate_size for layer in config.layers} == {192}
        assert config.patch_features == 608
        assert config.layers[0].attention_scale == 72**-0.5
        layer = fitted.layers[0]
        assert layer.attention is not None
        assert layer.attention.q.shape == (320, 288)
        assert layer.attention.output.shape == (288, 320)
        found = layer.attention.output.to_float32().reshape(288, 4, 80)
        before = weights.layers[0].attention
        assert before is not None
        np.testing.assert_array_equal(found[..., 72:], 0)
        expected = before.output.to_float32().reshape(288, 4, 72)
        np.testing.assert_array_equal(found[..., :72], expected)
        assert checkpoint.config is fit_tower(checkpoint.config, weights, FULL_HEADS)[0]


def test_patches_that_are_normed_get_no_zeros(tmp_path: Path) -> None:
    with open_checkpoint(write_tower_folder(GEMMA4_UNIFIED, tmp_path / "model")) as checkpoint:
        assert checkpoint.tower is not None
        config, weights = checkpoint.tower.config, checkpoint.tower.weights
        assert config.tower is not None
        fitted, _ = fit_tower(config, take(config, weights), FULL_HEADS)
        assert fitted == config
        check_sizes(fitted, FULL_HEADS)
        odd = replace(config, tower=replace(config.tower, patch_features=1734))
        with pytest.raises(UnsupportedArchitecture, match="norms of patches of 1734 numbers"):
            fit_tower(odd, take(config, weights), FULL_HEADS)


def test_heads_that_are_normed_together_get_no_zeros(tmp_path: Path) -> None:
    """The mean of their squares would be another; no kernel fits such a tower."""
    with open_checkpoint(write_tower_folder(INTERNVL_6B, tmp_path / "model")) as checkpoint:
        assert checkpoint.tower is not None
        config, weights = checkpoint.tower.config, checkpoint.tower.weights
        layers = tuple(replace(layer, key_dim=72, value_dim=72) for layer in config.layers)
        fitted, _ = fit_tower(replace(config, layers=layers), take(config, weights), FULL_HEADS)
        assert {layer.key_dim for layer in fitted.layers} == {72}
        with pytest.raises(UnsupportedArchitecture, match="heads of 72 elements"):
            check_sizes(fitted, FULL_HEADS)


ROWS = np.array([0, -1, 2, 1], np.intp)
COLUMNS = np.array([5, -1, *range(34), -1], np.intp)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_a_padded_matrix_is_made_of_parts_as_of_the_whole(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    original = float32_tensor("w", values)
    if kind != "f32":
        data = gguf.quants.quantize(values, ggml_type(kind)).view(np.uint8)
        original = Tensor("w", values.shape, FORMATS[kind], data)
        values = original.to_float32()
    expected = np.zeros((4, len(COLUMNS)), np.float32)
    expected[np.ix_(ROWS >= 0, COLUMNS >= 0)] = values[ROWS[ROWS >= 0]][:, COLUMNS[COLUMNS >= 0]]
    padded = PaddedTensor(original, ROWS, COLUMNS)
    rtol = 1e-3 if kind == "q8_0" else 0  # whose elements become halves
    np.testing.assert_allclose(padded.to_float32(), expected, rtol=rtol, atol=0)
    part = padded.slice(0, 1, 3).slice(-1, 2, 20)
    np.testing.assert_allclose(part.to_float32(), expected[1:3, 2:20], rtol=rtol, atol=0)
    assert part.nbytes == part.data.nbytes
