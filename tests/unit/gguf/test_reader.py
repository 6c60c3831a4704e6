"""Opening valid files: metadata of every type, typed getters, shards, lifetime."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGUFValueType

from rocmforge.errors import BadGguf, ModelFileNotFound
from rocmforge.gguf.reader import GgufFile, open_gguf
from tests.support.files.gguf_writer import (
    RawGguf,
    Value,
    array,
    key_value,
    string,
    tensor_info,
    write_gguf,
)

NUMBER_DTYPES = [
    *("uint8", "uint16", "uint32", "uint64"),
    *("int8", "int16", "int32", "int64"),
    *("float32", "float64", "bool"),
]
ONES = np.ones((2, 32), np.float32)


def opened(path: Path, **metadata: Value) -> GgufFile:
    """A small model with this metadata, written and opened again."""
    return open_gguf(write_gguf(path / "m.gguf", metadata, {"w": ONES}))


# Metadata.


@pytest.mark.parametrize(
    "value",
    [
        np.uint8(255),
        np.int8(-128),
        np.uint16(65535),
        np.int16(-32768),
        np.uint32(2**32 - 1),
        np.int32(-(2**31)),
        np.uint64(2**64 - 1),
        np.int64(-(2**63)),
        np.float32(0.1),
        np.float64(0.1),
        np.bool_(True),
    ],
    ids=lambda value: value.dtype.name,
)
def test_scalars_come_back_as_python_values(tmp_path: Path, value: np.generic) -> None:
    read = opened(tmp_path, key=value).metadata["key"]

    assert read == value.item()
    assert type(read) is type(value.item())


@pytest.mark.parametrize("dtype", NUMBER_DTYPES)
def test_number_arrays_come_back_with_their_dtype(tmp_path: Path, dtype: str) -> None:
    values = np.array([0, 1, 1, 0], dtype)
    read = opened(tmp_path, key=values).metadata["key"]

    assert isinstance(read, np.ndarray)
    assert read.dtype == values.dtype
    assert not read.flags.writeable
    np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("text", ["", "plain", "grüße 世界 🙂", "nul\0inside", " \n\t"])
def test_strings_come_back_unchanged(tmp_path: Path, text: str) -> None:
    model = opened(tmp_path, one=text, many=[text, "x", text])

    assert model.get_str("one") == text
    assert model.get_strs("many") == [text, "x", text]


@pytest.mark.parametrize("element_type", [GGUFValueType.FLOAT32, GGUFValueType.STRING])
def test_empty_arrays_are_read(tmp_path: Path, element_type: GGUFValueType) -> None:
    key = key_value(b"none", GGUFValueType.ARRAY, array(element_type, 0, b""))
    model = open_gguf(RawGguf(key_values=[key]).write(tmp_path / "m.gguf"))

    assert len(model.metadata["none"]) == 0  # type: ignore[arg-type]


def test_metadata_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    keys = list(opened(tmp_path, zebra=1, apple=2, mango=3).metadata)

    assert keys == ["general.architecture", "zebra", "apple", "mango"]


def test_version_2_is_read(tmp_path: Path) -> None:
    model = open_gguf(RawGguf(version=2).write(tmp_path / "m.gguf"))

    assert (model.version, dict(model.metadata), dict(model.tensors)) == (2, {}, {})


# Strings that are not UTF-8.


def with_odd_strings(path: Path) -> GgufFile:
    tokens = array(GGUFValueType.STRING, 3, string(b"ok") + string(b"\xf0\x9f") + string(b"\xff"))
    keys = [
        key_value(b"text", GGUFValueType.STRING, string(b"caf\xe9")),
        key_value(b"tokens", GGUFValueType.ARRAY, tokens),
    ]
    return open_gguf(RawGguf(key_values=keys).write(path / "odd.gguf"))


def test_bytes_that_are_not_utf8_survive_in_the_metadata(tmp_path: Path) -> None:
    model = with_odd_strings(tmp_path)
    text, tokens = model.metadata["text"], model.metadata["tokens"]

    assert isinstance(text, str)
    assert isinstance(tokens, list)
    assert text.encode("utf-8", "surrogateescape") == b"caf\xe9"
    assert tokens[1].encode("utf-8", "surrogateescape") == b"\xf0\x9f"


def test_a_getter_refuses_strings_that_are_not_utf8(tmp_path: Path) -> None:
    model = with_odd_strings(tmp_path)

    with pytest.raises(BadGguf, match="string under 'text' is not UTF-8"):
        model.get_str("text")
    with pytest.raises(BadGguf, match="string 1 of the array 'tokens' is not UTF-8"):
        model.get_strs("tokens")


# Typed getters.

VALUES: dict[str, Value] = {
    "bool": True,
    "int": 7,
    "float": 0.5,
    "str": "text",
    "ints": np.array([1, 2], np.int32),
    "floats": np.array([0.5], np.float32),
    "bools": np.array([True]),
    "strs": ["a", "b"],
}
GETTERS: dict[str, Callable[..., Any]] = {
    "bool": GgufFile.get_bool,
    "int": GgufFile.get_int,
    "float": GgufFile.get_float,
    "str": GgufFile.get_str,
    "ints": GgufFile.get_ints,
    "strs": GgufFile.get_strs,
}
DESCRIPTIONS = {
    "bool": "a bool",
    "int": "an integer",
    "float": "a float",
    "str": "a string",
    "ints": "an array of int32",
    "floats": "an array of float32",
    "bools": "an array of bool",
    "strs": "an array of strings",
}


@pytest.mark.parametrize("kind", GETTERS)
def test_each_getter_returns_its_own_type(tmp_path: Path, kind: str) -> None:
    model = opened(tmp_path, **VALUES)

    np.testing.assert_array_equal(GETTERS[kind](model, kind), VALUES[kind])


@pytest.mark.parametrize(
    ("kind", "other"), [(kind, other) for kind in GETTERS for other in VALUES if kind != other]
)
def test_each_getter_refuses_every_other_type(tmp_path: Path, kind: str, other: str) -> None:
    model = opened(tmp_path, **VALUES)

    with pytest.raises(BadGguf, match=f"'{other}' is {DESCRIPTIONS[other]}, expected a"):
        GETTERS[kind](model, other)


@pytest.mark.parametrize("kind", GETTERS)
def test_a_missing_key_is_an_error_unless_there_is_a_default(tmp_path: Path, kind: str) -> None:
    model = opened(tmp_path)

    assert GETTERS[kind](model, "absent", default=None) is None
    with pytest.raises(BadGguf, match="the required key 'absent' is missing"):
        GETTERS[kind](model, "absent")


def test_a_default_does_not_hide_a_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(BadGguf, match="'int' is an integer, expected a float"):
        opened(tmp_path, **VALUES).get_float("int", default=1.0)


# The file as a whole.


def test_alignment_of_the_file_is_honoured(tmp_path: Path) -> None:
    tensors = {"a": np.arange(3, dtype=np.float32), "b": np.arange(5, dtype=np.float32)}
    path = write_gguf(tmp_path / "m.gguf", {"general.alignment": 256}, tensors)
    model = open_gguf(path)

    assert model.alignment == 256
    np.testing.assert_array_equal(model.tensors["b"].to_float32(), tensors["b"])


def test_alignment_of_one_byte(tmp_path: Path) -> None:
    raw = RawGguf(
        key_values=[
            key_value(b"general.alignment", GGUFValueType.UINT32, struct.pack("<I", 1)),
        ],
        tensor_infos=[tensor_info(b"odd", [3])],
        data=struct.pack("<3f", 1.0, 2.0, 3.0),
        alignment=1,
    )
    model = open_gguf(raw.write(tmp_path / "m.gguf"))

    assert model.tensors["odd"].to_float32().tolist() == [1.0, 2.0, 3.0]


def test_tensors_may_stand_in_another_order_than_the_directory(tmp_path: Path) -> None:
    raw = RawGguf(
        tensor_infos=[tensor_info(b"second", [1], offset=32), tensor_info(b"first", [1])],
        data=struct.pack("<f28xf", 1.0, 2.0),
    )
    model = open_gguf(raw.write(tmp_path / "m.gguf"))

    assert list(model.tensors) == ["second", "first"]
    assert model.tensors["first"].to_float32().tolist() == [1.0]
    assert model.tensors["second"].to_float32().tolist() == [2.0]


def test_data_stays_readable_after_close(tmp_path: Path) -> None:
    with opened(tmp_path) as model:
        data = model.tensors["w"].data

    assert dict(model.tensors) == {}
    np.testing.assert_array_equal(data.view(np.float32), ONES)


def test_size_is_that_of_the_file(tmp_path: Path) -> None:
    model = opened(tmp_path)

    assert model.size_bytes == model.path.stat().st_size


# Shards.

TENSORS = {f"t.{i}": np.full((2, 32), i, np.float32) for i in range(5)}


@pytest.fixture
def first_shard(tmp_path: Path) -> Path:
    """Five tensors in three files."""
    return write_gguf(tmp_path / "m.gguf", {"key": 1}, TENSORS, tensors_per_shard=2)


def test_shards_are_opened_as_one_model(first_shard: Path) -> None:
    assert first_shard.name == "m-00001-of-00003.gguf"
    model = open_gguf(first_shard)

    assert list(model.tensors) == list(TENSORS)
    for name, values in TENSORS.items():
        np.testing.assert_array_equal(model.tensors[name].to_float32(), values)
    assert model.get_int("key") == 1
    assert model.size_bytes == sum(path.stat().st_size for path in first_shard.parent.iterdir())


def test_a_missing_shard_is_named(first_shard: Path) -> None:
    first_shard.with_name("m-00002-of-00003.gguf").unlink()

    with pytest.raises(ModelFileNotFound, match=r"m-00002-of-00003\.gguf"):
        open_gguf(first_shard)


def test_a_later_shard_is_refused(first_shard: Path) -> None:
    with pytest.raises(BadGguf, match="shard 2 of 3; open the first"):
        open_gguf(first_shard.with_name("m-00002-of-00003.gguf"))


def test_a_renamed_first_shard_is_refused(first_shard: Path) -> None:
    renamed = first_shard.rename(first_shard.with_name("model.gguf"))

    with pytest.raises(BadGguf, match=r"must end in '-00001-of-00003\.gguf'"):
        open_gguf(renamed)


def test_swapped_shards_are_refused(first_shard: Path) -> None:
    second, third = (first_shard.with_name(f"m-0000{i}-of-00003.gguf") for i in (2, 3))
    second.rename(first_shard.with_name("x"))
    third.rename(second)

    with pytest.raises(BadGguf, match="it says it is shard 3 of 3, but by its name it is shard 2"):
        open_gguf(first_shard)


def test_a_shard_that_is_another_file_is_refused(first_shard: Path) -> None:
    write_gguf(first_shard.with_name("m-00002-of-00003.gguf"), {}, {"w": ONES})

    with pytest.raises(BadGguf, match=r"m-00002.*'split\.no' is missing"):
        open_gguf(first_shard)


def test_shards_with_a_tensor_too_few_are_refused(first_shard: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shorter = dict(list(TENSORS.items())[:-1]) | {"t.4": ONES, "t.5": ONES}
    write_gguf(other / "m.gguf", {}, shorter, tensors_per_shard=2)
    (other / "m-00003-of-00003.gguf").rename(first_shard.with_name("m-00003-of-00003.gguf"))

    with pytest.raises(BadGguf, match="the 3 shards hold 6 tensors, not 5"):
        open_gguf(first_shard)


def test_a_tensor_in_two_shards_is_refused(first_shard: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    renamed = {f"o.{i}": ONES for i in range(4)} | {"t.0": ONES}
    write_gguf(other / "m.gguf", {}, renamed, tensors_per_shard=2)
    (other / "m-00003-of-00003.gguf").rename(first_shard.with_name("m-00003-of-00003.gguf"))

    with pytest.raises(BadGguf, match=r"m-00003.*'t\.0' is in an earlier shard"):
        open_gguf(first_shard)
