"""The declared formats, against the package that GGUF's authors publish."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from rocmforge.checkpoint.decode import decode
from rocmforge.checkpoint.formats import FORMATS, WeightFormat
from rocmforge.checkpoint.random_rows import random_rows

FORMATS_FILE = Path(__file__).parents[3] / "server/rocmforge/checkpoint/formats.py"


def random_blocks(format: WeightFormat, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (rows, blocks * format.block_bytes), np.uint8)


def can_dequantise(format: WeightFormat) -> bool:
    kind = GGMLQuantizationType[format.name.upper()]
    try:
        dequantize(np.zeros((1, format.block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("kind", list(GGMLQuantizationType), ids=lambda kind: kind.name)
def test_every_type_of_gguf_is_a_format_with_its_block(kind: GGMLQuantizationType) -> None:
    format = FORMATS[kind.name.lower()]
    assert (format.block_size, format.block_bytes) == GGML_QUANT_SIZES[kind]
    assert format.is_quantised == (format.block_size > 1)
    assert format.row_bytes(3 * format.block_size) == 3 * format.block_bytes


def test_every_format_is_found_under_its_own_name() -> None:
    assert list(FORMATS) == [format.name for format in FORMATS.values()]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "format", [each for each in FORMATS.values() if can_dequantise(each)], ids=lambda f: f.name
)
def test_values_are_those_of_the_gguf_package(format: WeightFormat) -> None:
    rows = random_blocks(format, 3, 2)
    expected = dequantize(rows, GGMLQuantizationType[format.name.upper()])
    np.testing.assert_array_equal(decode(format, rows), expected)


def test_a_tensor_of_more_than_one_piece_is_decoded_whole() -> None:
    rows = random_blocks(FORMATS["q8_0"], 2, (1 << 18) // 32 + 5)
    rows.reshape(2, -1, 34)[:, :, :2] = np.array([1], "<f2").view(np.uint8)
    codes = rows.reshape(2, -1, 34)[:, :, 2:].view(np.int8).reshape(2, -1)
    np.testing.assert_array_equal(decode(FORMATS["q8_0"], rows), codes)


def test_one_bit_weights_are_the_scale_with_a_sign() -> None:
    block = np.zeros(18, np.uint8)
    block[:2] = np.array([0.5], "<f2").view(np.uint8)
    block[2:] = [0b0000_0101, *[0xFF] * 14, 0b1000_0000]
    values = decode(FORMATS["q1_0"], block[None])
    assert values.shape == (1, 128)
    assert values[0, :8].tolist() == [0.5, -0.5, 0.5, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert (values[0, 8:120] == 0.5).all()
    assert values[0, 120:].tolist() == [-0.5] * 7 + [0.5]


def test_a_format_whose_values_nobody_can_tell_is_an_error() -> None:
    with pytest.raises(NotImplementedError):
        decode(FORMATS["q8_k"], np.zeros((1, 292), np.uint8))


def test_the_declaration_needs_only_the_standard_library() -> None:
    # The build of a wheel reads it before anything is installed.
    program = f"import runpy; print(len(runpy.run_path({str(FORMATS_FILE)!r})['FORMATS']))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == len(FORMATS)


@pytest.mark.parametrize(
    "format", [each for each in FORMATS.values() if each.has_kernels], ids=lambda f: f.name
)
@pytest.mark.parametrize("magnitude", [1.0, 1 / 64])
def test_random_rows_are_of_the_magnitude_asked_for(format: WeightFormat, magnitude: float) -> None:
    rng = np.random.default_rng(3)
    rows = random_rows(rng, format, 8, 1024, magnitude)
    assert rows.shape == (8, format.row_bytes(1024))
    size = np.abs(decode(format, rows)).mean() / magnitude
    assert 0.05 < size < 2
