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

_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::\?[^}]*)?\}")


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """What Compose makes of a file: `${NAME:?message}` replaced, `$$` a dollar.

    Raises:
        KeyError: a variable that the file insists on is missing.
    """
    return _VARIABLE.sub(lambda m: variables[m["name"]] if m["name"] else "$", text)


def load(name: str) -> Any:
    """A YAML file of docker/."""
    return yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))
