"""The latest values of something that is asked for again and again."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LatestUsed(Generic[K, V]):
    """Values by key, those that were not used for longest given up first.

    Safe to use from several threads.

    Args:
        most: What they may weigh together, in the unit of those who keep them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()  # latest use last
        self._weight = 0

    def find(self, key: K) -> V | None:
        """Returns the value that was kept under a key, if it still is."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def keep(self, key: K, value: V, weight: int) -> None:
        """Keeps a value under a key, unless it weighs more than all may."""
        if weight > self._most:
            return
        with self._lock:
            _, before = self._kept.pop(key, (None, 0))
            self._kept[key] = value, weight
            self._weight += weight - before
            while self._weight > self._most:
                _, (_, oldest) = self._kept.popitem(last=False)
                self._weight -= oldest
