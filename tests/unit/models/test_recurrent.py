"""Layers with states in files: which they are, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import BadFolder, BadGguf
from rocmforge.models.memory import kv_bytes_per_token, state_bytes
from rocmforge.opening import open_checkpoint
from tests.data.models.tiny_folders import write_folder
from tests.data.models.tiny_models import by_name, write_model
from tests.support.gguf_writer import Value
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
    assert kv_bytes_per_token(config, 2) == 2 * (2 * 2 * 8) * 2, "of two layers alone"
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
    ],
)
def test_senseless_keys_are_refused(
    name: str, key: str, value: Value, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(BadGguf, match=f"{key}.*{reason}"):
        config_of(tmp_path, name, {key: value})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"conv_L_cache": 1}, "'conv_L_cache': a convolution of 1 inputs"),
        ({"conv_bias": True}, "'conv_bias': convolutions with biases"),
        ({"layer_types": ["conv"]}, "'layer_types': not 4 times"),
        ({"layer_types": ["conv", "linear_attention"] * 2}, "'layer_types': not 4 times"),
    ],
)
def test_senseless_configurations_are_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_folder(by_name("lfm2"), tmp_path / "m", config=changes)
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
