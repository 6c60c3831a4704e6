"""A tiny random model with InternVL's tower: a class token, scales of layers, and tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from tests.data.models.text.model_files import gguf_layout, gguf_metadata, gguf_name
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.towers.tiny_tower import PLACEHOLDER, TEXT, TinyTower, text_shapes
from tests.data.models.towers.tower_files import hf_weights
from tests.support.files.gguf_writer import write_gguf

_PREFIXES: Final = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "lm_head.": "language_model.lm_head.",
}
_MLP: Final = {"layer_norm": 0, "linear_1": 1, "linear_2": 3}


class TinyInternVL(TinyTower):
    """A recipe."""

    @property
    def published(self) -> dict[str, str]:
        return _PREFIXES

    def size(self, tile: int) -> tuple[int, int]:
        height, width = self.config["vision_config"]["image_size"]
        return height, width

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        text, vision = self.config["text_config"], self.config["vision_config"]
        hidden, size = text["hidden_size"], vision["hidden_size"]
        inner, patch = vision["intermediate_size"], vision["patch_size"][0]
        patches = (vision["image_size"][0] // patch) ** 2
        prefix, projector = "model.vision_tower.", "model.multi_modal_projector."
        with_biases: dict[str, tuple[int, ...]] = {
            f"{prefix}embeddings.patch_embeddings.projection": (size, 3, patch, patch),
            f"{projector}layer_norm": (4 * size,),
            f"{projector}linear_1": (hidden, 4 * size),
            f"{projector}linear_2": (hidden, hidden),
        }
        found: dict[str, tuple[int, ...]] = {
            **text_shapes("model.language_model.", text),
            "lm_head.weight": (text["vocab_size"], hidden),
            f"{prefix}embeddings.cls_token": (1, 1, size),
            f"{prefix}embeddings.position_embeddings": (1, patches + 1, size),
        }
        for index in range(vision["num_hidden_layers"]):
            stem = f"{prefix}encoder.layer.{index}."
            found |= {f"{stem}lambda_1": (size,), f"{stem}lambda_2": (size,)}
            layer = {
                "layernorm_before": (size,),
                "layernorm_after": (size,),
                **{f"attention.{part}_proj": (size, size) for part in "qkv"},
                "attention.projection_layer": (size, size),
                "mlp.fc1": (inner, size),
                "mlp.fc2": (size, inner),
            }
            if vision["use_qk_norm"]:
                norms = (
                    "layernorm_before",
                    "layernorm_after",
                    "attention.q_norm",
                    "attention.k_norm",
                )
                found |= {f"{stem}{name}.weight": (size,) for name in norms}
                found |= {f"{stem}attention.{part}_proj.weight": (size, size) for part in "qkv"}
                ends = ("_proj", "layernorm_before", "layernorm_after")
                layer = {name: layer[name] for name in layer if not name.endswith(ends)}
            with_biases |= {f"{stem}{name}": shape for name, shape in layer.items()}
        for name, shape in with_biases.items():
            found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        return found

    def write_files(self, folder: Path, keys: dict[str, Any]) -> Path:
        """Writes a model and its tower as llama.cpp's converter does."""
        text, vision = self.config["text_config"], self.config["vision_config"]
        recipe = TinyModel(
            name=self.name,
            architecture="qwen3",
            hf_class="Qwen3",
            config=text,
            keys={
                "attention.key_length": text["head_dim"],
                "attention.value_length": text["head_dim"],
                "rope.freq_base": 10000.0,
            },
        )
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
        own, of_tower = {}, {}
        for name, weight in hf_weights(self).items():
            if name.startswith(("model.language_model.", "lm_head.")):
                plain = name.replace("language_model.", "")
                own[gguf_name(recipe, plain)] = gguf_layout(recipe, plain, weight)
                continue
            if "projector" in name:
                _, _, stem, kind = name.split(".")
                of_tower[f"mm.model.mlp.{_MLP[stem]}.{kind}"] = weight
                continue
            plain = f"{name}.weight" if "lambda" in name or "position" in name else name
            found = names.get_name(plain, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            bare = weight.reshape(weight.shape[-1:] if "cls" in name else weight.shape)
            of_tower[found] = bare[0] if "position" in name else bare
        tokens = [f"<{index}>" for index in range(text["vocab_size"] - 1)] + ["<IMG_CONTEXT>"]
        metadata = gguf_metadata(recipe) | {"tokenizer.ggml.tokens": tokens}
        path = write_gguf(folder / "model.gguf", metadata, own)
        said = {
            "projection_dim": text["hidden_size"],
            "image_size": vision["image_size"][0],
            "patch_size": vision["patch_size"][0],
            "embedding_length": vision["hidden_size"],
            "feed_forward_length": vision["intermediate_size"],
            "block_count": vision["num_hidden_layers"],
            "attention.head_count": vision["num_attention_heads"],
            "attention.layer_norm_epsilon": vision["layer_norm_eps"],
            "projector.scale_factor": 2,
            "preproc_min_tiles": self.processor["min_patches"],
            "preproc_max_tiles": self.processor["max_patches"],
            "image_mean": np.array(self.processor["image_mean"], np.float32),
            "image_std": np.array(self.processor["image_std"], np.float32),
            **keys,
        }
        of_file = {
            "general.architecture": "clip",
            "clip.has_vision_encoder": True,
            "clip.projector_type": "internvl",
            "clip.use_gelu": True,
            **{f"clip.vision.{key}": value for key, value in said.items() if value is not None},
        }
        write_gguf(folder / "mmproj-model-f32.gguf", of_file, of_tower)
        return path


INTERNVL: Final = TinyInternVL(
    name="internvl",
    # Heads of 72, and networks and patches whose sizes no 32 divides.
    config={
        "model_type": "internvl",
        "image_token_id": PLACEHOLDER,
        "image_seq_length": 16,
        "downsample_ratio": 0.5,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen3", **TEXT, "tie_word_embeddings": False},
        "vision_config": {
            "model_type": "internvl_vision",
            "hidden_size": 288,
            "intermediate_size": 176,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "attention_bias": True,
            "image_size": [56, 56],
            "patch_size": [7, 7],
            "hidden_act": "gelu",
            "layer_norm_eps": 0.01,  # not that of the norm of rows
            "norm_type": "layer_norm",
            "use_qk_norm": False,
            "use_mean_pooling": True,
        },
    },
    processor={
        "crop_to_patches": False,
        "min_patches": 1,
        "max_patches": 12,
        "size": {"height": 56, "width": 56},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 1 / 255,
    },
    seed=45,
)

INTERNVL_6B: Final = TinyInternVL(
    name="internvl_6b",
    config={
        **INTERNVL.config,
        "vision_config": {
            **INTERNVL.config["vision_config"],
            "hidden_size": 256,
            "num_attention_heads": 2,
            "attention_bias": False,
            "layer_norm_eps": 1e-6,
            "norm_type": "rms_norm",
            "use_qk_norm": True,
        },
    },
    processor=INTERNVL.processor,
    seed=61,
)
