"""A GGUF file is translated: weights by our names, and everything else that a model needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmforge.errors import BadTokenizer, ConfigurationError, UnsupportedTensor
from rocmforge.models.lora import AdapterSpec
from rocmforge.opening import describe, open_checkpoint
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, write_model
from tests.data.models.text.tiny_encoders import by_name as encoder_by_name
from tests.data.models.text.tiny_encoders import write_encoder
from tests.data.models.text.tiny_models import by_name
from tests.support.files.gguf_writer import write_gguf


def test_fused_tensors_are_weights_that_share_their_memory(tmp_path: Path) -> None:
    stored = gguf_tensors(by_name("phi3"))
    with open_checkpoint(write_model(by_name("phi3"), tmp_path)) as checkpoint:
        parts = [checkpoint.weights[f"layers.1.attention.{name}"] for name in "qkv"]
        gate, up = (checkpoint.weights[f"layers.1.feed_forward.{name}"] for name in ("gate", "up"))
        values = [part.to_float32() for part in parts]
        behind = parts[0].data.ctypes.data + parts[0].nbytes
        assert parts[1].data.ctypes.data == behind
        assert parts[1].name == "blk.1.attn_qkv.weight[48:64]"
    np.testing.assert_array_equal(np.concatenate(values), stored["blk.1.attn_qkv.weight"])
    assert gate.shape == up.shape


def test_weights_are_called_alike_whatever_the_file_calls_them(tmp_path: Path) -> None:
    with open_checkpoint(write_model(by_name("gemma3"), tmp_path)) as decoder:
        names = {path.removeprefix("layers.0.") for path in decoder.weights}
    with open_checkpoint(write_encoder(encoder_by_name("bert"), tmp_path)) as encoder:
        assert names & {path.removeprefix("layers.0.") for path in encoder.weights} >= {
            "embedding.token",
            "attention.q",
            "attention.output",
            "attention_norm",
            "feed_forward_norm",
            "feed_forward.down",
        }
        assert encoder.name_of("layers.0.attention_norm") == "blk.0.attn_output_norm.weight"
        assert encoder.name_of("head.scores") == "cls.output.weight"
    assert decoder.name_of("layers.0.attention_norm") == "blk.0.attn_norm.weight"


def test_a_ranker_of_one_score_has_a_matrix(tmp_path: Path) -> None:
    path = write_encoder(encoder_by_name("ranker"), tmp_path)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.weights["head.scores"].shape == (1, checkpoint.config.hidden_size)


def test_bytes_of_weights_are_found_in_the_file(tmp_path: Path) -> None:
    path = write_model(by_name("phi3"), tmp_path)
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.weights["layers.0.attention.k"]
        place = checkpoint.locate(tensor.data)
        assert place is not None
        assert place.path == path
        with path.open("rb") as file:
            file.seek(place.offset)
            assert file.read(tensor.nbytes) == tensor.data.tobytes()


def test_closing_lets_go_of_the_weights(tmp_path: Path) -> None:
    with open_checkpoint(write_model(by_name("llama"), tmp_path)) as checkpoint:
        assert checkpoint.weights
    assert not checkpoint.weights


def test_weights_need_no_tokenizer(tmp_path: Path) -> None:
    model = by_name("llama")
    metadata = {
        key: value
        for key, value in gguf_metadata(model).items()
        if not key.startswith("tokenizer.")
    } | {"llama.vocab_size": len(gguf_tensors(model)["token_embd.weight"])}
    path = write_gguf(tmp_path / "bare.gguf", metadata, gguf_tensors(model))
    with open_checkpoint(path) as checkpoint:
        assert not checkpoint.has_tokenizer
        with pytest.raises(BadTokenizer, match="has no tokenizer"):
            checkpoint.read_tokenizer()


def test_an_encoder_takes_no_adapters(tmp_path: Path) -> None:
    path = write_encoder(encoder_by_name("bert"), tmp_path)
    with pytest.raises(ConfigurationError, match="leave --lora out"):
        open_checkpoint(path, [AdapterSpec(name="a", path="a.gguf")])


def test_what_cannot_be_served_can_be_described(tmp_path: Path) -> None:
    tensors = {"x": np.zeros(32, np.float32), "y": np.zeros(4, np.int32)}
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "mamba"}, tensors)
    contents = describe(path)
    assert contents.config is None
    assert contents.refusal is not None
    assert "mamba" in contents.refusal
    assert [(tensor.name, str(tensor.format)) for tensor in contents.tensors] == [
        ("x", "F32"),
        ("y", "I32"),
    ]


def test_a_tensor_that_is_called_as_we_call_a_weight_does_not_become_one(tmp_path: Path) -> None:
    model = by_name("llama")
    tensors = gguf_tensors(model)
    tensors["layers.0.attention.q"] = np.zeros_like(tensors["blk.0.attn_q.weight"])
    path = write_gguf(tmp_path / "m.gguf", gguf_metadata(model), tensors)
    with pytest.raises(UnsupportedTensor, match=r"'layers\.0\.attention\.q': not a part of llama"):
        open_checkpoint(path)
