"""Settings out of the `args` of a Serve config, which have the names of those in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rocmforge.errors import ConfigurationError
from rocmforge.setting_sources import load
from rocmforge.settings import Settings, options, variable_of

_LISTENING: Final = ("host", "port", "tls_certificate", "tls_key")


def read_settings(args: Mapping[str, Any]) -> Settings:
    """Reads settings.

    Args:
        args: by name; `config` is the path of a file with more of them.

    Raises:
        ConfigurationError: one of them is none, does not fit, or is Ray Serve's to decide.
    """
    values = dict(args)
    if "api_key" in values:
        raise ConfigurationError(
            "args: api_key: Ray writes args to its logs. Say keys_file, or set "
            f"{variable_of('api_key')} in the application's runtime_env."
        )
    config = values.pop("config", None)
    lists = {option.name for option in options() if option.is_list}
    for name, value in values.items():
        if name in lists and isinstance(value, str):  # `serve run` has no lists
            values[name] = [value]
    path = None if config is None else Path(config)
    settings = load(values, path, spelled=_as_arg, source="args")
    plain = Settings()
    for name in _LISTENING:
        if getattr(settings, name) != getattr(plain, name):
            raise ConfigurationError(
                f"{name} has no effect here: Ray Serve listens. Say it in http_options."
            )
    return settings


def _as_arg(name: str, value: Any) -> str:
    return f"args: {name}: {json.dumps(value, default=str)}"
