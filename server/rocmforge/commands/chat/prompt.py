"""The prompt of `rocmforge run` that is not typed: the command line, files and a pipe."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocmforge.errors import ConfigurationError

_PATIENCE_S: Final = 1.0


def is_interactive() -> bool:
    """Returns whether somebody types."""
    return sys.stdin is not None and sys.stdin.isatty()


def whole_prompt(prompt: str | None, files: Sequence[Path] = ()) -> str:
    """Returns the prompt of the command line, behind it the files, and what comes through a pipe.

    Raises:
        ConfigurationError: there is none of them, or a file is not text.
    """
    piped = None if sys.stdin is None or sys.stdin.isatty() else _read_pipe()
    texts = (prompt, *map(_read_file, files), piped)
    parts = [part for part in texts if part is not None and part.strip()]
    if not parts:
        raise ConfigurationError("There is no prompt: standard input is empty.")
    return "\n\n".join(parts)


def _read_file(path: Path) -> str:
    """Returns a file under its name, by which the prompt may speak of it."""
    try:
        return f"{path.name}:\n\n{path.read_text(encoding='utf-8')}"
    except OSError as error:
        raise ConfigurationError(f"--file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"--file {path} is not text in UTF-8: byte {error.start} cannot be one of it. Nor is "
            "it a JPEG, PNG, WebP or GIF image: save one of another format as one of these."
        ) from error


def _read_pipe() -> str:
    if not select.select([sys.stdin], [], [], _PATIENCE_S)[0]:
        print(
            "rocmforge: waiting for the end of standard input (< /dev/null if there is none)",
            file=sys.stderr,
        )
    return sys.stdin.read()
