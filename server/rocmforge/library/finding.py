"""Turns what a user calls a model into a path on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rocmforge.errors import ModelFileNotFound
from rocmforge.expected import nearest
from rocmforge.library.catalogue import find_entry, hub_names, read_catalogue
from rocmforge.library.hub_names import (
    HubName,
    choose_file,
    folder_name,
    is_model_file,
    parse_hub_name,
    without_part,
)
from rocmforge.library.packaged import PACKAGED
from rocmforge.library.stores import StoredModel, store_places, stored_models
from rocmforge.setting_sources import store_environment

_OF_FOLDERS: Final = ("config.json", "adapter_config.json")


def find_model(name: str) -> Path:
    """Finds the GGUF file or the folder of that path or name.

    Raises:
        ModelFileNotFound: it is not on this machine; the message says how to get it. Or it cannot
            be told.
    """
    if not name.strip():
        raise ModelFileNotFound(f"The name of the model is empty. {_WHAT_TO_GIVE}")
    path = Path(name)
    try:
        if path.is_file() or any((path / file).is_file() for file in _OF_FOLDERS):
            # Links are not followed: the name that the user sees is what the model is called, and
            # the parts of a split model lie beside it.
            path = path.absolute()
            if path.suffix == ".safetensors":
                raise ModelFileNotFound(f"{name} has weights only: give its folder, {path.parent}.")
            return path
    except OSError as error:  # a folder that may not be searched, a name that is too long
        raise ModelFileNotFound(f"{name} cannot be read: {error.strerror}.") from error
    packaged = PACKAGED.get(name)
    if packaged is not None and packaged.path is not None:
        return packaged.path
    stored = find_stored(name)
    if stored is not None:
        return stored.path
    if path.is_dir():
        raise ModelFileNotFound(f"{name} is a folder without config.json. {_what_to_give(path)}")
    if name.startswith(("https://", "http://")) and parse_hub_name(name) is None:
        raise ModelFileNotFound(
            f"{name} is not the address of a repository at https://huggingface.co, nor of a .gguf "
            "file in its branch main. From elsewhere, fetch the file yourself and give its path."
        )
    entry = find_entry(name)
    if entry is not None:
        raise ModelFileNotFound(
            f"{name} is not on this machine. `rocmforge pull {name}` fetches it from "
            f"{entry.repository}, where we recommend {entry.sizes}: the largest that fits."
            + (f" Without a hub: `{packaged.install}`." if packaged is not None else "")
        )
    if parse_hub_name(name) is not None:
        hint = f" `rocmforge pull {name}` fetches a model of that name."
    else:
        hint = did_you_mean_model(name)
    raise ModelFileNotFound(f"{name} does not exist.{hint} {_WHAT_TO_GIVE}")


def did_you_mean_model(name: str) -> str:
    """Asks after the names of models that are most like what was typed, if one is."""
    known = (*read_catalogue(), *(model.name for model in all_stored()))
    found = nearest(name, known)
    return f" Did you mean {' or '.join(found)}?" if found else ""


_WHAT_TO_GIVE: Final = (
    "Give the path of a .gguf file or of a folder of Hugging Face, or a name that `rocmforge list` "
    "or `rocmforge list --catalogue` shows."
)


def _what_to_give(folder: Path) -> str:
    """Names the GGUF files of a folder that is no model itself."""
    files = sorted(str(file) for file in folder.glob("*.gguf") if is_model_file(file.name))
    if not files:
        return _WHAT_TO_GIVE
    more = f" or another of its {len(files)} models" if len(files) > 1 else ""
    return f"Give a file that is in it: {files[0]}{more}."


def all_stored() -> tuple[StoredModel, ...]:
    """Returns every model on this machine that has a name."""
    packaged = [
        StoredModel(name, path, path.stat().st_size, f"package {model.package}", (path,))
        for name, model in PACKAGED.items()
        if (path := model.path) is not None
    ]
    return (*packaged, *stored_models(store_places(store_environment(), Path.home())))


def find_stored(name: str) -> StoredModel | None:
    """Finds a model that some program has fetched, under its name in `rocmforge list`.

    A repository alone stands for the usual one of its quantisations that are here, a short name
    for the largest recommended one.
    """
    models = all_stored()
    for model in models:
        if model.name.casefold() == name.casefold():
            return model
    found = (_find_in_repository(models, wanted) for wanted in hub_names(name))
    return next((model for model in found if model is not None), None)


def _find_in_repository(models: tuple[StoredModel, ...], wanted: HubName) -> StoredModel | None:
    here = {
        model.path.name: model
        for model in reversed(models)
        if (found := parse_hub_name(model.name)) is not None
        and found.repository.casefold() == wanted.repository.casefold()
        and wanted.quantisation in (None, found.quantisation, model.path.stem)
    }
    chosen = choose_file(here, None)
    return None if chosen is None else here[chosen]


def default_names(name: str, path: Path) -> tuple[str, ...]:
    """Returns names for a model that was given none: what the user typed, and the file's."""
    if path.is_dir():
        return (folder_name(path),)
    stem = without_part(path.stem)
    if name.endswith(".gguf") or Path(name).exists():
        return (stem,)
    # Ollama's files are called by hashes.
    return (name, stem) if path.suffix == ".gguf" else (name,)
