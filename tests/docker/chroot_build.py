"""Builds docker/Dockerfile without Docker: every RUN step runs for real, in a chroot.

    debootstrap --variant=minbase forky /tmp/base
    python -m tests.docker.chroot_build /tmp/base /tmp/images --target rocm

It needs root, and knows no more of the format than docker/Dockerfile uses. Each stage becomes a
folder; the environment of the last one is written next to it, as `<target>.env`, and its size is
printed. A file that $PIP_CERT names must be in the base, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker/Dockerfile"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where packages come from is the machine's business, not the image's.
PASSED_ON = ("PIP_INDEX_URL", "PIP_CERT", "HTTPS_PROXY", "HTTP_PROXY")
# What Debian's slim images leave out, or delete after each call of apt.
NOT_COUNTED = (
    *("proc", "var/cache", "var/lib/apt/lists"),
    *(f"usr/share/{kind}" for kind in ("doc", "groff", "info", "lintian", "locale", "man")),
)


@dataclass
class Stage:
    """One FROM and the instructions below it."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)  # (instruction, its arguments)


def read_stages(text: str, given: Mapping[str, str] | None = None) -> dict[str, Stage]:
    """Stages by name, in order.

    Args:
        text: of a Dockerfile.
        given: build arguments, by the names of ARG instructions before the first stage.
    """
    values: dict[str, str] = {}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    stages: dict[str, Stage] = {}
    for line in filter(None, (line.strip() for line in joined.splitlines())):
        instruction, _, arguments = line.partition(" ")
        if instruction == "ARG" and not stages:
            name, _, default = arguments.partition("=")
            values[name] = (given or {}).get(name, default)
        elif instruction == "FROM":
            base, keyword, name = arguments.split()
            base = re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], base)
            assert keyword == "AS", line
            stage = stages[name] = Stage(name, base)
        else:
            stage.steps.append((instruction, arguments))
    return stages


@dataclass
class Image:
    """What a stage hands on besides its files."""

    environment: dict[str, str]
    directory: str = "/"


class Builder:
    """Makes stages in `folder`, those they need first."""

    def __init__(self, stages: dict[str, Stage], base: Path, folder: Path) -> None:
        self._stages = stages
        self._base = base
        self._folder = folder
        self._images: dict[str, Image] = {}

    def build(self, name: str) -> Image:
        """Builds a stage unless that is done."""
        if name in self._images:
            return self._images[name]
        stage = self._stages[name]
        is_first = stage.base not in self._stages
        image = Image({"PATH": PATH, "HOME": "/root"})
        if not is_first:
            base = self.build(stage.base)
            image = Image(dict(base.environment), base.directory)
        root = self._folder / name
        shutil.rmtree(root, ignore_errors=True)
        source = self._base if is_first else self._folder / stage.base
        subprocess.run(["cp", "-a", "--reflink=auto", source, root], check=True)
        for instruction, arguments in stage.steps:
            print(f"{name}: {instruction} {arguments}", file=sys.stderr)
            match instruction:
                case "RUN":
                    self._run(root, image, arguments)
                case "COPY":
                    self._copy(root, image.directory, arguments)
                case "ENV":
                    image.environment |= _assignments(arguments, image.environment)
                case "WORKDIR":
                    image.directory = arguments
                    (root / arguments.lstrip("/")).mkdir(parents=True, exist_ok=True)
        self._images[name] = image
        return image

    def _run(self, root: Path, image: Image, command: str) -> None:
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        shell = f"cd {shlex.quote(image.directory)} && {command}"
        # A process namespace of its own, for /proc to be mounted: the kernels' compiler needs it.
        isolate = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc"]
        subprocess.run(
            [*isolate, "chroot", root, "/bin/sh", "-c", shell],
            env=image.environment | passed_on,
            check=True,
        )

    def _copy(self, root: Path, directory: str, arguments: str) -> None:
        *sources, target = shlex.split(arguments)
        origin = ROOT
        if sources[0].startswith("--from="):
            stage = sources.pop(0).removeprefix("--from=")
            self.build(stage)
            origin = self._folder / stage
        (source,) = sources
        destination = root / Path(directory, target).as_posix().lstrip("/")
        if source == ".":
            _copy_context(destination)
            return
        destination.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", origin / source.lstrip("/"), destination], check=True)


def _copy_context(destination: Path) -> None:
    """What docker/Dockerfile.dockerignore lets through."""
    for line in (ROOT / "docker/Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            target = destination / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", "-T", ROOT / line[1:], target], check=True)
    shutil.rmtree(destination / "backends/hip/rocmforge_hip/lib", ignore_errors=True)


def _assignments(arguments: str, known: dict[str, str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in shlex.split(arguments))
    return {
        name: re.sub(r"\$(\w+)", lambda found: known.get(found[1], ""), value)
        for name, _, value in pairs
    }


def image_bytes(root: Path) -> int:
    """The bytes of an image's files, each once however many names it has."""
    left_out = {root / path for path in NOT_COUNTED}
    sizes: dict[int, int] = {}
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if here / name not in left_out]
        for file in map(here.joinpath, files):
            status = file.lstat()
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path, help="root file system that FROM stands for")
    parser.add_argument("folder", type=Path, help="where stages are made")
    parser.add_argument("--target", default="rocm")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    stages = read_stages(DOCKERFILE.read_text(encoding="utf-8"))
    image = Builder(stages, options.base, options.folder).build(options.target)
    (options.folder / f"{options.target}.env").write_text(json.dumps(image.environment, indent=2))
    print(f"{options.target}: {image_bytes(options.folder / options.target) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
