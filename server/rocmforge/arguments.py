"""The command line's parsers, and the flags of settings that they show in groups."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from rocmforge import settings
from rocmforge.expected import did_you_mean

DESTINATION: Final = "setting_"
"""What the name of a parsed setting begins with."""


class Parser(argparse.ArgumentParser):
    """Asks after a mistyped name whether another was meant."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 2, without the usage, under which the reason is lost."""
        typed = re.search(r"COMMAND: invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if typed is not None:
            known = did_you_mean(typed[1], re.findall(r"[\w-]+", typed[2]))
            message = f"There is no command {typed[1]!r}. {known}".rstrip()
        self.exit(2, f"{self.prog}: error: {message}\n`{self.prog} --help` shows what there is.\n")


class CommandParser(Parser):
    """Takes positional arguments wherever they stand, also behind options."""

    _is_inside = False

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Ends the program because of arguments that the command does not have."""
        flags = [text.partition("=")[0] for text in unknown if text.startswith("--")]
        known = [name for name in self._option_string_actions if name.startswith("--")]
        hints = [did_you_mean(flag, known, "--") for flag in flags]
        takes_prompt = any(action.dest == "prompt" for action in self._actions)
        if takes_prompt and not any(text.startswith("-") for text in unknown):
            hints.append("A prompt of several words stands in quotes.")
        self.error(f"unrecognized arguments: {' '.join(unknown)}. {' '.join(hints)}".rstrip())

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parses as its base does, except that options may stand between positional arguments."""
        if self._is_inside:  # Python 3.11's parse_known_intermixed_args calls this
            return super().parse_known_args(args, namespace)
        self._is_inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inside = False


def add_settings(parser: argparse.ArgumentParser, used: Sequence[str]) -> None:
    """Adds the flags of settings, in the groups of their table."""
    where = f"also read from {settings.ENV_PREFIX}<NAME> and from the file of --config"
    general = parser.add_argument_group("settings", where)
    general.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in settings.options():
        if option.name not in used:
            continue
        kind: dict[str, Any] = {"metavar": option.metavar}
        if option.is_flag:
            kind = {"action": "store_true"}
        elif option.is_list:
            kind["action"] = "append"
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        groups[option.group].add_argument(
            option.flag,
            dest=DESTINATION + option.name,
            default=argparse.SUPPRESS,
            help=_help_of(option).replace("%", "%%"),
            **kind,
        )


def _help_of(option: settings.Option) -> str:
    """Returns what the help says of a setting: its meaning, its values and its default."""
    text = option.description
    if option.choices and option.metavar != "|".join(option.choices):
        text += f": {', '.join(option.choices)}"
    default = option.default
    if default is None or default is False or default == ():
        return text
    return f"{text} (default: {f'{default:g}' if isinstance(default, float) else default})"


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that flags give, by name."""
    return {
        name.removeprefix(DESTINATION): value
        for name, value in vars(arguments).items()
        if name.startswith(DESTINATION)
    }
