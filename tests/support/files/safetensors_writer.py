"""Write safetensors files for tests: well-formed ones, and those with any header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_TYPES: Final = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "uint8": "U8",
}


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Cuts float32 down to bfloat16; `write_safetensors` takes uint16 for it."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> Path:
    """Writes tensors in this order; uint16 is written as BF16."""
    entries: dict[str, Any] = {}
    position = 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": "BF16" if tensor.dtype == np.uint16 else _TYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    path.write_bytes(raw_file(entries, b"".join(tensor.tobytes() for tensor in tensors.values())))
    return path


def write_index(folder: Path, places: Mapping[str, str]) -> None:
    """Writes the index of a model in shards: the file of each tensor."""
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def raw_file(header: object, data: bytes) -> bytes:
    """Returns a file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
