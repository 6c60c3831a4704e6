"""The consoles on which commands print their tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_NO_LIMIT: Final = 100_000


def output_console() -> Console:
    """Returns a console on standard output.

    On a terminal lines are folded at its width. Elsewhere they are as long as they are, since a
    path that is cut in two is of no use to a program.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return Console() if is_terminal else Console(width=_NO_LIMIT)


def fact_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Returns a table of names and what is said of each, which may hold any characters."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, escape(text))
    return table
