"""Mutations of a valid file: each opens or is refused, with a typed error, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType, GGUFValueType
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocmforge.errors import BadGguf, ModelLoadError, UnsupportedTensor
from rocmforge.gguf.reader import open_gguf
from tests.support.files.gguf_writer import RawGguf, array, key_value, string, tensor_info

V, T = GGUFValueType, GGMLQuantizationType

VALID = RawGguf(
    key_values=[
        key_value(b"general.architecture", V.STRING, string(b"llama")),
        key_value(b"general.alignment", V.UINT32, struct.pack("<I", 32)),
        key_value(b"bool", V.BOOL, b"\1"),
        key_value(b"float", V.FLOAT32, struct.pack("<f", 0.5)),
        key_value(b"numbers", V.ARRAY, array(V.INT32, 4, struct.pack("<4i", 1, 2, 3, 4))),
        key_value(b"bools", V.ARRAY, array(V.BOOL, 3, b"\0\1\0")),
        key_value(b"tokens", V.ARRAY, array(V.STRING, 3, b"".join(map(string, (b"a", b"", b"c"))))),
        key_value(b"split.count", V.UINT16, struct.pack("<H", 1)),
    ],
    tensor_infos=[
        tensor_info(b"plain", [32, 2], T.F32, 0),
        tensor_info(b"blocks", [256, 3], T.Q4_K, 256),
        tensor_info(b"bytes", [5], T.I8, 704),
    ],
    data=bytes(range(256)) * 2 + bytes(256),
).to_bytes()

MEMORY_LIMIT = 1 << 20
"""Bytes allocated while a file of about 1,300 bytes is opened and its tensors are converted."""

EXTREMES = [
    *(struct.pack("<I", n) for n in (0, 1, 2, 13, 2**31 - 1, 2**31, 2**32 - 1)),
    *(
        struct.pack("<Q", n)
        for n in (0, 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
    ),
    *(struct.pack("<Q", len(VALID) + n) for n in (-32, -1, 0, 1)),
]

positions = st.integers(0, len(VALID))
lengths = st.integers(1, 64)


def overwrite(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def insert(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at:]


def delete(data: bytes, at: int, length: int) -> bytes:
    return data[:at] + data[at + length :]


def flip(data: bytes, at: int, bit: int) -> bytes:
    return overwrite(data, at, bytes([data[at] ^ 1 << bit])) if at < len(data) else data


def truncate(data: bytes, at: int) -> bytes:
    return data[:at]


def splice(data: bytes, source: int, length: int, at: int) -> bytes:
    return insert(data, at, data[source : source + length])


def replace(data: bytes, source: int, length: int, at: int) -> bytes:
    return overwrite(data, at, data[source : source + length])


mutations = st.one_of(
    st.tuples(st.just(flip), positions, st.integers(0, 7)),
    st.tuples(st.just(overwrite), positions, st.sampled_from(EXTREMES)),
    st.tuples(st.just(overwrite), positions, st.binary(min_size=1, max_size=8)),
    st.tuples(st.just(insert), positions, st.binary(min_size=1, max_size=8)),
    st.tuples(st.just(delete), positions, lengths),
    st.tuples(st.just(truncate), positions),
    st.tuples(st.just(splice), positions, lengths, positions),
    st.tuples(st.just(replace), positions, lengths, positions),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the mutated files are written, one after the other."""
    return tmp_path_factory.mktemp("fuzz") / "mutated.gguf"


def test_the_file_to_be_mutated_is_valid(path: Path) -> None:
    path.write_bytes(VALID)
    model = open_gguf(path)

    assert len(model.metadata) == 8
    assert [tensor.to_float32().shape for tensor in model.tensors.values()] == [
        (2, 32),
        (3, 256),
        (5,),
    ]


@settings(max_examples=2000, deadline=None, database=None)
@example(edits=[])
@given(edits=st.lists(mutations, min_size=1, max_size=4))
def test_a_mutated_file_opens_or_is_refused(path: Path, edits: list[tuple[Any, ...]]) -> None:
    data = VALID
    for mutate, *arguments in edits:
        data = mutate(data, *arguments)
    path.write_bytes(data)

    tracemalloc.start()
    try:
        read_everything(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < MEMORY_LIMIT


def read_everything(path: Path) -> None:
    """Open the file, and if it opens, touch every byte that it offers."""
    try:
        model = open_gguf(path)
    except ModelLoadError:
        return
    with model:
        for key in model.metadata:
            with suppress(BadGguf):
                model.get_strs(key)
        for tensor in model.tensors.values():
            assert tensor.data.tobytes() in path.read_bytes()
            with suppress(UnsupportedTensor):
                assert tensor.to_float32().shape == tensor.shape
