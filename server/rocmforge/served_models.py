"""The models that a server is told to serve: of the command line, and of the file's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rocmforge.errors import ConfigurationError
from rocmforge.expected import did_you_mean
from rocmforge.setting_sources import ALL, as_key, checked
from rocmforge.settings import AUTO, NO_DRAFT_MODEL, PER_MODEL, Name, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One model of the command line, or of a table of the file.

    [models.chat]
    path = "chat.gguf"
    aliases = ["gpt-4o"]
    pinned = true
    max_context = 16384
    """

    path: str  # or a name
    settings: Settings  # with what is said for this model, and its names
    found: Path | None = None  # what that stands for, once somebody has looked
    pinned: bool = False  # unloaded only manually
    memory_share: float | None = None  # of the device's memory, 0..1; None = by its size


class _ModelTable(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a model's table besides settings."""

    path: str
    aliases: tuple[Name, ...] = ()
    pinned: bool = False
    memory_share: Annotated[float, Meta(gt=0, le=1)] | None = None


def served_models(given: Sequence[str], settings: Settings) -> tuple[ModelSettings, ...]:
    """Returns the models of the command line (`given` has no name, others do) and of the file.

    Raises:
        ConfigurationError: there is none, or what is said of one makes no sense.
    """
    named = [_named(text) for text in settings.model]
    if settings.served_model_name and (len(given), len(named) + len(settings.models)) != (1, 0):
        raise ConfigurationError(
            "--served-model-name names one model. Name several with --model NAME=PATH."
        )
    models = [
        *(ModelSettings(path=path, settings=settings) for path in given),
        *(ModelSettings(path=path, settings=_renamed(settings, (name,))) for name, path in named),
        *(_from_table(name, table, settings) for name, table in settings.models.items()),
    ]
    if not models:
        raise ConfigurationError(
            "There is no model to serve: give the path of a .gguf file, --model NAME=PATH, or a "
            "[models.<name>] table in the file of --config."
        )
    limit = settings.max_loaded_models
    at_start = sum(model.settings.load == "start" for model in models)
    if limit is not None and at_start > limit:
        raise ConfigurationError(
            f"{at_start} models would be loaded at the start, but --max-loaded-models allows "
            f"{limit}. Raise it, or say --load request."
        )
    return tuple(models)


def has_draft_model(settings: Settings) -> bool:
    """Returns whether it is said of some model what drafts for it."""
    said = [settings.draft_model, *(table.get("draft_model") for table in settings.models.values())]
    return any(each not in (None, AUTO, NO_DRAFT_MODEL) for each in said)


def is_verified(settings: Settings) -> bool:
    """Returns whether answers of some model are computed again."""
    rates = [settings.verify_rate, *(t.get("verify_rate") for t in settings.models.values())]
    return any(rates)


def _named(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise ConfigurationError(f"--model {text}: write it as NAME=PATH.")
    return name, path


def _renamed(settings: Settings, names: tuple[str, ...]) -> Settings:
    return msgspec.structs.replace(settings, served_model_name=names)


def _from_table(name: str, values: Mapping[str, Any], settings: Settings) -> ModelSettings:
    source = f"[models.{name}]"
    own = {field.name for field in msgspec.structs.fields(_ModelTable)}
    unknown = values.keys() - own - PER_MODEL
    if unknown:
        raise ConfigurationError(
            f"{source}: {min(unknown)!r} is not a setting of one model. "
            + (did_you_mean(min(unknown), own | PER_MODEL) or ALL)
        )
    if "path" not in values:
        raise ConfigurationError(f"{source}: `path` is missing: the model's GGUF file or folder.")
    said = checked({k: v for k, v in values.items() if k in PER_MODEL}, source, as_key(source))
    table = _ModelTable(
        **checked(
            {k: v for k, v in values.items() if k in own}, source, as_key(source), _ModelTable
        )
    )
    changed = msgspec.structs.replace(_renamed(settings, (name, *table.aliases)), **said)
    return ModelSettings(
        path=table.path, settings=changed, pinned=table.pinned, memory_share=table.memory_share
    )
