"""Names of models in a hub, and what the files of one mean by theirs.

`org/name` is a repository, `org/name:Q4_K_M` one quantisation in it, as for llama.cpp and Ollama.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

USUAL: Final = ("Q4_K_M", "UD-Q4_K_XL", "MXFP4", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0", "BF16", "F16")
"""Quantisations in the order in which one is taken where none is named."""

_NAME: Final = re.compile(
    r"(?:https://)?(?:(?:hf\.co|huggingface\.co)/)?"
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?::(?P<quantisation>[\w.-]+))?"
)
_ADDRESS: Final = re.compile(
    r"https://(?:hf\.co|huggingface\.co)/(?P<repository>[\w.-]+/[\w.-]+)/(?:blob|resolve)/main/"
    r"(?:[\w.-]+/)*(?P<stem>[\w.-]+)\.gguf(?:\?download=true)?"
)
_QUANTISATION: Final = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|F32|FP16|MXFP4\w*))(?=$|[-._/])",
    re.IGNORECASE,
)
_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})$")
_CACHED: Final = "models--"


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of a hub, and which of its files; None = the usual one."""

    repository: str
    quantisation: str | None = None  # or the name of a file, without its ending

    def __str__(self) -> str:
        """Spells it as users type it."""
        return self.repository + (f":{self.quantisation}" if self.quantisation else "")


def parse_hub_name(text: str) -> HubName | None:
    """Reads `org/name` or `org/name:QUANTISATION`, also with huggingface.co before it.

    The address of a GGUF file there, in the branch `main`, is a name too.

    Returns:
        None for anything else.
    """
    address = _ADDRESS.fullmatch(text)
    if address is not None:
        return HubName(address["repository"], address["stem"])
    match = _NAME.fullmatch(text)
    if match is None or match["repository"].endswith(".gguf"):
        return None
    return HubName(match["repository"], match["quantisation"])


def quantisation_of(file: str) -> str | None:
    """Returns the quantisation in the name of a GGUF file, in capitals; None if there is none."""
    found = _QUANTISATION.findall(without_part(file.removesuffix(".gguf")))
    return found[-1].upper() if found else None


def label_of(file: str) -> str:
    """Returns what stands behind the colon for a GGUF file: its quantisation, or its own name."""
    return quantisation_of(file) or Path(file).stem


def without_part(stem: str) -> str:
    """Returns the name of a split model's file without the number of the part."""
    return _PART.sub("", stem)


def is_model_file(file: str) -> bool:
    """Returns whether the file is a model, or the first part of one, and no tower or matrix."""
    path = Path(file)
    part = _PART.search(path.stem)
    if path.suffix != ".gguf" or (part is not None and int(part[1]) != 1):
        return False
    return not re.search(r"mmproj|imatrix", path.name, re.IGNORECASE)


def parts_of(file: str) -> tuple[str, ...]:
    """Returns all files of the model whose first is given."""
    stem = file.removesuffix(".gguf")
    part = _PART.search(stem)
    if part is None:
        return (file,)
    base = stem[: part.start()]
    return tuple(f"{base}-{n:05}-of-{part[2]}.gguf" for n in range(1, int(part[2]) + 1))


def choose_file(files: Iterable[str], quantisation: str | None) -> str | None:
    """Chooses a GGUF file, or the first part of one.

    Args:
        files: of a repository.
        quantisation: as the user says it, in any case; None = the usual one.

    Returns:
        None if there is none of that quantisation, or none that is to be preferred.
    """
    models = {file: quantisation_of(file) for file in sorted(files) if is_model_file(file)}
    if quantisation is None and len(models) == 1:
        return next(iter(models))
    for wanted in USUAL if quantisation is None else (quantisation.upper(),):
        for file, found in models.items():
            if wanted in (found, Path(file).stem.upper()):
                return file
    return None


def quantisations(files: Iterable[str]) -> tuple[str, ...]:
    """Returns which quantisations of a model there are, by name."""
    return tuple(sorted({label_of(file) for file in files if is_model_file(file)}))


def hub_repository(folder: Path) -> Path | None:
    """Returns the folder of the hub's cache that holds a snapshot and its blobs, if it is one."""
    for snapshot in (folder, *folder.parents):
        snapshots = snapshot.parent
        if snapshots.name == "snapshots" and snapshots.parent.name.startswith(_CACHED):
            return snapshots.parent
    return None


def cached_repository(folder: Path) -> str:
    """Returns the repository of a folder in the hub's cache."""
    return folder.name.removeprefix(_CACHED).replace("--", "/")


def folder_name(folder: Path) -> str:
    """Returns the name of a model: its folder's, or its repository's in the cache of the hub."""
    repository = hub_repository(folder.resolve())
    if repository is None:
        given = folder.absolute()
        return folder.resolve().name if given.name == ".." else given.name
    return cached_repository(repository)
