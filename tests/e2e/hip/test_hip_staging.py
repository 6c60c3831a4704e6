"""The ring between files and the device: every piece arrives once, or the load ends."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

import numpy as np
import pytest

from rocmforge.errors import ModelLoadError
from rocmforge_hip.device.driver import Driver
from rocmforge_hip.weights.staging import RING, Bytes, StagingBuffer, StagingPiece, StagingRing

STAGE_BYTES = 4096
PIECES = 5 * RING + 3


@contextmanager
def open_ring() -> Iterator[tuple[Driver, int, StagingRing]]:
    driver = Driver(0)
    stream = driver.create_stream()
    ring = StagingRing(driver, STAGE_BYTES)
    try:
        yield driver, stream, ring
    finally:
        ring.stop()
        driver.synchronize_stream(stream)
        ring.close()
        driver.destroy_stream(stream)


def content(number: int) -> Bytes:
    return np.random.default_rng(number).integers(0, 256, 1 + number % STAGE_BYTES, np.uint8)


def fill(number: int, place: Bytes) -> None:
    time.sleep(random.Random(number).choice([0, 0, 0.002]))
    place[:] = content(number)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("in_order", [False, True])
def test_every_piece_arrives_once_however_long_each_is_read(in_order: bool) -> None:
    arrived = np.zeros((PIECES, STAGE_BYTES), np.uint8)
    numbers = []

    def take(number: int, stage: StagingBuffer) -> None:
        numbers.append(number)
        size = len(content(number))
        driver.copy_to_device(stage.device.address, stage.host_address, size, stream)
        driver.copy_to_host(arrived[number].ctypes.data, stage.device.address, size, stream)

    pieces = [
        StagingPiece(partial(fill, number), len(content(number)), partial(take, number))
        for number in range(PIECES)
    ]
    with (
        open_ring() as (driver, stream, ring),
        closing(ring.read(pieces, in_order=in_order)) as filled,
    ):
        for piece, stage in filled:
            piece.finish(stage)
            driver.record_event(stage.is_free, stream)
    assert sorted(numbers) == list(range(PIECES))
    assert (numbers == sorted(numbers)) is in_order
    for number in range(PIECES):
        expected = content(number)
        assert arrived[number, : len(expected)].tolist() == expected.tolist(), number


@pytest.mark.usefixtures("host")
def test_a_piece_that_cannot_be_read_ends_the_load_and_all_readers() -> None:
    def fail(place: Bytes) -> None:
        raise ModelLoadError("it became shorter")

    pieces = [
        StagingPiece(partial(fill, number), len(content(number)), lambda stage: None)
        for number in range(PIECES)
    ]
    pieces[RING + 2] = StagingPiece(fail, 1, lambda stage: None)
    with (
        open_ring() as (driver, stream, ring),
        closing(ring.read(pieces, in_order=False)) as filled,
    ):

        def take_all() -> None:
            for _, stage in filled:
                driver.record_event(stage.is_free, stream)

        with pytest.raises(ModelLoadError, match="shorter"):
            take_all()
    # A reader that still waited for a place would hold up the end of the ring, and so of this test.
