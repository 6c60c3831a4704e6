"""Finds logits processors: the built-in ones, and those of installed distributions."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Final

from rocmforge.errors import ConfigurationError
from rocmforge.logits.builtin import BUILTIN
from rocmforge.logits.processor import LogitsProcessor

GROUP: Final = "rocmforge.logits_processors"


def load_processors() -> Mapping[str, LogitsProcessor]:
    """Loads all processors, by name.

    Raises:
        ConfigurationError: an entry point cannot be imported, is no processor, or takes a name
            that another one has.
    """
    found = {processor.name: processor for processor in BUILTIN}
    for entry in entry_points(group=GROUP):
        origin = f"The logits processor {entry.name!r} ({entry.value})"
        try:
            processor = entry.load()
        except ConfigurationError:
            raise
        except Exception as error:  # whatever somebody's module does when it is imported
            raise ConfigurationError(f"{origin} cannot be imported: {error!r}.") from error
        if not isinstance(processor, LogitsProcessor):
            raise ConfigurationError(
                f"{origin} is a {type(processor).__name__}; it must be a function with the "
                "decorator rocmforge.logits.logits_processor."
            )
        if processor.name in found:
            raise ConfigurationError(f"{origin} has the name of another: {processor.name!r}.")
        found[processor.name] = processor
    return found
