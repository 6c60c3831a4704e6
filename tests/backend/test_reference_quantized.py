"""Models in every quantisation are what their dequantised weights are."""

from __future__ import annotations

import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from rocmforge.backend.arrays import Float32Array
from rocmforge.checkpoint.decode import decode
from rocmforge.checkpoint.formats import FORMATS
from rocmforge_reference.backend import create
from tests.backend.conftest import DEFAULTS
from tests.backend.driving import Chunk, Driver
from tests.support.files.gguf_writer import Stored, Value, write_gguf
from tests.support.models.loading import load_file

# Rows are as long as the longest block of any type.
DIM, VOCAB = 256, 32
METADATA: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": DIM,
    "llama.feed_forward_length": DIM,
    "llama.block_count": 1,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": VOCAB,
}
MATRICES = {
    "token_embd.weight": VOCAB,
    "output.weight": VOCAB,
    "blk.0.attn_q.weight": DIM,
    "blk.0.attn_k.weight": DIM // 2,
    "blk.0.attn_v.weight": DIM // 2,
    "blk.0.attn_output.weight": DIM,
    "blk.0.ffn_gate.weight": DIM,
    "blk.0.ffn_up.weight": DIM,
    "blk.0.ffn_down.weight": DIM,
}
NORMS = ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")


def can_decode(kind: GGMLQuantizationType) -> bool:
    format = FORMATS[kind.name.lower()]
    try:
        decode(format, np.zeros((1, format.block_bytes), np.uint8))
    except NotImplementedError:
        return False
    return True


OTHER_NUMBERS = ("F64", "I8", "I16", "I32", "I64")
TYPES = [
    kind for kind in GGMLQuantizationType if can_decode(kind) and kind.name not in OTHER_NUMBERS
]


def random_blocks(rows: int, kind: GGMLQuantizationType, rng: np.random.Generator) -> Stored:
    """Random blocks. Bytes stay below 64, so that a float16 scale among them is below 2."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 64, (rows, DIM // block_size * block_bytes), dtype=np.uint8)
    return Stored(data, kind)


def logprobs(path: Path) -> Float32Array:
    runner = load_file(create(), path, DEFAULTS)
    return Driver(runner).logprobs(Chunk(tokens=[3, 1, 4, 1, 5], blocks=[1]), range(5))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_quantised_model_equals_its_dequantised_self(
    kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    rng = np.random.default_rng(kind)
    norms = {name: np.ones(DIM, np.float32) for name in NORMS}
    stored = {name: random_blocks(rows, kind, rng) for name, rows in MATRICES.items()}
    plain = {
        name: decode(FORMATS[kind.name.lower()], tensor.data) for name, tensor in stored.items()
    }
    assert all(np.isfinite(values).all() for values in plain.values())
    quantized = write_gguf(tmp_path / "quantized.gguf", METADATA, {**norms, **stored})
    float32 = write_gguf(tmp_path / "float32.gguf", METADATA, {**norms, **plain})
    got = logprobs(quantized)
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got, logprobs(float32))


def test_loading_takes_little_memory_beyond_the_weights(tmp_path: Path) -> None:
    """The embedding is nearly all of this model, as it is of small models in other types."""
    vocab, kind = 1 << 15, GGMLQuantizationType.Q8_0
    rows = MATRICES | {"token_embd.weight": vocab}
    del rows["output.weight"]
    norms = {name: np.ones(DIM, np.float32) for name in NORMS}
    matrices = {
        name: random_blocks(count, kind, np.random.default_rng(1)) for name, count in rows.items()
    }
    metadata = METADATA | {"llama.vocab_size": vocab}
    path = write_gguf(tmp_path / "model.gguf", metadata, {**norms, **matrices})

    tracemalloc.start()
    try:
        with closing(load_file(create(), path, DEFAULTS)) as runner:
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1.3 * (runner.info.weights_bytes + runner.info.kv_bytes)


def test_all_quantisations_of_the_gguf_package_are_covered() -> None:
    assert len(TYPES) >= 25
