"""The loading of models with towers, as an engine process does it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from rocmforge.backend.protocol import LoadOptions, ProgressCallback, Runner
from rocmforge.engine.loading import load
from rocmforge.errors import OutOfMemory, UnsupportedArchitecture
from rocmforge.models.checkpoint import Checkpoint
from rocmforge_reference.backend import ReferenceBackend
from tests.data.models.towers.tiny_towers import SMOLVLM
from tests.data.models.towers.tower_files import write_tower_files
from tests.support.engine.start import start_message
from tests.support.models.options import SMALL

OPTIONS = replace(SMALL, kv_blocks=8)


def test_a_model_is_loaded_with_the_tower_beside_it_or_the_one_that_is_named(
    tmp_path: Path,
) -> None:
    path = write_tower_files(SMOLVLM, tmp_path)
    beside = tmp_path / "mmproj-model-f32.gguf"
    start = start_message("reference", str(path), OPTIONS)
    with closing(load(start, lambda stage, share: None)) as loaded:
        assert loaded.info.images is not None
        assert loaded.info.images.tile == 64
        assert any(note.startswith("tower ") for note in loaded.info.notes)
    named = beside.rename(tmp_path / "named.gguf")
    with closing(load(start, lambda stage, share: None)) as loaded:
        assert loaded.tower is None
        assert loaded.info.images is None
    start = structs.replace(start, mmproj=str(named))
    with closing(load(start, lambda stage, share: None)) as loaded:
        assert loaded.info.images is not None


def test_a_tower_without_kernels_is_left_out_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, load_one = write_tower_files(SMOLVLM, tmp_path), ReferenceBackend.load

    def refusing(
        self: ReferenceBackend,
        checkpoint: Checkpoint,
        options: LoadOptions,
        progress: ProgressCallback,
    ) -> Runner:
        if not checkpoint.config.causal:
            raise UnsupportedArchitecture("siglip with heads of 72 elements", ("others",))
        return load_one(self, checkpoint, options, progress)

    monkeypatch.setattr(ReferenceBackend, "load", refusing)
    start = start_message("reference", str(path), OPTIONS)
    with closing(load(start, lambda stage, share: None)) as loaded:
        assert loaded.info.images is None
        assert "heads of 72 elements" in " ".join(loaded.info.notes)
    asked = structs.replace(start, mmproj=str(tmp_path / "mmproj-model-f32.gguf"))
    with pytest.raises(UnsupportedArchitecture):
        load(asked, lambda stage, share: None)


def test_a_tower_is_closed_if_its_model_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, closed = write_tower_files(SMOLVLM, tmp_path), []
    load_one = ReferenceBackend.load

    def failing(
        self: ReferenceBackend,
        checkpoint: Checkpoint,
        options: LoadOptions,
        progress: ProgressCallback,
    ) -> Runner:
        if checkpoint.config.causal:
            raise OutOfMemory("no room")
        runner = load_one(self, checkpoint, options, progress)
        monkeypatch.setattr(runner, "close", lambda: closed.append("tower"))
        return runner

    monkeypatch.setattr(ReferenceBackend, "load", failing)
    with pytest.raises(OutOfMemory, match="no room"):
        load(start_message("reference", str(path), OPTIONS), lambda stage, share: None)
    assert closed == ["tower"]
