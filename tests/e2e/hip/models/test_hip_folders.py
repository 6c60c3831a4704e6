"""Hugging Face folders on the HIP backend: the same numbers as GGUF files of the same weights."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.arrays import Float32Array
from rocmforge.backend.protocol import Runner
from rocmforge.cli import main
from rocmforge.engine.ipc.params import Pooling
from rocmforge_hip.backend import create
from tests.backend.driving import Chunk, Driver
from tests.data.models.text import tiny_encoders
from tests.data.models.text.expert_weights import fuse_experts
from tests.data.models.text.model_files import hf_weights, write_model
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import PROMPT, by_name
from tests.e2e.hip.models.test_hip_models import FLOAT_TOLERANCE
from tests.support.files.safetensors_writer import bfloat16, write_safetensors
from tests.support.models.encoder_steps import encoder_step, run
from tests.support.models.hip import fitting, splittable
from tests.support.models.loading import load_file
from tests.support.models.options import SMALL
from tests.support.models.runners import load_reference

pytestmark = pytest.mark.slow

ROWS = (12, 39)


def load(stack: ExitStack, model: Path, **changes: Any) -> Runner:
    runner = load_file(create(), model, replace(SMALL, max_batched_tokens=64, **changes))
    return stack.enter_context(closing(runner))


def logprobs(runner: Runner) -> Float32Array:
    return Driver(runner).logprobs(Chunk(tokens=PROMPT, blocks=[3, 1, 2]), ROWS)


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_decoders_say_the_same_as_from_gguf_files(
    name: str, stack: ExitStack, tmp_path: Path
) -> None:
    """Rotated in halves and in pairs, with norms that are made anew, with fused matrices."""
    model = fitting(by_name(name))
    found = logprobs(load(stack, write_folder(model, tmp_path / "m")))
    expected = logprobs(load(stack, write_model(model, tmp_path)))
    assert np.abs(found - expected).max() < (0 if name == "phi3" else 0.02) + 1e-6


@pytest.mark.parametrize("name", ["gpt-oss", "gpt-oss-mxfp4"])
def test_experts_of_gpt_oss_say_the_same_as_from_gguf_files(
    name: str, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transposed, or of codes in another order, and read a few rows at a time."""
    monkeypatch.setattr("rocmforge_hip.weights.upload._CHUNK_BYTES", 1000)
    model = fitting(by_name(name))
    chunk = Chunk(tokens=PROMPT[:12], blocks=[3])
    found, expected = (
        Driver(load(stack, path)).logprobs(chunk, [11])
        for path in (write_folder(model, tmp_path / "m"), write_model(model, tmp_path))
    )
    np.testing.assert_array_equal(found, expected)


def test_experts_in_two_bytes_may_be_apart_or_in_one_tensor(
    stack: ExitStack, tmp_path: Path
) -> None:
    model = fitting(by_name("qwen3moe"))
    apart = write_folder(model, tmp_path / "apart", dtype="bfloat16")
    together = write_folder(model, tmp_path / "together", dtype="bfloat16")
    fused = fuse_experts(hf_weights(model))
    stored = {name: bfloat16(weight) for name, weight in fused.items()}
    write_safetensors(together / "model.safetensors", stored)
    chunk = Chunk(tokens=PROMPT[:12], blocks=[3])
    found, same = (Driver(load(stack, path)).logprobs(chunk, [11]) for path in (apart, together))
    np.testing.assert_array_equal(found, same)
    expected = Driver(load_reference(stack, apart)).logprobs(chunk, [11])
    assert np.abs(found - expected).max() / expected.std() < FLOAT_TOLERANCE


def test_encoders_say_the_same_as_from_gguf_files(stack: ExitStack, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
    model = tiny_encoders.by_name("xlm-roberta")
    model = replace(model, config=model.config | sizes)
    step = encoder_step(0, [tiny_encoders.PROMPT, tiny_encoders.PROMPT[:9]], Pooling.MEAN)
    changes: dict[str, Any] = {"max_context": 64, "kv_blocks": None}
    found = run(load(stack, write_folder(model, tmp_path / "m"), **changes), step)
    gguf = tiny_encoders.write_encoder(model, tmp_path)
    expected = run(load(stack, gguf, **changes), step)
    np.testing.assert_array_equal(found, expected)


def test_a_folder_is_served_by_several_devices(
    ranks: int, stack: ExitStack, tmp_path: Path
) -> None:
    folder = write_folder(splittable(fitting(by_name("qwen2"))), tmp_path / "m", dtype="bfloat16")
    expected = logprobs(load(stack, folder))
    found = logprobs(load(stack, folder, tensor_parallel=ranks))
    assert np.abs(found - expected).max() < 0.05


def test_a_folder_is_planned_like_the_gguf_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, plans = fitting(by_name("qwen2")), []
    for path in (write_folder(model, tmp_path / "m"), write_model(model, tmp_path)):
        flags = ("--plan", "--json", "--backend", "hip", "--memory", "1GiB")
        assert main(["inspect", str(path), *flags]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    assert plans[0] == plans[1]
