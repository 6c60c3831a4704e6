"""`rocmforge doctor`: why the GPU is not used, and the command that changes that."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape

from rocmforge.commands.diagnosis.finding import Finding, Level
from rocmforge.commands.diagnosis.findings import diagnose
from rocmforge.commands.diagnosis.machine import User, read_machine
from rocmforge.commands.diagnosis.runtime_probe import ask
from rocmforge.setting_sources import gpu_environment
from rocmforge.settings import Settings

_MARKS: Final = {
    Level.OK: "[green]ok[/]     ",
    Level.WARNING: "[yellow]warning[/]",
    Level.ERROR: "[red]error[/]  ",
}
_MIN_DISK: Final = 10 * 2**30


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints all findings; returns 1 if one of them is an error."""
    user = User(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))
    machine = read_machine(Path("/"), user, gpu_environment())
    runtime = ask([gpu.target for gpu in machine.gpus])
    findings = (*diagnose(machine, runtime), *_disk(Path.cwd()), *_port(settings))
    if arguments.json:
        print(msgspec.json.encode(findings).decode())
    else:
        _print(Console(), findings)
    return int(any(finding.level is Level.ERROR for finding in findings))


def _disk(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    message = f"{free / 2**30:.1f} GiB are free in {folder}."
    if free < _MIN_DISK:
        yield Finding(
            check="disk",
            level=Level.WARNING,
            message=message + " Most models are larger.",
            repair=f"df -h {folder}",
        )
    else:
        yield Finding(check="disk", level=Level.OK, message=message)


def _port(settings: Settings) -> Iterator[Finding]:
    where = f"{settings.host} port {settings.port}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        why, *_ = str(error.strerror).partition(" (while ")  # Python repeats the address
        yield Finding(
            check="port",
            level=Level.WARNING,
            message=f"The server cannot listen on {where}: {why}.",
            repair=f"ss --listening --tcp --processes 'sport = :{settings.port}'  # or --port",
        )
    else:
        yield Finding(check="port", level=Level.OK, message=f"{where} is free.")


def _print(console: Console, findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        console.print(
            f"{_MARKS[finding.level]}  {escape(finding.message)}", highlight=False, soft_wrap=True
        )
        if finding.repair is not None:
            repair = escape(finding.repair)
            console.print(f"           [bold]{repair}[/]", highlight=False, soft_wrap=True)
