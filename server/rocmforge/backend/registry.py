"""Finds backends: entry points of the group `rocmforge.backends`, or `module:function`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from rocmforge.backend.protocol import Backend, ProbeResult
from rocmforge.errors import ConfigurationError

GROUP = "rocmforge.backends"
REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend and why it was taken."""

    backend: Backend
    probe: ProbeResult
    is_fallback: bool  # the reference, because no other backend has a device
    reason: str


def names() -> tuple[str, ...]:
    """Returns the names of all installed backends, sorted, the reference last."""
    found = {point.name for point in entry_points(group=GROUP)}
    return tuple(sorted(found, key=lambda name: (name == REFERENCE, name)))


def create(name: str) -> Backend:
    """Makes the backend of that name; `package.module:function` names one that is not installed.

    Raises:
        ConfigurationError: there is none, or it cannot be imported.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        points = {point.name: point for point in entry_points(group=GROUP)}
        if name not in points:
            raise ConfigurationError(
                f"There is no backend {name!r}. Installed: {', '.join(names())}."
            )
        module, _, attribute = points[name].value.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"The backend {name!r} cannot be imported: {error}.") from error
    return cast(Backend, factory())


def choose(name: str) -> BackendChoice:
    """Resolves `--backend`: a name is taken as it is, `auto` takes the first with a device.

    Raises:
        ConfigurationError: the named backend does not exist or has no device.
    """
    if name != "auto":
        backend = create(name)
        probe = backend.probe()
        if not probe.devices:
            raise ConfigurationError(f"The backend {name!r} found no device: {probe.reason}")
        return BackendChoice(backend, probe, is_fallback=False, reason="chosen by name")
    missing: list[str] = []
    for candidate in names():
        backend = create(candidate)
        probe = backend.probe()
        if not probe.devices:
            missing.append(f"{candidate}: {probe.reason}")
            continue
        is_fallback = candidate == REFERENCE
        reason = "; ".join(missing) if missing else "first backend with a device"
        if is_fallback and not missing:
            reason = "no other backend is installed"
        return BackendChoice(backend, probe, is_fallback=is_fallback, reason=reason)
    raise ConfigurationError(f"No backend has a device. {'; '.join(missing)}")
