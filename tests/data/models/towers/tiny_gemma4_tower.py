"""Tiny random Gemma 4: with the tower of its larger models, and with that of E2B and E4B."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from tests.data.models.text.model_files import gguf_layout, gguf_metadata, gguf_name
from tests.data.models.text.tiny_gemma4 import gemma4_shapes, gemma4_tensors, rope_divisors
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.towers.tiny_tower import PLACEHOLDER, TEXT, Tensors, TinyTower
from tests.data.models.towers.tower_files import hf_weights
from tests.support.files.gguf_writer import write_gguf


class TinyGemma4Tower(TinyTower):
    """A recipe."""

    @property
    def both_ways(self) -> bool:
        return bool(self.config["text_config"]["use_bidirectional_attention"] == "vision")

    @property
    def ties(self) -> bool:
        return True

    @property
    def merge(self) -> int:
        merge: int = self.config["vision_config"]["pooling_kernel_size"]
        return merge

    @property
    def keeps_shape(self) -> bool:
        return True

    @property
    def published(self) -> dict[str, str]:
        return {}

    def drawn(self, name: str, noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
        if name.endswith(BOUNDS):  # within half of all numbers, and differing from each other
            spreads = {"o_proj.input": 0.3, "o_proj.output": 0.5, "down_proj": 0.25}
            spread = next((found for part, found in spreads.items() if part in name), 1.0)
            sign = -1 if name.endswith("_min") else 1
            return np.array(sign * spread * (0.7 + 0.1 * np.tanh(noise)), np.float32)
        has_bounds = self.config["vision_config"].get("use_clipped_linears", False)
        if has_bounds and "self_attn.q_norm" in name:  # or scores would enlarge how sums round
            mean, spread = (0.2, 0.1) if "vision_tower" in name else (0.15, 0.05)
            return np.float32(mean) + np.float32(spread) * noise
        for part, mean, spread in (
            ("vision_tower.std_bias", 0.0, 20.0),
            ("vision_tower.std_scale", 0.03, 0.01),
            ("layer_scalar", 0.6, 0.2),
            ("position_embedding_table", 0.0, 0.5),
            ("vision_tower.encoder.layers.0.self_attn.q_norm", 0.5, 0.2),
        ):
            if part in name:
                return np.float32(mean) + np.float32(spread) * noise
        return None

    def size(self, tile: int) -> tuple[int, int]:
        return ((72, 144), (96, 96), (120, 96), (48, 216))[tile % 4]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        text, vision = self.config["text_config"], self.config["vision_config"]
        size, inner, head = (
            vision[key] for key in ("hidden_size", "intermediate_size", "head_dim")
        )
        heads = head * vision["num_attention_heads"]
        layer = {
            **{f"self_attn.{part}_proj.linear": (heads, size) for part in "qkv"},
            "self_attn.o_proj.linear": (size, heads),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "input_layernorm": (size,),
            "post_attention_layernorm": (size,),
            "pre_feedforward_layernorm": (size,),
            "post_feedforward_layernorm": (size,),
            "mlp.gate_proj.linear": (inner, size),
            "mlp.up_proj.linear": (inner, size),
            "mlp.down_proj.linear": (size, inner),
        }
        prefix = "model.vision_tower."
        return {
            **{
                name.replace("model.", "model.language_model.", 1): shape
                for name, shape in gemma4_shapes(text).items()
            },
            f"{prefix}patch_embedder.input_proj.weight": (size, 3 * vision["patch_size"] ** 2),
            f"{prefix}patch_embedder.position_embedding_table": (
                2,
                vision["position_embedding_size"],
                size,
            ),
            **{f"{prefix}std_{each}": (size,) for each in _STANDARD if vision["standardize"]},
            "model.embed_vision.embedding_projection.weight": (text["hidden_size"], size),
            **{
                f"{prefix}encoder.layers.{index}.{name}.weight": shape
                for index in range(vision["num_hidden_layers"])
                for name, shape in layer.items()
            },
            **{
                f"{prefix}encoder.layers.{index}.{name.removesuffix('.linear')}.{end}": ()
                for index in range(vision["num_hidden_layers"])
                for name in layer
                for end in BOUNDS
                if vision.get("use_clipped_linears") and name.endswith(".linear")
            },
        }

    def write_files(self, folder: Path, keys: dict[str, Any]) -> Path:
        """Writes a model and its tower as llama.cpp's converter does."""
        vision = self.config["vision_config"]
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
        of_tower = {}
        for name, weight in hf_weights(self).items():
            if name.startswith("model.language_model."):
                continue
            plain = name.replace("model.vision_tower.encoder.", "vision_model.model.")
            plain = plain.replace(".linear.weight", ".weight")
            if name.endswith("table"):
                plain += ".weight"
            if "input_proj" in name:
                side = vision["patch_size"]
                weight = weight.reshape(-1, side, side, 3).transpose(0, 3, 1, 2).copy()
            found = names.get_name(
                plain, try_suffixes=(".weight", ".bias", *(f".{end}" for end in BOUNDS))
            )
            assert found is not None, plain
            of_tower[found] = np.atleast_1d(weight)
        return write_pair(self, folder, of_tower, vision, {"projector_type": "gemma4v", **keys})


def write_pair(
    model: TinyGemma4Tower,
    folder: Path,
    of_tower: Tensors,
    vision: dict[str, Any],
    keys: dict[str, Any],
) -> Path:
    """Writes a model, and these tensors as its tower; returns the model's path.

    Args:
        model: The recipe.
        folder: Where both files go.
        of_tower: Its tensors, by their names in files.
        vision: Its sizes, by the names of Gemma 4's others.
        keys: More of its metadata, without "clip.vision.".
    """
    text = model.config["text_config"]
    recipe = _recipe(model.name, text)
    of_text = {
        name.replace("language_model.", ""): weight
        for name, weight in hf_weights(model).items()
        if name.startswith("model.language_model.")
    }
    own = {
        gguf_name(recipe, name): gguf_layout(recipe, name, weight)
        for name, weight in gemma4_tensors(of_text).items()
    }
    own["rope_freqs.weight"] = rope_divisors(text["global_head_dim"])
    tokens = [f"<{index}>" for index in range(text["vocab_size"] - 1)] + ["<|image|>"]
    metadata = gguf_metadata(recipe) | {"tokenizer.ggml.tokens": tokens}
    path = write_gguf(folder / "model.gguf", metadata, own)
    said = {
        "projection_dim": text["hidden_size"],
        "image_size": 224,
        "patch_size": vision["patch_size"],
        "embedding_length": vision["hidden_size"],
        "feed_forward_length": vision["intermediate_size"],
        "block_count": vision["num_hidden_layers"],
        "attention.head_count": vision["num_attention_heads"],
        "attention.layer_norm_epsilon": vision["rms_norm_eps"],
        "image_mean": np.array(model.processor["image_mean"], np.float32),
        "image_std": np.array(model.processor["image_std"], np.float32),
        **keys,
    }
    of_file = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        **{f"clip.vision.{key}": value for key, value in said.items() if value is not None},
    }
    write_gguf(folder / "mmproj-model-f32.gguf", of_file, of_tower)
    return path


def _recipe(name: str, text: dict[str, Any]) -> TinyModel:
    """The model beside the tower, as GGUF files have it."""
    rope, full, dim = text["rope_parameters"], text["global_head_dim"], text["head_dim"]
    sliding = np.array([kind != "full_attention" for kind in text["layer_types"]])
    kv_heads = np.full(len(sliding), text["num_key_value_heads"], np.int32)
    shared, inner = text.get("num_kv_shared_layers", 0), text["intermediate_size"]
    widths = [inner] * (len(sliding) - shared) + [2 * inner] * shared
    return TinyModel(
        name=name,
        architecture="gemma4",
        hf_class="Gemma4",
        config=text,
        keys={
            **{f"attention.{part}_length": full for part in ("key", "value")},
            **{f"attention.{part}_length_swa": dim for part in ("key", "value")},
            "attention.head_count_kv": kv_heads,
            "attention.sliding_window": text["sliding_window"],
            "attention.sliding_window_pattern": sliding,
            "attention.shared_kv_layers": shared,
            "embedding_length_per_layer_input": text.get("hidden_size_per_layer_input", 0),
            **({"feed_forward_length": np.array(widths, np.int32)} if shared else {}),
            "rope.freq_base": rope["full_attention"]["rope_theta"],
            "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
            "final_logit_softcapping": text["final_logit_softcapping"],
            "rope.dimension_count": full,
            "rope.dimension_count_swa": dim,
        },
    )


BOUNDS: Final = ("input_min", "input_max", "output_min", "output_max")
_STANDARD: Final = ("bias", "scale")
_LAYER_TYPES: Final = ("sliding_attention", "full_attention", "full_attention")
_TEXT: Final[dict[str, Any]] = {
    "model_type": "gemma4_text",
    **TEXT,
    "pad_token_id": 0,
    "num_hidden_layers": len(_LAYER_TYPES),
    "global_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 97,
    "tie_word_embeddings": True,
    "sliding_window": 7,
    "layer_types": list(_LAYER_TYPES),
    "final_logit_softcapping": 3.0,
    "use_bidirectional_attention": "vision",
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 5000.0,
        },
    },
}
GEMMA4: Final = TinyGemma4Tower(
    name="gemma4",
    # Heads of 72, networks whose size no 32 divides, and a window that is smaller than an image.
    config={
        "model_type": "gemma4",
        "image_token_id": PLACEHOLDER,
        "video_token_id": 95,
        "audio_token_id": 94,
        "tie_word_embeddings": True,
        "audio_config": None,
        "text_config": _TEXT,
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 288,
            "intermediate_size": 176,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 72,
            "patch_size": 8,
            "pooling_kernel_size": 3,
            "position_embedding_size": 840,
            "standardize": True,
            "rms_norm_eps": 1e-6,
        },
    },
    processor={
        "max_soft_tokens": 280,
        "patch_size": 8,
        "pooling_kernel_size": 3,
        "do_normalize": False,
        "image_mean": [0.0, 0.0, 0.0],
        "image_std": [1.0, 1.0, 1.0],
        "resample": 3,
        "rescale_factor": 1 / 255,
    },
    seed=47,
)


_E_LAYER_TYPES: Final = 2 * ("sliding_attention", "full_attention")
GEMMA4_E: Final = TinyGemma4Tower(
    name="gemma4_e",
    # Another embedding for each layer, layers that read the keys of others, and rows that see none
    # behind them; networks of the tower whose size no 32 divides.
    config=GEMMA4.config
    | {
        "text_config": _TEXT
        | {
            "num_hidden_layers": len(_E_LAYER_TYPES),
            "layer_types": list(_E_LAYER_TYPES),
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 32,
            "use_bidirectional_attention": None,
        },
        "vision_config": GEMMA4.config["vision_config"]
        | {
            "hidden_size": 128,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "standardize": False,
            "use_clipped_linears": True,
        },
    },
    processor=GEMMA4.processor,
    seed=53,
)
"""With bounds around the products of its tower, all of which matter."""
