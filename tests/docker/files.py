"""The files of docker/, read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rocmforge.settings import options

DOCKER = Path(__file__).parents[2] / "docker"
SETTINGS = {option.variable for option in options()}

_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::\?[^}]*|:-(?P<default>[^}]*))?\}")


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Returns what Compose makes of a file, with its variables replaced; `$$` is a dollar.

    Known are `${NAME:?message}`, which must be given, and `${NAME:-default}`.

    Raises:
        KeyError: a variable that the file insists on is missing.
    """

    def value(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        if name is None:
            return "$"
        return variables[name] if default is None else variables.get(name, default)

    return _VARIABLE.sub(value, text)


def load(name: str) -> Any:
    """A YAML file of docker/."""
    return yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))
