"""Tiny random models that take images, as folders in Hugging Face's layout and as GGUF files.

A recipe is a configuration of Transformers and a seed. `make_tower_goldens.py` records what
Transformers computes with those weights, from pixels to logits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from tests.data.models.tiny_model import TinyModel
from tests.data.models.tiny_models import gguf_layout, gguf_metadata, gguf_name
from tests.data.models.tiny_recurrent import delta_shapes
from tests.support.gguf_writer import write_gguf
from tests.support.safetensors_writer import write_safetensors

Tensors = dict[str, npt.NDArray[np.float32]]

PLACEHOLDER: Final = 96
PARTS: Final[tuple[tuple[int, ...] | int, ...]] = (
    (3, 14, 15, 92),
    0,
    (90, 7),
    1,
    tuple(7 * index % 89 for index in range(12)),
)
"""A prompt: tokens, and indices of tiles."""
GOLDEN_ROWS: Final = (0, 5, 15)
"""Of a tile."""
GOLDEN_TOKENS: Final = (-12, -5, -1)
"""Of the prompt."""

TEXT: Final = {
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_VISION: Final = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 8,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


@dataclass(frozen=True, kw_only=True)
class TinyTower:
    """A recipe: `config.json` and the file of the processor, without what Transformers adds."""

    name: str
    config: dict[str, Any]
    processor: dict[str, Any]
    seed: int

    @property
    def averages(self) -> bool:
        """Whether it has Gemma 3's end."""
        return bool(self.config["model_type"] == "gemma3")

    @property
    def both_ways(self) -> bool:
        """Whether its rows see each other both ways."""
        return self.averages

    @property
    def ties(self) -> bool:
        """Whether its embedding makes logits, too."""
        return self.averages

    def drawn(self, name: str, noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
        """A weight of its own kind, of noise; None of others."""
        return None

    @property
    def is_qwen(self) -> bool:
        """Whether its pictures keep their shape."""
        return "depth" in self.config["vision_config"]

    @property
    def keeps_shape(self) -> bool:
        """Whether tiles differ in their sizes."""
        return self.is_qwen

    @property
    def merge(self) -> int:
        """Patches of a side of what becomes a row."""
        merge: int = self.config["vision_config"]["spatial_merge_size"]
        return merge

    @property
    def line_ends(self) -> tuple[int, ...]:
        """Tokens between lines of rows."""
        return ()

    @property
    def published(self) -> dict[str, str]:
        """What names began with in files, by what they begin with in Transformers."""
        return _PUBLISHED

    def stored(self, weights: Tensors) -> Tensors:
        """Weights as they are in files of folders."""
        return published(weights, self.published)

    def cut(self, weights: Tensors) -> Tensors:
        """Weights as those that GGUF files have, still by Hugging Face's names."""
        return weights

    def write_files(self, folder: Path, keys: dict[str, Any]) -> Path | None:
        """Does as `write_tower_files`; None: that knows this kind itself."""
        return None

    def size(self, tile: int) -> tuple[int, int]:
        """The height and width of a tile."""
        if self.is_qwen:
            return ((64, 96), (80, 64), (48, 128), (96, 96))[tile % 4]
        side: int = self.config["vision_config"]["image_size"]
        return side, side

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all weights, by Hugging Face's names."""
        text, vision = self.config["text_config"], self.config["vision_config"]
        if self.is_qwen:
            if "layer_types" in text:
                of_text = {
                    name.replace("model.", "model.language_model.", 1): shape
                    for name, shape in delta_shapes(text, fused=False).items()
                }
                return {**of_text, **_qwen_shapes("model.visual.", vision)}
            return {
                **text_shapes("model.language_model.", text),
                **_qwen_shapes("model.visual.", vision),
                "lm_head.weight": (text["vocab_size"], text["hidden_size"]),
            }
        hidden, size = text["hidden_size"], vision["hidden_size"]
        if self.averages:
            return {
                **text_shapes("model.language_model.", text, _GEMMA_NORMS),
                **_vision_shapes("model.vision_tower.", vision),
                "model.multi_modal_projector.mm_input_projection_weight": (size, hidden),
                "model.multi_modal_projector.mm_soft_emb_norm.weight": (size,),
            }
        merged = size * self.config["scale_factor"] ** 2
        return {
            **text_shapes("model.text_model.", text),
            **_vision_shapes("model.vision_model.", vision),
            "model.connector.modality_projection.proj.weight": (hidden, merged),
            "lm_head.weight": (text["vocab_size"], hidden),
        }


_QWEN2_TEXTS: Final = ("qwen2_vl_text", "qwen2_5_vl_text")
_GEMMA_NORMS: Final = ("pre_feedforward_layernorm", "post_feedforward_layernorm")


def text_shapes(
    prefix: str, text: dict[str, Any], norms: tuple[str, ...] = ()
) -> dict[str, tuple[int, ...]]:
    hidden, inner = text["hidden_size"], text["intermediate_size"]
    head = text.get("head_dim", hidden // text["num_attention_heads"])
    q, kv = head * text["num_attention_heads"], head * text["num_key_value_heads"]
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        **dict.fromkeys(norms, (hidden,)),
        **({"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)} if norms else {}),
    }
    if text["model_type"] == "qwen3" or (
        "mrope_section" in text.get("rope_parameters", {})
        and text["model_type"] not in _QWEN2_TEXTS
    ):
        layer |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    return {
        f"{prefix}embed_tokens.weight": (text["vocab_size"], hidden),
        f"{prefix}norm.weight": (hidden,),
        **{
            f"{prefix}layers.{index}.{name}.weight": shape
            for index in range(text["num_hidden_layers"])
            for name, shape in layer.items()
        },
        **{
            f"{prefix}layers.{index}.self_attn.{part}_proj.bias": (rows,)
            for index in range(text["num_hidden_layers"])
            for part, rows in (("q", q), ("k", kv), ("v", kv))
            if text["model_type"] in _QWEN2_TEXTS
        },
    }


def _vision_shapes(prefix: str, vision: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    size, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    layer = {
        "layer_norm1": (size,),
        "layer_norm2": (size,),
        **{f"self_attn.{part}_proj": (size, size) for part in ("q", "k", "v", "out")},
        "mlp.fc1": (inner, size),
        "mlp.fc2": (size, inner),
    }
    found: dict[str, tuple[int, ...]] = {
        f"{prefix}embeddings.patch_embedding.weight": (size, 3, patch, patch),
        f"{prefix}embeddings.patch_embedding.bias": (size,),
        f"{prefix}embeddings.position_embedding.weight": (
            (vision["image_size"] // patch) ** 2,
            size,
        ),
        f"{prefix}post_layernorm.weight": (size,),
        f"{prefix}post_layernorm.bias": (size,),
    }
    for index in range(vision["num_hidden_layers"]):
        for name, shape in layer.items():
            stem = f"{prefix}encoder.layers.{index}.{name}"
            found |= {f"{stem}.weight": shape, f"{stem}.bias": shape[:1]}
    return found


def _qwen_shapes(prefix: str, vision: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    size, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    merged = size * vision["spatial_merge_size"] ** 2
    layer = {
        "norm1": (size,),
        "norm2": (size,),
        "attn.qkv": (3 * size, size),
        "attn.proj": (size, size),
        "mlp.linear_fc1": (inner, size),
        "mlp.linear_fc2": (size, inner),
    }
    parts: dict[str, tuple[int, ...]] = {
        "patch_embed.proj": (size, 3, vision["temporal_patch_size"], patch, patch)
    }
    merging = vision.get("deepstack_visual_indexes", ())
    mergers = [f"deepstack_merger_list.{n}" for n in range(len(merging))]
    for stem in ("merger", *mergers):
        parts[f"{stem}.norm"] = (size if stem == "merger" else merged,)
        parts[f"{stem}.linear_fc1"] = (merged, merged)
        parts[f"{stem}.linear_fc2"] = (vision["out_hidden_size"], merged)
    for index in range(vision["depth"]):
        parts |= {f"blocks.{index}.{name}": shape for name, shape in layer.items()}
    found: dict[str, tuple[int, ...]] = {
        f"{prefix}pos_embed.weight": (vision["num_position_embeddings"], size)
    }
    for name, shape in parts.items():
        found |= {f"{prefix}{name}.weight": shape, f"{prefix}{name}.bias": shape[:1]}
    return found


SMOLVLM: Final = TinyTower(
    name="smolvlm",
    config={
        "model_type": "smolvlm",
        "image_token_id": PLACEHOLDER,
        "scale_factor": 2,
        "tie_word_embeddings": False,
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "smolvlm_vision", **_VISION},
    },
    processor={
        "do_image_splitting": True,
        "max_image_size": {"longest_edge": 64},
        "size": {"longest_edge": 192},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 1,
        "rescale_factor": 1 / 255,
    },
    seed=31,
)
_LAYER_TYPES: Final = ("sliding_attention", "full_attention", "sliding_attention")
GEMMA3: Final = TinyTower(
    name="gemma3",
    # Heads of 72, networks and patches whose sizes no 32 divides, and a window that is smaller than
    # an image.
    config={
        "model_type": "gemma3",
        "image_token_index": PLACEHOLDER,
        "mm_tokens_per_image": 16,
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "gemma3_text",
            **TEXT,
            "num_hidden_layers": len(_LAYER_TYPES),
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 64,
            "sliding_window": 7,
            "layer_types": list(_LAYER_TYPES),
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            **_VISION,
            "hidden_size": 288,
            "num_attention_heads": 4,
            "intermediate_size": 176,
            "image_size": 112,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    processor={
        "do_pan_and_scan": None,
        "size": {"height": 112, "width": 112},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 2,
        "rescale_factor": 1 / 255,
    },
    seed=32,
)
_QWEN_VISION: Final = {
    "model_type": "qwen3_vl_vision",
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 2,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 1],
    "hidden_act": "gelu_pytorch_tanh",
}
QWEN3_VL: Final = TinyTower(
    name="qwen3_vl",
    config={
        "model_type": "qwen3_vl",
        "image_token_id": PLACEHOLDER,
        "video_token_id": 95,
        "vision_start_token_id": 94,
        "vision_end_token_id": 93,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_text",
            **TEXT,
            "num_hidden_layers": 3,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [12, 10, 10],
                "mrope_interleaved": True,
            },
        },
        "vision_config": _QWEN_VISION,
    },
    processor={
        "size": {"shortest_edge": 1024, "longest_edge": 16384},
        "patch_size": 8,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 1 / 255,
    },
    seed=38,
)
QWEN35: Final = TinyTower(
    name="qwen3_5",
    # Most of its layers have states, and its tower makes no rows for inner layers.
    config={
        **QWEN3_VL.config,
        "model_type": "qwen3_5",
        "text_config": {
            "model_type": "qwen3_5_text",
            **TEXT,
            "num_hidden_layers": 3,
            "rms_norm_eps": 1e-6,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            **{key: value for key, value in _QWEN_VISION.items() if "deepstack" not in key},
            "model_type": "qwen3_5_vision",
            # Heads of 72, and networks whose size no 32 divides.
            "hidden_size": 288,
            "intermediate_size": 176,
            "num_heads": 4,
        },
    },
    processor=QWEN3_VL.processor,
    seed=41,
)
TOWERS: Final = (SMOLVLM, GEMMA3, QWEN3_VL, QWEN35)
IN_FILES: Final = (SMOLVLM, GEMMA3, QWEN3_VL)
"""Those that are written as GGUF files, too: the tower of Qwen 3.5 is as that of Qwen3-VL."""


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


_PUBLISHED: Final = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
"""Names of Gemma 3 as it was published, by those that Transformers has now."""


def published(weights: Tensors, prefixes: dict[str, str]) -> Tensors:
    """Weights by their names in the files that there are."""

    def name_of(name: str) -> str:
        for prefix, old in prefixes.items():
            if name.startswith(prefix):
                return old + name.removeprefix(prefix)
        return name

    return {name_of(name): weight for name, weight in weights.items()}


def write_tower_folder(model: TinyTower, path: Path, **config: Any) -> Path:
    """Writes the folder of a model, with changes to its configuration; returns its path."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({**model.config, **config}))
    (path / "preprocessor_config.json").write_text(json.dumps(model.processor))
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
    for name, weight in published(hf_weights(model), _PUBLISHED).items():
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


def tower_sizes(vision: dict[str, Any]) -> tuple[int, int, int]:
    """Elements of hidden states of a tower of Qwen's, of networks, and of rows of embeddings."""
    if "embed_dim" in vision:
        return vision["embed_dim"], vision["embed_dim"] * vision["mlp_ratio"], vision["hidden_size"]
    return vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]


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


@cache
def goldens(name: str) -> dict[str, Any]:
    """What Transformers computes for a model."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("tower_goldens.json").read_text())
    model: dict[str, Any] = found[name]
    return model
