"""docker/compose.yaml, as Compose reads it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from compose_spec import PyOptions

from tests.docker.chroot_build import DOCKERFILE, read_stages
from tests.docker.files import DOCKER, SETTINGS, interpolated

TEXT = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
VARIABLES = {"MODEL": "m.gguf", "MODELS": "/models", "RENDER_GID": "105", "VIDEO_GID": "44"}


def validate(text: str) -> None:
    """Reads it by the Compose specification; raises ValueError for what is not in there."""
    options = PyOptions()
    options.apply_merge = True
    options.from_yaml(text)


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(interpolated(TEXT, VARIABLES))["services"]
    return found


def test_it_keeps_to_the_specification() -> None:
    validate(interpolated(TEXT, VARIABLES))


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("cap_drop", "cap_dorp", "cap_dorp"),
        ("pids_limit: 512", "pids_limit: many", "expected u32"),
    ],
)
def test_a_slip_would_be_noticed(right: str, wrong: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate(interpolated(TEXT, VARIABLES).replace(right, wrong))


@pytest.mark.parametrize("missing", sorted(VARIABLES))
def test_what_only_the_operator_knows_is_asked_for(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        interpolated(TEXT, {k: v for k, v in VARIABLES.items() if k != missing})


def test_every_service_is_hardened(services: dict[str, Any]) -> None:
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_everything_is_published_to_this_host_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service["ports"]]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_groups_are_numbers(services: dict[str, Any]) -> None:
    assert services["server"]["group_add"] == ["105", "44"]


def test_the_servers_variables_are_settings(services: dict[str, Any]) -> None:
    assert services["server"]["environment"].keys() <= SETTINGS


def test_mounted_files_exist(services: dict[str, Any]) -> None:
    mounts = [v.split(":")[0] for s in services.values() for v in s.get("volumes", ())]
    files = [mount for mount in mounts if mount.startswith("./")]
    assert len(files) == 4
    assert [file for file in files if not (DOCKER / file).exists()] == []


def test_secrets_that_are_used_are_defined(services: dict[str, Any]) -> None:
    used = {secret for service in services.values() for secret in service.get("secrets", ())}
    assert used == yaml.safe_load(TEXT)["secrets"].keys()


def test_the_override_for_nvidia_takes_amds_devices_away_and_builds_its_own_target() -> None:
    override = (DOCKER / "compose.nvidia.yaml").read_text(encoding="utf-8")
    lines = override.splitlines()
    assert sum("!reset" in line for line in lines) == 2  # devices and group_add
    kept = "\n".join(line for line in lines if "!reset" not in line)
    validate(kept)
    target = yaml.safe_load(kept)["services"]["server"]["build"]["target"]
    assert target in read_stages(DOCKERFILE.read_text(encoding="utf-8"))
