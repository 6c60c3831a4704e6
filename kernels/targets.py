"""The targets that kernels are compiled for, and how names select from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Platform(StrEnum):
    """The compiler back end and the runtime of a target."""

    AMD = "amd"
    NVIDIA = "nvidia"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to compile for. `name` is what the device calls itself, and the folder's name."""

    name: str
    platform: Platform
    wave: int
    cpu: str
    features: tuple[str, ...] = ()
    # With the pinned compiler, and if there is one: the target whose instructions it shares, and
    # the one whose optimised LLVM IR is the same in units whose preprocessed source is, so that
    # only the instructions differ.
    code_of: str = ""
    ir_of: str = ""

    @property
    def is_generic(self) -> bool:
        """Whether the code object serves a family of chips."""
        return self.name.endswith("-generic")

    @property
    def code_suffix(self) -> str:
        """Suffix of the files a runtime loads."""
        return {Platform.AMD: ".co", Platform.NVIDIA: ".ptx", Platform.HOST: ".so"}[self.platform]


def _amd(name: str, wave: int, code_of: str = "", ir_of: str = "") -> Target:
    return Target(name, Platform.AMD, wave, cpu=name, code_of=code_of, ir_of=ir_of)


TARGETS = (
    _amd("gfx906", 64, ir_of="gfx906"),  # MI50, MI60, Radeon VII
    _amd("gfx908", 64, ir_of="gfx906"),  # MI100
    _amd("gfx90a", 64),  # MI200
    _amd("gfx942", 64, ir_of="gfx942"),  # MI300
    _amd("gfx950", 64, ir_of="gfx942"),  # MI350
    _amd("gfx1030", 32),  # RX 6800, 6900
    _amd("gfx1100", 32, ir_of="gfx1100"),  # RX 7900
    # To LLVM, gfx1101 and 1103 are gfx1100 and 1102 without a bug, for which these start waves with
    # 16 scalar registers (AMDGPU.td, FeatureUserSGPRInit16Bug). Chips without it run such code too,
    # as they do that of gfx11-generic.
    _amd("gfx1101", 32, code_of="gfx1100"),  # RX 7700, 7800
    _amd("gfx1102", 32, ir_of="gfx1100"),  # RX 7600
    _amd("gfx1103", 32, code_of="gfx1102"),  # Radeon 780M
    _amd("gfx1150", 32, ir_of="gfx1100"),  # Radeon 890M
    _amd("gfx1151", 32, ir_of="gfx1100"),  # Radeon 8060S
    _amd("gfx1200", 32, ir_of="gfx1100"),  # RX 9060
    _amd("gfx1201", 32, code_of="gfx1200"),  # RX 9070
    # For the chips of a family that have no line above.
    _amd("gfx9-4-generic", 64, code_of="gfx942"),
    _amd("gfx10-1-generic", 32),  # RX 5000
    _amd("gfx10-3-generic", 32, code_of="gfx1030"),
    _amd("gfx11-generic", 32, code_of="gfx1102"),
    _amd("gfx12-generic", 32, code_of="gfx1200"),
    # PTX is compiled further by the driver, for its own chip or any later one; that of sm_90a for
    # its own alone, as no other has the matrix instructions of warpgroups.
    Target("sm_80", Platform.NVIDIA, 32, cpu="sm_80", features=("+ptx78",)),
    Target("sm_90", Platform.NVIDIA, 32, cpu="sm_90a", features=("+ptx80",)),
    # The checking library of tests/platform/host runs these.
    Target("host-w32", Platform.HOST, 32, cpu="x86-64-v3"),
    Target("host-w64", Platform.HOST, 64, cpu="x86-64-v3"),
)

SHIPPED = tuple(target for target in TARGETS if target.platform is not Platform.HOST)
"""The targets whose kernels a wheel carries."""


def select(names: str) -> tuple[Target, ...]:
    """Selects targets by a list, with commas, of names, platforms, `generic`, `shipped` or `all`.

    Raises:
        ValueError: a name stands for no target.
    """
    chosen: dict[str, Target] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        matches = [target for target in TARGETS if _matches(target, name)]
        if not matches:
            known = ", ".join(target.name for target in TARGETS)
            raise ValueError(
                f"no kernel target is called {name!r}; there are {known}, "
                "and amd, nvidia, host, generic, shipped, all"
            )
        chosen.update((target.name, target) for target in matches)
    return tuple(chosen.values())


def _matches(target: Target, name: str) -> bool:
    if name == "all":
        return True
    if name == "shipped":
        return target in SHIPPED
    if name == "generic":
        return target.is_generic
    return name in (target.name, target.platform)
