"""A model's file for tests whose backend does not care which it is."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tests.data.models.text.model_files import write_model
from tests.data.models.text.tiny_models import by_name


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # removed at the end of the process


@cache
def any_model(stem: str = "model") -> Path:
    """Returns the path of a tiny Llama, which is there until this process ends."""
    return write_model(by_name("llama"), Path(_folder().name)).rename(
        Path(_folder().name) / f"{stem}.gguf"
    )
