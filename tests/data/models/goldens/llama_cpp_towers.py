"""The tiny models with towers that llama.cpp has computed, too, and what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocmforge.gguf.reader import open_gguf
from tests.data.models.towers.tiny_gemma4_tower import GEMMA4, GEMMA4_E, TinyGemma4Tower
from tests.data.models.towers.tiny_gemma4_unified import GEMMA4_UNIFIED, TinyGemma4Unified
from tests.data.models.towers.tiny_internvl import INTERNVL
from tests.data.models.towers.tiny_pixtral import MISTRAL3, PIXTRAL
from tests.data.models.towers.tiny_tower import TinyTower
from tests.data.models.towers.tiny_towers import GEMMA3, QWEN3_VL, SMOLVLM
from tests.data.models.towers.tiny_windows import QWEN2_VL, QWEN25_VL, TinyMerging
from tests.data.models.towers.tower_files import write_tower_files
from tests.support.files.gguf_writer import write_gguf

GOLDENS: Final = Path(__file__).with_name("llama_cpp_tower_goldens.json")
ROWS: Final = (0, 5, 15)
"""Of a tile."""
COLUMNS: Final = 384
"""Of a row, at most."""
_KEYS: Final[dict[str, dict[str, Any]]] = {"smolvlm": {"preproc_image_size": 64}}
"""With which a picture of the size of a tile is not scaled."""
_MORE: Final[dict[str, dict[str, Any]]] = {
    name: {"clip.use_gelu": True} for name in ("gemma4", "gemma4_e")
}
"""Without which llama.cpp takes quick GELU: converters do not write it, and Gemma 4 has another."""
_EXACT: Final[dict[str, Any]] = {
    "image_mean": np.zeros(3, np.float32),
    "image_std": np.full(3, 256 / 255, np.float32),
}
"""With which pixels are halves: llama.cpp rounds patches, and the matrix that they meet."""


def _changed(kind: type[TinyTower], model: TinyTower, part: str, **changes: Any) -> TinyTower:
    """A recipe as another kind of recipe, with changes of a part of its configuration."""
    config = model.config | {part: {**model.config[part], **changes}}
    return kind(name=model.name, config=config, processor=model.processor, seed=model.seed)


def _with_sections(model: TinyTower, sections: list[int]) -> TinyTower:
    """A model whose axes of positions have other shares of the pairs that rotate."""
    rope = {**model.config["text_config"]["rope_parameters"], "mrope_section": sections}
    return _changed(type(model), model, "text_config", rope_parameters=rope)


class _WiderPictures(TinyMerging):
    """A recipe whose pictures are larger than the windows of which llama.cpp knows alone."""

    def size(self, tile: int) -> tuple[int, int]:
        return ((48, 128), (144, 64))[tile % 2]


class _LargerPictures(TinyGemma4Tower):
    """A recipe whose pictures become 70 rows or more, fewer of which llama.cpp does not make.

    Scores of its text part are small, so that they do not multiply what a table of halves does.
    """

    def drawn(self, name: str, noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
        if "language_model" in name and "self_attn.q_norm" in name:
            return np.float32(0.1) + np.float32(0.02) * noise
        return super().drawn(name, noise)

    def size(self, tile: int) -> tuple[int, int]:
        return ((168, 240), (288, 144))[tile % 2]


class _LargerUnified(TinyGemma4Unified):
    """The same of one with Gemma 4 12B's tower."""

    def drawn(self, name: str, noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
        if "self_attn.q_norm" in name:
            return np.float32(0.1) + np.float32(0.02) * noise
        return super().drawn(name, noise)

    def size(self, tile: int) -> tuple[int, int]:
        return ((168, 240), (288, 144))[tile % 2]


_WINDOWS: Final = ["sliding_attention", "sliding_attention", "full_attention"]
# llama.cpp leaves pairs alone that are of an axis without a share at their place; Transformers
# rotates them by the first axis. Qwen3-VL has two of 64, whose angles are small.
MODELS: Final = (
    SMOLVLM,
    GEMMA3,
    _with_sections(QWEN3_VL, [11, 11, 10]),
    MISTRAL3,
    PIXTRAL,
    INTERNVL,
    QWEN2_VL,
    # llama.cpp's rows see each other in all layers, those of Transformers in those with a window.
    _changed(_LargerPictures, GEMMA4, "text_config", layer_types=_WINDOWS),
    # Rows see none behind them there if they are as wide as those of E2B or E4B.
    _changed(
        _LargerPictures,
        GEMMA4_E,
        "text_config",
        hidden_size=1536,
        num_hidden_layers=3,
        num_kv_shared_layers=1,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
    _changed(_LargerUnified, GEMMA4_UNIFIED, "text_config", layer_types=_WINDOWS),
    _changed(_WiderPictures, QWEN25_VL, "vision_config", window_size=112),
)


def write_for_llama_cpp(model: TinyTower, folder: Path, *, classes_last: bool = False) -> Path:
    """Writes a model and its tower so that llama.cpp opens both; returns the model's path.

    Its library for images looks for tokens by their text, so that the model needs a tokenizer.

    Args:
        model: The recipe.
        folder: Where both files go.
        classes_last: Whether the place of InternVL's class token is behind those of patches. There
            llama.cpp looks for it, but converters leave it in front, as Transformers has it.
    """
    path = write_tower_files(model, folder, **_EXACT, **_KEYS.get(model.name, {}))
    more = _MORE.get(model.name, {})
    _write_again(next(folder.glob("mmproj*")), more, classes_last and model is INTERNVL)
    tokenizer = {"model": "gpt2", "pre": "gpt-2", "merges": ["< 0"]}
    return _write_again(path, {f"tokenizer.ggml.{key}": tokenizer[key] for key in tokenizer})


def _write_again(path: Path, more: dict[str, Any], classes_last: bool = False) -> Path:
    """Writes a GGUF file with more keys, and matrices for patches as halves.

    What multiplies normed patches stays as it is: llama.cpp would round these to halves, too.
    """
    with open_gguf(path) as file:
        metadata = {**file.metadata, **more}
        rounds = "v.patch_norm.1.weight" not in file.tensors
        tensors = {
            name: tensor.data.view(np.float32)
            .reshape(tensor.shape)
            .astype(np.float16 if rounds and "patch_embd.weight" in name else np.float32)
            for name, tensor in file.tensors.items()
        }
    if classes_last:
        places = "v.position_embd.weight"
        tensors[places] = np.roll(tensors[places], -1, axis=0)
    return write_gguf(path, metadata, tensors)


def llama_cpp_golden(name: str) -> dict[str, Any]:
    """What llama.cpp computed for a model; see make_llama_cpp_tower_goldens.py."""
    found: dict[str, Any] = json.loads(GOLDENS.read_text())[name]
    return found
