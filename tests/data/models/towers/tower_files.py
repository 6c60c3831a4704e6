"""Weights and tiles of tiny models that take images, and the files that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.data.models.text.model_files import gguf_layout, gguf_metadata, gguf_name
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.towers.tiny_tower import (
    PUBLISHED,
    Tensors,
    TinyTower,
    published,
    tower_sizes,
)
from tests.support.files.gguf_writer import write_gguf
from tests.support.files.safetensors_writer import write_safetensors


def hf_weights(model: TinyTower) -> Tensors:
    """Random weights by Hugging Face's names, the same for the same seed."""
    rng = np.random.default_rng(model.seed)
    weights: Tensors = {}
    for name, shape in model.shapes.items():
        noise = rng.standard_normal(shape, dtype=np.float32)
        if (own := model.drawn(name, noise)) is not None:
            weights[name] = own
        elif ("norm" in name or "ln_q" in name) and name.endswith("weight"):
            adds_one = model.averages or model.name == "qwen3_5"
            less = adds_one and ("language_model" in name or "soft_emb" in name)
            less = less and "linear_attn" not in name
            weights[name] = 1 - less + np.float32(0.2) * noise
        elif name.endswith(("lambda_1", "lambda_2")):  # scales of what a layer adds
            weights[name] = np.float32(0.5) + np.float32(0.2) * noise
        elif name.endswith("A_log"):
            weights[name] = np.float32(0.8) * noise - 2
        elif model.ties and "embed_tokens" in name:  # or the output would be the input
            weights[name] = np.float32(0.05) * noise
        elif (
            name.endswith(("bias", "cls_token", "position_embeddings"))
            or "embed_tokens" in name
            or "pos" in name.rsplit(".", 2)[-2]
        ):
            weights[name] = np.float32(0.5) * noise
        else:
            inputs = shape[2:] if ".experts." in name else shape[1:]
            weights[name] = np.float32(1.5 / np.sqrt(np.prod(inputs))) * noise
    return weights


def pixels(model: TinyTower, tile: int) -> npt.NDArray[np.uint8]:
    """A tile with smooth colours and some noise: [height, width, 3]."""
    height, width = model.size(tile)
    rng = np.random.default_rng((model.seed, tile))
    down, right = np.mgrid[0:height, 0:width] / width
    waves = [np.sin(rng.uniform(1, 9) * down + rng.uniform(1, 9) * right) for _ in range(3)]
    smooth = 127 + 90 * np.stack(waves, axis=-1)
    noise = rng.integers(-30, 30, smooth.shape)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def write_tower_folder(
    model: TinyTower,
    path: Path,
    vision: dict[str, Any] | None = None,
    processor: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Writes the folder of a model; returns its path.

    Args:
        model: The recipe.
        path: Where to.
        vision: Changes to what the configuration says of the tower.
        processor: Changes to what is said of the processor.
        config: Changes to the rest of the configuration.
    """
    path.mkdir(parents=True)
    changed = {"vision_config": model.config["vision_config"] | (vision or {}), **config}
    (path / "config.json").write_text(json.dumps(model.config | changed))
    (path / "preprocessor_config.json").write_text(json.dumps(model.processor | (processor or {})))
    write_safetensors(path / "model.safetensors", model.stored(hf_weights(model)))
    return path


def write_tower_files(
    model: TinyTower, folder: Path, *, exchanged: bool = False, **keys: Any
) -> Path:
    """Writes a model and its tower as llama.cpp's converter does; returns the model's path.

    Args:
        model: The recipe.
        folder: Where both files go.
        exchanged: Whether both matrices of networks have each other's names, as of old.
        keys: Of the tower, to write or, if None, to leave out; without "clip.vision.".
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (path := model.write_files(folder, keys)) is not None:
        return path
    recipe = _gguf_recipe(model)
    if model.is_qwen:
        return _write_qwen_files(model, folder, recipe, keys, exchanged=exchanged)
    text, vision = model.config["text_config"], model.config["vision_config"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    own, of_tower = {}, {}
    for name, weight in published(hf_weights(model), PUBLISHED).items():
        if any(part in name for part in ("vision_model", "connector", "projector")):
            plain = name.replace("_weight", ".weight")
            found = names.get_name(plain, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            found = _exchanged(found) if exchanged else found
            of_tower[found] = weight + 1 if "soft_emb" in name else weight
        else:
            plain = name.replace("text_model.", "").replace("language_model.model", "model")
            own[gguf_name(recipe, plain)] = gguf_layout(recipe, plain, weight)
    marker = "<image_soft_token>" if model.averages else "<image>"
    tokens = [f"<{index}>" for index in range(text["vocab_size"] - 1)] + [marker]
    path = write_gguf(
        folder / "model.gguf", gguf_metadata(recipe) | {"tokenizer.ggml.tokens": tokens}, own
    )
    said = {
        "projection_dim": text["hidden_size"],
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "embedding_length": vision["hidden_size"],
        "feed_forward_length": vision["intermediate_size"],
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
        "attention.layer_norm_epsilon": vision["layer_norm_eps"],
        "projector.scale_factor": 2,
        "image_mean": np.array(model.processor["image_mean"], np.float32),
        "image_std": np.array(model.processor["image_std"], np.float32),
        "preproc_image_size": model.processor["size"].get("longest_edge"),  # None of Gemma 3
        **keys,
    }
    metadata = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3" if model.averages else "idefics3",
        "clip.use_gelu": True,
        **{f"clip.vision.{key}": value for key, value in said.items() if value is not None},
    }
    write_gguf(folder / "mmproj-model-f32.gguf", metadata, of_tower)
    return path


def _exchanged(name: str) -> str:
    """What old converters call it."""
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    return ".".join(other.get(part, part) for part in name.split("."))


def _write_qwen_files(
    model: TinyTower, folder: Path, recipe: TinyModel, keys: dict[str, Any], *, exchanged: bool
) -> Path:
    """Does as `write_tower_files`; names are those of the converter's table, or of its own code."""
    text, vision = model.config["text_config"], model.config["vision_config"]
    projector, flags = "qwen3vl_merger", ["clip.use_gelu"]
    if "window_size" in vision:
        projector, flags = "qwen2.5vl_merger", ["clip.use_silu"]
    elif "embed_dim" in vision:
        projector, flags = "qwen2vl_merger", []
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["depth"])
    merging = vision.get("deepstack_visual_indexes", ())
    own, of_tower = {}, {}
    for name, weight in model.cut(hf_weights(model)).items():
        if not name.startswith("model.visual."):
            plain = name.replace("language_model.", "")
            own[gguf_name(recipe, plain)] = gguf_layout(recipe, plain, weight)
            continue
        stem, kind = name.removeprefix("model.").rsplit(".", 1)
        parts = stem.split(".")
        if parts[1] == "deepstack_merger_list":
            part = parts[3].replace("linear_", "")
            of_tower[f"v.deepstack.{merging[int(parts[2])]}.{part}.{kind}"] = weight
        elif parts[1] == "merger" and parts[2] != "mlp":
            part = {
                "norm": "v.post_ln",
                "ln_q": "v.post_ln",
                "linear_fc1": "mm.0",
                "linear_fc2": "mm.2",
            }[parts[2]]
            of_tower[f"{part}.{kind}"] = weight
        elif projector != "qwen3vl_merger" and parts[-1] == "qkv":  # as that converter cuts them
            for part, third in zip("qkv", np.split(weight, 3), strict=True):
                of_tower[f"v.blk.{parts[2]}.attn_{part}.{kind}"] = third
        elif weight.ndim == 5:
            of_tower["v.patch_embd.weight"] = np.ascontiguousarray(weight[:, :, 0])
            of_tower["v.patch_embd.weight.1"] = np.ascontiguousarray(weight[:, :, 1])
        else:
            found = names.get_name(stem)
            assert found is not None, name
            found = _exchanged(found) if exchanged else found
            of_tower[f"{found}.{kind}"] = weight
    tokens = [f"<{index}>" for index in range(text["vocab_size"] - 1)] + ["<|image_pad|>"]
    path = write_gguf(
        folder / "model.gguf", gguf_metadata(recipe) | {"tokenizer.ggml.tokens": tokens}, own
    )
    side = vision["patch_size"]
    if "window_size" in vision:
        keys = {"n_wa_pattern": vision["fullatt_block_indexes"][0] + 1, **keys}
    said = {
        "projection_dim": text["hidden_size"],
        "image_size": int(vision.get("num_position_embeddings", 4900) ** 0.5) * side,
        "patch_size": side,
        "embedding_length": tower_sizes(vision)[0],
        # Of Qwen2-VL, the converter takes another number for it.
        "feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),
        "block_count": vision["depth"],
        "attention.head_count": vision["num_heads"],
        "attention.layer_norm_epsilon": text["rms_norm_eps"],
        "spatial_merge_size": vision["spatial_merge_size"],
        "window_size": vision.get("window_size"),
        "is_deepstack_layers": np.array([n in merging for n in range(vision["depth"])]),
        "image_min_pixels": model.processor["size"]["shortest_edge"],
        "image_max_pixels": model.processor["size"]["longest_edge"],
        "image_mean": np.array(model.processor["image_mean"], np.float32),
        "image_std": np.array(model.processor["image_std"], np.float32),
        **keys,
    }
    metadata = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": projector,
        **dict.fromkeys(flags, True),
        **{f"clip.vision.{key}": value for key, value in said.items() if value is not None},
    }
    write_gguf(folder / "mmproj-model-f32.gguf", metadata, of_tower)
    return path


def _gguf_recipe(model: TinyTower) -> TinyModel:
    """The model beside the tower, as GGUF files have it."""
    text = model.config["text_config"]
    head = text.get("head_dim", text["hidden_size"] // text["num_attention_heads"])
    keys: dict[str, Any] = {"attention.key_length": head, "attention.value_length": head}
    if model.is_qwen:
        sections = [*text["rope_parameters"]["mrope_section"], 0]
        keys |= {
            "rope.freq_base": 10000.0,
            "rope.dimension_sections": np.array(sections, np.int32),
        }
        merging = model.config["vision_config"].get("deepstack_visual_indexes")
        if merging is None:
            name, kind = "qwen2vl", "Qwen2VL"
        else:
            name, kind = "qwen3vl", "Qwen3VL"
            keys["n_deepstack_layers"] = len(merging)
            if (count := text.get("num_experts")) is not None:
                name, chosen = "qwen3vlmoe", text["num_experts_per_tok"]
                keys |= {"expert_count": count, "expert_used_count": chosen}
                keys["expert_feed_forward_length"] = text["moe_intermediate_size"]
        return TinyModel(name=model.name, architecture=name, hf_class=kind, config=text, keys=keys)
    if not model.averages:
        keys |= {"rope.freq_base": 10000.0, "rope.dimension_count": text["head_dim"]}
        return TinyModel(
            name=model.name, architecture="llama", hf_class="Llama", config=text, keys=keys
        )
    rope = text["rope_parameters"]
    keys |= {
        "attention.sliding_window": text["sliding_window"],
        "attention.sliding_window_pattern": 2,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
    }
    return TinyModel(
        name=model.name, architecture="gemma3", hf_class="Gemma3", config=text, keys=keys
    )
