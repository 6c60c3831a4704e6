"""Gets a model onto this machine, unless it is here."""

from __future__ import annotations

from pathlib import Path

from rocmforge.errors import ModelFileNotFound
from rocmforge.library.finding import find_model
from rocmforge.library.hub_names import parse_hub_name
from rocmforge.settings import Settings


def obtain(name: str, settings: Settings) -> Path:
    """Finds a model, or fetches it from the hub if its name is one of the hub's.

    Raises:
        ModelFileNotFound: it is neither here nor called like a model of a hub.
        DownloadFailed: it cannot be fetched.
    """
    try:
        return find_model(name)
    except ModelFileNotFound:
        wanted = parse_hub_name(name)
        # `models/small` is rather a mistyped path where there is a folder `models`.
        if wanted is None or Path(name).parent.is_dir():
            raise
    # Takes a third of a second, which most starts need not.
    from rocmforge.commands.pull import pull

    return pull(wanted, settings)
