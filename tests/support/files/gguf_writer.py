"""Write GGUF files for tests: well-formed ones, and byte by byte where they should be broken."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType
from gguf.quants import quantize

Value: TypeAlias = bool | int | float | str | np.generic | npt.NDArray[Any] | Sequence[str]

_NUMPY_TYPES: Final = {
    "uint8": GGUFValueType.UINT8,
    "int8": GGUFValueType.INT8,
    "uint16": GGUFValueType.UINT16,
    "int16": GGUFValueType.INT16,
    "uint32": GGUFValueType.UINT32,
    "int32": GGUFValueType.INT32,
    "float32": GGUFValueType.FLOAT32,
    "bool": GGUFValueType.BOOL,
    "uint64": GGUFValueType.UINT64,
    "int64": GGUFValueType.INT64,
    "float64": GGUFValueType.FLOAT64,
}


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a type that NumPy lacks: uint8 `[..., bytes per row]`."""

    data: npt.NDArray[np.uint8]
    type: GGMLQuantizationType

    @classmethod
    def quantized(cls, values: npt.NDArray[np.float32], type: GGMLQuantizationType) -> Stored:
        """Quantise where the `gguf` package can (Q4_0 to Q8_0, BF16, TQ, MXFP4)."""
        return cls(quantize(values, type).view(np.uint8), type)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, npt.NDArray[Any] | Stored],
    *,
    tensors_per_shard: int = 0,
) -> Path:
    """Write a valid model and return the file to open: `path`, or the first of its shards.

    A Python int becomes UINT32, a float FLOAT32; NumPy scalars and arrays keep their type.
    `general.architecture` is "llama" if not given.
    """
    architecture = metadata.get("general.architecture", "llama")
    writer = GGUFWriter(path, str(architecture), split_max_tensors=tensors_per_shard)
    for key, value in metadata.items():
        if key == "general.alignment":
            writer.add_custom_alignment(int(value))  # type: ignore[arg-type]
        elif key != "general.architecture":
            _add_value(writer, key, value)
    for name, tensor in tensors.items():
        if isinstance(tensor, Stored):
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.type)
        else:
            writer.add_tensor(name, tensor)
    shards = writer.format_shard_names(path)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return shards[0]


def _add_value(writer: GGUFWriter, key: str, value: Value) -> None:
    match value:
        case np.ndarray():
            element_type = _NUMPY_TYPES[value.dtype.name]
            writer.add_key_value(key, value.tolist(), GGUFValueType.ARRAY, element_type)
        case np.generic():
            writer.add_key_value(key, value.item(), _NUMPY_TYPES[value.dtype.name])
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_key_value(key, value, GGUFValueType.STRING)
        case _:
            writer.add_key_value(key, list(value), GGUFValueType.ARRAY, GGUFValueType.STRING)


def string(text: bytes) -> bytes:
    """A GGUF string: its length, then its bytes."""
    return struct.pack("<Q", len(text)) + text


def key_value(key: bytes, value_type: int, value: bytes) -> bytes:
    """A metadata entry; `value` is already packed."""
    return string(key) + struct.pack("<I", value_type) + value


def array(element_type: int, count: int, elements: bytes) -> bytes:
    """The value of an array entry, whatever `count` says."""
    return struct.pack("<IQ", element_type, count) + elements


def tensor_info(
    name: bytes,
    dims: Sequence[int] = (32,),
    type: int = GGMLQuantizationType.F32,
    offset: int = 0,
) -> bytes:
    """A directory entry; `dims` in the file's order, the contiguous one first."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type, offset)


@dataclass
class RawGguf:
    """A file from its parts; the counts follow the parts unless they are overridden."""

    magic: bytes = b"GGUF"
    version: int = 3
    key_values: list[bytes] = field(default_factory=list)
    tensor_infos: list[bytes] = field(default_factory=list)
    data: bytes = b""
    alignment: int = 32
    num_tensors: int | None = None
    num_key_values: int | None = None

    def to_bytes(self) -> bytes:
        """The whole file, the data section padded to `alignment`."""
        num_tensors = len(self.tensor_infos) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.key_values) if self.num_key_values is None else self.num_key_values
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        head += b"".join(self.key_values) + b"".join(self.tensor_infos)
        return head + bytes(-len(head) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        """Write the file and return `path`."""
        path.write_bytes(self.to_bytes())
        return path
