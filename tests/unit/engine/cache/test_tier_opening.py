"""Tiers are opened where they can be, and otherwise it is said why not."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from rocmforge.engine.cache.tiers.opening import open_tiers
from rocmforge.engine.ipc.tier_options import NO_TIERS, TierOptions
from rocmforge.engine.ipc.totals import Totals
from rocmforge.errors import ConfigurationError, OutOfMemory
from tests.support.fakes.fake_backend import STATE_BYTES, FakeConfig, make_runner

SIZES = (4096, 8, 64)
BLOCK_BYTES = 4 * 16
SOME = TierOptions(host_bytes=100 * BLOCK_BYTES + 5)


def runner(**changes: object):  # type: ignore[no-untyped-def]
    return make_runner(replace(FakeConfig(block_size=4, num_blocks=20), **changes), *SIZES)  # type: ignore[arg-type]


def test_nothing_is_opened_that_nobody_wants() -> None:
    assert open_tiers(runner(), NO_TIERS, b"", Totals()) is None


def test_a_note_says_what_there_is_room_for(tmp_path: Path) -> None:
    tiers = open_tiers(runner(), SOME, b"", Totals())
    assert tiers is not None
    assert "100 blocks, 400 tokens" in tiers.note
    folder = with_folder(tmp_path)
    tiers = open_tiers(runner(), folder, bytes(32), Totals())
    assert tiers is not None
    assert f"files in {tmp_path}" in tiers.note
    tiers.close()


def with_folder(folder: Path) -> TierOptions:
    return TierOptions(host_bytes=1000, folder=str(folder / "new" / "cache"), folder_bytes=1 << 20)


def test_a_note_says_how_many_snapshots_there_is_room_for() -> None:
    options = TierOptions(host_bytes=2 * (STATE_BYTES + 128 * BLOCK_BYTES) + 3)
    tiers = open_tiers(runner(num_slots=3, snapshots=2), options, b"", Totals())
    assert tiers is not None
    assert "256 blocks, 1,024 tokens, 2 snapshots of states" in tiers.note


def test_models_with_states_and_no_snapshots_do_without(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_tiers(runner(num_slots=3), SOME, b"", Totals()) is None
    assert "not used: the model has states, and there is no room for snapshots" in caplog.text


def test_room_for_less_than_a_snapshot_and_a_block_is_refused() -> None:
    stateful = runner(num_slots=3, snapshots=2)
    with pytest.raises(ConfigurationError, match="has 64, and a snapshot of its states 16"):
        open_tiers(stateful, TierOptions(host_bytes=76), b"", Totals())


def test_room_for_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a block of this model has 64"):
        open_tiers(runner(), TierOptions(host_bytes=63), b"", Totals())


def test_more_than_the_host_has_is_refused() -> None:
    with pytest.raises(OutOfMemory, match="--host-cache needs"):
        open_tiers(runner(), TierOptions(host_bytes=1 << 60), b"", Totals())


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("a file")
    with pytest.raises(ConfigurationError, match="the folder cannot be used"):
        open_tiers(runner(), with_folder(tmp_path), bytes(32), Totals())
