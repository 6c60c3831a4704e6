"""Files of a machine with GPUs as the amdgpu driver makes them, below a folder of a test."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rocmforge.sensors.throttling import Throttle

GIB: Final = 1 << 30
GPU_ID: Final = 40_000
_STATUS_BITS: Final = {
    Throttle.POWER: 1 << 0,  # SMU_THROTTLER_PPT0_BIT
    Throttle.CURRENT: 1 << 16,  # SMU_THROTTLER_TDC_GFX_BIT
    Throttle.TEMPERATURE: 1 << 36,  # SMU_THROTTLER_TEMP_HOTSPOT_BIT
    Throttle.OTHER: 1 << 57,  # SMU_THROTTLER_FIT_BIT
}


def gpu_metrics(throttled_by: Iterable[Throttle], version: tuple[int, int] = (1, 3)) -> bytes:
    """The content of `gpu_metrics`, all zeros but for its header and what throttles."""
    size = {(1, 3): 120, (2, 2): 128, (2, 3): 152, (2, 4): 164}[version]
    offset = 112 if version == (1, 3) else 120
    data = bytearray(size)
    struct.pack_into("<HBB", data, 0, size, *version)
    struct.pack_into("<Q", data, offset, sum(_STATUS_BITS[reason] for reason in throttled_by))
    return bytes(data)


class DeviceTree:
    """A machine whose process ids are not those of a container.

    Args:
        root: an empty folder.
        device: PCI address of the one GPU.
    """

    def __init__(self, root: Path, device: str = "0000:03:00.0") -> None:
        self.root = root
        self.device = device
        self.folder = f"sys/bus/pci/devices/{device}"
        self.write("dev/kmsg", "6,1,1000000,-;[drm] amdgpu kernel modesetting enabled.\n")
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
        for name, value in {
            "mem_info_vram_total": 24 * GIB,
            "mem_info_vram_used": GIB // 2,
            "gpu_busy_percent": 0,
        }.items():
            self.tell(name, value)
        for name, value in {
            "power1_average": 15_000_000,
            "power1_cap": 303_000_000,
            "power1_cap_default": 303_000_000,
            "energy1_input": 9_000_000,
            "temp1_input": 45_000,
            "temp1_crit": 100_000,
            "temp2_input": 52_000,
            "temp2_crit": 110_000,
        }.items():
            self.tell(f"hwmon/hwmon3/{name}", value)
        self.write(f"{self.folder}/hwmon/hwmon3/temp1_label", "edge\n")
        self.write(f"{self.folder}/hwmon/hwmon3/temp2_label", "junction\n")
        self.throttle()
        self.count_errors(corrected=0, uncorrected=0)
        domain, bus, slot = device.split(":")
        location = int(bus, 16) << 8 | int(slot[:2], 16) << 3
        node = "sys/class/kfd/kfd/topology/nodes/1"
        self.write(f"{node}/gpu_id", f"{GPU_ID}\n")
        self.write(f"{node}/properties", f"domain {int(domain, 16)}\nlocation_id {location}\n")

    def write(self, path: str, content: str | bytes) -> None:
        """Makes a file what a driver would answer from now on, at once."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_name(f".{file.name}.new")
        made.write_bytes(content.encode() if isinstance(content, str) else content)
        made.rename(file)

    def tell(self, name: str, value: int) -> None:
        """Sets a number of the device."""
        self.write(f"{self.folder}/{name}", f"{value}\n")

    def throttle(self, *reasons: Throttle) -> None:
        """Has the firmware hold the clocks down for these reasons."""
        self.write(f"{self.folder}/gpu_metrics", gpu_metrics(reasons))

    def count_errors(self, *, corrected: int, uncorrected: int) -> None:
        """Sets the counts of the device's memory; its other blocks have none."""
        self.write(f"{self.folder}/ras/umc_err_count", f"ue: {uncorrected}\nce: {corrected}\n")
        self.write(f"{self.folder}/ras/gfx_err_count", "ue: 0\nce: 0\n")

    def say(self, text: str, seconds: float = 2.0) -> None:
        """Has the kernel say something."""
        with (self.root / "dev/kmsg").open("a", encoding="utf-8") as log:
            log.write(f"3,2,{round(seconds * 1e6)},-;amdgpu {self.device}: amdgpu: {text}\n")

    def compute(self, pid: int, name: str, nbytes: int, parent: int = 1) -> None:
        """Adds a process that computes and holds memory of the device."""
        self.process(pid, name, parent)
        self.write(f"sys/class/kfd/kfd/proc/{pid}/vram_{GPU_ID}", f"{nbytes}\n")

    def draw(self, pid: int, name: str, kibibytes: int, clients: Iterable[int] = (7,)) -> None:
        """Adds a process that draws; each client is open twice."""
        self.process(pid, name)
        for number, client in enumerate([c for c in clients for _ in range(2)]):
            self.write(
                f"proc/{pid}/fdinfo/{number}",
                f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t{self.device}\n"
                f"drm-client-id:\t{client}\ndrm-memory-vram:\t{kibibytes} KiB\n",
            )

    def process(self, pid: int, name: str, parent: int = 1) -> None:
        """Adds a process."""
        self.write(f"proc/{pid}/comm", f"{name}\n")
        self.write(f"proc/{pid}/stat", f"{pid} ({name} ) S) S {parent} {pid} {pid} 0 -1\n")
