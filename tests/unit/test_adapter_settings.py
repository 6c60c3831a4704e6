"""`--lora`: from settings to what is loaded and served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rocmforge.engine_options import load_options
from rocmforge.errors import BadAdapter, ConfigurationError
from rocmforge.model_front import read_front
from rocmforge.models.lora import AdapterSpec
from rocmforge.setting_sources import load
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_adapters import TinyAdapter, write_adapter
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf
from tests.unit.text.vocabularies import byte_level


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer."""
    vocabulary = byte_level()
    types = np.array(vocabulary["tokenizer.ggml.token_type"], np.int32)
    vocabulary["tokenizer.ggml.token_type"] = types
    size = len(vocabulary["tokenizer.ggml.tokens"])
    llama = by_name("llama")
    recipe = replace(llama, config=llama.config | {"vocab_size": size})
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return write_gguf(path, gguf_metadata(recipe) | vocabulary, gguf_tensors(recipe))


@pytest.fixture(scope="module")
def adapter(model: Path) -> Path:
    return write_adapter(model.with_name("adapter.gguf"), by_name("llama"), TinyAdapter())


def test_adapters_of_a_file_of_settings_are_read_and_loaded(
    model: Path, adapter: Path, tmp_path: Path
) -> None:
    config = tmp_path / "rocmforge.toml"
    config.write_text(f'lora = ["sql={adapter}", "poet={adapter}:0.5"]\n')
    settings = load({}, config)
    assert read_front(str(model), settings).adapters == ("sql", "poet")
    assert load_options(settings, 128, causal=True).adapters == (
        AdapterSpec(name="sql", path=str(adapter)),
        AdapterSpec(name="poet", path=str(adapter), scale=0.5),
    )


def test_an_adapter_cannot_have_the_name_of_the_model(model: Path, adapter: Path) -> None:
    flags = {"lora": [f"sql={adapter}"], "served_model_name": ["tiny", "sql"]}
    with pytest.raises(ConfigurationError, match="the model has that name"):
        read_front(str(model), load(flags))


def test_an_adapter_that_does_not_fit_is_refused_before_the_engine_starts(
    model: Path, tmp_path: Path
) -> None:
    other = write_adapter(tmp_path / "a.gguf", by_name("qwen2"), TinyAdapter())
    with pytest.raises(BadAdapter, match=r"a\.gguf cannot be used"):
        read_front(str(model), load({"lora": [f"a={other}"]}))
