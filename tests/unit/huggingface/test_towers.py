"""What folders say of images: towers and processors that are read, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import BadFolder, RocmForgeError, UnsupportedTensor
from rocmforge.models.config import ActivationFunction
from rocmforge.models.vision.config import ProcessorKind, Resampling
from rocmforge.models.weights import present
from rocmforge.opening import describe, open_checkpoint
from tests.data.models.towers.tiny_gemma4_tower import BOUNDS, GEMMA4, GEMMA4_E
from tests.data.models.towers.tiny_internvl import INTERNVL
from tests.data.models.towers.tiny_pixtral import MISTRAL3, PIXTRAL, TinyPixtral
from tests.data.models.towers.tiny_tower import PLACEHOLDER, TinyTower
from tests.data.models.towers.tiny_towers import GEMMA3, QWEN3_VL, SMOLVLM
from tests.data.models.towers.tiny_windows import QWEN2_VL, QWEN25_VL
from tests.data.models.towers.tower_files import hf_weights, write_tower_folder
from tests.support.files.safetensors_writer import write_safetensors


def write(folder: Path, vision: dict[str, Any] | None = None, **processor: Any) -> Path:
    """The tiny SmolVLM with changes to its tower's configuration and to its processor."""
    return write_tower_folder(SMOLVLM, folder / "model", vision, processor)


def test_a_folder_says_how_it_takes_images(tmp_path: Path) -> None:
    with open_checkpoint(write(tmp_path)) as checkpoint:
        vision, tower = present(checkpoint.vision), present(checkpoint.tower)
        assert (vision.placeholder, vision.marker) == (PLACEHOLDER, "<image>")
        processor = vision.processor
        assert processor.kind is ProcessorKind.IDEFICS3
        assert (processor.tile, processor.longest_edge, processor.splits) == (64, 192, True)
        assert (processor.patch, processor.merge, processor.tile_rows) == (8, 2, 16)
        assert processor.resampling is Resampling.LANCZOS
        config = tower.config
        assert config.activation is ActivationFunction.GELU_TANH
        assert (config.vocab_size, config.max_context, config.output_size) == (64, 64, 128)
        assert (config.patch_features, config.merged_features) == (192, 256)
        expected = hf_weights(SMOLVLM)["model.vision_model.embeddings.patch_embedding.weight"]
        found = tower.weights["patches.matrix"].to_float32()
        np.testing.assert_array_equal(found, expected.reshape(64, 192))


def test_the_processor_may_stand_in_the_other_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    (path / "preprocessor_config.json").unlink()
    own = SMOLVLM.processor | {"image_mean": [0.1, 0.2, 0.3]}
    (path / "processor_config.json").write_text(json.dumps({"image_processor": own}))
    found = describe(path).vision
    assert found is not None
    assert found.processor.mean == (0.1, 0.2, 0.3)


def test_a_file_says_how_pictures_are_scaled_and_coloured(tmp_path: Path) -> None:
    own: dict[str, Any] = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    path = write(tmp_path, resample=3, rescale_factor=0.25, **own)
    found = describe(path).vision
    assert found is not None
    assert found.processor.resampling is Resampling.BICUBIC
    assert found.processor.rescale == 0.25
    assert (found.processor.mean, found.processor.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_colours_that_no_file_says_are_those_of_the_family(tmp_path: Path) -> None:
    path = write_tower_folder(QWEN3_VL, tmp_path / "model")
    said = {key: value for key, value in QWEN3_VL.processor.items() if "image_" not in key}
    (path / "preprocessor_config.json").write_text(json.dumps(said))
    found = describe(path).vision
    assert found is not None
    assert found.processor.mean == (0.48145466, 0.4578275, 0.40821073)  # as CLIP has them
    assert found.processor.std == (0.26862954, 0.26130258, 0.27577711)


@pytest.mark.parametrize("lacks", ["processor", "tower", "configuration"])
def test_a_text_part_alone_takes_no_images(tmp_path: Path, lacks: str) -> None:
    path = write(tmp_path)
    if lacks == "processor":
        (path / "preprocessor_config.json").unlink()
    elif lacks == "tower":
        text = {name: value for name, value in hf_weights(SMOLVLM).items() if "text" in name}
        head = {"lm_head.weight": hf_weights(SMOLVLM)["lm_head.weight"]}
        write_safetensors(path / "model.safetensors", text | head)
    else:
        (path / "config.json").write_text(json.dumps(SMOLVLM.config | {"vision_config": None}))
    contents = describe(path)
    assert contents.refusal is None
    assert contents.vision is None
    assert contents.tower is None


@pytest.mark.parametrize(
    ("vision", "processor", "message"),
    [
        ({"image_size": 128}, {}, "tiles of its processor have 64 pixels"),
        ({"patch_size": 65}, {}, "image_size"),
        ({"hidden_act": "relu"}, {}, "activation"),
        ({"hidden_act": "silu"}, {}, "tower with the activation"),
        ({"num_attention_heads": 3}, {}, "num_attention_heads"),
        ({}, {"resample": 77}, "resample"),
        ({}, {"image_std": [0.5, 0.0, 0.5]}, "image_std"),
        ({}, {"image_mean": [0.5]}, "image_mean"),
        ({}, {"do_normalize": False}, "do_normalize"),
        ({}, {"size": {"longest_edge": 1 << 20}}, "size"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(
    tmp_path: Path, vision: dict[str, Any], processor: dict[str, Any], message: str
) -> None:
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(write(tmp_path, vision, **processor))


def test_three_patches_of_a_side_are_not_divided_by_two(tmp_path: Path) -> None:
    with pytest.raises(BadFolder, match="3 patches of a side, 2 to a row"):
        open_checkpoint(write(tmp_path, {"image_size": 24}, max_image_size={"longest_edge": 24}))


def test_the_token_of_images_is_in_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(BadFolder, match="the id 97 of the token of images"):
        open_checkpoint(write_tower_folder(SMOLVLM, tmp_path / "m", image_token_id=97))


def test_a_tower_lacks_no_weight(tmp_path: Path) -> None:
    path, missing = write(tmp_path), "model.vision_model.post_layernorm.bias"
    weights = hf_weights(SMOLVLM)
    del weights[missing]
    write_safetensors(path / "model.safetensors", weights)
    with pytest.raises(UnsupportedTensor, match=missing):
        open_checkpoint(path)


def gemma3(folder: Path, processor: dict[str, Any] | None = None, **config: Any) -> Path:
    """The tiny Gemma 3 with changes to its processor and its configuration."""
    return write_tower_folder(GEMMA3, folder / "model", None, processor, **config)


def test_gemma_3_scales_pictures_to_one_tile_whose_rows_see_each_other(tmp_path: Path) -> None:
    vision = describe(gemma3(tmp_path)).vision
    assert vision is not None
    assert (vision.begin, vision.end) == ("\n\n<start_of_image>", "<end_of_image>\n\n")
    assert (vision.marker, vision.placeholder) == ("<start_of_image>", PLACEHOLDER)
    assert (vision.both_ways, vision.whole_rows) == (True, 16)
    processor = vision.processor
    assert processor.kind is ProcessorKind.GEMMA3
    assert (processor.tile, processor.patch, processor.merge) == (112, 14, 2)


def test_gemma_3_has_had_other_names_for_the_same_weights(tmp_path: Path) -> None:
    path, weights = gemma3(tmp_path), hf_weights(GEMMA3)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tower is not None
        expected = {name: each.to_float32() for name, each in checkpoint.tower.weights.items()}
    unused = {"model.vision_tower.head.probe": np.zeros((1, 1, 288), np.float32)}
    write_safetensors(path / "model.safetensors", weights | unused)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tower is not None
        assert checkpoint.tower.weights.keys() == expected.keys()
        for name, tensor in checkpoint.tower.weights.items():
            np.testing.assert_array_equal(tensor.to_float32(), expected[name], err_msg=name)
    norm = weights["model.multi_modal_projector.mm_soft_emb_norm.weight"]
    np.testing.assert_array_equal(expected["projector.norm"], 1 + norm)
    matrix = weights["model.multi_modal_projector.mm_input_projection_weight"]
    np.testing.assert_array_equal(expected["projector.matrix"], matrix.T)


@pytest.mark.parametrize(
    ("processor", "config", "message"),
    [
        ({"do_pan_and_scan": True}, {}, "do_pan_and_scan"),
        ({"size": {"height": 112, "width": 56}}, {}, "squares"),
        ({"size": {"height": 56, "width": 56}}, {}, "tiles of its processor have 56 pixels"),
        ({}, {"mm_tokens_per_image": 15}, "8 patches of a side do not make 15 rows"),
        ({}, {"mm_tokens_per_image": 9}, "8 patches of a side do not make 9 rows"),
    ],
)
def test_what_gemma_3_cannot_do_is_refused_by_its_name(
    tmp_path: Path, processor: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadFolder, match=message):
        open_checkpoint(gemma3(tmp_path, processor, **config))


def write_qwen(
    folder: Path,
    vision: dict[str, Any] | None = None,
    rope: dict[str, Any] | None = None,
    **processor: Any,
) -> Path:
    """The tiny Qwen3-VL with changes to its tower, its rotation and its processor."""
    text = QWEN3_VL.config["text_config"]
    turned = text | {"rope_parameters": text["rope_parameters"] | (rope or {})}
    return write_tower_folder(QWEN3_VL, folder / "model", vision, processor, text_config=turned)


def test_a_folder_of_qwen_says_how_it_takes_images(tmp_path: Path) -> None:
    with open_checkpoint(write_qwen(tmp_path)) as checkpoint:
        vision, tower = present(checkpoint.vision), present(checkpoint.tower)
        assert (vision.placeholder, vision.marker) == (PLACEHOLDER, "<|image_pad|>")
        processor = vision.processor
        assert (processor.kind, processor.places) == (ProcessorKind.QWEN_VL, 6)
        assert (processor.least_pixels, processor.most_pixels) == (1024, 16384)
        assert checkpoint.config.deepstack == 2
        assert tower.config.output_size == 3 * 128
        stored = hf_weights(QWEN3_VL)["model.visual.patch_embed.proj.weight"]
        found = tower.weights["patches.matrix"].to_float32()
        np.testing.assert_allclose(found, stored.sum(axis=2).reshape(64, 192), rtol=0, atol=1e-6)


def test_older_keys_say_the_pixels_of_a_picture(tmp_path: Path) -> None:
    found = describe(write_qwen(tmp_path, min_pixels=2048, max_pixels=4096)).vision
    assert found is not None
    assert (found.processor.least_pixels, found.processor.most_pixels) == (2048, 4096)


@pytest.mark.parametrize(
    ("vision", "rope", "processor", "message"),
    [
        ({"out_hidden_size": 64}, {}, {}, "out_hidden_size"),
        ({"deepstack_visual_indexes": [1, 0]}, {}, {}, "deepstack_visual_indexes"),
        ({"deepstack_visual_indexes": [3]}, {}, {}, "deepstack_visual_indexes"),
        ({"num_heads": 3}, {}, {}, "num_attention_heads"),
        ({}, {}, {"patch_size": 16}, "patch_size"),
        ({}, {}, {"merge_size": 1}, "merge_size"),
        ({}, {}, {"size": {"shortest_edge": 9, "longest_edge": 8}}, "size"),
        ({}, {"mrope_section": [12, 10]}, {}, "mrope_section"),
        ({}, {"mrope_section": None}, {}, "without positions on several axes"),
    ],
)
def test_what_cannot_be_of_qwen_is_refused_by_its_name(
    tmp_path: Path,
    vision: dict[str, Any],
    rope: dict[str, Any],
    processor: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(write_qwen(tmp_path, vision, rope, **processor))


def write_changed(
    model: TinyTower, folder: Path, vision: dict[str, Any], config: dict[str, Any], **said: Any
) -> Path:
    """A tiny model with changes."""
    return write_tower_folder(model, folder / "model", vision, said, **config)


def test_a_folder_of_mistral_says_how_it_takes_images(tmp_path: Path) -> None:
    with open_checkpoint(write_changed(MISTRAL3, tmp_path, {}, {})) as checkpoint:
        vision, tower = present(checkpoint.vision), present(checkpoint.tower)
        assert (vision.placeholder, vision.marker) == (PLACEHOLDER, "[IMG]")
        assert (vision.begin, vision.between, vision.end) == ("", "[IMG_BREAK]", "[IMG_END]")
        processor = vision.processor
        assert (processor.kind, processor.longest_edge) == (ProcessorKind.PIXTRAL, 128)
        assert (processor.patch, processor.merge, processor.most_patches) == (8, 2, 256)
        assert tower.config.activation is ActivationFunction.SILU
        stem = "model.multi_modal_projector.patch_merger.merging_layer.weight"
        stored = hf_weights(MISTRAL3)[stem]
        found = tower.weights["projector.merger"].to_float32()
        np.testing.assert_array_equal(found[:, 64:128], stored[:, 1::4])


def test_the_size_of_a_picture_may_be_two_sides(tmp_path: Path) -> None:
    size = {"height": 96, "width": 96}
    found = describe(write_changed(MISTRAL3, tmp_path, {}, {}, size=size)).vision
    assert found is not None
    assert found.processor.longest_edge == 96


@pytest.mark.parametrize(
    ("model", "vision", "config", "processor", "message"),
    [
        (MISTRAL3, {}, {"vision_feature_layer": -2}, {}, "vision_feature_layer"),
        (MISTRAL3, {}, {"projector_hidden_act": "relu"}, {}, "projector_hidden_act"),
        (MISTRAL3, {}, {"spatial_merge_size": 1}, {}, "spatial_merge_size"),
        (MISTRAL3, {}, {"spatial_merge_size": 4}, {}, "merging_layer"),
        (MISTRAL3, {"model_type": "siglip_vision_model"}, {}, {}, "a tower of the type siglip"),
        (MISTRAL3, {"hidden_act": "relu"}, {}, {}, "hidden_act"),
        (MISTRAL3, {"rope_theta": -1.0}, {}, {}, "rope_theta"),
        (MISTRAL3, {"num_attention_heads": 32}, {}, {}, "heads of 2 do not rotate"),
        (MISTRAL3, {}, {}, {"size": {"height": 96, "width": 64}}, "size"),
        (MISTRAL3, {}, {}, {"size": {"longest_edge": 1 << 12}}, "262144 patches"),
        (PIXTRAL, {}, {"vision_feature_layer": None}, {}, "vision_feature_layer"),
        (PIXTRAL, {}, {"vision_feature_select_strategy": "default"}, {}, "select_strategy"),
        (PIXTRAL, {"model_type": "clip_vision_model"}, {}, {}, "a tower of the type clip"),
    ],
)
def test_what_cannot_be_of_pixtral_is_refused_by_its_name(
    tmp_path: Path,
    model: TinyPixtral,
    vision: dict[str, Any],
    config: dict[str, Any],
    processor: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(write_changed(model, tmp_path, vision, config, **processor))


def test_mistral_has_one_number_for_all_norms_of_its_tower(tmp_path: Path) -> None:
    text = MISTRAL3.config["text_config"] | {"rms_norm_eps": 1e-6}
    with pytest.raises(BadFolder, match="rms_norm_eps"):
        open_checkpoint(write_changed(MISTRAL3, tmp_path, {}, {"text_config": text}))


def test_a_tower_of_mistral_lacks_no_merger(tmp_path: Path) -> None:
    path, weights = write_changed(MISTRAL3, tmp_path, {}, {}), hf_weights(MISTRAL3)
    for missing in ("norm", "patch_merger.merging_layer"):
        name = f"model.multi_modal_projector.{missing}.weight"
        rest = {each: weight for each, weight in weights.items() if each != name}
        write_safetensors(path / "model.safetensors", rest)
        with pytest.raises(UnsupportedTensor, match=missing):
            open_checkpoint(path)


def test_a_folder_of_internvl_says_how_it_takes_images(tmp_path: Path) -> None:
    with open_checkpoint(write_changed(INTERNVL, tmp_path, {}, {})) as checkpoint:
        vision, tower = present(checkpoint.vision), present(checkpoint.tower)
        assert (vision.placeholder, vision.marker) == (PLACEHOLDER, "<IMG_CONTEXT>")
        assert (vision.begin, vision.between, vision.end) == ("<img>", "", "</img>")
        processor = vision.processor
        assert (processor.kind, processor.tile_rows) == (ProcessorKind.INTERNVL, 16)
        assert (processor.least_tiles, processor.most_tiles) == (1, 12)
        assert (processor.splits, processor.has_class) == (True, True)
        assert (tower.config.vocab_size, tower.config.max_context) == (65, 65)


@pytest.mark.parametrize(
    ("vision", "config", "processor", "message"),
    [
        ({"norm_type": "rms_norm"}, {}, {}, "norm_type"),
        ({"use_qk_norm": True}, {}, {}, "norm_type"),
        ({"use_qk_norm": True, "norm_type": "rms_norm"}, {}, {}, "layer_norm_eps"),
        ({"use_mean_pooling": False}, {}, {}, "use_mean_pooling"),
        ({"image_size": [56, 28]}, {}, {}, "image_size"),
        ({"image_size": [112, 112]}, {}, {}, "tiles of its processor have 56 pixels"),
        ({"model_type": "siglip_vision_model"}, {}, {}, "a tower of the type siglip"),
        ({}, {"downsample_ratio": 0.25}, {}, "downsample_ratio"),
        ({}, {"vision_feature_layer": -2}, {}, "vision_feature_layer"),
        ({}, {"vision_feature_select_strategy": "full"}, {}, "select_strategy"),
        ({}, {}, {"max_patches": 65}, "max_patches"),
        ({}, {}, {"min_patches": 5, "max_patches": 4}, "max_patches"),
        ({}, {}, {"size": {"height": 56, "width": 28}}, "squares"),
    ],
)
def test_what_cannot_be_of_internvl_is_refused_by_its_name(
    tmp_path: Path,
    vision: dict[str, Any],
    config: dict[str, Any],
    processor: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(write_changed(INTERNVL, tmp_path, vision, config, **processor))


@pytest.mark.parametrize(
    "missing", ["embeddings.cls_token", "encoder.layer.1.lambda_2", "encoder.layer.0.mlp.fc1.bias"]
)
def test_a_tower_of_internvl_lacks_no_weight(tmp_path: Path, missing: str) -> None:
    path, weights = write_changed(INTERNVL, tmp_path, {}, {}), hf_weights(INTERNVL)
    del weights[f"model.vision_tower.{missing}"]
    write_safetensors(path / "model.safetensors", weights)
    with pytest.raises(UnsupportedTensor, match=missing):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        ({"window_size": 15}, "15 pixels are less than a row"),
        ({"fullatt_block_indexes": [1, 4]}, r"\[1.0, 4.0\] of 4 layers"),
        ({"hidden_act": "quick_gelu"}, "quick_gelu"),
        ({"hidden_act": "gelu"}, "a tower with the activation gelu"),
        ({"num_heads": 80}, "do not rotate by axes"),
        ({"out_hidden_size": 64}, "64, and the model has 128"),
    ],
)
def test_a_tower_with_windows_that_cannot_be_is_refused_by_its_name(
    tmp_path: Path, vision: dict[str, Any], message: str
) -> None:
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(write_tower_folder(QWEN25_VL, tmp_path / "model", vision))


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        ({"hidden_act": "silu"}, "a tower with the activation silu"),
        ({"mlp_ratio": 0}, "mlp_ratio"),
        ({"mlp_ratio": 4}, "shape"),
        ({"num_heads": 32}, "do not rotate by axes"),
        ({"hidden_size": 64}, "vision_config.hidden_size': 64, and the model has 128"),
        ({"patch_size": 16}, "patch_size"),
    ],
)
def test_a_tower_of_qwen_2_that_cannot_be_is_refused_by_its_name(
    tmp_path: Path, vision: dict[str, Any], message: str
) -> None:
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(write_tower_folder(QWEN2_VL, tmp_path / "model", vision))


def test_a_tower_without_gates_may_have_quick_gelu(tmp_path: Path) -> None:
    with open_checkpoint(write(tmp_path, {"hidden_act": "quick_gelu"})) as checkpoint:
        assert checkpoint.tower is not None
        assert checkpoint.tower.config.activation is ActivationFunction.QUICK_GELU


@pytest.mark.parametrize("model", [QWEN2_VL, QWEN25_VL], ids=lambda model: model.name)
def test_qwen_2_is_read_in_the_layout_in_which_it_was_published(
    tmp_path: Path, model: TinyTower
) -> None:
    """Keys of the text model stand outside, and names lack what Transformers puts before them."""
    path, new = tmp_path / "model", write_tower_folder(model, tmp_path / "new")
    text = model.config["text_config"]
    old = {key: model.config[key] for key in ("image_token_id", "tie_word_embeddings")}
    rope = {"type": "mrope", "mrope_section": text["rope_parameters"]["mrope_section"]}
    write_tower_folder(model, path)
    config = {key: value for key, value in text.items() if key != "rope_parameters"}
    config |= old | {
        "model_type": model.config["model_type"],
        "rope_theta": 10000.0,
        "rope_scaling": rope,
    }
    vision = dict(model.config["vision_config"])
    del vision["model_type"]
    (path / "config.json").write_text(json.dumps(config | {"vision_config": vision}))
    size = {"min_pixels": 1024, "max_pixels": 16384}
    said = {key: value for key, value in model.processor.items() if key != "size"} | size
    (path / "preprocessor_config.json").write_text(json.dumps(said))
    renamed = {
        name.replace("model.visual.", "visual.").replace("language_model.", ""): weight
        for name, weight in hf_weights(model).items()
    }
    write_safetensors(path / "model.safetensors", renamed)
    with open_checkpoint(path) as one, open_checkpoint(new) as other:
        assert one.vision == other.vision
        assert replace(one.config, name="") == replace(other.config, name="")
        assert one.tower is not None
        assert other.tower is not None
        assert replace(one.tower.config, name="") == replace(other.tower.config, name="")
        assert one.tower.weights.keys() == other.tower.weights.keys()


def write_gemma4(folder: Path, vision: dict[str, Any], **processor: Any) -> Path:
    """The tiny Gemma 4 with changes to its tower's configuration and to its processor."""
    return write_tower_folder(GEMMA4, folder / "model", vision, processor)


def test_a_folder_of_gemma_4_says_how_it_takes_images(tmp_path: Path) -> None:
    with open_checkpoint(write_gemma4(tmp_path, {}, max_soft_tokens=70)) as checkpoint:
        vision, tower = present(checkpoint.vision), present(checkpoint.tower)
        assert (vision.placeholder, vision.marker) == (PLACEHOLDER, "<|image|>")
        assert (vision.begin, vision.end) == ("<|image>", "<image|>")
        assert (vision.both_ways, vision.whole_rows) == (True, 70)
        processor = vision.processor
        assert (processor.kind, processor.most_patches) == (ProcessorKind.GEMMA4, 630)
        assert (processor.mean, processor.std) == ((0.5,) * 3, (0.5,) * 3)
        assert (tower.config.vocab_size, tower.config.max_context) == (1680, 630)
        # The first layer of the text model has a window: rows see those behind them there alone.
        assert [layer.sees_ahead for layer in checkpoint.config.layers] == [True, False, False]
        stored = hf_weights(GEMMA4)["model.vision_tower.patch_embedder.input_proj.weight"]
        found = tower.weights["patches.matrix"].to_float32()
        np.testing.assert_array_equal(found[:, 64:128], stored[:, 1::3])  # green


def test_rows_of_gemma_4_see_each_other_both_ways_if_its_text_part_says_so(tmp_path: Path) -> None:
    text = GEMMA4.config["text_config"] | {"use_bidirectional_attention": None}
    found = describe(write_tower_folder(GEMMA4, tmp_path / "model", text_config=text)).vision
    assert found is not None
    assert (found.both_ways, found.whole_rows) == (False, 0)


def test_rows_have_the_padding_beside_another_embedding_for_each_layer(tmp_path: Path) -> None:
    """Where layers have none, they have the token of images."""
    padding = {"pad_token_id": 5}
    for model, expected in ((GEMMA4, PLACEHOLDER), (GEMMA4_E, 5)):
        text = model.config["text_config"] | padding
        path = write_tower_folder(model, tmp_path / model.name, text_config=text)
        found = describe(path).vision
        assert found is not None
        assert found.placeholder == expected


@pytest.mark.parametrize(
    ("vision", "processor", "message"),
    [
        ({"model_type": "siglip_vision_model"}, {}, "a tower of the type siglip"),
        ({"hidden_activation": "relu"}, {}, "hidden_activation"),
        ({"rope_parameters": {"rope_type": "yarn"}}, {}, "rope_type"),
        ({"head_dim": 70}, {}, "70 elements of a head do not rotate"),
        ({"pooling_kernel_size": 2}, {}, "the tower says 2"),
        ({"position_embedding_size": 839}, {}, "840 patches a side"),
        ({}, {"patch_size": 16}, "the tower says 8"),
        ({}, {"do_normalize": True, "image_mean": [0.5] * 3}, "not normalised"),
    ],
)
def test_what_cannot_be_of_gemma_4_is_refused_by_its_name(
    tmp_path: Path, vision: dict[str, Any], processor: dict[str, Any], message: str
) -> None:
    with pytest.raises(RocmForgeError, match=message):
        open_checkpoint(write_gemma4(tmp_path, vision, **processor))


@pytest.mark.parametrize("missing", ["std_scale", "encoder.layers.1.self_attn.k_norm"])
def test_a_tower_of_gemma_4_lacks_no_weight(tmp_path: Path, missing: str) -> None:
    path, weights = write_gemma4(tmp_path, {}), hf_weights(GEMMA4)
    rest = {name: weight for name, weight in weights.items() if missing not in name}
    assert len(rest) == len(weights) - 1
    write_safetensors(path / "model.safetensors", rest)
    with pytest.raises(UnsupportedTensor, match=r"std_|k_norm"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"self_attn.k_proj.input_max": None}, r"1.self_attn.k_proj.input_max'.*missing"),
        ({"mlp.up_proj.output_min": None}, r"1.mlp.up_proj.output_min'.*missing"),
        (
            {f"mlp.down_proj.{end}": None for end in BOUNDS},
            r"1.mlp.down_proj.input_min'.*missing",
        ),
        ({"self_attn.v_proj.input_min": 2.0}, r"1.self_attn.v_proj.input_min'.*are 2 and 0"),
        ({"self_attn.o_proj.output_max": -1.0}, r"1.self_attn.o_proj.output_min'.*and -1"),
        ({"mlp.gate_proj.input_max": np.nan}, r"1.mlp.gate_proj.input_min'.*and nan"),
        ({"mlp.gate_proj.input_max": [1.0, 2.0]}, r"1.mlp.gate_proj.input_max'.*shape"),
    ],
)
def test_bounds_that_cannot_be_are_refused_by_their_names(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path, weights = write_tower_folder(GEMMA4_E, tmp_path / "model"), hf_weights(GEMMA4_E)
    for end, value in changes.items():
        name = f"model.vision_tower.encoder.layers.1.{end}"
        assert weights.pop(name).shape == ()
        if value is not None:
            weights[name] = np.array(value, np.float32)
    write_safetensors(path / "model.safetensors", weights)
    with pytest.raises(UnsupportedTensor, match=message):
        open_checkpoint(path)


@pytest.mark.parametrize(("model", "has_bounds"), [(GEMMA4, True), (GEMMA4_E, False)])
def test_products_have_bounds_if_the_configuration_says_so_alone(
    tmp_path: Path, model: TinyTower, has_bounds: bool
) -> None:
    path = write_tower_folder(model, tmp_path / "model", {"use_clipped_linears": has_bounds})
    with pytest.raises(UnsupportedTensor, match=r"q_proj.input_min"):
        open_checkpoint(path)
