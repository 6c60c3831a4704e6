"""Models whose keys and values may differ have different fingerprints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocmforge.backend.protocol import DeviceInfo, LoadOptions, RunnerInfo
from rocmforge.engine.cache.tiers.fingerprint import fingerprint_of
from rocmforge.opening import open_checkpoint
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors
from tests.data.models.text.tiny_folders import write_folder
from tests.data.models.text.tiny_models import by_name
from tests.data.models.towers.tiny_towers import SMOLVLM
from tests.data.models.towers.tower_files import write_tower_files
from tests.support.files.gguf_writer import write_gguf
from tests.support.models.options import SMALL

INFO = RunnerInfo(
    backend="hip",
    device=DeviceInfo(index=0, name="GPU", target="gfx1100", memory_total=1, memory_free=1),
    block_size=32,
    num_blocks=10,
    max_context=128,
    vocab_size=100,
    pipeline_depth=2,
    weights_bytes=1,
    kv_bytes=10240,
    kv_dtype="f16",
    notes=(),
)


def write(folder: Path, change: Callable[[dict[str, Any]], None] = lambda tensors: None) -> Path:
    """A tiny model with changed weights, always of one size and time."""
    model = by_name("llama")
    tensors = gguf_tensors(model)
    change(tensors)
    path = write_gguf(folder / "model.gguf", gguf_metadata(model), tensors)
    os.utime(path, ns=(10**18, 10**18))
    return path


def fingerprint(path: Path, info: RunnerInfo = INFO, options: LoadOptions = SMALL) -> bytes:
    with open_checkpoint(path, options.adapters) as checkpoint:
        return fingerprint_of(checkpoint, info, options)


def test_a_model_that_is_opened_again_has_the_same(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert len(fingerprint(path)) == 32
    assert fingerprint(path) == fingerprint(path)
    assert fingerprint(path, replace(INFO, num_blocks=20, kv_bytes=20480)) == fingerprint(path)


def test_a_change_of_any_matrix_changes_it(tmp_path: Path) -> None:
    """The files have one size and one time, and describe the same."""
    found = {fingerprint(write(tmp_path))}
    names = [name for name, tensor in gguf_tensors(by_name("llama")).items()]
    for name in names:

        def spoil(tensors: dict[str, Any], name: str = name) -> None:
            tensors[name] = (np.asarray(tensors[name]) * np.float32(1.01)).astype(np.float32)

        found.add(fingerprint(write(tmp_path, spoil)))
    assert len(found) == 1 + len(names)


def test_a_change_of_time_changes_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = fingerprint(path)
    os.utime(path)
    assert fingerprint(path) != before


@pytest.mark.parametrize(
    "info",
    [
        replace(INFO, backend="reference"),
        replace(INFO, kv_dtype="int8"),
        replace(INFO, block_size=16),
        replace(INFO, device=replace(INFO.device, target="gfx942")),
    ],
)
def test_a_change_of_what_runs_it_changes_it(info: RunnerInfo, tmp_path: Path) -> None:
    path = write(tmp_path)
    assert fingerprint(path, info) != fingerprint(path)


def test_a_change_of_settings_changes_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert fingerprint(path, options=replace(SMALL, activation_bits="16")) != fingerprint(path)


def test_folders_have_one_too(tmp_path: Path) -> None:
    llama, qwen = (write_folder(by_name(name), tmp_path / name) for name in ("llama", "qwen3moe"))
    assert fingerprint(llama) == fingerprint(llama) != fingerprint(qwen)


def test_another_tower_or_other_colours_change_it(tmp_path: Path) -> None:
    """Blocks know images by their pixels: what becomes of these depends on the tower."""
    path = write_tower_files(SMOLVLM, tmp_path / "one")
    found = {fingerprint(path)}
    tower = path.with_name("mmproj-model-f32.gguf")
    whole = tower.read_bytes()
    for change in ({"image_mean": np.full(3, 0.4, np.float32)}, {"preproc_image_size": 128}):
        write_tower_files(SMOLVLM, tmp_path / "two", **change)
        tower.write_bytes((tmp_path / "two" / tower.name).read_bytes())
        found.add(fingerprint(path))
    tower.write_bytes(whole[:-64] + bytes(64))  # the end of its last tensor
    found.add(fingerprint(path))
    tower.unlink()
    found.add(fingerprint(path))
    assert len(found) == 5
