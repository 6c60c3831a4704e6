"""`rocmforge completion`: what makes a shell complete our commands, options and models."""

from __future__ import annotations

import argparse
from typing import Final

from argcomplete.shell_integration import shellcode

from rocmforge.settings import Settings

# A zsh without a configuration has not loaded what completes. `#compdef` stays the first line.
_COMPINIT: Final = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints the script, for the shell to read."""
    first, *lines = shellcode(["rocmforge"], shell=arguments.shell).splitlines()
    print(first, *([_COMPINIT] if arguments.shell == "zsh" else []), *lines, sep="\n")
    return 0
