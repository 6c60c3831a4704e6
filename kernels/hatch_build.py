"""Builds the kernels when pip builds or installs the package, editable or not.

The targets are those named by $ROCMFORGE_KERNEL_TARGETS, a list as `kernels.targets.select` takes
it (an empty one builds nothing). Without it, a wheel gets all that are shipped, and an editable
installation those of this machine's GPUs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import (  # type: ignore[import-not-found, unused-ignore]
    BuildHookInterface,
)

# Wheels carry a library for NVIDIA's platform, linked against glibc 2.28.
_TAG = "py3-none-manylinux_2_28_x86_64"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Compiles for the chosen targets and adds exactly their files to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the kernels; hatchling calls it before it packs a wheel or an editable one."""
        root = Path(self.root)
        sys.path.insert(0, self.root)
        try:
            from kernels.build import LIB_DIR, build, targets_from_environment
            from kernels.compiler import find_compiler
            from kernels.local import local_targets
            from kernels.targets import SHIPPED, Platform
        finally:
            sys.path.remove(self.root)
        targets = targets_from_environment(local_targets() if version == "editable" else SHIPPED)
        if targets:
            self.app.display_info(f"compiling kernels for {len(targets)} targets")
            build(targets, find_compiler(None))
        library = LIB_DIR.relative_to(root)
        folders = [target.name for target in targets if target.platform is not Platform.HOST]
        if any(target.platform is Platform.NVIDIA for target in targets):
            folders.append("platform/nvidia")
        build_data["artifacts"] += [f"/{library}/{folder}/**" for folder in folders]
        build_data["pure_python"] = False
        build_data["tag"] = _TAG
