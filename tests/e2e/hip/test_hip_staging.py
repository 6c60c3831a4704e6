"""The ring between files and the device: every piece arrives once, in order, or the load ends."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from rocmforge.errors import ModelLoadError
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.weights.staging import RING, Bytes, StagingBuffer, StagingPiece, StagingRing

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


@pytest.mark.usefixtures("host")
def test_pieces_arrive_in_order_however_long_each_is_read(
    ring: tuple[Driver, int, StagingRing],
) -> None:
    driver, stream, staging = ring
    arrived = np.zeros((PIECES, STAGE_BYTES), np.uint8)

    def take(number: int, stage: StagingBuffer) -> None:
        size = len(content(number))
        driver.copy_to_device(stage.device.array.address, stage.host_address, size, stream)
        driver.copy_to_host(arrived[number].ctypes.data, stage.device.array.address, size, stream)
        driver.record_event(stage.is_free, stream)

    pieces = [
        StagingPiece(partial(fill, number), len(content(number)), partial(take, number))
        for number in range(PIECES)
    ]
    with closing(staging.read(pieces)) as stages:
        for piece, stage in zip(pieces, stages, strict=True):
            piece.finish(stage)
    driver.synchronize_stream(stream)
    for number in range(PIECES):
        expected = content(number)
        assert arrived[number, : len(expected)].tolist() == expected.tolist(), number


@pytest.mark.usefixtures("host")
def test_a_piece_that_cannot_be_read_ends_the_load_and_all_readers(
    ring: tuple[Driver, int, StagingRing],
) -> None:
    driver, stream, staging = ring

    def fail(place: Bytes) -> None:
        raise ModelLoadError("it became shorter")

    pieces = [
        StagingPiece(partial(fill, number), len(content(number)), lambda stage: None)
        for number in range(PIECES)
    ]
    pieces[RING + 2] = StagingPiece(fail, 1, lambda stage: None)
    with closing(staging.read(pieces)) as stages:
        for _ in range(RING + 2):
            driver.record_event(next(stages).is_free, stream)
        with pytest.raises(ModelLoadError, match="shorter"):
            next(stages)
    # A reader that still waited for a place would hold up the end of the ring, and so of this test.
