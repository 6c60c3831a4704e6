"""Tiny random Gemma 4 with the tower of its 12B model, which has no layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from tests.data.models.text.tiny_gemma4 import gemma4_shapes
from tests.data.models.towers.tiny_gemma4_tower import GEMMA4, TinyGemma4Tower, write_pair
from tests.data.models.towers.tower_files import hf_weights


class TinyGemma4Unified(TinyGemma4Tower):
    """A recipe."""

    @property
    def merge(self) -> int:
        return 1

    @property
    def published(self) -> dict[str, str]:
        embedder = "model.embed_vision."
        return {
            f"{embedder}multimodal_embedder.": embedder,
            embedder: "model.vision_embedder.",
        }

    def drawn(self, name: str, noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
        if "self_attn.q_norm" in name:  # or scores would enlarge how sums round
            return np.float32(0.3) + np.float32(0.1) * noise
        if "embed_vision" not in name:
            return super().drawn(name, noise)
        if name.endswith("pos_embedding"):
            return np.float32(0.5) * noise
        if "patch_ln" in name or "pos_norm" in name:
            return np.float32(name.endswith("weight")) + np.float32(0.3) * noise
        return None

    def size(self, tile: int) -> tuple[int, int]:
        return ((96, 120), (120, 96), (144, 72), (72, 192))[tile % 4]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        text, vision = self.config["text_config"], self.config["vision_config"]
        size, features = vision["mm_embed_dim"], 3 * vision["model_patch_size"] ** 2
        prefix = "model.embed_vision."
        own: dict[str, tuple[int, ...]] = {
            "patch_ln1.weight": (features,),
            "patch_ln1.bias": (features,),
            "patch_dense.weight": (size, features),
            "patch_dense.bias": (size,),
            "patch_ln2.weight": (size,),
            "patch_ln2.bias": (size,),
            "pos_embedding": (vision["mm_posemb_size"], 2, size),
            "pos_norm.weight": (size,),
            "pos_norm.bias": (size,),
            "multimodal_embedder.embedding_projection.weight": (text["hidden_size"], size),
        }
        return {
            **{
                name.replace("model.", "model.language_model.", 1): shape
                for name, shape in gemma4_shapes(text).items()
            },
            **{f"{prefix}{name}": shape for name, shape in own.items()},
        }

    def write_files(self, folder: Path, keys: dict[str, Any]) -> Path:
        """Writes a model and its tower as llama.cpp's converter does."""
        vision = self.config["vision_config"]
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 0)
        side, of_tower = vision["model_patch_size"], {}
        for name, weight in self.stored(hf_weights(self)).items():
            if name.startswith("model.language_model."):
                continue
            if name.endswith("pos_embedding"):
                weight = weight.transpose(1, 0, 2).copy()
            if "patch_ln1" in name or name.endswith("patch_dense.weight"):
                by_colour = np.arange(side * side * 3).reshape(-1, 3).T.reshape(-1)
                weight = weight[..., by_colour]
            of_tower[_NAMES.get(name) or _mapped(names, name)] = weight
        sizes = {"hidden_size": vision["mm_embed_dim"], "intermediate_size": 0}
        counts = {"num_hidden_layers": 0, "num_attention_heads": 0}
        more = {"projector_type": "gemma4uv", **keys}
        return write_pair(self, folder, of_tower, {**vision, **sizes, **counts}, more)


def _mapped(names: gguf.TensorNameMap, name: str) -> str:
    """What llama.cpp's converter calls a tensor, by its table."""
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


_EMBEDDER: Final = "model.vision_embedder."
# As the converter of llama.cpp has them, of which the package's table knows none.
_NAMES: Final = {
    f"{_EMBEDDER}pos_embedding": "v.position_embd.weight",
    **{
        f"{_EMBEDDER}{theirs}.{end}": f"{ours}.{end}"
        for theirs, ours in (
            ("patch_dense", "v.patch_embd"),
            ("patch_ln1", "v.patch_norm.1"),
            ("patch_ln2", "v.patch_norm.2"),
            ("pos_norm", "v.patch_norm.3"),
        )
        for end in ("weight", "bias")
    },
}
GEMMA4_UNIFIED: Final = TinyGemma4Unified(
    name="gemma4_unified",
    # A tower that is not as wide as the model.
    config={
        **GEMMA4.config,
        "model_type": "gemma4_unified",
        "text_config": {
            key: value
            for key, value in GEMMA4.config["text_config"].items()
            if "per_layer_input" not in key
        }
        | {
            "model_type": "gemma4_unified_text",
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
        "vision_config": {
            "model_type": "gemma4_unified_vision",
            "patch_size": 8,
            "pooling_kernel_size": 3,
            "model_patch_size": 24,
            "mm_embed_dim": 160,
            "output_proj_dims": 160,
            "mm_posemb_size": 280,
            "rms_norm_eps": 1e-6,
        },
    },
    processor=GEMMA4.processor,
    seed=59,
)
