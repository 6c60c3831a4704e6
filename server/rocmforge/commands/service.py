"""`rocmforge service install`: a systemd unit for the server, which may do little else."""

from __future__ import annotations

import argparse
import grp
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocmforge.arguments import given_settings
from rocmforge.errors import ConfigurationError
from rocmforge.library.catalogue import hub_names
from rocmforge.library.finding import find_model
from rocmforge.served_models import served_models
from rocmforge.setting_sources import gpu_environment, own_environment, store_environment
from rocmforge.settings import Settings, flag_of

NAME: Final = "rocmforge.service"
BOOTED: Final = Path("/run/systemd/system")  # as sd_booted(3) looks
KFD: Final = Path("/dev/kfd")
DRI: Final = Path("/dev/dri")
_MARK: Final = "# Written by `rocmforge service install`."
_PRIVILEGED_PORTS: Final = 1024
_SECRET: Final = "api_key"

# Both managers can do this without a namespace of their own.
_HARDENING: Final = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
LimitMEMLOCK=infinity
"""
_SYSTEM: Final = """\
DynamicUser=yes
SupplementaryGroups={groups}
StateDirectory=rocmforge
CacheDirectory=rocmforge
WorkingDirectory=/var/lib/rocmforge
Environment=HOME=/var/lib/rocmforge XDG_CACHE_HOME=/var/cache/rocmforge
DevicePolicy=closed
DeviceAllow=/dev/kfd rw
DeviceAllow=char-drm rw
CapabilityBoundingSet={capabilities}
AmbientCapabilities={capabilities}
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
RemoveIPC=yes
"""


@dataclass(frozen=True, slots=True)
class Manager:
    """The systemd that runs the unit: the machine's, or the user's own."""

    is_system: bool
    systemctl: tuple[str, ...]
    folder: Path  # of its units


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Writes the unit and has systemd read it, or prints it; returns 0.

    Raises:
        ConfigurationError: there is no systemd, or the service could not serve that.
    """
    manager = _manager(is_system=arguments.system)
    served_models(arguments.models, settings)  # refuses what makes no sense
    command = _command(arguments)
    unit = _unit(manager, command, settings)
    if arguments.print:
        print(unit, end="")
        return 0
    if manager.is_system:
        for path in _needed(command):
            _check_readable(path)
    path = manager.folder / NAME
    _write(path, unit)
    _reload(manager)
    systemctl = " ".join(manager.systemctl)
    journal = "journalctl" if manager.is_system else "journalctl --user"
    print(f"{path} was written, and systemd has read it. Nothing was started.")
    print(f"start, now and at boot:  {systemctl} enable --now rocmforge")
    print(f"what it says:            {journal} --follow --unit rocmforge")
    if not manager.is_system:
        print("also when nobody is logged in:  loginctl enable-linger")
    print(f"away again:              {systemctl} disable --now rocmforge && rm {path}")
    return 0


def _manager(*, is_system: bool) -> Manager:
    if is_system:
        return Manager(is_system, ("systemctl",), Path("/etc/systemd/system"))
    return Manager(is_system, ("systemctl", "--user"), Path.home() / ".config/systemd/user")


def _command(arguments: argparse.Namespace) -> list[str]:
    """Returns the command of the service: `serve` with what was given here, paths absolute."""
    command = [sys.executable, "-m", "rocmforge", "serve"]
    if arguments.config is not None:
        command += ["--config", str(arguments.config.absolute())]
    for name, value in given_settings(arguments).items():
        if name == _SECRET:
            raise ConfigurationError(
                "A key in a unit could be read by all: write it to a file, and give --keys-file."
            )
        if value is True:
            command.append(flag_of(name))
            continue
        for each in value if isinstance(value, list) else [value]:
            command += [flag_of(name), _absolute(each)]
    for model in arguments.models:
        if not hub_names(model):
            find_model(model)  # refuses a path that is mistyped
        command.append(_absolute(model))
    return command


def _absolute(text: str) -> str:
    """Makes a path absolute, also behind `NAME=`; what is no path here stays."""
    name, separator, path = text.rpartition("=")
    return name + separator + str(Path(path).absolute()) if Path(path).exists() else text


def _unit(manager: Manager, command: Sequence[str], settings: Settings) -> str:
    lines = [
        *(_MARK, "[Unit]", "Description=ROCmForge, a model server for AMD GPUs"),
        *("Wants=network-online.target", "After=network-online.target"),
        *("", "[Service]", "Type=exec", f"ExecStart={' '.join(map(_quoted, command))}"),
    ]
    if settings.keys_file or settings.tls_certificate:
        lines.append("ExecReload=/bin/kill -HUP $MAINPID")
    lines += ["Restart=on-failure", "RestartSec=5"]
    lines.append(f"TimeoutStopSec={settings.drain_timeout + 15:g}")
    environment = _environment() | ({} if manager.is_system else store_environment())
    for name, text in sorted(environment.items()):
        lines.append(f"Environment={_quoted(f'{name}={text}')}")
    lines.append(_HARDENING.rstrip())
    if manager.is_system:
        is_privileged = 0 < settings.port < _PRIVILEGED_PORTS
        capabilities = "CAP_NET_BIND_SERVICE" if is_privileged else ""
        lines.append(_SYSTEM.format(groups=_groups(), capabilities=capabilities).rstrip())
    target = "multi-user.target" if manager.is_system else "default.target"
    return "\n".join([*lines, "", "[Install]", f"WantedBy={target}", ""])


def _environment() -> dict[str, str]:
    """Returns what the environment sets here, as a service begins with an empty one."""
    found = gpu_environment() | own_environment()
    for name in found:
        if name.lower().endswith(_SECRET):
            raise ConfigurationError(
                f"${name} would stand in a unit that all can read: write the key to a file, give "
                "--keys-file, and unset the variable."
            )
    return found


def _quoted(text: str) -> str:
    r"""Quotes a word for systemd: of systemd.service(5), "Command lines"."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if any(c in text for c in " \t'\"\\;") or not text else text


def _groups() -> str:
    """Returns the groups that own the devices on this machine; by default that of udev's rules.

    None where that does not exist: systemd starts no service of a group that it does not know.
    """
    nodes = [path for path in (KFD, *DRI.glob("renderD*")) if path.exists()]
    owners = {str(path.stat().st_gid) for path in nodes} - {"0"}
    usual = {group.gr_name for group in grp.getgrall()} & {"render"}
    return " ".join(sorted(owners or usual))


def _needed(command: Sequence[str]) -> Iterator[Path]:
    """Yields the files that a command names; all of them must be absolute."""
    for word in command:
        path = Path(word.rpartition("=")[2])
        if path.is_absolute():
            yield path


def _check_readable(path: Path) -> None:
    """Raises ConfigurationError for a file that no user but its owner's can read."""
    real = path.resolve()
    for folder in (*path.parents, *real.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise ConfigurationError(
                f"The service, which runs as a user of its own, cannot read {path}: {folder} is "
                "closed to others. Move it, for example to /srv, or install with --user."
            )
    if not real.stat().st_mode & stat.S_IROTH:
        raise ConfigurationError(
            f"The service, which runs as a user of its own, cannot read {path}: "
            f"chmod o+r {path}, or install with --user."
        )


def _write(path: Path, unit: str) -> None:
    if path.exists() and not path.read_text(encoding="utf-8").startswith(_MARK):
        raise ConfigurationError(f"{path} was not written by this command: move it away first.")
    if not BOOTED.is_dir():
        raise ConfigurationError(
            "systemd does not run here. With --print, this command shows the unit; in a container, "
            "docker/README.md says how the server is started."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit, encoding="utf-8")
    except PermissionError as error:
        raise ConfigurationError(
            f"{path} cannot be written: run this as root, or give --user."
        ) from error


def _reload(manager: Manager) -> None:
    command = [*manager.systemctl, "daemon-reload"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigurationError(f"{' '.join(command)} failed: {done.stderr.strip()}")
