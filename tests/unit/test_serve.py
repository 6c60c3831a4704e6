"""`rocmforge serve` before its event loop runs."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rocmforge import setting_sources
from rocmforge.commands import serve
from rocmforge.fleet.fleet import Fleet


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_while_files_are_read_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read(*_: object) -> Fleet:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the interrupt is waiting for something")

    monkeypatch.setattr(serve, "build_fleet", read)
    path = tmp_path / "model.gguf"
    path.touch()
    with pytest.raises(KeyboardInterrupt):
        serve.run(argparse.Namespace(models=[str(path)]), setting_sources.load({}))


def test_what_is_there_once_models_are_loaded_is_no_garbage_to_look_through() -> None:
    before = gc.get_freeze_count()
    try:
        asyncio.run(serve._load(Fleet(()), Console(), "text"))
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("host", "shown", "others"),
    [("127.0.0.1", "127.0.0.1", False), ("0.0.0.0", "127.0.0.1", True), ("::", "[::1]", True)],
)
def test_the_address_that_is_shown_can_be_opened(host: str, shown: str, others: bool) -> None:
    said = StringIO()
    listener: Any = SimpleNamespace(getsockname=lambda: (host, 8000))  # not all have IPv6
    serve._announce(Console(file=said), Fleet(()), listener, setting_sources.load({}))
    assert said.getvalue().startswith(f"http://{shown}:8000 is a page to chat on\n")
    assert ("Other machines use the name of this one, and port 8000" in said.getvalue()) is others
