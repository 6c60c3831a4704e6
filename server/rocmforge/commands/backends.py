"""`rocmforge backends`: what is installed, and which devices each finds."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import msgspec
from rich.markup import escape
from rich.table import Table

from rocmforge.backend import registry
from rocmforge.backend.protocol import DeviceInfo
from rocmforge.commands.terminal.output import output_console
from rocmforge.errors import RocmForgeError
from rocmforge.settings import Settings


@dataclass(frozen=True, slots=True)
class BackendRow:
    """A backend and what it found."""

    backend: str
    devices: tuple[DeviceInfo, ...]
    reason: str | None  # why there are no devices


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints one row per device, and the reason where there is none."""
    rows = [_look(name) for name in registry.names()]
    if arguments.json:
        print(msgspec.json.encode(rows).decode())
        return 0
    table = Table("backend", "device", "target", "memory", "free")
    for row in rows:
        if not row.devices:
            table.add_row(row.backend, f"[dim]none: {escape(str(row.reason))}[/dim]")
        for device in row.devices:
            table.add_row(
                row.backend,
                f"{device.index}: {escape(device.name)}",
                device.target,
                f"{device.memory_total / 2**30:.1f} GiB",
                f"{device.memory_free / 2**30:.1f} GiB",
            )
    output_console().print(table)
    return 0


def _look(name: str) -> BackendRow:
    """Probes a backend; one that cannot even be imported is a row, not the end of the listing."""
    try:
        probe = registry.create(name).probe()
    except RocmForgeError as error:
        return BackendRow(name, (), error.message)
    return BackendRow(name, probe.devices, probe.reason)
