"""A model's file may be replaced while the server runs, but not by another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.errors import ModelFileNotFound, ModelLoadError
from rocmforge.models.checkpoint import Identity
from rocmforge.opening import check_unchanged, identify
from tests.support.files.gguf_writer import write_gguf

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 512,
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.ggml.scores": np.array([0.5, 1.5], np.float32),
}


def write(path: Path, rows: int = 1, **changed: Any) -> Identity:
    write_gguf(path, METADATA | changed, {"weights": np.zeros((rows, 32), np.float32)})
    return identify(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_an_untouched_file_is_not_read_again(path: Path) -> None:
    identity = write(path)
    path.write_bytes(bytes(identity.size))
    touched = Identity(identity.size, path.stat().st_mtime_ns, identity.digest)
    check_unchanged(path, touched)


def test_other_weights_under_another_name_are_the_same_model(path: Path) -> None:
    identity = write(path)
    write(path, rows=2, **{"general.name": "retrained"})
    check_unchanged(path, identity)


@pytest.mark.parametrize(
    "changed",
    [
        {"tokenizer.ggml.tokens": ["b", "a"]},
        {"tokenizer.ggml.scores": np.array([0.5, 2.5], np.float32)},
        {"tokenizer.chat_template": "{{ messages }}"},
        {"llama.context_length": 1024},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_the_server_has_read_must_stay(path: Path, changed: dict[str, Any]) -> None:
    identity = write(path)
    write(path, rows=2, **changed)
    with pytest.raises(ModelLoadError, match="Restart the server"):
        check_unchanged(path, identity)


def test_a_file_that_is_gone_is_named(path: Path) -> None:
    identity = write(path)
    path.unlink()
    with pytest.raises(ModelFileNotFound, match=r"model\.gguf"):
        check_unchanged(path, identity)
