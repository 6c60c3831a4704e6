"""Where settings come from: the file of `--config` < environment < flags.

This module is the only reader of the environment.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from rocmforge.errors import ConfigurationError
from rocmforge.expected import did_you_mean, expected
from rocmforge.settings import ENV_PREFIX, Settings, flag_of, options, variable_of

_GPU_VARIABLES = (
    *("ROCM_PATH", "HIP_PLATFORM", "HSA_OVERRIDE_GFX_VERSION"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
)
_STORE_VARIABLES = (
    *("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"),
    *("LLAMA_CACHE", "OLLAMA_MODELS"),
)
ALL = "`rocmforge serve --help` lists all."
_SECRET = "api_key"  # is not repeated in messages; an empty one counts
# Variables of the test suite and of the kernel build; not settings.
OTHER_PREFIXES = ("ROCMFORGE_TEST_", "ROCMFORGE_KERNEL_")


def load(
    flags: Mapping[str, Any],
    config: Path | None = None,
    *,
    spelled: Callable[[str, Any], str] | None = None,
    source: str = "command line",
) -> Settings:
    """Merges defaults, the file, the environment and flags; later ones win.

    Args:
        flags: values by the names of fields.
        config: the file.
        spelled: how a flag and its value are written, for messages; None = as on a command line.
        source: where flags come from.

    Raises:
        ConfigurationError: an unknown name, or a value that does not fit; names both.
    """
    values: dict[str, Any] = {}
    if config is not None:
        values |= checked(_read_file(config), str(config), as_key(str(config)))
    values |= checked(_from_environment(os.environ), "environment", _as_variable)
    values |= checked(flags, source, spelled or _as_flag)
    return msgspec.convert(values, Settings)


def check_text(text: str, what: str) -> None:
    """Raises ConfigurationError if a text from outside is none; it may be a key, so is not shown.

    Python keeps bytes that the locale's encoding does not know as halves of UTF-16 pairs, which
    nothing could be sent or written with.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        encoding = sys.getfilesystemencoding()
        raise ConfigurationError(
            f"{what} is not text in {encoding}, the encoding of this locale: character "
            f"{error.start + 1} cannot be read. Write it so, or set LANG=C.UTF-8."
        ) from error


def gpu_environment() -> dict[str, str]:
    """Variables that are not ours, but change which GPUs HIP finds: for `rocmforge doctor`."""
    return {name: os.environ[name] for name in _GPU_VARIABLES if name in os.environ}


def own_environment() -> dict[str, str]:
    """Returns the settings of the environment as they stand there, by variable."""
    variables = {option.variable for option in options()}
    return {name: text for name, text in os.environ.items() if name in variables}


def is_completing() -> bool:
    """Returns whether a shell asks what may stand behind a half-typed command."""
    return "_ARGCOMPLETE" in os.environ


def store_environment() -> dict[str, str]:
    """Variables of other programs that say where their models are."""
    return {name: os.environ[name] for name in _STORE_VARIABLES if name in os.environ}


def state_folder() -> Path:
    """Returns the folder of what is kept between runs, as the XDG Base Directory Specification."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".local/state") / "rocmforge"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}.") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {option.variable: option for option in options()}
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable.startswith(OTHER_PREFIXES):
            continue
        option = by_variable.get(variable)
        if option is None:
            raise ConfigurationError(
                f"{variable} is not a setting. "
                + (did_you_mean(variable, by_variable, ENV_PREFIX) or ALL)
            )
        check_text(text, variable)
        values[option.name] = (
            _parts(text, keep_empty=option.name == _SECRET) if option.is_list else text
        )
    return values


def _parts(text: str, *, keep_empty: bool) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part or keep_empty]


def checked(
    values: Mapping[str, Any],
    source: str,
    spelled: Callable[[str, Any], str],
    table: type[msgspec.Struct] = Settings,
) -> dict[str, Any]:
    """Converts each value to its field's type.

    Args:
        values: by the names of fields.
        source: where they come from.
        spelled: how a setting and its value are written there, for messages.
        table: the type that has these fields.

    Raises:
        ConfigurationError: an unknown name, or a value that does not fit.
    """
    hints = get_type_hints(table, include_extras=True)
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise ConfigurationError(
                f"{source}: {name!r} is not a setting. {did_you_mean(name, hints) or ALL}"
            )
        try:
            result[name] = msgspec.convert(value, hints[name], strict=False)
        except msgspec.ValidationError as error:
            choices = next((o.choices for o in options() if o.name == name), ())
            wanted = f"one of: {', '.join(choices)}" if choices else expected(hints[name])
            shown = "..." if name == _SECRET else value
            raise ConfigurationError(
                f"{spelled(name, shown)}: the value must be {wanted}."
            ) from error
    return result


def _as_flag(name: str, value: Any) -> str:
    values = [value] if isinstance(value, str) else value
    return shlex.join([flag_of(name), *map(str, values)])


def _as_variable(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else ",".join(value)
    return f"{variable_of(name)}={text}"


def as_key(source: str) -> Callable[[str, Any], str]:
    """Returns how settings are written in that file or table, for `checked`."""
    return lambda name, value: f"{source}: {name} = {json.dumps(value, default=str)}"
