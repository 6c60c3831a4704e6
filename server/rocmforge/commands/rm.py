"""`rocmforge rm`: deletes models from the cache of the hub, and from nowhere else."""

from __future__ import annotations

import argparse

from rocmforge.commands.plan import size_text
from rocmforge.errors import ConfigurationError
from rocmforge.library.finding import find_stored
from rocmforge.library.removing import remove
from rocmforge.settings import Settings


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Deletes each model and prints what that has freed."""
    found = []
    for name in arguments.models:
        model = find_stored(name)
        if model is None:
            raise ConfigurationError(
                f"There is no model {name} on this machine. `rocmforge list` shows their names."
            )
        found.append(model)
    for model in found:
        print(f"{model.name}: {size_text(remove(model))} freed", flush=True)
    return 0
