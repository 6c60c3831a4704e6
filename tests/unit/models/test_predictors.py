"""Predictors in files and folders, and files that lack parts of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from rocmforge.errors import UnsupportedTensor
from rocmforge.models.config import without_predictor
from rocmforge.models.memory import kv_bytes_per_token
from rocmforge.opening import describe, open_checkpoint
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, hf_weights
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_model import Tensors
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf
from tests.support.files.safetensors_writer import write_safetensors
from tests.support.models.predicting import predicting_tensors, write_predicting


def write(folder: Path, tensors: Tensors) -> Path:
    keys = gguf_metadata(by_name("glm4moe"))
    keys |= {"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 1}
    return write_gguf(folder / "m.gguf", keys, tensors)


def zeros(*shape: int) -> npt.NDArray[np.float32]:
    return np.zeros(shape, np.float32)


def test_a_predictor_is_read_if_it_is_wanted(tmp_path: Path) -> None:
    path = write_predicting(by_name("glm4moe"), tmp_path / "m.gguf")
    with open_checkpoint(path) as plain, open_checkpoint(path, predicts=True) as checkpoint:
        config, known = checkpoint.config, set(plain.weights)
        mine = checkpoint.weights.keys() - known
        assert config.predicts
        assert without_predictor(config) == plain.config
        without = kv_bytes_per_token(plain.config, "f16")
        assert kv_bytes_per_token(config, "f16") == without // 3 * 4 + 96
        assert checkpoint.name_of("predictor.projection") == "blk.3.nextn.eh_proj.weight"
    of_layer = {name for name in mine if name.startswith("layers.3.")}
    parts = ("projection", "embedding_norm", "hidden_norm", "output_norm")
    assert mine - of_layer == {f"predictor.{part}" for part in parts}
    assert {name.replace("3", "2", 1) for name in of_layer} < known
    contents = describe(path)
    assert contents.config == config


def test_a_predictor_without_one_of_its_norms_is_refused_by_name(tmp_path: Path) -> None:
    tensors = predicting_tensors(by_name("glm4moe"))
    del tensors["blk.3.nextn.hnorm.weight"]
    path = write(tmp_path, tensors)
    with pytest.raises(UnsupportedTensor, match=r"blk\.3\.nextn\.hnorm\.weight.*missing"):
        open_checkpoint(path, predicts=True)


def test_a_model_without_a_predictor_is_read_as_it_is_though_one_is_wanted(tmp_path: Path) -> None:
    tensors = gguf_tensors(by_name("glm4moe"))
    with open_checkpoint(write(tmp_path, tensors), predicts=True) as checkpoint:
        assert not checkpoint.config.predicts


@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
def test_a_predictor_of_a_folder_is_read_as_that_of_a_file(name: str, tmp_path: Path) -> None:
    """Qwen has it beside the layers, and its norms are stored less one."""
    model = by_name(name)
    layers, size = model.config["num_hidden_layers"], model.config["hidden_size"]
    is_qwen = name == "qwen35"
    weights, last = hf_weights(model), f"model.layers.{layers - 1}."
    place = "mtp.layers.0." if is_qwen else f"model.layers.{layers}."
    copies = {key.replace(last, place): each for key, each in weights.items() if last in key}
    mine = {
        "mtp.fc" if is_qwen else f"{place}eh_proj": zeros(size, 2 * size),
        "mtp.pre_fc_norm_embedding" if is_qwen else f"{place}enorm": zeros(size) + 1,
        "mtp.pre_fc_norm_hidden" if is_qwen else f"{place}hnorm": zeros(size) + 2,
        "mtp.norm" if is_qwen else f"{place}shared_head.norm": zeros(size) + 3,
    }
    config = {} if is_qwen else {"num_nextn_predict_layers": 1}
    folder = write_folder(model, tmp_path / "m", config=config)
    stored = {**weights, **copies, **{f"{key}.weight": each for key, each in mine.items()}}
    write_safetensors(folder / "model.safetensors", stored)
    with open_checkpoint(folder, predicts=True) as checkpoint:
        assert checkpoint.config.predicts
        found = {path: each.to_float32() for path, each in checkpoint.weights.items()}
    ours, theirs = f"layers.{layers}.", f"layers.{layers - 1}."
    assert {path for path in found if ours in path}
    for path in found:
        if path.startswith(ours):
            np.testing.assert_array_equal(found[path], found[path.replace(ours, theirs)])
    for number, part in enumerate(("embedding_norm", "hidden_norm", "output_norm"), 1 + is_qwen):
        np.testing.assert_array_equal(found[f"predictor.{part}"], np.full(size, number))
