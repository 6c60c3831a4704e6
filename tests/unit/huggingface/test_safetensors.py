"""Headers of safetensors files: what is read of good ones, and why bad ones are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocmforge.errors import BadFolder
from rocmforge.huggingface.files.safetensors import MAX_HEADER_BYTES, header_bytes, parse_header
from tests.support.files.safetensors_writer import raw_file, write_safetensors

NAME = Path("bad.safetensors")
A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [5], "data_offsets": [24, 34]}
VALID = raw_file({"__metadata__": {"format": "pt"}, "b": B, "a": A}, bytes(34))


def refusal(header: object, data: bytes = bytes(34)) -> str:
    """Why a file with this header is refused."""
    raw = raw_file(header, data)
    with pytest.raises(BadFolder) as caught:
        parse_header(raw, len(raw), NAME)
    assert "bad.safetensors" in str(caught.value)
    return caught.value.reason


def changed(**fields: Any) -> dict[str, Any]:
    """A header whose second tensor differs from the valid one."""
    return {"a": A, "b": {**B, **fields}}


def test_tensors_come_in_the_order_of_their_data_with_their_places_in_the_file() -> None:
    first, second = parse_header(VALID, len(VALID), NAME)
    start = len(VALID) - 34
    assert (first.name, first.dtype, first.shape) == ("a", "F32", (2, 3))
    assert (first.offset, first.nbytes) == (start, 24)
    assert (second.name, second.offset, second.nbytes) == ("b", start + 24, 10)


def test_numbers_that_were_written_are_found_where_the_header_says(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = write_safetensors(tmp_path / "x.safetensors", {"half": np.ones(3, "f2"), "a": values})
    data = path.read_bytes()
    info = parse_header(data, len(data), path)[1]
    np.testing.assert_array_equal(
        np.frombuffer(data, "<f4", 6, info.offset).reshape(info.shape), values
    )


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_without_a_header_is_refused(size: int) -> None:
    with pytest.raises(BadFolder, match=f"only {size} bytes"):
        header_bytes(bytes(size), size, NAME)


def test_a_header_of_a_gigabyte_is_refused_before_it_is_read() -> None:
    length = (1 << 30).to_bytes(8, "little")
    with pytest.raises(BadFolder, match=f"1073741824 bytes.*{MAX_HEADER_BYTES} are read"):
        header_bytes(length, 1 << 40, NAME)


def test_a_header_longer_than_the_file_is_refused() -> None:
    with pytest.raises(BadFolder, match="its header has 100 bytes, but the file only 50"):
        header_bytes((100).to_bytes(8, "little"), 50, NAME)


@pytest.mark.parametrize(
    "header", [b"{", b"[]", b"\xff\xfe", b'{"a": 3}', b'{"a": {}}', b"[" * 99999]
)
def test_a_header_that_is_no_json_of_tensors_is_refused(header: bytes) -> None:
    assert "its header is not what it should be" in refusal(header)


def test_overlapping_tensors_are_refused() -> None:
    reason = refusal(changed(data_offsets=[14, 24], shape=[5]), bytes(24))
    assert reason.endswith("the data of the tensor 'b' overlaps the one before")


def test_two_names_for_the_same_bytes_are_refused() -> None:
    assert "overlaps" in refusal({"a": A, "b": A}, bytes(24))


@pytest.mark.parametrize("first", [30, 2**80])
def test_a_gap_between_tensors_is_refused(first: int) -> None:
    reason = refusal(changed(data_offsets=[first, first + 10]), bytes(40))
    assert reason.endswith("the data of the tensor 'b' leaves a gap before it")


@pytest.mark.parametrize("size", [33, 35])
def test_data_that_ends_before_or_behind_the_last_tensor_is_refused(size: int) -> None:
    assert "it may be cut short" in refusal(changed(), bytes(size))


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [6]},
        {"shape": [2**62, 4]},
        {"shape": []},
        {"dtype": "F32"},
        {"dtype": "F4", "shape": [3]},
        {"data_offsets": [34, 24]},
    ],
)
def test_a_shape_that_does_not_fit_the_bytes_is_refused(fields: dict[str, Any]) -> None:
    assert "the tensor 'b' of type" in refusal(changed(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [-5]},
        {"shape": [5.5]},
        {"shape": [1] * 9},
        {"data_offsets": [-24, 10]},
        {"data_offsets": [24]},
        {"dtype": 3},
    ],
)
def test_numbers_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    assert "its header is not what it should be" in refusal(changed(**fields))


def test_an_unknown_type_is_refused_with_those_that_are_known() -> None:
    assert "'b' has the type 'Q4'; known are F64," in refusal(changed(dtype="Q4"))


offsets = st.integers(-1, 40) | st.sampled_from([2**31, 2**63, 2**64])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F4", "BOOL", "X"]),
        "shape": st.lists(st.integers(-1, 9) | st.sampled_from([2**32, 2**63]), max_size=3),
        "data_offsets": st.lists(offsets, min_size=2, max_size=2),
    }
)


@given(st.dictionaries(st.text(max_size=3), entries, max_size=4), st.integers(0, 40))
@example({}, 0)
def test_whatever_the_header_says_what_is_accepted_lies_within_the_file_without_overlap(
    header: dict[str, Any], size: int
) -> None:
    raw = raw_file(header, bytes(size))
    with suppress(BadFolder):
        infos = parse_header(raw, len(raw), NAME)
        assert len(infos) == len(header)
        places = [
            place for info in infos for place in range(info.offset, info.offset + info.nbytes)
        ]
        assert places == [*range(len(raw) - size, len(raw))]


@given(st.integers(0, len(VALID) - 1), st.binary(min_size=1, max_size=8))
def test_damaged_files_are_refused_or_read_within_their_bytes(at: int, new: bytes) -> None:
    damaged = (VALID[:at] + new + VALID[at + len(new) :])[: len(VALID)]
    with suppress(BadFolder):
        length = header_bytes(damaged[:8], len(damaged), NAME)
        for info in parse_header(damaged[:length], len(damaged), NAME):
            assert length <= info.offset <= info.offset + info.nbytes <= len(damaged)


def test_a_name_that_is_there_twice_counts_once() -> None:
    text = json.dumps({"b": B})[:-1] + f', "b": {json.dumps({**B, "data_offsets": [0, 10]})}}}'
    raw = raw_file(text.encode(), bytes(10))
    assert [info.nbytes for info in parse_header(raw, len(raw), NAME)] == [10]
