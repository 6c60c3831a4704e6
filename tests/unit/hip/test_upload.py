"""Where the loader reads from, and what it says of a file that changes under it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmforge.gguf.reader import open_gguf
from tests.support.files.gguf_writer import write_gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two shards of one tensor each."""
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((5, 32)).astype(np.float32) for name in ("a", "b")}
    return write_gguf(tmp_path / "model.gguf", {}, tensors, tensors_per_shard=1)


def test_bytes_of_a_tensor_are_found_in_its_file(model: Path) -> None:
    with open_gguf(model) as file:
        for tensor in file.tensors.values():
            for data in (tensor.data, tensor.data[2:4]):
                place = file.locate(data)
                assert place is not None
                start = place.offset
                assert place.path.read_bytes()[start : start + data.nbytes] == data.tobytes()


def test_what_is_no_run_of_bytes_of_the_file_is_not_found(model: Path) -> None:
    with open_gguf(model) as file:
        data = file.tensors["a"].data
        assert file.locate(data[:, 32:64]) is None, "columns"
        assert file.locate(data.copy()) is None, "other memory"
