"""Finds on the disk the models that other programs have fetched.

Nothing here is copied or changed. What cannot be read is no model: a program may be writing it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocmforge.library.hub_names import (
    HubName,
    cached_repository,
    is_model_file,
    label_of,
    parts_of,
    quantisation_of,
)

_OLLAMA_MODEL: Final = "application/vnd.ollama.image.model"
_OLLAMA_REGISTRY: Final = "registry.ollama.ai"
_MAX_MANIFEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this machine."""

    name: str  # as `rocmforge serve` takes it
    path: Path  # of its GGUF file, of the first of several, or of its folder
    num_bytes: int
    origin: str  # the program that has fetched it
    files: tuple[Path, ...]  # all of them


@dataclass(frozen=True, slots=True)
class StorePlaces:
    """The folders in which programs keep models; each may be missing."""

    hub: Path
    lm_studio: tuple[Path, ...]
    llama_cpp: Path
    ollama: tuple[Path, ...]


def store_places(environment: Mapping[str, str], home: Path) -> StorePlaces:
    """Returns where the programs keep models, as their own documentation says.

    Args:
        environment: the variables that change it.
        home: the user's.
    """
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    hugging_face = Path(environment.get("HF_HOME") or cache / "huggingface")
    ollama = environment.get("OLLAMA_MODELS")
    return StorePlaces(
        hub=Path(environment.get("HF_HUB_CACHE") or hugging_face / "hub"),
        lm_studio=(home / ".lmstudio/models", home / ".cache/lm-studio/models"),
        llama_cpp=Path(environment.get("LLAMA_CACHE") or cache / "llama.cpp"),
        ollama=(Path(ollama),)
        if ollama
        else (home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")),
    )


def stored_models(places: StorePlaces) -> Iterator[StoredModel]:
    """Yields the models of all programs; those of one program by name."""
    yield from sorted(_of_hub(places.hub), key=_by_name)
    for folder in places.lm_studio:
        yield from sorted(_of_lm_studio(folder), key=_by_name)
    yield from sorted(_of_llama_cpp(places.llama_cpp), key=_by_name)
    for folder in places.ollama:
        yield from sorted(_of_ollama(folder), key=_by_name)


def _by_name(model: StoredModel) -> str:
    return model.name


def _of_hub(cache: Path) -> Iterator[StoredModel]:
    for folder in _folders(cache, "models--*"):
        repository = cached_repository(folder)
        snapshot = folder / "snapshots" / _read(folder / "refs/main").strip()
        if snapshot.name == "snapshots":
            continue  # no snapshot of `main`
        yield from _gguf_files(snapshot, repository, "Hugging Face")
        if (snapshot / "config.json").is_file():
            files = tuple(path for path in snapshot.rglob("*") if path.is_file())
            if any(path.suffix == ".safetensors" for path in files):
                size = sum(path.stat().st_size for path in files)
                yield StoredModel(repository, snapshot, size, "Hugging Face", files)


def _of_lm_studio(folder: Path) -> Iterator[StoredModel]:
    for publisher in _folders(folder):
        for repository in _folders(publisher):
            yield from _gguf_files(repository, f"{publisher.name}/{repository.name}", "LM Studio")


def _of_llama_cpp(cache: Path) -> Iterator[StoredModel]:
    """Reads `manifest=org=name=tag.json`, beside which the file is called `org_name_file`."""
    for manifest in sorted(_glob(cache, "manifest=*.json")):
        owner, name = [*manifest.stem.split("=")[1:], "", ""][:2]
        file = str(_look_up(_read_json(manifest), "ggufFile", "rfilename") or "")
        path = cache / f"{owner}_{name}_{file.replace('/', '_')}"
        if file and is_model_file(file) and path.is_file():
            yield _stored(path, HubName(f"{owner}/{name}", quantisation_of(file)), "llama.cpp")


def _of_ollama(folder: Path) -> Iterator[StoredModel]:
    manifests = folder / "manifests"
    for manifest in sorted(_glob(manifests, "*/*/*/*")):
        layers = _look_up(_read_json(manifest), "layers")
        for layer in layers if isinstance(layers, list) else ():
            digest = _look_up(layer, "digest")
            if _look_up(layer, "mediaType") != _OLLAMA_MODEL or not isinstance(digest, str):
                continue
            path = folder / "blobs" / Path(digest.replace(":", "-")).name
            if path.is_file():
                name = _ollama_name(manifest.relative_to(manifests).parts)
                yield StoredModel(name, path, path.stat().st_size, "Ollama", (path,))


def _ollama_name(parts: tuple[str, ...]) -> str:
    """Spells a model as `ollama list` does: without its usual registry and namespace."""
    registry, namespace, model, tag = parts
    shown = [model]
    if registry != _OLLAMA_REGISTRY:
        shown = [registry, namespace, model]
    elif namespace != "library":
        shown = [namespace, model]
    return f"{'/'.join(shown)}:{tag}"


def _gguf_files(folder: Path, repository: str, origin: str) -> Iterator[StoredModel]:
    for path in sorted(_glob(folder, "**/*.gguf")):
        if is_model_file(path.name) and path.is_file():
            name = HubName(repository, label_of(str(path.relative_to(folder))))
            yield _stored(path, name, origin)


def _stored(path: Path, name: HubName, origin: str) -> StoredModel:
    files = tuple(path.with_name(part) for part in parts_of(path.name))
    size = sum(file.stat().st_size for file in files if file.is_file())
    return StoredModel(str(name), path, size, origin, files)


def _folders(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(path for path in _glob(folder, pattern) if path.is_dir())


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in folder.glob(pattern) if path.exists()]
    except OSError:  # a folder of another user
        return []


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            return ""
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError):
        return None


def _look_up(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
