"""The machine's AMD GPUs as the kernel describes them, and who may use them.

Everything is read below a root folder, so that machines that are broken in known ways can be kept
as test data. Sources: https://docs.kernel.org/gpu/amdgpu/ and the KFD's topology in sysfs
(drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocmforge.commands.diagnosis.health import History, read_history
from rocmforge.sensors.power import power_w

AMD: Final = "0x1002"
_DISPLAY_CLASSES: Final = ("0x03", "0x12")  # display controllers, processing accelerators

# Chips that have no memory of their own. The driver does not say so in sysfs.
_INTEGRATED: Final = frozenset(
    {"gfx902", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037"}
    | {"gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"}
)


@dataclass(frozen=True, slots=True)
class User:
    """The user who runs the program."""

    uid: int
    groups: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A file in /dev and who may open it."""

    path: str
    gid: int
    group: str | None  # the group's name here; None = it has none
    mode: int
    uid: int

    def opens_for(self, user: User) -> bool:
        """Returns whether the user may read and write it."""
        if user.uid == 0:
            return True
        shift = 6 if user.uid == self.uid else 3 if self.gid in user.groups else 0
        return (self.mode >> shift) & 0o6 == 0o6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the amdgpu driver lists it. Sizes are in bytes; None = not told."""

    target: str  # "gfx1100"
    render_node: str  # "/dev/dri/renderD128"
    is_integrated: bool
    vram_total: int | None
    vram_used: int | None
    gtt_total: int | None
    performance_level: str | None  # "auto", "low", "high", "manual", ...
    clock: str | None  # "500Mhz", now
    highest_clock: str | None
    power_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """An AMD GPU on the bus, driver or not."""

    address: str  # "0000:03:00.0"
    device: str  # "0x744c"
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything the diagnosis goes by."""

    kernel: str
    has_driver: bool
    driver_version: str | None  # of a driver that is not the kernel's own
    rocm_version: str | None  # of /opt/rocm or $ROCM_PATH
    is_container: bool
    selinux_enforces: bool
    memory_total: int
    user: User
    kfd: DeviceNode | None
    render_nodes: tuple[DeviceNode, ...]
    pci_gpus: tuple[PciGpu, ...]
    gpus: tuple[Gpu, ...]
    rccl: tuple[str, ...]  # the files of RCCL
    history: History  # of the GPUs that amdgpu drives
    environment: Mapping[str, str]  # variables that change what HIP does


def read_machine(
    root: Path,
    user: User,
    environment: Mapping[str, str],
    stat: Callable[[Path], os.stat_result] = os.stat,
) -> Machine:
    """Reads a machine whose files lie below `root`; what is not there is part of the result."""
    groups = _groups(root / "etc/group")
    rocm = Path(environment.get("ROCM_PATH", "/opt/rocm"))

    def node(path: Path) -> DeviceNode:
        found = stat(path)
        return DeviceNode(
            path=f"/{path.relative_to(root)}",
            gid=found.st_gid,
            group=groups.get(found.st_gid),
            mode=found.st_mode & 0o777,
            uid=found.st_uid,
        )

    kfd = root / "dev/kfd"
    pci_gpus = tuple(_pci_gpus(root / "sys/bus/pci/devices"))
    driven = tuple(gpu.address for gpu in pci_gpus if gpu.driver == "amdgpu")
    return Machine(
        kernel=_text(root / "proc/sys/kernel/osrelease") or "unknown",
        has_driver=(root / "sys/module/amdgpu").is_dir(),
        driver_version=_text(root / "sys/module/amdgpu/version"),
        rocm_version=_text(root / f".{rocm}" / ".info/version"),
        is_container=any((root / f).exists() for f in (".dockerenv", "run/.containerenv")),
        selinux_enforces=_text(root / "sys/fs/selinux/enforce") == "1",
        memory_total=_memory_total(root / "proc/meminfo"),
        user=user,
        kfd=node(kfd) if kfd.exists() else None,
        render_nodes=tuple(map(node, sorted((root / "dev/dri").glob("renderD*")))),
        pci_gpus=pci_gpus,
        gpus=tuple(_gpus(root)),
        rccl=_libraries(root, rocm, "librccl"),
        history=read_history(root, driven),
        environment=environment,
    )


def _pci_gpus(devices: Path) -> list[PciGpu]:
    found = []
    for device in sorted(devices.glob("*")):
        kind = _text(device / "class") or ""
        if _text(device / "vendor") == AMD and kind.startswith(_DISPLAY_CLASSES):
            driver = device / "driver"
            name = os.readlink(driver).rpartition("/")[2] if driver.is_symlink() else None
            device_id = _text(device / "device") or "unknown"
            found.append(PciGpu(address=device.name, device=device_id, driver=name))
    return found


def _gpus(root: Path) -> list[Gpu]:
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    found = []
    for folder in sorted(nodes.glob("*"), key=lambda path: path.name.zfill(4)):
        lines = (_text(folder / "properties") or "").splitlines()
        fields = dict(line.split() for line in lines if len(line.split()) == 2)
        version = int(fields.get("gfx_target_version", 0))
        if not version:  # a CPU
            continue
        minor = fields.get("drm_render_minor", "0")
        device = root / f"sys/class/drm/renderD{minor}/device"
        target = target_name(version)
        clocks = (_text(device / "pp_dpm_sclk") or "").splitlines()
        current = [line for line in clocks if line.endswith("*")]
        found.append(
            Gpu(
                target=target,
                render_node=f"/dev/dri/renderD{minor}",
                is_integrated=target in _INTEGRATED or int(fields.get("cpu_cores_count", 0)) > 0,
                vram_total=_number(device / "mem_info_vram_total"),
                vram_used=_number(device / "mem_info_vram_used"),
                gtt_total=_number(device / "mem_info_gtt_total"),
                performance_level=_text(device / "power_dpm_force_performance_level"),
                clock=_clock(current[0]) if current else None,
                highest_clock=_clock(clocks[-1]) if clocks else None,
                power_w=power_w(device),
            )
        )
    return found


def target_name(version: int) -> str:
    """Returns `gfx90a` for the KFD's gfx_target_version 90010."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _clock(line: str) -> str:
    """Returns `2304Mhz` of `1: 2304Mhz *`."""
    return line.partition(":")[2].strip(" *")


def _libraries(root: Path, rocm: Path, name: str) -> tuple[str, ...]:
    """Returns the files of a library, each once, by the name that it has itself."""
    others = [f"/{path.relative_to(root)}/lib" for path in sorted((root / "opt").glob("rocm*"))]
    system = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
    files = {
        f"/{file.resolve().relative_to(root.resolve())}"
        for folder in (rocm / "lib", *others, *system)
        for file in (root / f".{folder}").glob(f"{name}.so*")
    }
    return tuple(sorted(files))


def _groups(file: Path) -> dict[int, str]:
    rows = [line.split(":") for line in (_text(file) or "").splitlines()]
    return {int(row[2]): row[0] for row in rows if len(row) >= 3 and row[2].isdigit()}


def _memory_total(file: Path) -> int:
    for line in (_text(file) or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text is not None and text.isdigit() else None


def _text(file: Path) -> str | None:
    """Reads a small file; None if it cannot be read, as some of sysfs cannot."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
