"""Loads models from their files onto a backend, as an engine process does."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rocmforge.backend.optional import MemoryEstimate, Planning
from rocmforge.backend.protocol import Backend, LoadOptions, ProgressCallback, Runner
from rocmforge.opening import open_checkpoint


def load_file(
    backend: Backend,
    path: Path,
    options: LoadOptions,
    progress: ProgressCallback = lambda stage, share: None,
) -> Runner:
    """Opens a model with its adapters, loads it and closes the file."""
    with open_checkpoint(path, options.adapters) as checkpoint:
        return backend.load(checkpoint, options, progress)


def estimate_file(
    backend: Planning, path: Path, options: LoadOptions, memory: int | None
) -> MemoryEstimate:
    """Opens a model with its adapters and has it planned."""
    with open_checkpoint(path, options.adapters) as checkpoint:
        return backend.estimate(checkpoint, options, memory)


def open_files() -> set[str]:
    """Returns the paths of all that this process has open."""
    paths = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile, as is what lists them
            paths.add(os.readlink(link))
    return paths
