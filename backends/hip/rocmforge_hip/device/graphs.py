"""Captured steps: what is the same in every step of a bucket is recorded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final

from rocmforge_hip.device.driver import Driver, HipError

_CAPACITY: Final = 64


class GraphCache:
    """Graphs by key; the least recently used one goes when there are too many."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver = driver
        self._stream = stream
        self._graphs: OrderedDict[Hashable, int] = OrderedDict()

    def launch(self, key: Hashable, record: Callable[[], object]) -> None:
        """Runs the graph of the key, which is what `record` launches on the stream.

        A graph has the addresses that `record` used: they must be the same for the same key.
        """
        if key not in self._graphs:
            self._make_room()
            self._driver.begin_capture(self._stream)
            try:
                record()
            except BaseException:
                with suppress(HipError):  # whoever closes the device waits for its stream
                    self._driver.destroy_graph(self._driver.end_capture(self._stream))
                raise
            self._graphs[key] = self._driver.end_capture(self._stream)
        self._graphs.move_to_end(key)
        self._driver.launch_graph(self._graphs[key], self._stream)

    def close(self) -> None:
        """Destroys all graphs, none of which may be running."""
        while self._graphs:
            self._driver.destroy_graph(self._graphs.popitem()[1])

    def _make_room(self) -> None:
        if len(self._graphs) >= _CAPACITY:
            self._driver.synchronize_stream(self._stream)
            self._driver.destroy_graph(self._graphs.popitem(last=False)[1])
