"""The libraries of the page, for tests that look at it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from page.build import PINS, VENDOR, build, install

_AXE = VENDOR.parents[3] / "build" / "axe.js"


def ensure_libraries() -> None:
    """Fetches them if they are not there, or older than their pins, or fails."""
    with _alone():
        if _is_old(VENDOR / "licences.txt"):
            build()


def axe() -> str:
    """The source of axe-core, which checks a page for people who see or use it in other ways."""
    with _alone():
        if _is_old(_AXE):
            with TemporaryDirectory() as folder:
                source = (install(Path(folder)) / "axe-core" / "axe.min.js").read_bytes()
            _AXE.parent.mkdir(exist_ok=True)
            _AXE.write_bytes(source)
    return _AXE.read_text(encoding="utf-8")


@contextmanager
def _alone() -> Iterator[None]:
    """Tests run in several processes: one fetches, and the others wait for it."""
    with (Path(gettempdir()) / "rocmforge-page.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_old(path: Path) -> bool:
    pinned = (PINS / "package-lock.json").stat().st_mtime
    return not path.exists() or path.stat().st_mtime < pinned
