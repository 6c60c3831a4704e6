"""Tiny models that have a tokenizer, so that they can be served and talked to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.api import tiny
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf


def write_speaking(
    folder: Path,
    name: str,
    keys: Mapping[str, Any] = MappingProxyType({}),
    *,
    template: str | None = tiny.CHATML,
) -> Path:
    """Writes a tiny model of that architecture, with a tokenizer and perhaps a chat template."""
    model = by_name(name)
    sizes = {"vocab_size": tiny.VOCAB_SIZE, "max_position_embeddings": 4096}
    model = replace(model, config=model.config | sizes)
    text: dict[str, Any] = tiny.metadata()
    text["tokenizer.ggml.token_type"] = np.array(text["tokenizer.ggml.token_type"], np.int32)
    del text["tokenizer.chat_template"]
    if template is not None:
        text["tokenizer.chat_template"] = template
    return write_gguf(
        folder / f"{name}.gguf", gguf_metadata(model) | text | {**keys}, gguf_tensors(model)
    )
