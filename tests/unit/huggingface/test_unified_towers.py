"""The tower of Gemma 4 12B, which has no layers: what its folder and its files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import RocmForgeError, UnsupportedTensor
from rocmforge.gguf.checkpoint import open_gguf_checkpoint
from rocmforge.models.vision.image import normalised
from rocmforge.models.weights import present
from rocmforge.opening import describe, open_checkpoint
from tests.data.models.towers.tiny_gemma4_unified import GEMMA4_UNIFIED as MODEL
from tests.data.models.towers.tiny_tower import PLACEHOLDER, published
from tests.data.models.towers.tower_files import hf_weights, write_tower_files, write_tower_folder
from tests.support.files.safetensors_writer import write_safetensors

EMBEDDER = "model.embed_vision."


def write(folder: Path, vision: dict[str, Any] | None = None, **processor: Any) -> Path:
    """The folder, with changes to its tower's configuration and to its processor."""
    return write_tower_folder(MODEL, folder / "model", vision, processor)


def test_a_folder_says_how_it_takes_images(tmp_path: Path) -> None:
    with open_checkpoint(write(tmp_path, max_soft_tokens=70)) as checkpoint:
        vision, tower = present(checkpoint.vision), present(checkpoint.tower)
        assert (vision.placeholder, vision.marker) == (PLACEHOLDER, "<|image|>")
        assert (vision.begin, vision.end) == ("<|image>", "<image|>")
        assert (vision.both_ways, vision.whole_rows) == (True, 70)
        assert (vision.processor.patch, vision.processor.merge) == (24, 1)
        assert (tower.config.num_layers, tower.config.max_context) == (0, 70)
        assert (tower.config.norm_eps, present(tower.config.tower).row_norm_eps) == (1e-5, 1e-6)
        assert [layer.sees_ahead for layer in checkpoint.config.layers] == [True, False, False]
        weights, found = hf_weights(MODEL), tower.weights
        green = slice(24 * 24, 2 * 24 * 24)
        for theirs, ours in (
            ("patch_dense.weight", "patches.matrix"),
            ("patch_ln1.weight", "patches.norm"),
            ("patch_ln1.bias", "patches.norm_bias"),
        ):
            stored = weights[EMBEDDER + theirs][..., 1::3]
            np.testing.assert_array_equal(found[ours].to_float32()[..., green], stored)
        places = weights[f"{EMBEDDER}pos_embedding"]
        table = found["embedding.token"].to_float32()
        np.testing.assert_array_equal(table[:280], places[:, 0])  # of columns
        np.testing.assert_array_equal(table[280:], places[:, 1])


def test_a_tower_gets_the_numbers_of_pixels_themselves(tmp_path: Path) -> None:
    """Whole ones are exact in halves; norms take the factor of 255 from them."""
    pixels = np.arange(3 * 24 * 24, dtype=np.uint64).astype(np.uint8)
    for vision in (
        describe(write(tmp_path)).vision,
        describe(write_tower_files(MODEL, tmp_path / "files")).vision,
    ):
        assert vision is not None
        found = normalised(pixels.tobytes(), vision.processor)
        np.testing.assert_array_equal(found[0], pixels)


def test_rows_see_those_behind_them_unless_the_text_part_says_otherwise(tmp_path: Path) -> None:
    text = dict(MODEL.config["text_config"])
    del text["use_bidirectional_attention"]
    for number, (own, expected) in enumerate(
        [(text, True), (text | {"use_bidirectional_attention": None}, False)]
    ):
        path = write_tower_folder(MODEL, tmp_path / str(number), text_config=own)
        found = describe(path).vision
        assert found is not None
        assert found.both_ways is expected


def test_a_folder_may_have_the_names_of_transformers(tmp_path: Path) -> None:
    """And a part that reads sound, which is left out."""
    weights, sound = hf_weights(MODEL), "model.embed_audio.embedding_projection.weight"
    names = {"model.vision_embedder.": EMBEDDER}
    with open_checkpoint(write(tmp_path)) as expected:
        assert expected.tower is not None
        before = {name: tensor.to_float32() for name, tensor in expected.tower.weights.items()}
    path = tmp_path / "model" / "model.safetensors"
    write_safetensors(path, published(weights, names) | {sound: np.ones((32, 32), np.float32)})
    with open_checkpoint(tmp_path / "model") as found:
        assert found.tower is not None
        assert found.tower.weights.keys() == before.keys()
        for name, tensor in found.tower.weights.items():
            np.testing.assert_array_equal(tensor.to_float32(), before[name])


@pytest.mark.parametrize(
    ("vision", "processor", "message"),
    [
        ({"model_type": "gemma4_vision"}, {}, "a tower of the type gemma4_vision"),
        ({"output_proj_dims": 128}, {}, "'vision_config.output_proj_dims': 128"),
        ({"model_patch_size": 16}, {}, "3 patches of a side have 24 pixels"),
        ({"mm_posemb_size": 279}, {}, "280 patches a side"),
        ({"rms_norm_eps": 2.0}, {}, "rms_norm_eps"),
        ({}, {"patch_size": 16}, "the tower says 8"),
        ({}, {"do_normalize": True, "image_mean": [0.5] * 3}, "not normalised"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(
    tmp_path: Path, vision: dict[str, Any], processor: dict[str, Any], message: str
) -> None:
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(write(tmp_path, vision, **processor))


@pytest.mark.parametrize("name", ["patch_ln1.bias", "pos_norm.weight", "pos_embedding"])
def test_a_weight_that_is_missing_is_named_as_it_is_published(tmp_path: Path, name: str) -> None:
    path, weights = write(tmp_path), MODEL.stored(hf_weights(MODEL))
    del weights[f"model.vision_embedder.{name}"]
    write_safetensors(path / "model.safetensors", weights)
    with pytest.raises(UnsupportedTensor, match=rf"model\.vision_embedder\.{name}.*missing"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"block_count": 2}, "2 layers in a tower of a kind that has none"),
        ({"patch_size": 16}, r"patch_norm\.1\.weight|patch_embd\.weight"),
        ({"projector_type": "gemma4ua"}, "a tower with the projector gemma4ua"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    path = write_tower_files(MODEL, tmp_path, **keys)
    with pytest.raises(RocmForgeError, match=message):
        open_gguf_checkpoint(path, mmproj=tmp_path / "mmproj-model-f32.gguf")
