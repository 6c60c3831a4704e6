"""docker/Dockerfile: its style, and what it promises to the outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.live import live_server
from tests.docker.chroot_build import DOCKERFILE, ROOT, Stage, read_stages
from tests.docker.files import DOCKER, SETTINGS
from tests.support.processes.server import LiveServer, port_of, reserved_port


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    return read_stages(DOCKERFILE.read_text(encoding="utf-8"))


def instructions(stages: dict[str, Stage], name: str) -> dict[str, str]:
    """The last of each kind in a stage and those it is made from."""
    stage = stages[name]
    base = instructions(stages, stage.base) if stage.base in stages else {}
    return base | dict(stage.steps)


def test_hadolint_finds_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    command = [str(p) for p in (hadolint, "--config", DOCKER / "hadolint.yaml", DOCKERFILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", ["rocm", "nvidia"])
def test_an_image_runs_as_a_numbered_user_that_is_not_root(
    stages: dict[str, Stage], target: str
) -> None:
    user = instructions(stages, target)["USER"]
    assert [int(part) > 0 for part in user.split(":")] == [True, True]


def test_the_default_target_is_the_one_for_amd(stages: dict[str, Stage]) -> None:
    assert list(stages)[-1] == "rocm"


def test_what_is_copied_exists_and_is_not_left_out_of_the_context(
    stages: dict[str, Stage],
) -> None:
    kept = {
        line[1:]
        for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert all((ROOT / path).exists() for path in kept)
    copies = [arguments for s in stages.values() for kind, arguments in s.steps if kind == "COPY"]
    sources = {copy.split()[0] for copy in copies if not copy.startswith("--from=")}
    assert sources - {"."} <= kept


def test_its_variables_are_settings(stages: dict[str, Stage]) -> None:
    environment = dict(
        pair.split("=", 1)
        for stage in stages.values()
        for kind, arguments in stage.steps
        if kind == "ENV"
        for pair in arguments.split()
    )
    assert {name for name in environment if name.startswith("ROCMFORGE_")} <= SETTINGS


def check_health(port: int) -> int:
    """Runs the image's health check against a port."""
    command = [sys.executable, str(DOCKER / "healthcheck.py")]
    environment = os.environ | {"ROCMFORGE_PORT": str(port)}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with live_server(tmp_path_factory.mktemp("live") / "log", "--api-key", "secret") as server:
        yield server


def test_the_health_check_needs_no_key(server: LiveServer) -> None:
    assert check_health(server.port) == 0


def test_the_health_check_fails_without_a_server() -> None:
    with reserved_port() as reserved:
        assert check_health(port_of(reserved)) != 0
