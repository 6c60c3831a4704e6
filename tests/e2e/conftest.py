"""What tests of a module share: a SmolLM2 server that they only ask things, the HIP platform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocmforge_hip.device.discovery import find_devices
from rocmforge_hip.device.platform import select_platform
from rocmforge_hip.ops import geometry
from tests.support.launches.host_platform import HostPlatform
from tests.support.models.hip import platform_options, started_platform
from tests.support.processes.server import LiveServer

SMOLLM2_NAME = "smollm2-135m"
CONTEXT = 2048
RANKS = 2  # devices that share a model


def serve_command(model: Path, *flags: str) -> tuple[str, ...]:
    """`rocmforge serve` with a cache that is small enough to load quickly."""
    return (
        *("-m", "rocmforge", "serve", str(model), "--port", "{port}"),
        *("--backend", "reference", "--max-context", str(CONTEXT), "--max-sequences", "8"),
        *("--served-model-name", SMOLLM2_NAME, "--drain-timeout", "120", *flags),
    )


@pytest.fixture(scope="module")
def smollm2_server(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with LiveServer(serve_command(smollm2_path), log) as server:
        yield server


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> Iterator[HostPlatform | None]:
    """The platform under test; the checking library if it is the host."""
    with started_platform(platform_options(request)) as host:
        yield host


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of decodes are split, however short."""
    monkeypatch.setattr(geometry, "_WHOLE_TOKENS", ((0, 0),))


@pytest.fixture
def stack(host: HostPlatform | None) -> Iterator[ExitStack]:
    """Closes runners at the end of a test, and then asks the checking library what it saw."""
    finding = ""
    try:
        with ExitStack() as stack:
            yield stack
    finally:
        if host:  # whatever happened, the next test shall not answer for it
            finding = host.take_finding()
    assert finding == ""


@pytest.fixture
def ranks(host: HostPlatform | None, capfd: pytest.CaptureFixture[str]) -> Iterator[int]:
    """How many devices share a model. Of a test's models none may leave anything behind."""
    if len(find_devices(select_platform())) < RANKS:
        pytest.skip(f"there are not {RANKS} devices")
    before = host.live_bytes if host else 0
    yield RANKS
    if host:
        assert host.live_bytes == before
        assert "host platform:" not in capfd.readouterr().err  # found by other ranks
