"""The Helm chart of docker/helm, rendered by the template engine that Helm has."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from rocmforge import __version__
from rocmforge.setting_sources import load as load_settings
from tests.docker.files import DOCKER, SETTINGS, load

CHART = DOCKER / "helm"
DIGEST = "sha256:" + 64 * "0"
PLAIN = ("deployment", "service", "disruption", "models", "podmonitor")
# Not part of Kubernetes itself.
FOREIGN = {"PodMonitor", "ServiceMonitor"}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values of which some are replaced, as `--set` does."""
    found = deepcopy(dict(under))
    for key, value in over.items():
        is_table = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if is_table else value
    return found


def values(**changed: Any) -> dict[str, Any]:
    """The chart's values, with some of them changed."""
    return merged(load("helm/values.yaml"), changed)


def check(given: Mapping[str, Any]) -> None:
    """Checks values as Helm does before it renders anything."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(given, schema, cls=jsonschema.Draft7Validator)


def render(**changed: Any) -> dict[str, Any]:
    """The manifests of a release, by kind."""
    program = shutil.which("render-chart")
    if program is None:
        pytest.skip("render-chart is not installed: see .ci/fetch-chart-renderer")
    given = values(**changed)
    check(given)
    chart = {key[0].upper() + key[1:]: value for key, value in load("helm/Chart.yaml").items()}
    files = {path.name: path.read_text("utf-8") for path in (CHART / "templates").iterdir()}
    message = {
        "Templates": files,
        "Values": given,
        "Chart": chart,
        "Release": {"Name": "rocmforge", "Namespace": "rocmforge", "Service": "Helm"},
    }
    done = subprocess.run([program], input=json.dumps(message).encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found = [yaml.safe_load(text) for text in json.loads(done.stdout).values()]
    return {manifest["kind"]: manifest for manifest in found if manifest}


def validate(manifests: Mapping[str, Any]) -> None:
    """Compares manifests with Kubernetes' schemas."""
    for kind, manifest in manifests.items():
        if kind not in FOREIGN:
            kubernetes_validate.validate(manifest, "1.33", strict=True)


def container(manifests: Mapping[str, Any]) -> Any:
    (found,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found


def variables(manifests: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(manifests)["env"]}


def test_the_defaults_give_the_plain_manifests() -> None:
    plain = [load(f"kubernetes/{name}.yaml") for name in PLAIN]
    assert render() == {manifest["kind"]: manifest for manifest in plain}


def test_everything_that_can_be_chosen_gives_valid_manifests() -> None:
    found = render(
        image={"digest": DIGEST},
        replicas=3,
        model="Qwen3-8B-Q4_K_M.gguf",
        settings={"max_context": 1_048_576, "memory_utilization": 0.85},
        cards={"count": 2, "groups": [992]},
        models={"claim": "qwen", "storageClass": "fast", "accessModes": ["ReadOnlyMany"]},
        cache={"claim": "blocks", "size": "64GiB"},
        resources={"requests": {"cpu": "8"}, "limits": {"memory": "64Gi"}},
        probes={"startup": {"failureThreshold": 720}},
        monitor={"kind": "ServiceMonitor"},
        disruption={"minAvailable": 2},
        nodeSelector={"card": "mi300x"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        affinity={"podAntiAffinity": {}},
    )
    validate(found)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    server = container(found)
    assert server["image"] == f"rocmforge@{DIGEST}"
    assert server["args"] == ["serve", "/models/Qwen3-8B-Q4_K_M.gguf"]
    assert server["resources"]["limits"] == {"memory": "64Gi", "amd.com/gpu": "2"}
    assert server["startupProbe"]["failureThreshold"] == 720
    assert variables(found)["ROCMFORGE_CACHE_DIR"] == "/cache"
    assert {mount["name"] for mount in server["volumeMounts"]} == {
        v["name"] for v in pod["volumes"]
    }
    (cache,) = (volume for volume in pod["volumes"] if volume["name"] == "cache")
    assert cache["persistentVolumeClaim"]["claimName"] == "blocks"
    assert pod["nodeSelector"] == {"card": "mi300x"}
    assert (pod["tolerations"][0]["key"], pod["affinity"]) == ("gpu", {"podAntiAffinity": {}})
    assert found["PersistentVolumeClaim"]["spec"]["storageClassName"] == "fast"
    assert found["ServiceMonitor"]["spec"]["endpoints"][0]["port"] == "http"
    # The service has the label that a ServiceMonitor looks for, and the port's name.
    wanted = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert found["Service"]["metadata"]["labels"] == wanted


def test_the_server_takes_the_variables_as_they_are_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"max_context": 1_048_576, "memory_utilization": 0.85, "no_page": True}
    given = variables(render(settings=settings, cache={"claim": "blocks"}))
    assert given.keys() <= SETTINGS
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    read = load_settings({})
    assert {name: getattr(read, name) for name in settings} == settings
    assert (read.cache_dir, read.cache_dir_size) == ("/cache", "32GiB")


def test_what_is_not_wanted_is_left_out() -> None:
    found = render(monitor={"kind": ""}, disruption={"minAvailable": 0}, models={"create": False})
    assert found.keys() == {"Deployment", "Service"}
    validate(found)


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica": 2},
        {"cards": {"number": 2}},
        {"image": {"digest": "latest"}},
        {"resources": {"limits": {"memory": 64}}},
        {"monitor": {"kind": "Monitor"}},
    ],
)
def test_a_slip_in_values_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(values(**wrong))


def test_the_chart_has_the_version_of_the_program() -> None:
    chart = load("helm/Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__
