"""Towers in GGUF files beside their models: what is read of them, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import (
    ConfigurationError,
    ModelLoadError,
    RocmForgeError,
    UnsupportedTensor,
)
from rocmforge.gguf.checkpoint import open_gguf_checkpoint
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.config import ActivationFunction
from rocmforge.opening import describe, open_checkpoint
from tests.data.models.towers.tiny_gemma4_tower import GEMMA4, GEMMA4_E
from tests.data.models.towers.tiny_internvl import INTERNVL
from tests.data.models.towers.tiny_pixtral import MISTRAL3, PIXTRAL
from tests.data.models.towers.tiny_tower import Tensors, TinyTower
from tests.data.models.towers.tiny_towers import GEMMA3, QWEN3_VL, SMOLVLM
from tests.data.models.towers.tiny_windows import QWEN2_VL, QWEN25_VL
from tests.data.models.towers.tower_files import write_tower_files, write_tower_folder
from tests.data.models.towers.towers import IN_FILES
from tests.support.files.gguf_writer import write_gguf


def change_tensors(path: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Writes a file again, with other tensors."""
    with open_gguf(path) as file:
        metadata = dict(file.metadata)
        tensors = {
            name: tensor.to_float32().reshape(tensor.shape) for name, tensor in file.tensors.items()
        }
    write_gguf(path, metadata, change(tensors))


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("model", IN_FILES, ids=lambda model: model.name)
def test_a_tower_beside_its_model_is_that_of_the_folder(
    model: TinyTower, exchanged: bool, tmp_path: Path
) -> None:
    folder = write_tower_folder(model, tmp_path / "folder")
    path = write_tower_files(model, tmp_path / "files", exchanged=exchanged)
    with open_checkpoint(folder) as expected, open_checkpoint(path) as found:
        assert found.vision == expected.vision
        assert found.tower is not None
        assert expected.tower is not None
        assert found.tower.config.layers == expected.tower.config.layers
        ours, theirs = found.tower.config.tower, expected.tower.config.tower
        assert ours is not None
        assert theirs is not None
        assert ours.row_norm_eps == pytest.approx(theirs.row_norm_eps, rel=1e-7)  # of 32 bits
        assert replace(ours, row_norm_eps=theirs.row_norm_eps) == theirs
        assert found.tower.weights.keys() == expected.tower.weights.keys()
        for name, tensor in expected.tower.weights.items():
            got = found.tower.weights[name].to_float32()
            np.testing.assert_array_equal(got, tensor.to_float32(), err_msg=name)
    assert describe(path).vision is not None


def test_a_file_of_gemma_3_need_not_say_how_many_patches_make_a_row(tmp_path: Path) -> None:
    without: dict[str, Any] = {"projector.scale_factor": None}
    path = write_tower_files(GEMMA3, tmp_path, **without)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.vision is not None
        assert checkpoint.vision.processor.merge == 4


def test_two_towers_beside_a_model_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tower_files(SMOLVLM, tmp_path)
    other = (tmp_path / "mmproj-model-f32.gguf").read_bytes()
    (tmp_path / "mmproj-model-f16.gguf").write_bytes(other)
    with caplog.at_level(logging.WARNING), open_checkpoint(path) as checkpoint:
        assert checkpoint.tower is None
    assert "which of mmproj-model-f16.gguf, mmproj-model-f32.gguf is its tower?" in caplog.text
    with open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f16.gguf") as checkpoint:
        assert checkpoint.tower is not None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"projection_dim": 64}, "it is the tower of another model"),
        ({"image_size": None}, "image_size"),
        ({"image_size": 72}, "9 patches of a side, 2 to a row"),
        ({"patch_size": 0}, "patch_size"),
        ({"image_std": np.zeros(3, np.float32)}, "image_std"),
        ({"image_mean": np.zeros(2, np.float32)}, "image_mean"),
        ({"attention.head_count": 3}, "3 heads do not divide 64"),
        ({"attention.layer_norm_epsilon": 2.0}, "epsilon"),
        ({"block_count": 3}, "missing"),
        ({"block_count": 1}, "not a part"),
        ({"feed_forward_length": 97}, "shape"),
    ],
)
def test_a_tower_that_does_not_fit_is_refused_if_it_was_asked_for(
    tmp_path: Path, keys: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tower_files(SMOLVLM, tmp_path, **keys)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")
    with caplog.at_level(logging.WARNING), open_checkpoint(path) as checkpoint:
        assert checkpoint.vision is None, "text is served all the same"
    assert "model.gguf takes no images: " in caplog.text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"is_deepstack_layers": np.array([True])}, "is_deepstack_layers"),
        ({"is_deepstack_layers": np.array([True, True, True])}, "missing"),
        ({"image_min_pixels": 20_000}, "20000 to 16384 pixels"),
        ({"attention.head_count": 32}, "2 elements of a head do not rotate"),
        ({"spatial_merge_size": 3}, "shape"),
    ],
)
def test_a_tower_of_qwen_that_does_not_fit_is_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_tower_files(QWEN3_VL, tmp_path, **keys)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"image_size": 4096}, "262144 patches"),
        ({"attention.head_count": 32}, "2 elements of a head do not rotate"),
        ({"spatial_merge_size": None}, "not a part of pixtral models"),
        ({"spatial_merge_size": 4}, "mm.patch_merger.weight"),
    ],
)
def test_a_tower_of_mistral_that_does_not_fit_is_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_tower_files(MISTRAL3, tmp_path, **keys)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"preproc_min_tiles": 13}, "13 to 12 tiles"),
        ({"preproc_max_tiles": 65}, "1 to 65 tiles"),
        ({"projector.scale_factor": 3}, "8 patches of a side, 3 to a row"),
        ({"image_size": 70}, "v.position_embd.weight"),
    ],
)
def test_a_tower_of_internvl_that_does_not_fit_is_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_tower_files(INTERNVL, tmp_path, **keys)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")


def test_a_file_of_internvl_need_not_say_how_many_tiles_there_are(tmp_path: Path) -> None:
    without: dict[str, Any] = {"preproc_min_tiles": None, "preproc_max_tiles": None}
    with open_checkpoint(write_tower_files(INTERNVL, tmp_path, **without)) as checkpoint:
        assert checkpoint.vision is not None
        processor = checkpoint.vision.processor
        assert (processor.least_tiles, processor.most_tiles) == (1, 12)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"projector.scale_factor": 4}, "has 840 places of each axis; 1120 may be"),
        ({"attention.head_count": 32}, "9 elements of a head do not rotate"),
    ],
)
def test_a_tower_of_gemma_4_that_does_not_fit_is_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_tower_files(GEMMA4, tmp_path, **keys)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")


def test_rows_beside_another_embedding_for_each_layer_see_none_behind_them(tmp_path: Path) -> None:
    with open_checkpoint(write_tower_files(GEMMA4_E, tmp_path)) as checkpoint:
        assert checkpoint.vision is not None
        assert (checkpoint.vision.both_ways, checkpoint.vision.whole_rows) == (False, 0)
        assert checkpoint.vision.placeholder == 0


def test_what_reads_sound_is_left_out_of_a_tower(tmp_path: Path) -> None:
    path, mmproj = write_tower_files(GEMMA4, tmp_path), tmp_path / "mmproj-model-f32.gguf"
    of_sound = {
        "a.blk.0.attn_q.weight": np.ones((32, 32), np.float32),
        "a.blk.0.attn_q.input_max": np.ones(1, np.float32),
        "mm.a.input_projection.weight": np.ones((32, 32), np.float32),
    }
    change_tensors(mmproj, lambda tensors: tensors | of_sound)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tower is not None
        assert not checkpoint.tower.config.layers[0].bounds


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("attn_k.input_max", None, r"v\.blk\.1\.attn_k\.input_max.*missing"),
        ("ffn_up.output_min", 0.5, r"v\.blk\.1\.ffn_up\.output_min.*are 0\.5 and"),
        ("ln1.input_min", -1.0, r"v\.blk\.1\.ln1\.input_max.*missing"),
    ],
)
def test_bounds_of_a_file_that_cannot_be_are_refused_by_their_names(
    tmp_path: Path, name: str, value: float | None, message: str
) -> None:
    path, mmproj = write_tower_files(GEMMA4_E, tmp_path), tmp_path / "mmproj-model-f32.gguf"

    def changed(tensors: Tensors) -> Tensors:
        tensors.pop(f"v.blk.1.{name}", None)
        more = {} if value is None else {f"v.blk.1.{name}": np.array([value], np.float32)}
        return tensors | more

    change_tensors(mmproj, changed)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=mmproj)


def test_rows_of_gemma_4_see_those_behind_them_in_layers_with_a_window(tmp_path: Path) -> None:
    with open_checkpoint(write_tower_files(GEMMA4, tmp_path)) as checkpoint:
        assert checkpoint.vision is not None
        assert (checkpoint.vision.both_ways, checkpoint.vision.whole_rows) == (True, 280)
        assert [layer.sees_ahead for layer in checkpoint.config.layers] == [True, False, False]


def test_a_model_without_the_token_behind_lines_takes_no_images_of_mistral(tmp_path: Path) -> None:
    path = write_tower_files(MISTRAL3, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"[IMG_BREAK]", b"[IMG_SPLIT]"))
    with pytest.raises(RocmForgeError, match=r"no token \[IMG_BREAK\]"):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")


def write_saying(model: TinyTower, folder: Path, *activations: str) -> Path:
    """Writes a model and a tower whose file names these activations; returns the model's path."""
    path, mmproj = write_tower_files(model, folder), folder / "mmproj-model-f32.gguf"
    with open_gguf(mmproj) as file:
        kept = {key: file.metadata[key] for key in file.metadata if "clip.use_" not in key}
        tensors = {name: tensor.to_float32() for name, tensor in file.tensors.items()}
    said = dict.fromkeys((f"clip.use_{name}" for name in activations), True)
    write_gguf(mmproj, {**kept, **said}, tensors)
    return path


@pytest.mark.parametrize(
    ("model", "said", "expected"),
    [
        (QWEN2_VL, (), ActivationFunction.QUICK_GELU),
        (QWEN2_VL, ("gelu",), ActivationFunction.GELU_TANH),
        (SMOLVLM, (), ActivationFunction.QUICK_GELU),
        (INTERNVL, (), ActivationFunction.QUICK_GELU),
        (INTERNVL, ("gelu",), ActivationFunction.GELU),
        (PIXTRAL, ("gelu",), ActivationFunction.GELU),
        (PIXTRAL, ("silu",), ActivationFunction.SILU),
    ],
)
def test_a_file_that_names_no_activation_has_quick_gelu(
    tmp_path: Path, model: TinyTower, said: tuple[str, ...], expected: ActivationFunction
) -> None:
    with open_checkpoint(write_saying(model, tmp_path, *said)) as checkpoint:
        assert checkpoint.tower is not None
        assert checkpoint.tower.config.activation is expected


@pytest.mark.parametrize(
    ("model", "said", "message"),
    [
        (SMOLVLM, ("silu",), "such a tower with SiLU"),
        (QWEN2_VL, ("silu", "gelu"), "both clip.use_silu and clip.use_gelu"),
        (QWEN25_VL, ("gelu",), "such a tower without SiLU"),
        (PIXTRAL, (), "a tower without GELU"),
    ],
)
def test_activations_that_a_tower_cannot_have_are_refused(
    tmp_path: Path, model: TinyTower, said: tuple[str, ...], message: str
) -> None:
    path = write_saying(model, tmp_path, *said)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n_wa_pattern": None}, "n_wa_pattern"),
        ({"n_wa_pattern": 0}, "n_wa_pattern"),
        ({"window_size": 15}, "windows of 15 pixels"),
        ({"projection_dim": 64}, "the tower of another model"),
    ],
)
def test_a_tower_with_windows_that_does_not_fit_is_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_tower_files(QWEN25_VL, tmp_path, **keys)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")


@pytest.mark.parametrize("model", [QWEN25_VL, PIXTRAL, MISTRAL3], ids=lambda model: model.name)
def test_a_table_of_positions_is_refused_where_towers_have_none(
    model: TinyTower, tmp_path: Path
) -> None:
    path, mmproj = write_tower_files(model, tmp_path), tmp_path / "mmproj-model-f32.gguf"
    table = np.ones((4, model.config["vision_config"]["hidden_size"]), np.float32)
    change_tensors(mmproj, lambda tensors: tensors | {"v.position_embd.weight": table})
    with pytest.raises(RocmForgeError, match=r"v\.position_embd\.weight.*a table of positions"):
        open_gguf_checkpoint(path, mmproj=mmproj)


def test_windows_have_112_pixels_where_a_file_does_not_say_it(tmp_path: Path) -> None:
    with open_checkpoint(write_tower_files(QWEN25_VL, tmp_path, window_size=None)) as checkpoint:
        assert checkpoint.vision is not None
        assert checkpoint.tower is not None
        assert checkpoint.vision.processor.window == 112 // (2 * 8)
        layers = checkpoint.tower.config.layers
        assert [layer.tile_windows for layer in layers] == [True, False, True, False]


def test_what_a_file_of_qwen_leaves_out_is_as_its_maker_has_it(tmp_path: Path) -> None:
    without: dict[str, Any] = {"image_min_pixels": None, "image_max_pixels": None}
    path = write_tower_files(QWEN3_VL, tmp_path, spatial_merge_size=None, **without)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.vision is not None
        processor = checkpoint.vision.processor
        assert (processor.least_pixels, processor.most_pixels) == (65_536, 4_194_304)
        assert processor.merge == 2


def test_a_folder_takes_no_other_tower(tmp_path: Path) -> None:
    folder = write_tower_folder(SMOLVLM, tmp_path / "folder")
    path = write_tower_files(SMOLVLM, tmp_path / "files").with_name("mmproj-model-f32.gguf")
    with pytest.raises(ConfigurationError, match="leave --mmproj out"):
        open_checkpoint(folder, mmproj=path)


def test_a_model_is_no_tower(tmp_path: Path) -> None:
    path = write_tower_files(SMOLVLM, tmp_path)
    with pytest.raises(ModelLoadError, match=f"{path} is no tower for images"):
        open_gguf_checkpoint(path, mmproj=path)


def test_a_tower_is_no_model(tmp_path: Path) -> None:
    tower = write_tower_files(SMOLVLM, tmp_path).with_name("mmproj-model-f32.gguf")
    with pytest.raises(ModelLoadError, match="Serve the model's own file"):
        open_gguf_checkpoint(tower)


def test_what_is_wrong_with_a_tower_names_its_file(tmp_path: Path) -> None:
    path, tower = write_tower_files(SMOLVLM, tmp_path), tmp_path / "mmproj-model-f32.gguf"
    change_tensors(tower, lambda tensors: tensors | {"v.more.weight": np.zeros(1, np.float32)})
    with pytest.raises(UnsupportedTensor, match=f"^{tower}: Tensor 'v.more.weight'"):
        open_gguf_checkpoint(path, mmproj=tower)
