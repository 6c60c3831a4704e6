"""The input of `rocmforge run`: messages typed or pasted in a terminal, or all of a pipe."""

from __future__ import annotations

import re
import select
import sys
from typing import Final

from rocmforge.errors import ConfigurationError

PROMPT: Final = "> "
HINT: Final = "/help shows commands."
HELP: Final = (
    "/help shows this. ^C ends an answer, which stays in the conversation; ^D ends the program.\n"
    "A pasted text is one message. A space before a slash sends the line to the model."
)

_COMMAND: Final = re.compile(r"/[A-Za-z?]*(?=\s|$)")
_PATIENCE_S: Final = 1.0
_PASTE_S: Final = 0.02
"""How soon the next line of a pasted text is there; nobody types as fast."""


def is_interactive() -> bool:
    """Returns whether somebody types."""
    return sys.stdin is not None and sys.stdin.isatty()


def whole_prompt(prompt: str | None) -> str:
    """Returns the prompt of the command line, and behind it what comes through a pipe.

    Raises:
        ConfigurationError: there is neither.
    """
    text = "" if sys.stdin is None or sys.stdin.isatty() else _read_pipe()
    parts = [part for part in (prompt, text) if part is not None and part.strip()]
    if not parts:
        raise ConfigurationError("There is no prompt: standard input is empty.")
    return "\n\n".join(parts)


def _read_pipe() -> str:
    if not select.select([sys.stdin], [], [], _PATIENCE_S)[0]:
        print(
            "rocmforge: waiting for the end of standard input (< /dev/null if there is none)",
            file=sys.stderr,
        )
    return sys.stdin.read()


def answer_to_command(message: str) -> str | None:
    """Returns what to say to a message that is a command; None for one to the model."""
    command = _COMMAND.match(message)
    if command is None:
        return None
    if command[0] == "/help":
        return HELP
    return f"{command[0]} is not a command.\n{HELP}"


class MessageReader:
    """Reads messages from a terminal, with the line editing of Python's readline.

    A terminal marks a pasted text, if it is asked to, and GNU readline knows these marks. Without
    it, lines that come faster than anybody types belong together.
    """

    def __init__(self) -> None:
        self._knows_pastes = _use_readline()

    def read(self) -> str:
        """Returns the next message; raises EOFError at ^D."""
        lines = [input(PROMPT)]
        while not self._knows_pastes and select.select([sys.stdin], [], [], _PASTE_S)[0]:
            lines.append(input())
        return "\n".join(lines)


def _use_readline() -> bool:
    """Lets input() edit lines, and returns whether it will see a pasted text as one."""
    try:
        import readline
    except ImportError:
        return False
    if "libedit" in (readline.__doc__ or ""):
        return False
    readline.parse_and_bind("set enable-bracketed-paste on")
    return True
