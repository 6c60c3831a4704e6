"""The libraries of the page, for tests that look at it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from tempfile import gettempdir

from page.build import PINS, VENDOR, build


def ensure_libraries() -> None:
    """Fetches them if they are not there, or older than their pins. Fails if that cannot be done.

    Tests run in several processes: one fetches, and the others wait for it.
    """
    with (Path(gettempdir()) / "rocmforge-page.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = VENDOR / "licences.txt"
        pinned = (PINS / "package-lock.json").stat().st_mtime
        if not built.exists() or built.stat().st_mtime < pinned:
            build()
