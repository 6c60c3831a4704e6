"""The experts of gpt-oss in MXFP4, of random codes: as its folders have them, and GGUF files.

A block is 32 codes of four bits, each for one of 16 numbers, and a scale, a power of two biased by
127 (OCP Microscaling Formats 1.0).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from tests.support.files.gguf_writer import Stored

Codes = npt.NDArray[np.uint8]

_EXPERTS: Final = "mlp.experts."
_SCALES: Final = {"gate_up_proj": 124, "down_proj": 122}
"""The smallest exponent of a block; that of others is one or two more."""


def packed(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Codes]:
    """The tensors that a folder has for the matrix [experts, in_features, out_features]."""
    experts, columns, rows = shape
    blocks = experts, rows, columns // 32
    codes = rng.integers(0, 16, (*blocks, 32), np.uint8)
    scales = _SCALES[name.rpartition(".")[2]] + rng.integers(0, 3, blocks, np.uint8)
    return {
        f"{name}_blocks": codes[..., 0::2] | codes[..., 1::2] << 4,
        f"{name}_scales": scales.astype(np.uint8),
    }


def unpacked(weights: dict[str, Any]) -> dict[str, Any]:
    """The weights with those of experts as GGUF files have them, gate and up apart."""
    found: dict[str, Any] = {}
    for name, weight in weights.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            codes = np.empty((*weight.shape[:-1], 32), np.uint8)
            codes[..., 0::2], codes[..., 1::2] = weight & 15, weight >> 4
            rows = np.concatenate(
                (weights[f"{stem}_scales"][..., None], codes[..., :16] | codes[..., 16:] << 4), -1
            ).reshape(*weight.shape[:2], -1)
            if stem.endswith("down_proj"):
                found[f"{stem}.weight"] = _stored(rows)
            else:
                for place, part in enumerate(("gate_proj", "up_proj")):
                    own = stem.replace("gate_up_proj", part)
                    found[f"{own}.weight"] = _stored(rows[:, place::2])
        elif not name.endswith("_scales"):
            found[name] = weight
    return found


def is_matrix(name: str) -> bool:
    """Whether a weight of that name is packed."""
    return _EXPERTS in name and not name.endswith("bias")


def _stored(rows: Codes) -> Stored:
    return Stored(np.ascontiguousarray(rows), GGMLQuantizationType.MXFP4)
