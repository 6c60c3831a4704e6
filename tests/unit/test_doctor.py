"""`rocmforge doctor` on machines that are broken in the ways people report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rocmforge.backend.optional import RuntimeLibrary
from rocmforge.backend.protocol import DeviceInfo
from rocmforge.commands.diagnosis.finding import Finding, Level
from rocmforge.commands.diagnosis.findings import diagnose
from rocmforge.commands.diagnosis.health import find_troubles, read_history
from rocmforge.commands.diagnosis.machine import Machine, User, read_machine
from rocmforge.commands.diagnosis.runtime_probe import Runtime
from rocmforge.sensors.throttling import Throttle
from tests.support.files.device_tree import DeviceTree, gpu_metrics

GIB = 2**30
RENDER, VIDEO = 105, 44
USER = User(1000, frozenset({1000, RENDER, VIDEO}))
BUS = "sys/bus/pci/devices/0000:03:00.0"
LIBRARY = "/opt/rocm/lib/libamdhip64.so.6"


class Tree:
    """The files of a machine with one RX 7900 XTX on which everything works."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.user = USER
        self.environment: dict[str, str] = {}
        self.owners: dict[str, tuple[int, int]] = {}  # gid and mode, by path
        self.runtime = Runtime(
            devices=(_device("Radeon RX 7900 XTX", "gfx1100"),),
            library=LIBRARY,
            seen=(RuntimeLibrary(path=LIBRARY, origin="/opt/rocm", problem=None),),
            kernels={"gfx1100": "gfx1100"},
        )
        self.write("proc/sys/kernel/osrelease", "6.12.9")
        self.write("proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB")
        self.write("proc/uptime", "7300.25 9000.5\n")
        self.write("etc/group", f"root:x:0:\nvideo:x:{VIDEO}:\nrender:x:{RENDER}:")
        self.write("opt/rocm/lib/libamdhip64.so.6", "")
        self.link("opt/rocm/lib/libamdhip64.so", "libamdhip64.so.6")
        self.write("opt/rocm/.info/version", "6.4.3-1")
        self.folder("sys/module/amdgpu")
        self.node("dev/kfd")
        self.topology(0, gfx_target_version=0, cpu_cores_count=16)
        self.gpu(1, "0000:03:00.0", 110000, 128, vram=24 * GIB)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, target: str) -> None:
        (self.root / path).symlink_to(target)

    def folder(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir() and not target.is_symlink():
            for child in target.iterdir():
                self.remove(str(child.relative_to(self.root)))
            target.rmdir()
        else:
            target.unlink()

    def node(self, path: str, gid: int = RENDER, mode: int = 0o660) -> None:
        self.write(path, "")
        self.owners[path] = (gid, mode)

    def topology(self, number: int, **properties: int) -> None:
        lines = "\n".join(f"{name} {value}" for name, value in properties.items())
        self.write(f"sys/class/kfd/kfd/topology/nodes/{number}/properties", lines)

    def gpu(
        self, number: int, address: str, version: int, minor: int, *, vram: int, gtt: int = 32 * GIB
    ) -> None:
        bus = f"sys/bus/pci/devices/{address}"
        self.write(f"{bus}/vendor", "0x1002")
        self.write(f"{bus}/device", "0x744c")
        self.write(f"{bus}/class", "0x030000")
        self.drive(address, "amdgpu")
        self.topology(number, gfx_target_version=version, drm_render_minor=minor, cpu_cores_count=0)
        self.node(f"dev/dri/renderD{minor}")
        device = f"sys/class/drm/renderD{minor}/device"
        self.write(f"{device}/mem_info_vram_total", str(vram))
        self.write(f"{device}/mem_info_vram_used", str(GIB))
        self.write(f"{device}/mem_info_gtt_total", str(gtt))
        self.write(f"{device}/power_dpm_force_performance_level", "auto")
        self.write(f"{device}/pp_dpm_sclk", "0: 500Mhz *\n1: 2304Mhz\n2: 2500Mhz")
        self.write(f"{device}/hwmon/hwmon3/power1_average", "15000000")

    def kernel_says(self, text: str, seconds: int = 60) -> None:
        log = self.root / "dev/kmsg"
        said = log.read_text() if log.exists() else ""
        line = f"3,9,{seconds}000000,-;amdgpu 0000:03:00.0: amdgpu: {text}\n"
        self.write("dev/kmsg", said + line)

    def drive(self, address: str, driver: str | None) -> None:
        link = self.root / f"sys/bus/pci/devices/{address}/driver"
        link.unlink(missing_ok=True)
        if driver is not None:
            link.symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def stat(self, path: Path) -> os.stat_result:
        gid, mode = self.owners[str(path.relative_to(self.root))]
        return os.stat_result((mode, 0, 0, 1, 0, gid, 0, 0, 0, 0))

    def read(self) -> Machine:
        return read_machine(self.root, self.user, self.environment, self.stat)

    def findings(self) -> tuple[Finding, ...]:
        return diagnose(self.read(), self.runtime)


def _device(name: str, target: str) -> DeviceInfo:
    return DeviceInfo(
        index=0, name=name, target=target, memory_total=24 * GIB, memory_free=23 * GIB
    )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_machine_that_works_has_nothing_to_repair(tree: Tree) -> None:
    findings = tree.findings()
    assert {f.level for f in findings} == {Level.OK}
    said = " ".join(f.message for f in findings)
    for fact in (
        "6.12.9",
        "gfx1100",
        "discrete",
        "24.0 GiB VRAM",
        "32.0 GiB GTT",
        "6.4.3",
        LIBRARY,
    ):
        assert fact in said
    assert "500Mhz of 2500Mhz, 15 W" in said


def no_driver(tree: Tree) -> None:
    tree.drive("0000:03:00.0", None)
    for path in ("sys/module/amdgpu", "dev/kfd", "dev/dri", "sys/class/kfd"):
        tree.remove(path)
    tree.runtime = Runtime(reason="HIP lists no device it can use", library=LIBRARY)


def held_by_vfio(tree: Tree) -> None:
    tree.drive("0000:03:00.0", "vfio-pci")


def too_new_for_the_kernel(tree: Tree) -> None:
    tree.drive("0000:03:00.0", None)


def no_gpu(tree: Tree) -> None:
    tree.remove("sys/bus/pci/devices/0000:03:00.0")


def not_in_the_render_group(tree: Tree) -> None:
    tree.user = User(1000, frozenset({1000}))


def container_without_kfd(tree: Tree) -> None:
    tree.write(".dockerenv", "")
    tree.remove("dev/kfd")


def container_with_names_instead_of_numbers(tree: Tree) -> None:
    tree.write(".dockerenv", "")
    tree.write("etc/group", "root:x:0:\nvideo:x:44:\nrender:x:107:")  # the image's own
    tree.user = User(10001, frozenset({10001, 107, VIDEO}))


def nodes_of_root(tree: Tree) -> None:
    tree.node("dev/kfd", gid=0, mode=0o600)


def no_runtime(tree: Tree) -> None:
    tree.remove("opt")
    tree.runtime = Runtime(reason="libamdhip64.so was not found")


def runtime_without_what_it_needs(tree: Tree) -> None:
    problem = "libhsa-runtime64.so.1: cannot open shared object file"
    broken = RuntimeLibrary(path=LIBRARY, origin="/opt/rocm", problem=problem)
    tree.runtime = Runtime(
        reason=f"No HIP runtime can be used: {LIBRARY}: {problem}", seen=(broken,)
    )


def rocm_path_of_nothing(tree: Tree) -> None:
    tree.environment["ROCM_PATH"] = "/opt/gone"


def no_kernels_for_the_chip(tree: Tree) -> None:
    tree.gpu(1, "0000:03:00.0", 90006, 128, vram=16 * GIB)
    tree.runtime = Runtime(library=LIBRARY, devices=(), kernels={"gfx906": None})


def apu_with_a_small_share(tree: Tree) -> None:
    tree.gpu(1, "0000:03:00.0", 110501, 128, vram=GIB // 2, gtt=GIB)


def clocks_held_low(tree: Tree) -> None:
    device = "sys/class/drm/renderD128/device"
    tree.write(f"{device}/power_dpm_force_performance_level", "low")


def pretends_to_be_another_chip(tree: Tree) -> None:
    tree.environment["HSA_OVERRIDE_GFX_VERSION"] = "10.3.0"


def every_gpu_is_hidden(tree: Tree) -> None:
    tree.environment["HIP_VISIBLE_DEVICES"] = ""


def hip_crashes(tree: Tree) -> None:
    tree.runtime = Runtime(reason="asking HIP ended with status -11: ", library=LIBRARY)


def was_reset(tree: Tree) -> None:
    tree.kernel_says("ring comp_1.0.0 timeout, signaled seq=7, emitted seq=9")
    tree.kernel_says("GPU reset begin!")
    tree.kernel_says("GPU reset(1) succeeded!")


def could_not_be_reset(tree: Tree) -> None:
    tree.kernel_says("GPU reset(1) failed")


def fell_off_the_bus(tree: Tree) -> None:
    tree.kernel_says("device lost from bus!")


def read_a_page_that_is_not_there(tree: Tree) -> None:
    tree.kernel_says("[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32769)")


def was_reset_a_minute_ago(tree: Tree) -> None:
    tree.write(f"{BUS}/devcoredump/data", "")


def has_errors_of_memory(tree: Tree) -> None:
    tree.write(f"{BUS}/ras/umc_err_count", "ue: 3\nce: 17\n")


def is_too_hot(tree: Tree) -> None:
    (tree.root / BUS / "gpu_metrics").write_bytes(gpu_metrics([Throttle.TEMPERATURE]))
    tree.write(f"{BUS}/hwmon/hwmon3/temp2_input", "111000")


def has_a_low_cap(tree: Tree) -> None:
    tree.write(f"{BUS}/hwmon/hwmon3/power1_cap", "200000000")
    tree.write(f"{BUS}/hwmon/hwmon3/power1_cap_default", "303000000")


@pytest.mark.parametrize(
    ("damage", "level", "message", "repair"),
    [
        (no_driver, "error", "has no driver", "modprobe amdgpu"),
        (held_by_vfio, "error", "held by vfio-pci", "drivers/amdgpu/bind"),
        (too_new_for_the_kernel, "error", "Linux 6.12.9 may be too old", "dmesg"),
        (no_gpu, "error", "no AMD GPU on the PCI bus", "lspci -d 1002:"),
        (
            not_in_the_render_group,
            "error",
            "group 105 (render)",
            "usermod --append --groups render",
        ),
        (container_without_kfd, "error", "/dev/kfd does not exist", "--device /dev/kfd"),
        (container_with_names_instead_of_numbers, "error", "group 105", "--group-add 105"),
        (nodes_of_root, "error", "no group of users may open it", "udev"),
        (no_runtime, "error", "No HIP runtime", "apt install libamdhip64-6"),
        (runtime_without_what_it_needs, "error", LIBRARY, "ldd /opt/rocm/lib/libamdhip64.so"),
        (rocm_path_of_nothing, "warning", "ROCM_PATH is /opt/gone", "unset ROCM_PATH"),
        (
            no_kernels_for_the_chip,
            "error",
            "gfx906 (/dev/dri/renderD128)",
            "kernels.build --targets gfx906",
        ),
        (apu_with_a_small_share, "warning", "1.5 GiB", "ttm.pages_limit=12582912"),
        (clocks_held_low, "warning", "'low'", "echo auto"),
        (pretends_to_be_another_chip, "warning", "10.3.0", "unset HSA_OVERRIDE_GFX_VERSION"),
        (every_gpu_is_hidden, "error", "hides every GPU", "unset HIP_VISIBLE_DEVICES"),
        (hip_crashes, "error", "status -11", "rocmforge backends"),
        (was_reset, "warning", "was reset (once", "linux-firmware"),
        (was_reset, "warning", "did not finish its work in time (once", "grep -A3 timeout"),
        (could_not_be_reset, "error", "could not be reset", "restart the machine"),
        (fell_off_the_bus, "error", "fell off the bus", "slot, riser, power supply"),
        (read_a_page_that_is_not_there, "warning", "memory that is not there", "verify MODEL"),
        (was_reset_a_minute_ago, "warning", "has kept the state", "devcoredump/data"),
        (has_errors_of_memory, "warning", "has counted 3 errors", "replace the device"),
        (is_too_hot, "warning", "temperature (111 °C)", "see to fans"),
        (has_a_low_cap, "warning", "may draw 200 W, by default it may 303 W", "echo 303000000"),
    ],
)
def test_a_broken_machine_is_told_what_is_wrong_and_the_command_for_it(
    tree: Tree, damage: Callable[[Tree], None], level: str, message: str, repair: str
) -> None:
    damage(tree)
    found = [f for f in tree.findings() if message in f.message]
    assert found, tree.findings()
    assert {f.level for f in found} == {level}
    assert all(repair in (f.repair or "") for f in found)


def test_every_problem_comes_with_a_repair(tree: Tree) -> None:
    for damage in (no_driver, not_in_the_render_group, clocks_held_low, no_runtime):
        damage(tree)
    problems = [f for f in tree.findings() if f.level is not Level.OK]
    assert problems
    assert all(f.repair for f in problems)


def test_a_reset_long_ago_is_told_with_how_often_and_how_it_ended(tree: Tree) -> None:
    for seconds in (100, 200):
        tree.kernel_says("GPU reset begin!", seconds)
    tree.kernel_says("GPU reset(2) succeeded!", 203)
    tree.write("proc/uptime", f"{200 + 3 * 3600}.25 99.0\n")
    history = read_history(tree.root, ("0000:03:00.0",))
    (finding,) = find_troubles(history)
    assert "(2 times since the machine was started, 3 hours ago)" in finding.message
    assert finding.message.endswith("It has recovered.")


def test_a_log_that_cannot_be_read_is_told_and_no_fault(tree: Tree) -> None:
    (finding,) = (f for f in tree.findings() if "kernel's log cannot be read" in f.message)
    assert finding.level is Level.OK
    assert "CAP_SYSLOG" in finding.message


def test_who_holds_memory_is_named(tree: Tree) -> None:
    DeviceTree(tree.root).compute(4711, "llama-server", 9 * GIB)
    (finding,) = (f for f in tree.findings() if "is held by" in f.message)
    assert "llama-server (process 4711) 9.0 GiB" in finding.message


def test_root_needs_no_group(tree: Tree) -> None:
    tree.user = User(0, frozenset({0}))
    assert {f.level for f in tree.findings()} == {Level.OK}


def test_selinux_is_named_where_it_keeps_containers_from_devices(tree: Tree) -> None:
    tree.write(".dockerenv", "")
    tree.write("sys/fs/selinux/enforce", "1")
    repairs = {f.repair for f in tree.findings() if f.level is Level.WARNING}
    assert repairs == {"sudo setsebool -P container_use_devices=1  # on the host"}


def test_an_integrated_gpu_beside_a_discrete_one_is_told_apart(tree: Tree) -> None:
    tree.gpu(2, "0000:0e:00.0", 100306, 129, vram=GIB // 2, gtt=48 * GIB)
    said = " ".join(f.message for f in tree.findings())
    assert "gfx1036 (/dev/dri/renderD129)" in said or "gfx1036 shares" in said
    assert "Radeon RX 7900 XTX is taken" in said
    assert [gpu.is_integrated for gpu in tree.read().gpus] == [False, True]


def with_two_equal_gpus(tree: Tree) -> None:
    tree.gpu(2, "0000:43:00.0", 110000, 129, vram=24 * GIB)
    devices = tree.runtime.devices * 2
    tree.runtime = Runtime(devices=devices, library=LIBRARY, kernels=tree.runtime.kernels)


def test_equal_gpus_can_share_a_model_where_there_is_rccl(tree: Tree) -> None:
    with_two_equal_gpus(tree)
    tree.write("opt/rocm/lib/librccl.so", "")
    findings = tree.findings()
    assert {f.level for f in findings} == {Level.OK}
    (told,) = [f.message for f in findings if f.check == "rccl"]
    assert "--tensor-parallel 2" in told
    assert "/opt/rocm/lib/librccl.so" in told


def test_equal_gpus_without_rccl_are_a_warning_and_unequal_ones_are_not(tree: Tree) -> None:
    tree.gpu(2, "0000:43:00.0", 120001, 129, vram=16 * GIB)
    assert not [f for f in tree.findings() if f.check == "rccl"]
    with_two_equal_gpus(tree)
    (found,) = [f for f in tree.findings() if f.check == "rccl"]
    assert found.level is Level.WARNING
    assert "apt install rccl-dev" in (found.repair or "")
    tree.write("usr/lib64/librccl.so.1", "")
    (found,) = [f for f in tree.findings() if f.check == "rccl"]
    assert (found.level, "/usr/lib64/librccl.so.1" in found.message) == (Level.OK, True)


def test_the_runtime_that_was_taken_and_the_others_are_told(tree: Tree) -> None:
    others = (
        RuntimeLibrary(path="/usr/lib/libamdhip64.so.6", origin="the system", problem=None),
        RuntimeLibrary(path="/usr/lib/libamdhip64.so.5", origin="the system", problem="too old"),
    )
    tree.runtime = msgspec.structs.replace(tree.runtime, seen=(*tree.runtime.seen, *others))
    (told,) = [f.message for f in tree.findings() if f.check == "runtime"]
    assert f"The HIP runtime is {LIBRARY} (/opt/rocm). ROCm 6.4.3-1." in told
    assert "Also found: /usr/lib/libamdhip64.so.6; /usr/lib/libamdhip64.so.5, which cannot" in told


def test_a_gpu_that_hip_does_not_list_is_missed_unless_it_is_hidden(tree: Tree) -> None:
    tree.gpu(2, "0000:43:00.0", 120001, 129, vram=16 * GIB)
    (found,) = [f for f in tree.findings() if f.level is Level.WARNING]
    assert "2 GPUs; HIP lists only 1" in found.message
    tree.environment["HIP_VISIBLE_DEVICES"] = "0"
    assert not [f for f in tree.findings() if f.level is Level.WARNING]


def test_kernels_of_the_family_are_named(tree: Tree) -> None:
    tree.runtime = Runtime(
        devices=tree.runtime.devices, library=LIBRARY, kernels={"gfx1100": "gfx11-generic"}
    )
    assert "those of gfx11-generic" in " ".join(f.message for f in tree.findings())


def test_a_file_of_the_driver_that_cannot_be_read_is_no_end(tree: Tree) -> None:
    device = "sys/class/drm/renderD128/device"
    tree.remove(f"{device}/pp_dpm_sclk")
    tree.folder(f"{device}/pp_dpm_sclk")  # reading a folder fails, as some of sysfs does
    tree.remove(f"{device}/hwmon")
    assert {f.level for f in tree.findings()} == {Level.OK}


@pytest.mark.slow
def test_the_command_prints_json_and_fails_without_a_gpu() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "HIP_PLATFORM"}
    if Path("/dev/kfd").exists():
        pytest.skip("this machine has an AMD GPU")
    done = subprocess.run(
        [sys.executable, "-m", "rocmforge", "doctor", "--json", "--port", "0"],
        env=environment | {"ROCM_PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert findings["gpu"]["level"] == "error"
    assert findings["runtime"]["repair"]
    assert findings["port"]["level"] == "ok"
