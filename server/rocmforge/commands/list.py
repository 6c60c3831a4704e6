"""`rocmforge list`: the models on this machine, whichever program has fetched them."""

from __future__ import annotations

import argparse

import msgspec
from rich.markup import escape
from rich.table import Table

from rocmforge.commands.plan import size_text
from rocmforge.commands.terminal.output import output_console
from rocmforge.library.finding import all_stored
from rocmforge.settings import Settings


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints a row for each model: what `serve` and `run` call it, its size, its origin."""
    models = all_stored()
    if arguments.json:
        shown = [
            {"name": m.name, "path": str(m.path), "bytes": m.num_bytes, "origin": m.origin}
            for m in models
        ]
        print(msgspec.json.encode(shown).decode())
        return 0
    if not models:
        print("There is no model on this machine. `rocmforge pull ORGANISATION/MODEL` fetches one.")
        return 0
    table = Table("model", "size", "from", box=None, pad_edge=False)
    table.columns[0].overflow = "fold"
    for model in models:
        table.add_row(escape(model.name), size_text(model.num_bytes), escape(model.origin))
    output_console().print(table)
    return 0
