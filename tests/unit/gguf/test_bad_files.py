"""Files that must be refused, each with an error that names the culprit.

The cases follow llama.cpp's tests/test-gguf.cpp and the published vulnerabilities of GGUF readers.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType, GGUFValueType

from rocmforge.errors import BadGguf, ModelFileNotFound, UnsupportedTensor
from rocmforge.gguf.cursor import MAX_HEADER_BYTES
from rocmforge.gguf.header import parse_header
from rocmforge.gguf.reader import open_gguf
from tests.support.files.gguf_writer import RawGguf, array, key_value, string, tensor_info

HEADER_BYTES = 24  # magic, version, two counts
U64_MAX = 2**64 - 1
NAME = Path("bad.gguf")

A_KEY = key_value(b"a.key", GGUFValueType.UINT32, struct.pack("<I", 7))
A_TENSOR = tensor_info(b"a.tensor")
A_TENSORS_DATA = bytes(32 * 4)


def refusal(raw: RawGguf | bytes) -> BadGguf:
    """The error that the file is refused with."""
    with pytest.raises(BadGguf) as caught:
        parse_header(raw if isinstance(raw, bytes) else raw.to_bytes(), NAME)
    assert "bad.gguf" in str(caught.value)
    return caught.value


def test_the_parts_used_here_make_a_valid_file() -> None:
    header = parse_header(
        RawGguf(key_values=[A_KEY], tensor_infos=[A_TENSOR], data=A_TENSORS_DATA).to_bytes(), NAME
    )

    assert header.metadata == {"a.key": 7}
    assert [tensor.name for tensor in header.tensors] == ["a.tensor"]


# The file and its header.


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFound, match=r"nowhere\.gguf"):
        open_gguf(tmp_path / "nowhere.gguf")


def test_file_name_that_the_system_refuses(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFound, match="cannot be read"):
        open_gguf(tmp_path / ("x" * 1000))


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFound, match=tmp_path.name):
        open_gguf(tmp_path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()

    with pytest.raises(BadGguf, match="the file is empty"):
        open_gguf(path)


def test_four_byte_file() -> None:
    assert "the version takes 4 bytes, but only 0" in refusal(b"GGUF").reason


def test_header_bad_magic() -> None:
    error = refusal(RawGguf(magic=b"FUGG"))

    assert "b'FUGG'" in error.reason
    assert error.offset == 0


@pytest.mark.parametrize("version", [0, 1, 4])
def test_header_bad_version(version: int) -> None:
    error = refusal(RawGguf(version=version))

    assert f"version {version} is unknown" in error.reason
    assert error.offset == 4


def test_header_big_endian() -> None:
    assert "big-endian" in refusal(b"GGUF" + struct.pack(">IQQ", 3, 0, 0)).reason


def test_header_bad_n_tensors() -> None:
    """CVE-2024-21836."""
    error = refusal(RawGguf(num_tensors=U64_MAX))

    assert f"{U64_MAX} tensors" in error.reason
    assert error.offset == 8


def test_header_bad_n_kv() -> None:
    """CVE-2024-23605."""
    assert f"{U64_MAX} metadata keys" in refusal(RawGguf(num_key_values=U64_MAX)).reason


def test_header_one_key_too_many() -> None:
    assert (
        "2 metadata keys"
        in refusal(RawGguf(key_values=[A_KEY], num_key_values=2, alignment=1)).reason
    )


def test_header_larger_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    key = key_value(b"long", GGUFValueType.STRING, struct.pack("<Q", MAX_HEADER_BYTES))
    with path.open("wb") as file:
        file.write(RawGguf(key_values=[key]).to_bytes())
        file.truncate(MAX_HEADER_BYTES + 4096)

    with pytest.raises(BadGguf, match=f"'long'.*of a header's {MAX_HEADER_BYTES} are left"):
        open_gguf(path)


# Metadata.


def test_kv_bad_key_size() -> None:
    """CVE-2024-23496: a length that wraps when one is added for the terminator."""
    error = refusal(RawGguf(key_values=[struct.pack("<Q", U64_MAX) + A_KEY[8:]]))

    assert f"metadata key 0 takes {U64_MAX} bytes" in error.reason
    assert error.offset == HEADER_BYTES


def test_kv_key_longer_than_the_format_allows() -> None:
    key = key_value(b"k" * 65536, GGUFValueType.UINT8, b"\0")

    assert "metadata key 0 is 65536 bytes long" in refusal(RawGguf(key_values=[key])).reason


def test_kv_empty_key() -> None:
    key = key_value(b"", GGUFValueType.UINT64, bytes(8))

    assert "metadata key 0 is 0 bytes long" in refusal(RawGguf(key_values=[key])).reason


def test_kv_key_not_utf8() -> None:
    key = key_value(b"k\xff", GGUFValueType.UINT8, b"\0")

    assert r"metadata key 0, b'k\xff', is not UTF-8" in refusal(RawGguf(key_values=[key])).reason


@pytest.mark.parametrize("value_type", [13, 2**31, 2**32 - 1])
def test_kv_bad_type(value_type: int) -> None:
    error = refusal(RawGguf(key_values=[key_value(b"a.key", value_type, bytes(8))]))

    assert f"unknown value type {value_type} of 'a.key'" in error.reason
    assert error.offset == HEADER_BYTES + 8 + 5


def test_kv_bad_value_size() -> None:
    key = key_value(b"text", GGUFValueType.STRING, struct.pack("<Q", 2**62))

    assert f"'text' takes {2**62} bytes" in refusal(RawGguf(key_values=[key])).reason


def test_kv_truncated_scalar() -> None:
    key = key_value(b"number", GGUFValueType.UINT64, b"\1\2\3")

    assert (
        "'number' takes 8 bytes, but only 3"
        in refusal(RawGguf(key_values=[key], alignment=1)).reason
    )


def test_kv_duplicate_key() -> None:
    error = refusal(RawGguf(key_values=[A_KEY, A_KEY]))

    assert "'a.key' occurs twice" in error.reason
    assert error.offset == HEADER_BYTES + len(A_KEY)


def test_kv_bool_that_is_neither() -> None:
    key = key_value(b"flag", GGUFValueType.BOOL, b"\2")

    assert "'flag' holds 2, neither 0 nor 1" in refusal(RawGguf(key_values=[key])).reason


@pytest.mark.parametrize(
    ("element_type", "count"),
    [
        (GGUFValueType.UINT8, U64_MAX),
        (GGUFValueType.UINT64, 2**61),  # times 8 is 0 in 64 bits
        (GGUFValueType.FLOAT64, 2**61 + 1),
        (GGUFValueType.BOOL, 2**40),
    ],
)
def test_kv_array_longer_than_the_file(element_type: int, count: int) -> None:
    """CVE-2024-21825."""
    key = key_value(b"many", GGUFValueType.ARRAY, array(element_type, count, bytes(64)))

    assert "'many' takes" in refusal(RawGguf(key_values=[key])).reason


def test_kv_array_of_more_strings_than_the_file_holds() -> None:
    key = key_value(b"tokens", GGUFValueType.ARRAY, array(GGUFValueType.STRING, 2**61, bytes(64)))

    assert f"'tokens' takes {2**64} bytes" in refusal(RawGguf(key_values=[key])).reason


def test_kv_string_in_array_longer_than_the_file() -> None:
    strings = string(b"fine") + struct.pack("<Q", U64_MAX) + bytes(8)
    key = key_value(b"tokens", GGUFValueType.ARRAY, array(GGUFValueType.STRING, 2, strings))
    error = refusal(RawGguf(key_values=[key]))

    assert f"string 1 of 'tokens' takes {U64_MAX} bytes" in error.reason
    assert error.offset == HEADER_BYTES + (8 + 6 + 4) + (4 + 8) + (8 + 4)


def test_kv_array_cut_inside_the_length_of_a_string() -> None:
    strings = string(b"0123456789") + bytes(6)
    key = key_value(b"tokens", GGUFValueType.ARRAY, array(GGUFValueType.STRING, 2, strings))

    assert "string 1 of 'tokens'" in refusal(RawGguf(key_values=[key], alignment=1)).reason


def test_kv_array_of_bad_type() -> None:
    key = key_value(b"many", GGUFValueType.ARRAY, array(99, 1, bytes(8)))

    assert (
        "unknown value type 99 of the elements of 'many'"
        in refusal(RawGguf(key_values=[key])).reason
    )


def test_kv_nested_arrays() -> None:
    """Recursion depth, in readers that recurse."""
    nested = bytes(8)
    for _ in range(10_000):
        nested = array(GGUFValueType.ARRAY, 1, nested)
    key = key_value(b"deep", GGUFValueType.ARRAY, nested)

    assert "'deep' is an array of arrays" in refusal(RawGguf(key_values=[key])).reason


@pytest.mark.parametrize("alignment", [0, 13, 2**32 - 1])
def test_kv_bad_align(alignment: int) -> None:
    """Division by zero, in readers that divide."""
    key = key_value(b"general.alignment", GGUFValueType.UINT32, struct.pack("<I", alignment))

    assert (
        f"'general.alignment' is {alignment}, not a power of two"
        in refusal(RawGguf(key_values=[key])).reason
    )


def test_kv_wrong_type_align() -> None:
    key = key_value(b"general.alignment", GGUFValueType.INT32, struct.pack("<i", 32))

    assert "'general.alignment' is of type INT32" in refusal(RawGguf(key_values=[key])).reason


# The tensor directory.


def test_tensors_bad_name_size() -> None:
    error = refusal(RawGguf(tensor_infos=[tensor_info(b"n" * 65)], data=A_TENSORS_DATA))

    assert "the name of tensor 0 is 65 bytes long" in error.reason


def test_tensors_empty_name() -> None:
    error = refusal(RawGguf(tensor_infos=[tensor_info(b"")], data=A_TENSORS_DATA))

    assert "the name of tensor 0 is 0 bytes long" in error.reason


@pytest.mark.parametrize("num_dims", [5, 2**32 - 1])
def test_tensors_bad_n_dims(num_dims: int) -> None:
    """CVE-2024-21802: a fixed array of dimensions written past its end."""
    info = string(b"a.tensor") + struct.pack("<I", num_dims) + bytes(64)

    assert f"'a.tensor' has {num_dims} dimensions" in refusal(RawGguf(tensor_infos=[info])).reason


@pytest.mark.parametrize("dim", [0, 2**63, U64_MAX])
def test_tensors_bad_shape(dim: int) -> None:
    """Zero, and negative for readers that keep dimensions in int64."""
    error = refusal(RawGguf(tensor_infos=[tensor_info(b"a.tensor", [32, dim])]))

    assert f"'a.tensor' has the shape ({dim}, 32)" in error.reason


@pytest.mark.parametrize(
    ("dims", "tensor_type"),
    [
        ([2**32, 2**32], GGMLQuantizationType.I8),  # 2^64 elements
        ([2**62, 4, 4, 4], GGMLQuantizationType.I8),
        ([2**61], GGMLQuantizationType.I64),  # 2^64 bytes
        ([2**63 - 64, 1], GGMLQuantizationType.I8),
        ([2**62], GGMLQuantizationType.Q4_0),
    ],
)
def test_tensors_too_big(dims: list[int], tensor_type: GGMLQuantizationType) -> None:
    """NE_TOO_BIG and NBYTES_TOO_BIG; CVE-2026-33298: the size in bytes wraps."""
    error = refusal(
        RawGguf(tensor_infos=[tensor_info(b"huge", dims, tensor_type)], data=A_TENSORS_DATA)
    )

    assert "'huge'" in error.reason
    assert "the file ends at" in error.reason
    assert error.offset == HEADER_BYTES


@pytest.mark.parametrize("tensor_type", [4, 5, 31, 36, 38, 1000, 2**31, 2**32 - 1])
def test_tensors_bad_type(tensor_type: int) -> None:
    """Removed types, a future one, and numbers that are negative as int32."""
    raw = RawGguf(tensor_infos=[tensor_info(b"odd", [32], tensor_type)], data=A_TENSORS_DATA)

    with pytest.raises(UnsupportedTensor, match=f"'odd': its type {tensor_type} .*byte 47 of bad"):
        parse_header(raw.to_bytes(), NAME)


def test_tensors_row_not_a_multiple_of_the_block() -> None:
    info = tensor_info(b"odd", [48, 2], GGMLQuantizationType.Q4_0)
    error = refusal(RawGguf(tensor_infos=[info], data=A_TENSORS_DATA))

    assert "'odd' has rows of 48 elements, not a multiple of the 32" in error.reason


@pytest.mark.parametrize("offset", [1, 16, U64_MAX])
def test_tensors_bad_offset(offset: int) -> None:
    info = tensor_info(b"a.tensor", offset=offset)
    error = refusal(RawGguf(tensor_infos=[info], data=bytes(4096)))

    assert f"'a.tensor' is at offset {offset}, not a multiple of the alignment 32" in error.reason


def test_tensors_offset_that_wraps_with_the_size() -> None:
    """CVE-2026-7482: the end of the tensor overflows to a position inside the file."""
    info = tensor_info(b"a.tensor", offset=2**64 - 32)
    error = refusal(RawGguf(tensor_infos=[info], data=bytes(4096)))

    assert "'a.tensor' should be the 128 bytes at" in error.reason


def test_tensors_duplicate_name() -> None:
    infos = [A_TENSOR, tensor_info(b"a.tensor", offset=128)]
    error = refusal(RawGguf(tensor_infos=infos, data=bytes(256)))

    assert "the tensor 'a.tensor' occurs twice" in error.reason
    assert error.offset == HEADER_BYTES + len(A_TENSOR)


def test_tensors_inconsistent_align() -> None:
    """Offsets packed as if the alignment were 1."""
    infos = [tensor_info(b"first", [3]), tensor_info(b"second", [32], offset=12)]
    error = refusal(RawGguf(tensor_infos=infos, data=bytes(256)))

    assert "'second' is at offset 12" in error.reason


def test_tensors_overlap() -> None:
    infos = [tensor_info(b"second", [32], offset=96), tensor_info(b"first", [32])]
    error = refusal(RawGguf(tensor_infos=infos, data=bytes(256)))

    assert "tensors 'first' and 'second' overlaps" in error.reason


# The data.


def test_data_not_enough_data() -> None:
    raw = RawGguf(tensor_infos=[A_TENSOR], data=A_TENSORS_DATA).to_bytes()
    error = refusal(raw[:-1])

    assert "'a.tensor' should be the 128 bytes at 64, but the file ends at 191" in (error.reason)


def test_data_absent() -> None:
    assert "'a.tensor'" in refusal(RawGguf(tensor_infos=[A_TENSOR], alignment=1)).reason


def test_data_mem_size_overflow() -> None:
    """CVE-2025-53630 and CVE-2026-27940: sizes whose padded sum wraps to a small number."""
    size = 0x7FFF_FFFF_FFFF_FFC0
    infos = [
        tensor_info(b"first", [size], GGMLQuantizationType.I8),
        tensor_info(b"second", [size], GGMLQuantizationType.I8, offset=size),
    ]

    assert "'first'" in refusal(RawGguf(tensor_infos=infos, data=bytes(256))).reason


def test_every_truncation_of_a_valid_file() -> None:
    strings = array(GGUFValueType.STRING, 2, string(b"one") + string(b"two"))
    whole = RawGguf(
        key_values=[A_KEY, key_value(b"strings", GGUFValueType.ARRAY, strings)],
        tensor_infos=[A_TENSOR, tensor_info(b"other", [32], offset=128)],
        data=bytes(256),
    ).to_bytes()

    for length in range(len(whole)):
        refusal(whole[:length])


def test_a_long_name_is_cut_in_the_message() -> None:
    key = key_value(b"k" * 60_000, 99, b"")

    assert len(refusal(RawGguf(key_values=[key])).reason) < 300


def test_control_characters_in_a_name_are_escaped_in_the_message() -> None:
    key = key_value(b"\x1b[31m\n", 99, b"")

    assert r"'\x1b[31m\n'" in refusal(RawGguf(key_values=[key])).reason
