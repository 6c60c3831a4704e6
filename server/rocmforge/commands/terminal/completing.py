"""Completion of half-typed commands in a shell: argcomplete, with our names of models.

Imported only while a shell asks, which is at every press of Tab.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable

import argcomplete
from argcomplete.completers import FilesCompleter

from rocmforge import settings
from rocmforge.arguments import DESTINATION
from rocmforge.library.catalogue import read_catalogue
from rocmforge.library.finding import all_stored

Completer = Callable[..., Iterable[str]]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers the shell, and ends the program.

    Args:
        parser: of the whole command line.
    """
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        for action in command._actions:
            completer = _completer(name, action.dest)
            if completer is not None:
                action.completer = completer
    argcomplete.autocomplete(parser, always_complete_options=False)
    sys.exit(0)


def _completer(command: str, name: str) -> Completer | None:
    """Returns what offers the values of an argument; None = files are offered."""
    if name in ("model", "models"):
        return {"pull": _catalogue, "rm": _stored}.get(command, _models)
    for option in settings.options():
        if name == DESTINATION + option.name and option.choices:
            return _choices(option.choices)
    return None


def _choices(choices: tuple[str, ...]) -> Completer:
    return lambda **_: choices


def _catalogue(**_: object) -> Iterable[str]:
    return read_catalogue()


def _stored(**_: object) -> Iterable[str]:
    return [model.name for model in all_stored()]


def _models(prefix: str, **_: object) -> Iterable[str]:
    names = (*_stored(), *_catalogue())
    return (*dict.fromkeys(names), *FilesCompleter(allowednames=("gguf",))(prefix))
