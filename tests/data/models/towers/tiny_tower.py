"""What a tiny model that takes images is: a recipe, and the shapes of its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.data.models.text.tiny_recurrent import delta_shapes

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
        return PUBLISHED

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


def tower_sizes(vision: dict[str, Any]) -> tuple[int, int, int]:
    """Elements of hidden states of a tower of Qwen's, of networks, and of rows of embeddings."""
    if "embed_dim" in vision:
        return vision["embed_dim"], vision["embed_dim"] * vision["mlp_ratio"], vision["hidden_size"]
    return vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]


PUBLISHED: Final = {
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


@cache
def goldens(name: str) -> dict[str, Any]:
    """What Transformers computes for a model."""
    path = Path(__file__).parents[1] / "goldens/tower_goldens.json"
    found: dict[str, Any] = json.loads(path.read_text())
    model: dict[str, Any] = found[name]
    return model
