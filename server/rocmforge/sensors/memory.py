"""Memory of GPUs by process: of those that compute (KFD) and of those that draw (DRM).

Sources: drivers/gpu/drm/amd/amdkfd/kfd_process.c and kfd_topology.c for /sys/class/kfd;
https://docs.kernel.org/gpu/drm-usage-stats.html for /proc/PID/fdinfo.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocmforge.sensors.files import list_folder, read_number, read_text

_MOST_NODES: Final = 64
_MOST_PROCESSES: Final = 4096  # of those that compute, and of all
_MOST_FILES: Final = 1024  # of a process
_MOST_ANCESTORS: Final = 8
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHolder:
    """A process and what it holds of a device."""

    pid: int
    name: str | None  # None: it lives outside this container, whose numbers are others
    device: str  # PCI address
    nbytes: int


def compute_holders(root: Path) -> list[MemoryHolder]:
    """Returns the processes that compute and their memory on each device, the largest first.

    The numbers are those of the machine, whatever namespace asks.
    """
    devices = _devices_by_gpu_id(root)
    named = sees_all_processes(root)
    found = []
    for folder in list_folder(root / "sys/class/kfd/kfd/proc", _MOST_PROCESSES):
        if not folder.name.isdigit():
            continue
        pid = int(folder.name)
        for gpu_id, device in devices.items():
            nbytes = read_number(folder / f"vram_{gpu_id}")
            if nbytes:
                name = _name(root, pid) if named else None
                found.append(MemoryHolder(pid=pid, name=name, device=device, nbytes=nbytes))
    return sorted(found, key=lambda holder: -holder.nbytes)


def all_holders(root: Path) -> list[MemoryHolder]:
    """Returns also the processes that draw, as far as this user may see, the largest first.

    It looks at the open files of every process, which takes milliseconds.
    """
    found = {(holder.pid, holder.device): holder for holder in compute_holders(root)}
    if sees_all_processes(root):
        for pid in _pids(root):
            for device, nbytes in drawn_bytes(root, pid).items():
                before = found.get((pid, device))
                if nbytes and (before is None or before.nbytes < nbytes):
                    name = _name(root, pid)
                    holder = MemoryHolder(pid=pid, name=name, device=device, nbytes=nbytes)
                    found[pid, device] = holder
    return sorted(found.values(), key=lambda holder: -holder.nbytes)


def drawn_bytes(root: Path, pid: int) -> Mapping[str, int]:
    """Returns the memory of the files that a process has open on devices, by PCI address.

    A file that several descriptors stand for counts once.
    """
    clients: dict[tuple[str, str], int] = {}
    for file in list_folder(root / f"proc/{pid}/fdinfo", _MOST_FILES):
        text = read_text(file) or ""
        if "drm-driver:" not in text:
            continue
        rows = (line.partition(":") for line in text.splitlines())
        fields = {key: value.strip() for key, _, value in rows}
        if fields.get("drm-driver") != "amdgpu" or "drm-pdev" not in fields:
            continue
        shown = fields.get("drm-resident-vram", fields.get("drm-memory-vram", ""))
        client = fields.get("drm-client-id", file.name)
        clients[fields["drm-pdev"], client] = _parse_bytes(shown)
    totals: Counter[str] = Counter()
    for (device, _), nbytes in clients.items():
        totals[device] += nbytes
    return totals


def others_bytes(root: Path, device: str, used: int, ours: Collection[int]) -> int | None:
    """Returns what processes other than ours hold of a device; None if that cannot be told.

    Args:
        root: of the file system that has `proc` and `sys`.
        device: its PCI address.
        used: bytes of it that are in use.
        ours: process ids; their children are ours, too.
    """
    holders = [holder for holder in compute_holders(root) if holder.device == device]
    if sees_all_processes(root):
        own = sum(h.nbytes for h in holders if descends_from(root, h.pid, ours))
    else:  # numbers in /sys are the machine's, those in /proc are this container's
        family = [pid for pid in _pids(root) if descends_from(root, pid, ours)]
        own = sum(drawn_bytes(root, pid).get(device, 0) for pid in family)
        if holders and not own:
            return None
    return max(used - own, 0)


def descends_from(root: Path, pid: int, ancestors: Collection[int]) -> bool:
    """Returns whether a process is one of these, or a child of one, or a child's child."""
    for _ in range(_MOST_ANCESTORS):
        if pid in ancestors:
            return True
        # The name in parentheses may hold anything, so what follows the last one is looked at.
        fields = (read_text(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
        if len(fields) < 2 or not fields[1].isdigit():
            return False
        pid = int(fields[1])
    return False


def sees_all_processes(root: Path) -> bool:
    """Returns whether process ids here are those of the machine: not so in most containers."""
    try:
        return os.readlink(root / "proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _devices_by_gpu_id(root: Path) -> dict[int, str]:
    found = {}
    for node in list_folder(root / "sys/class/kfd/kfd/topology/nodes", _MOST_NODES):
        gpu_id = read_number(node / "gpu_id")
        if gpu_id:  # 0: a CPU
            rows = (line.split() for line in (read_text(node / "properties") or "").splitlines())
            fields = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
            found[gpu_id] = pci_address(fields.get("domain", 0), fields.get("location_id", 0))
    return found


def pci_address(domain: int, location: int) -> str:
    """Returns `0000:03:00.0` for domain 0 and location 0x300: bus, device and function in bits."""
    return f"{domain:04x}:{location >> 8 & 255:02x}:{location >> 3 & 31:02x}.{location & 7}"


def _pids(root: Path) -> Iterator[int]:
    for folder in list_folder(root / "proc", _MOST_PROCESSES):
        if folder.name.isdigit():
            yield int(folder.name)


def _name(root: Path, pid: int) -> str:
    text = read_text(root / f"proc/{pid}/comm", 64) or ""
    return "".join(c if c.isprintable() else "?" for c in text) or "unknown"


def _parse_bytes(text: str) -> int:
    number, _, unit = text.partition(" ")
    return int(number) * _UNITS.get(unit, 1) if number.isdigit() else 0
