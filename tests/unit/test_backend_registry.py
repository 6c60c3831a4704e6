"""The registry finds backends by entry point and dotted path, and explains what it cannot find."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rocmforge.backend import registry
from rocmforge.backend.protocol import (
    DeviceInfo,
    LoadOptions,
    ProbeResult,
    ProgressCallback,
    Runner,
)
from rocmforge.errors import ConfigurationError

DEVICE = DeviceInfo(index=0, name="d", target="t", memory_total=1, memory_free=1)


@dataclass(frozen=True)
class StubBackend:
    name: str
    devices: tuple[DeviceInfo, ...]

    def probe(self) -> ProbeResult:
        return ProbeResult(devices=self.devices, reason=None if self.devices else "none plugged in")

    def load(self, model: Path, options: LoadOptions, progress: ProgressCallback) -> Runner:
        raise AssertionError("a registry never loads")


def with_device() -> StubBackend:
    return StubBackend("with_device", (DEVICE,))


def without_device() -> StubBackend:
    return StubBackend("without_device", ())


def use_backends(monkeypatch: pytest.MonkeyPatch, **factories: str) -> None:
    """Replaces the installed entry points with functions of this module."""

    class Point:
        def __init__(self, name: str, function: str) -> None:
            self.name = name
            self.value = f"{__name__}:{function}"

    points = [Point(name, function) for name, function in factories.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def test_the_reference_backend_is_installed_and_listed_last() -> None:
    assert registry.names()[-1] == "reference"


def test_a_dotted_path_names_a_backend_that_is_not_installed() -> None:
    assert registry.create(f"{__name__}:with_device").name == "with_device"


def test_an_unknown_name_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigurationError, match=r"no backend 'cuda'.*reference"):
        registry.create("cuda")


@pytest.mark.parametrize("name", ["no.such.module:create", f"{__name__}:no_such_function"])
def test_a_path_that_cannot_be_imported_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        registry.create(name)


def test_auto_prefers_a_backend_with_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    use_backends(monkeypatch, reference="with_device", hip="with_device")
    choice = registry.choose("auto")
    assert not choice.is_fallback


def test_auto_falls_back_to_the_reference_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    use_backends(monkeypatch, reference="with_device", hip="without_device")
    choice = registry.choose("auto")
    assert choice.is_fallback
    assert choice.reason == "hip: none plugged in"


def test_naming_the_reference_is_not_a_fallback() -> None:
    assert not registry.choose(f"{__name__}:with_device").is_fallback


def test_naming_a_backend_without_a_device_is_an_error_with_its_reason() -> None:
    with pytest.raises(ConfigurationError, match="none plugged in"):
        registry.choose(f"{__name__}:without_device")
