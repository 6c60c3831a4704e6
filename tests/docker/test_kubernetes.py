"""The manifests of docker/kubernetes."""

from __future__ import annotations

from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from rocmforge.settings import Settings
from tests.api.conftest import Client
from tests.docker.files import DOCKER, SETTINGS, load

FOLDER = "kubernetes"
NAMES = sorted(path.name for path in (DOCKER / FOLDER).glob("*.yaml"))
# Not part of Kubernetes itself.
FOREIGN = {"kustomization.yaml", "podmonitor.yaml"}


@pytest.fixture
def pod() -> Any:
    return load(f"{FOLDER}/deployment.yaml")["spec"]["template"]["spec"]


@pytest.fixture
def container(pod: Any) -> Any:
    (container,) = pod["containers"]
    return container


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FOREIGN])
def test_a_manifest_keeps_to_its_schema(name: str) -> None:
    kubernetes_validate.validate(load(f"{FOLDER}/{name}"), "1.33", strict=True)


def test_a_slip_would_be_noticed(pod: Any) -> None:
    manifest = load(f"{FOLDER}/deployment.yaml")
    manifest["spec"]["template"]["spec"]["containers"][0]["startupProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="startupProb"):
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_the_kustomization_lists_every_manifest() -> None:
    listed = load(f"{FOLDER}/kustomization.yaml")["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == NAMES


def test_everything_selects_the_same_pods() -> None:
    labels = load(f"{FOLDER}/deployment.yaml")["spec"]["template"]["metadata"]["labels"]
    assert load(f"{FOLDER}/service.yaml")["spec"]["selector"] == labels
    for name in ("deployment", "disruption", "podmonitor"):
        assert load(f"{FOLDER}/{name}.yaml")["spec"]["selector"]["matchLabels"] == labels


def test_the_pod_is_restricted_and_gets_one_gpu(pod: Any, container: Any) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["amd.com/gpu"] == "1"


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_probe_asks_a_route_that_exists(client: Client, container: Any, probe: str) -> None:
    assert client.get(container[probe]["httpGet"]["path"]).status_code == 200


def test_its_variables_are_settings(container: Any) -> None:
    assert {variable["name"] for variable in container["env"]} <= SETTINGS


def test_requests_may_finish_before_the_pod_is_killed(pod: Any) -> None:
    assert pod["terminationGracePeriodSeconds"] > Settings().drain_timeout
    compose_s = int(load("compose.yaml")["services"]["server"]["stop_grace_period"].rstrip("s"))
    assert compose_s > Settings().drain_timeout
