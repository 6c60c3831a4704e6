"""Rope tables against Transformers' frequencies, and the choices that are ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmforge.errors import UnsupportedTensor
from rocmforge.gguf.checkpoint import read_checkpoint
from rocmforge.gguf.config.reading import read_config
from rocmforge.gguf.reader import open_gguf
from rocmforge.models.rope import RopeTables, load_rope_tables, scaled_frequencies
from rocmforge.models.rope_config import PositionAxes, RopeConfig, RopeStyle, axes_of_pairs
from tests.data.models.text.model_files import gguf_metadata, gguf_tensors, write_model
from tests.data.models.text.tiny_models import MODELS, by_name, goldens
from tests.support.files.gguf_writer import write_gguf


def tables_of(name: str, folder: Path, max_context: int = 128) -> RopeTables:
    with open_gguf(write_model(by_name(name), folder)) as file:
        return load_rope_tables(read_config(file), read_checkpoint(file).rope_factors, max_context)


@pytest.mark.parametrize(
    "name", [model.name for model in MODELS if "frequencies" in goldens(model.name)]
)
def test_tables_hold_the_angles_of_transformers(name: str, tmp_path: Path) -> None:
    expected = goldens(name)
    table = tables_of(name, tmp_path).table
    angles = np.arange(128)[:, None] * np.array(expected["frequencies"])
    gain = expected["attention_factor"]
    # Transformers rounds frequencies to float32, so angles differ by up to 128 * 6e-8 of theirs.
    np.testing.assert_allclose(table.cos, gain * np.cos(angles), rtol=0, atol=2e-5)
    np.testing.assert_allclose(table.sin, gain * np.sin(angles), rtol=0, atol=2e-5)
    assert table.cos.dtype == table.sin.dtype == np.float32


def test_layers_with_a_window_have_an_unscaled_table_of_their_own(tmp_path: Path) -> None:
    local = tables_of("gemma3", tmp_path).local_table
    assert local is not None
    angles = np.arange(128)[:, None] * np.array(goldens("gemma3")["local_frequencies"])
    np.testing.assert_allclose(local.cos, np.cos(angles), rtol=0, atol=2e-5)
    np.testing.assert_allclose(local.sin, np.sin(angles), rtol=0, atol=2e-5)


def test_models_with_one_theta_have_one_table(tmp_path: Path) -> None:
    assert tables_of("gemma2", tmp_path).local_table is None


def test_longrope_takes_the_factors_of_the_served_context(tmp_path: Path) -> None:
    short = tables_of("phi3-longrope-long", tmp_path, max_context=32).table
    angles = np.arange(32)[:, None] * np.array(goldens("phi3-longrope-short")["frequencies"])
    gain = goldens("phi3-longrope-long")["attention_factor"]
    np.testing.assert_allclose(short.cos, gain * np.cos(angles), rtol=0, atol=2e-5)


def test_angles_far_out_are_exact_to_float32(tmp_path: Path) -> None:
    table = tables_of("qwen2", tmp_path, max_context=100_001).table
    angle = 100_000 * 10000.0 ** (-2 / 8)
    assert table.cos[100_000, 1] == np.float32(np.cos(angle))


def test_a_factor_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    model = by_name("llama3-rope")
    tensors = gguf_tensors(model)
    tensors["rope_freqs.weight"] = np.zeros(8, np.float32)
    path = write_gguf(tmp_path / "model.gguf", gguf_metadata(model), tensors)
    with open_gguf(path) as file, pytest.raises(UnsupportedTensor, match="rope_freqs"):
        load_rope_tables(read_config(file), read_checkpoint(file).rope_factors, 16)


@pytest.mark.parametrize("sections", [(24, 20, 20), (11, 11, 10), (3, 3, 2)])
def test_interleaved_axes_are_those_of_transformers(sections: tuple[int, ...]) -> None:
    """It overwrites parts of what it has for the first axis."""
    expected = np.zeros(sum(sections), int)
    for axis in (1, 2):
        expected[axis : 3 * sections[axis] : 3] = axis
    assert axes_of_pairs(sections, PositionAxes.INTERLEAVED) == tuple(expected.tolist())


def test_axes_in_sections_follow_each_other() -> None:
    assert axes_of_pairs((2, 3, 1), PositionAxes.SECTIONS) == (0, 0, 1, 1, 1, 2)


def test_a_position_that_is_the_same_on_all_axes_has_the_row_of_the_table(tmp_path: Path) -> None:
    """To the last bit: so text is computed as if there were no axes."""
    tables = tables_of("qwen35", tmp_path)
    assert tables.by_axes is not None
    positions = np.array([0, 3, 77, 127], np.int32)
    rows = tables.by_axes.rows(np.repeat(positions[:, None], 3, axis=1))
    np.testing.assert_array_equal(rows.cos, tables.table.cos[positions])
    np.testing.assert_array_equal(rows.sin, tables.table.sin[positions])


def test_each_axis_of_a_tower_has_the_frequencies_of_a_head_of_its_own() -> None:
    axes = axes_of_pairs((4, 4), PositionAxes.SECTIONS)
    rope = RopeConfig(
        style=RopeStyle.NEOX, rotary_dim=16, theta=100.0, scaling=None, axes=axes, axes_restart=True
    )
    own = 100.0 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(scaled_frequencies(rope, None), [*own, *own])
