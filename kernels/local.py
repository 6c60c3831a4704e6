"""The targets of this machine's GPUs: an installation for development builds no others."""

from __future__ import annotations

from pathlib import Path

from kernels.targets import TARGETS, Target

KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def local_targets(nodes: Path = KFD_NODES) -> tuple[Target, ...]:
    """Returns the targets of the AMD GPUs that the kernel driver lists; empty without a driver.

    A chip without a target of its own gets all generic ones: which of them serves it is for the
    backend to decide.
    """
    chips = {chip for file in nodes.glob("*/properties") if (chip := _chip(file.read_text()))}
    known = {target.name for target in TARGETS}
    return tuple(
        target
        for target in TARGETS
        if target.name in chips or (target.is_generic and not chips <= known)
    )


def _chip(properties: str) -> str | None:
    """Returns `gfx90a` for gfx_target_version 90010; None for a node that is a CPU (version 0)."""
    fields = dict(line.split() for line in properties.splitlines() if len(line.split()) == 2)
    version = int(fields.get("gfx_target_version", 0))
    if version == 0:
        return None
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"
