"""Tiny random models with Pixtral's tower: one of its own kind (LLaVA), and one of Mistral 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from tests.data.models.text.model_files import gguf_layout, gguf_metadata, gguf_name
from tests.data.models.text.tiny_model import TinyModel
from tests.data.models.towers.tiny_tower import PLACEHOLDER, TEXT, TinyTower, text_shapes
from tests.data.models.towers.tower_files import hf_weights
from tests.support.files.gguf_writer import write_gguf

BREAK: Final = 95
_PREFIXES: Final = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "lm_head.": "language_model.lm_head.",
}


class TinyPixtral(TinyTower):
    """A recipe; the text around its rows has a token between their lines."""

    @property
    def merge(self) -> int:
        """Patches of a side of what becomes a row."""
        merge: int = self.config.get("spatial_merge_size", 1)
        return merge

    @property
    def keeps_shape(self) -> bool:
        return True

    @property
    def line_ends(self) -> tuple[int, ...]:
        return (BREAK,)

    @property
    def published(self) -> dict[str, str]:
        return _PREFIXES

    def size(self, tile: int) -> tuple[int, int]:
        return ((64, 96), (80, 64), (48, 128), (96, 96))[tile % 4]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        text, vision = self.config["text_config"], self.config["vision_config"]
        hidden, size = text["hidden_size"], vision["hidden_size"]
        inner, patch = vision["intermediate_size"], vision["patch_size"]
        prefix, projector = "model.vision_tower.", "model.multi_modal_projector."
        layer = {
            "attention_norm": (size,),
            "ffn_norm": (size,),
            **{f"attention.{part}_proj": (size, size) for part in "qkvo"},
            "feed_forward.gate_proj": (inner, size),
            "feed_forward.up_proj": (inner, size),
            "feed_forward.down_proj": (size, inner),
        }
        found: dict[str, tuple[int, ...]] = {
            **text_shapes("model.language_model.", text),
            "lm_head.weight": (text["vocab_size"], hidden),
            f"{prefix}patch_conv.weight": (size, 3, patch, patch),
            f"{prefix}ln_pre.weight": (size,),
            f"{projector}linear_1.weight": (hidden, size),
            f"{projector}linear_2.weight": (hidden, hidden),
        }
        if self.merge > 1:
            found[f"{projector}norm.weight"] = (size,)
            merged = size * self.merge**2
            found[f"{projector}patch_merger.merging_layer.weight"] = (size, merged)
        else:
            found |= {f"{projector}linear_{n}.bias": (hidden,) for n in (1, 2)}
        for index in range(vision["num_hidden_layers"]):
            stem = f"{prefix}transformer.layers.{index}."
            found |= {f"{stem}{name}.weight": shape for name, shape in layer.items()}
        return found

    def write_files(self, folder: Path, keys: dict[str, Any]) -> Path:
        """Writes a model and its tower as llama.cpp's converter does."""
        text, vision = self.config["text_config"], self.config["vision_config"]
        architecture = "llama" if self.merge == 1 else "mistral3"
        recipe = TinyModel(
            name=self.name,
            architecture=architecture,
            hf_class="Mistral",
            config=text,
            keys={
                "attention.key_length": text["head_dim"],
                "attention.value_length": text["head_dim"],
                "rope.freq_base": 10000.0,
                "rope.dimension_count": text["head_dim"],
            },
        )
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 3)  # linear_2, too
        own, of_tower = {}, {}
        for name, weight in hf_weights(self).items():
            bare = name.removeprefix("model.")
            if name.startswith(("model.language_model.", "lm_head.")):
                plain = name.replace("language_model.", "")
                own[gguf_name(recipe, plain)] = gguf_layout(recipe, plain, weight)
                if "embed_tokens" in name:
                    of_tower["v.token_embd.img_break"] = weight[BREAK]
                continue
            found = names.get_name(bare, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            if "q_proj" in name or "k_proj" in name:
                weight = _side_by_side(weight, vision["num_attention_heads"])
            of_tower[found] = weight
        tokens = [f"<{index}>" for index in range(text["vocab_size"] - 2)]
        metadata = gguf_metadata(recipe) | {
            "tokenizer.ggml.tokens": [*tokens, "[IMG_BREAK]", "[IMG]"]
        }
        path = write_gguf(folder / "model.gguf", metadata, own)
        said = {
            "projection_dim": text["hidden_size"],
            "image_size": self.processor["size"]["longest_edge"],
            "patch_size": vision["patch_size"],
            "embedding_length": vision["hidden_size"],
            "feed_forward_length": vision["intermediate_size"],
            "block_count": vision["num_hidden_layers"],
            "attention.head_count": vision["num_attention_heads"],
            "attention.layer_norm_epsilon": 1e-5,
            "spatial_merge_size": self.config.get("spatial_merge_size"),
            "image_mean": np.array(self.processor["image_mean"], np.float32),
            "image_std": np.array(self.processor["image_std"], np.float32),
            **keys,
        }
        of_file = {
            "general.architecture": "clip",
            "clip.has_vision_encoder": True,
            "clip.projector_type": "pixtral",
            f"clip.use_{vision['hidden_act']}": True,
            **{f"clip.vision.{key}": value for key, value in said.items() if value is not None},
        }
        write_gguf(folder / "mmproj-model-f32.gguf", of_file, of_tower)
        return path


def _side_by_side(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head as pairs that rotate together, not as two halves."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


_PROCESSOR: Final = {
    "size": {"longest_edge": 128},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 3,
    "rescale_factor": 1 / 255,
}
_VISION: Final = {
    "model_type": "pixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 128,
    "patch_size": 8,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
MISTRAL3: Final = TinyPixtral(
    name="mistral3",
    config={
        "model_type": "mistral3",
        "image_token_index": PLACEHOLDER,
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "multimodal_projector_bias": False,
        "tie_word_embeddings": False,
        "text_config": {"model_type": "mistral", **TEXT, "sliding_window": None},
        "vision_config": _VISION,
    },
    processor=_PROCESSOR,
    seed=43,
)
PIXTRAL: Final = TinyPixtral(
    name="pixtral",
    # Heads of 72, networks whose size no 32 divides, and a projector as wide as five patches.
    config={
        "model_type": "llava",
        "image_token_index": PLACEHOLDER,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "tie_word_embeddings": False,
        "text_config": {"model_type": "mistral", **TEXT, "sliding_window": None},
        "vision_config": {
            **_VISION,
            "hidden_size": 288,
            "intermediate_size": 176,
            "num_attention_heads": 4,
            "patch_size": 16,
            "hidden_act": "gelu",
        },
    },
    processor=_PROCESSOR,
    seed=44,
)
