"""A real model, compared with the reader of the `gguf` package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from rocmforge.gguf.reader import open_gguf

ROWS = 4096  # at a time: the embedding's 49,152 would take several hundred megabytes

pytestmark = pytest.mark.model


def test_smollm2_reads_like_the_gguf_package(smollm2_path: Path) -> None:
    # One test, because GGUFReader takes seconds to open the file.
    theirs = GGUFReader(smollm2_path)
    with open_gguf(smollm2_path) as ours:
        fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, value in ours.metadata.items():
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            assert plain == fields[key].contents(), key

        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for expected in theirs.tensors:
            tensor = ours.tensors[expected.name]
            assert tensor.shape == tuple(reversed(expected.shape.tolist()))
            assert str(tensor.format) == expected.tensor_type.name
            assert tensor.data.tobytes() == expected.data.tobytes(), tensor.name


def test_smollm2_dequantises_like_the_gguf_package(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as model:
        for tensor in list(model.tensors.values())[:12]:
            kind = GGMLQuantizationType[str(tensor.format)]
            for start in range(0, tensor.shape[0], ROWS):
                rows = tensor.slice(0, start, min(start + ROWS, tensor.shape[0]))
                expected = dequantize(rows.data, kind).reshape(rows.shape)
                np.testing.assert_array_equal(rows.to_float32(), expected, tensor.name)
