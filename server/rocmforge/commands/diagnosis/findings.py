"""From facts about a machine to findings, each with the command that repairs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from rocmforge.commands.diagnosis.finding import Finding, Level
from rocmforge.commands.diagnosis.health import find_troubles
from rocmforge.commands.diagnosis.machine import DeviceNode, Gpu, Machine
from rocmforge.commands.diagnosis.runtime_probe import Runtime

_GIB: Final = 2**30
_HIDING: Final = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_MIN_SHARED: Final = 0.5  # of the main memory, before an APU is told that it may have more


def diagnose(machine: Machine, runtime: Runtime) -> tuple[Finding, ...]:
    """Checks everything about GPUs, in the order in which it has to work."""
    if machine.environment.get("HIP_PLATFORM") == "nvidia":
        return tuple(_runtime(machine, runtime))
    return (
        *_hardware(machine),
        *_nodes(machine),
        *_gpus(machine, runtime),
        *find_troubles(machine.history),
        *_several_gpus(machine, runtime),
        *_runtime(machine, runtime),
        *_environment(machine),
    )


def _ok(check: str, message: str) -> Finding:
    return Finding(check=check, level=Level.OK, message=message)


def _warning(check: str, message: str, repair: str | None) -> Finding:
    return Finding(check=check, level=Level.WARNING, message=message, repair=repair)


def _error(check: str, message: str, repair: str | None) -> Finding:
    return Finding(check=check, level=Level.ERROR, message=message, repair=repair)


def _hardware(machine: Machine) -> Iterator[Finding]:
    version = "the kernel's own" if machine.driver_version is None else machine.driver_version
    if not machine.pci_gpus:
        yield _error(
            "gpu",
            "There is no AMD GPU on the PCI bus.",
            "lspci -d 1002:  # nothing: check slot, power and, in a virtual machine, passthrough",
        )
    for gpu in machine.pci_gpus:
        name = f"GPU {gpu.device} at {gpu.address}"
        if gpu.driver == "amdgpu":
            yield _ok("driver", f"{name} is driven by amdgpu ({version}, Linux {machine.kernel}).")
        elif gpu.driver is not None:
            yield _error(
                "driver",
                f"{name} is held by {gpu.driver}.",
                f"echo {gpu.address} | sudo tee /sys/bus/pci/devices/{gpu.address}/driver/unbind "
                "&& sudo modprobe amdgpu && "
                f"echo {gpu.address} | sudo tee /sys/bus/pci/drivers/amdgpu/bind",
            )
        elif machine.has_driver:
            yield _error(
                "driver",
                f"{name} is not taken by amdgpu: Linux {machine.kernel} may be too old for it.",
                "sudo dmesg | grep amdgpu  # then a newer kernel, or AMD's amdgpu-dkms",
            )
        else:
            yield _error("driver", f"{name} has no driver.", "sudo modprobe amdgpu")


def _nodes(machine: Machine) -> Iterator[Finding]:
    if not machine.has_driver:
        return
    if machine.kfd is None:
        if machine.is_container:
            repair = "docker run --device /dev/kfd --device /dev/dri ..."
        else:
            repair = "zgrep HSA_AMD /proc/config.gz  # needs CONFIG_HSA_AMD=y: use another kernel"
        yield _error("/dev/kfd", "/dev/kfd does not exist.", repair)
    else:
        yield _access(machine, machine.kfd)
    if not machine.render_nodes:
        yield _error(
            "/dev/dri",
            "/dev/dri has no render node.",
            "docker run --device /dev/kfd --device /dev/dri ..."
            if machine.is_container
            else "sudo dmesg | grep -e amdgpu -e drm",
        )
    for node in machine.render_nodes:
        yield _access(machine, node)


def _access(machine: Machine, node: DeviceNode) -> Finding:
    group = f"group {node.gid}" + (f" ({node.group})" if node.group else "")
    if node.opens_for(machine.user):
        if machine.selinux_enforces and machine.is_container:
            return _warning(
                node.path,
                f"{node.path} can be opened by {group}, if SELinux lets containers use devices.",
                "sudo setsebool -P container_use_devices=1  # on the host",
            )
        return _ok(node.path, f"{node.path} can be opened.")
    problem = f"{node.path} belongs to {group}, mode {node.mode:03o}, and you are not in it."
    if machine.is_container:
        return _error(node.path, problem, f"docker run --group-add {node.gid} ...")
    if node.mode & 0o060 != 0o060 or node.group in (None, "root"):
        return _error(
            node.path,
            f"{node.path} belongs to {group}, mode {node.mode:03o}: no group of users may open it.",
            """echo 'SUBSYSTEM=="kfd|drm", KERNEL=="kfd|renderD*", GROUP="render", MODE="0660"' """
            "| sudo tee /etc/udev/rules.d/70-amdgpu.rules && sudo udevadm trigger",
        )
    return _error(
        node.path,
        problem,
        f"sudo usermod --append --groups {node.group} $USER  # then log in again",
    )


def _gpus(machine: Machine, runtime: Runtime) -> Iterator[Finding]:
    for gpu in machine.gpus:
        name = f"{gpu.target} ({gpu.render_node})"
        kind = "integrated" if gpu.is_integrated else "discrete"
        folder = runtime.kernels.get(gpu.target)
        if gpu.target in runtime.kernels and folder is None:
            yield _error(
                "kernels",
                f"{name}, {kind}: no kernels are installed for it.",
                f"python -m kernels.build --targets {gpu.target}  # in a checkout of the source",
            )
        elif folder is not None:
            own = "" if folder == gpu.target else f", those of {folder}"
            yield _ok("kernels", f"{name}, {kind}: there are kernels for it{own}.")
        yield from _memory(machine, gpu)
        yield from _power(gpu)
    kinds = [gpu.is_integrated for gpu in machine.gpus]
    if any(kinds) and not all(kinds):
        chosen = next((d for d in runtime.devices), None)
        shown = "" if chosen is None else f" {chosen.name} is taken."
        yield _ok(
            "choice", f"There are an integrated and a discrete GPU.{shown} --device NAME chooses."
        )


def _several_gpus(machine: Machine, runtime: Runtime) -> Iterator[Finding]:
    """Checks what a model on several devices needs: that HIP lists them, and RCCL."""
    hidden = len(machine.gpus) - len(runtime.devices)
    if runtime.devices and hidden > 0 and not _hiding(machine):
        yield _warning(
            "devices",
            f"The driver has {len(machine.gpus)} GPUs; HIP lists only {len(runtime.devices)}.",
            "see the findings about render nodes above; else: AMD_LOG_LEVEL=3 rocmforge backends",
        )
    for target, count in Counter(gpu.target for gpu in machine.gpus).items():
        if count < 2:
            continue
        shared = f"{count} {target} can share a model with --tensor-parallel {count}"
        if machine.rccl:
            yield _ok("rccl", f"{shared}; RCCL is {machine.rccl[-1]}.")
        else:
            yield _warning(
                "rccl",
                f"{shared}, but RCCL (librccl.so) was not found. Without it each serves alone.",
                "sudo apt install rccl-dev  # from AMD's repository, of HIP's own release; "
                "Debian 14 has none: https://rocm.docs.amd.com",
            )


def _hiding(machine: Machine) -> list[str]:
    return [name for name in _HIDING if name in machine.environment]


def _memory(machine: Machine, gpu: Gpu) -> Iterator[Finding]:
    if gpu.vram_total is None or gpu.gtt_total is None:
        return
    sizes = f"{gpu.vram_total / _GIB:.1f} GiB VRAM, {gpu.gtt_total / _GIB:.1f} GiB GTT"
    if not gpu.is_integrated:
        used = "" if gpu.vram_used is None else f", {gpu.vram_used / _GIB:.1f} GiB in use"
        yield _ok("memory", f"{gpu.target} has {sizes}{used}.")
        return
    usable = gpu.vram_total + gpu.gtt_total
    if usable < _MIN_SHARED * machine.memory_total:
        pages = int(0.75 * machine.memory_total) // 4096
        yield _warning(
            "memory",
            f"{gpu.target} may use {usable / _GIB:.1f} GiB ({sizes}) of the machine's "
            f"{machine.memory_total / _GIB:.0f} GiB.",
            f"kernel parameters ttm.pages_limit={pages} ttm.page_pool_size={pages}, then reboot",
        )
    else:
        yield _ok("memory", f"{gpu.target} shares the main memory: {sizes}.")


def _power(gpu: Gpu) -> Iterator[Finding]:
    card = gpu.render_node.rpartition("/")[2]
    file = f"/sys/class/drm/{card}/device/power_dpm_force_performance_level"
    now = ", ".join(
        part
        for part in (
            gpu.clock and f"{gpu.clock} of {gpu.highest_clock}",
            gpu.power_w is not None and f"{gpu.power_w:.0f} W",
        )
        if part
    )
    if gpu.performance_level not in (None, "auto", "high", "profile_peak"):
        yield _warning(
            "power",
            f"{gpu.target} is held at performance level {gpu.performance_level!r} ({now}).",
            f"echo auto | sudo tee {file}",
        )
    elif now:
        yield _ok("power", f"{gpu.target} runs at {now}.")


def _runtime(machine: Machine, runtime: Runtime) -> Iterator[Finding]:
    rocm = "" if machine.rocm_version is None else f" ROCm {machine.rocm_version}."
    if runtime.library is None:
        yield _error(
            "runtime",
            f"No HIP runtime (libamdhip64.so) could be loaded: {runtime.reason}.",
            _repair_runtime(runtime),
        )
        return
    taken, others = runtime.seen[:1], runtime.seen[1:]
    origin = "".join(f" ({library.origin})" for library in taken)
    found = "; ".join(
        library.path + (f", which cannot be used: {library.problem}" if library.problem else "")
        for library in others
    )
    also = f" Also found: {found}." if found else ""
    yield _ok("runtime", f"The HIP runtime is {runtime.library}{origin}.{rocm}{also}")
    stated = machine.environment.get("ROCM_PATH")
    if taken and stated and not taken[0].origin.startswith("ROCM_PATH"):
        yield _warning(
            "runtime",
            f"ROCM_PATH is {stated}, where no HIP runtime can be used.",
            "unset ROCM_PATH",
        )
    if runtime.devices:
        names = ", ".join(f"{d.name} ({d.target})" for d in runtime.devices)
        yield _ok("devices", f"HIP can use: {names}.")
    else:
        yield _error(
            "devices",
            f"HIP finds no device: {runtime.reason}.",
            "see the findings above; else: AMD_LOG_LEVEL=3 rocmforge backends",
        )


def _repair_runtime(runtime: Runtime) -> str:
    if runtime.seen:
        return f"ldd {runtime.seen[0].path}  # what it needs and does not find"
    return (
        "sudo apt install libamdhip64-6  # Debian 14; or AMD's packages: https://rocm.docs.amd.com"
    )


def _environment(machine: Machine) -> Iterator[Finding]:
    override = machine.environment.get("HSA_OVERRIDE_GFX_VERSION")
    if override:
        yield _warning(
            "environment",
            f"HSA_OVERRIDE_GFX_VERSION={override} makes chips pass for others. There are kernels "
            "for every RDNA2, RDNA3 and RDNA4 chip here: it can only do harm.",
            "unset HSA_OVERRIDE_GFX_VERSION",
        )
    for name in _hiding(machine):
        value = machine.environment[name]
        if value.strip() in ("", "-1"):
            yield _error("environment", f"{name}={value!r} hides every GPU.", f"unset {name}")
        else:
            yield _ok("environment", f"{name}={value} hides all other GPUs.")
