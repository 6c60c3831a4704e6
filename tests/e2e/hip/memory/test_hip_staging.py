"""The ring between files and the device: every piece arrives once, in order, or the load ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rocmforge.checkpoint.locator import FilePart
from rocmforge.errors import ModelLoadError
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.weights.staging import RING, Bytes, StagingBuffer, StagingPiece, StagingRing
from tests.support.models.loading import open_files

STAGE_BYTES = 256
PIECES = 5 * RING + 3


@pytest.fixture
def ring() -> Iterator[tuple[Driver, int, StagingRing]]:
    driver = Driver(0)
    stream = driver.create_stream()
    ring = StagingRing(driver, STAGE_BYTES)
    yield driver, stream, ring
    driver.synchronize_stream(stream)
    ring.close()
    driver.destroy_stream(stream)


def content(number: int) -> Bytes:
    return np.random.default_rng(number).integers(0, 256, 1 + number % STAGE_BYTES, np.uint8)


def fill(number: int, place: Bytes) -> None:
    time.sleep(random.Random(number).choice([0, 0, 0.002]))
    place[:] = content(number)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Holds the content of all pieces, one behind the other."""
    path = tmp_path / "file"
    path.write_bytes(b"".join(content(number).tobytes() for number in range(PIECES)))
    return path


def make_pieces(file: Path, take: Callable[[int, StagingBuffer], None]) -> list[StagingPiece]:
    """Pieces that are read from the file, and others that are computed."""
    pieces, offset = [], 0
    for number in range(PIECES):
        nbytes = len(content(number))
        source = FilePart(file, offset) if number % 3 else partial(fill, number)
        pieces.append(StagingPiece(source, nbytes, partial(take, number)))
        offset += nbytes
    return pieces


def leave(number: int, stage: StagingBuffer) -> None:
    """Does nothing with a piece."""


@pytest.mark.usefixtures("host")
def test_pieces_arrive_in_order_however_long_each_is_read(
    ring: tuple[Driver, int, StagingRing], file: Path
) -> None:
    driver, stream, staging = ring
    arrived = np.zeros((PIECES, STAGE_BYTES), np.uint8)
    there = driver.allocate(STAGE_BYTES, "a piece")

    def take(number: int, stage: StagingBuffer) -> None:
        size = len(content(number))
        driver.copy_to_device(there, stage.host_address, size, stream)
        driver.copy_to_host(arrived[number].ctypes.data, there, size, stream)
        driver.record_event(stage.arrived, stream)

    pieces = make_pieces(file, take)
    staging.start(iter(pieces))
    with closing(staging.read()) as stages:
        for expected, (piece, stage) in zip(pieces, stages, strict=True):
            assert piece is expected
            piece.finish(stage)
    driver.synchronize_stream(stream)
    driver.free(there)
    for number in range(PIECES):
        expected_bytes = content(number)
        assert arrived[number, : len(expected_bytes)].tolist() == expected_bytes.tolist(), number


class PinningDriver(Driver):
    """Remembers what was pinned."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.pinned: list[range] = []

    def pin(self, address: int, nbytes: int, what: str) -> None:
        super().pin(address, nbytes, what)
        self.pinned.append(range(address, address + nbytes))


@pytest.mark.usefixtures("host")
def test_each_place_is_pinned_once_when_its_first_piece_is_there(file: Path) -> None:
    driver = PinningDriver(0)
    stream, staging = driver.create_stream(), StagingRing(driver, STAGE_BYTES)
    staging.start(iter(make_pieces(file, leave)))
    with closing(staging.read()) as stages:
        for number, (_, stage) in enumerate(stages):
            assert len(driver.pinned) == min(number + 1, RING)
            place = driver.pinned[number % RING]
            assert place == range(stage.host_address, stage.host_address + STAGE_BYTES)
            driver.record_event(stage.arrived, stream)
    driver.synchronize_stream(stream)
    staging.close()
    driver.destroy_stream(stream)
    pages = [address // 4096 for place in driver.pinned for address in (place[0], place[-1])]
    assert len(set(pages)) == RING


def fail(place: Bytes) -> None:
    raise ModelLoadError("it became shorter")


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("fails", ["computed", "read"])
def test_a_piece_that_cannot_be_had_ends_the_load_and_all_readers(
    ring: tuple[Driver, int, StagingRing], file: Path, fails: str
) -> None:
    driver, stream, staging = ring
    pieces = make_pieces(file, leave)
    source = fail if fails == "computed" else FilePart(file, file.stat().st_size - 1)
    pieces[RING + 2] = StagingPiece(source, 2, partial(leave, RING + 2))
    staging.start(iter(pieces))
    with closing(staging.read()) as stages:
        for _ in range(RING + 2):
            driver.record_event(next(stages)[1].arrived, stream)
        with pytest.raises(ModelLoadError, match="became shorter"):
            next(stages)
    # A reader that still waited for a place would hold up the end of the ring, and so of this test.


@pytest.mark.usefixtures("host")
def test_a_load_that_is_given_up_leaves_no_file_open(file: Path) -> None:
    driver = Driver(0)
    stream, staging = driver.create_stream(), StagingRing(driver, STAGE_BYTES)
    staging.start(iter(make_pieces(file, leave)))
    with closing(staging.read()) as stages:
        for _ in range(RING + 2):
            driver.record_event(next(stages)[1].arrived, stream)
    assert str(file) in open_files()
    driver.synchronize_stream(stream)
    staging.close()
    driver.destroy_stream(stream)
    assert str(file) not in open_files()
