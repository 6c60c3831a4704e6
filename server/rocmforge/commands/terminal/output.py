"""The consoles on which commands print their tables."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

_NO_LIMIT: Final = 100_000


def output_console() -> Console:
    """Returns a console on standard output.

    On a terminal lines are folded at its width. Elsewhere they are as long as they are, since a
    path that is cut in two is of no use to a program.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return Console() if is_terminal else Console(width=_NO_LIMIT)
