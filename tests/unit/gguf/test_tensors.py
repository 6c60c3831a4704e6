"""Tensors of every type: stored bytes and their values as float32."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from rocmforge.checkpoint.tensor import Tensor
from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.reader import open_gguf
from tests.support.files.gguf_writer import Stored, write_gguf

T = GGMLQuantizationType
NUMPY_TYPES = {
    T.F32: "f4",
    T.F16: "f2",
    T.F64: "f8",
    T.I8: "i1",
    T.I16: "i2",
    T.I32: "i4",
    T.I64: "i8",
}
QUANTISABLE = {T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.BF16, T.TQ1_0, T.TQ2_0, T.MXFP4}


def _dequantisable(tensor_type: GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[tensor_type][1]), np.uint8), tensor_type)
    except NotImplementedError:
        return False
    return True


DEQUANTISABLE = [t for t in T if t not in NUMPY_TYPES and _dequantisable(t)]
# Q1_0 is known to `decode`, and to the gguf package in name only.
OPAQUE = [t for t in T if t not in NUMPY_TYPES and not _dequantisable(t) and t != T.Q1_0]


def reopened(path: Path, tensor: npt.NDArray[Any] | Stored) -> Tensor:
    """The tensor as it comes back from a file, behind another one."""
    tensors = {"before": np.zeros(3, np.float32), "w": tensor}
    return open_gguf(write_gguf(path / "m.gguf", {}, tensors)).tensors["w"]


def random_blocks(tensor_type: GGMLQuantizationType, *rows_and_blocks: int) -> Stored:
    """Blocks of random bytes, `[*rows, blocks per row * bytes per block]`."""
    *rows, blocks = rows_and_blocks
    shape = (*rows, blocks * GGML_QUANT_SIZES[tensor_type][1])
    return Stored(np.random.default_rng(7).integers(0, 256, shape, np.uint8), tensor_type)


@pytest.mark.parametrize("tensor_type", list(T), ids=lambda t: t.name)
def test_bytes_and_shape_of_every_type_come_back(
    tmp_path: Path, tensor_type: GGMLQuantizationType
) -> None:
    stored = random_blocks(tensor_type, 2, 3, 2)
    tensor = reopened(tmp_path, stored)

    assert str(tensor.format) == tensor_type.name
    assert tensor.shape == (2, 3, 2 * GGML_QUANT_SIZES[tensor_type][0])
    assert tensor.nbytes == stored.data.nbytes
    assert not tensor.data.flags.writeable
    np.testing.assert_array_equal(tensor.data, stored.data)


@pytest.mark.parametrize("tensor_type", DEQUANTISABLE, ids=lambda t: t.name)
def test_random_blocks_dequantise_like_the_gguf_package(
    tmp_path: Path, tensor_type: GGMLQuantizationType
) -> None:
    stored = random_blocks(tensor_type, 3, 5)
    values = reopened(tmp_path, stored).to_float32()

    assert values.dtype == np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(values, dequantize(stored.data, tensor_type))


@pytest.mark.parametrize("tensor_type", sorted(QUANTISABLE), ids=lambda t: t.name)
def test_quantised_values_come_back_close(
    tmp_path: Path, tensor_type: GGMLQuantizationType
) -> None:
    values = np.random.default_rng(3).standard_normal((4, 512)).astype(np.float32)
    read = reopened(tmp_path, Stored.quantized(values, tensor_type)).to_float32()

    correlation = np.corrcoef(values.ravel(), read.ravel())[0, 1]
    assert read.shape == values.shape
    # Ternary types keep a sign and a scale that follows the largest element.
    assert correlation > (0.6 if tensor_type in {T.TQ1_0, T.TQ2_0} else 0.98)


@pytest.mark.parametrize("tensor_type", NUMPY_TYPES, ids=lambda t: t.name)
def test_plain_numbers_become_float32(tmp_path: Path, tensor_type: GGMLQuantizationType) -> None:
    numbers = np.array([[1, -2, 3], [100, 0, -128]], NUMPY_TYPES[tensor_type])
    tensor = reopened(tmp_path, numbers)

    assert str(tensor.format) == tensor_type.name
    np.testing.assert_array_equal(tensor.to_float32(), numbers.astype(np.float32))


def test_values_that_float32_cannot_hold_become_infinite(tmp_path: Path) -> None:
    tensor = reopened(tmp_path, np.array([1e300, -1e300, 1.0], np.float64))

    assert tensor.to_float32().tolist() == [np.inf, -np.inf, 1.0]


@pytest.mark.parametrize("tensor_type", OPAQUE, ids=lambda t: t.name)
def test_a_type_without_a_conversion_is_named(
    tmp_path: Path, tensor_type: GGMLQuantizationType
) -> None:
    tensor = reopened(tmp_path, random_blocks(tensor_type, 1, 1))

    with pytest.raises(UnsupportedTensor, match=f"'w': the type {tensor_type.name} cannot"):
        tensor.to_float32()


def test_a_tensor_without_dimensions_has_one_element(tmp_path: Path) -> None:
    tensor = reopened(tmp_path, np.array(5.0, np.float32))

    assert tensor.shape == (1,)
    assert tensor.to_float32().tolist() == [5.0]


def test_conversion_takes_little_memory_beyond_its_result(tmp_path: Path) -> None:
    tensor = reopened(tmp_path, random_blocks(T.Q4_0, 1, 1 << 18))  # 32 MiB as float32
    tracemalloc.start()
    try:
        values = tensor.to_float32()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1.25 * values.nbytes
