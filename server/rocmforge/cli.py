"""The command line: arguments -> `Settings` -> one of the commands.

Flags of `serve`, `run` and `bench` are made from the table in `settings`, so a setting exists
as flag, variable and file key or not at all. This is the only place that sets up logging and
turns errors into exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rocmforge import __version__, settings
from rocmforge.errors import ConfigurationError, RocmForgeError
from rocmforge.logs import set_up_logging

logger = logging.getLogger(__name__)

MODEL_HELP = "path of a .gguf file, or a packaged model such as smollm2"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = _parser().parse_args(argv)
    say: Callable[[str], None] = _say
    try:
        configured = settings.load(_given_settings(arguments), arguments.config)
        set_up_logging(configured.log_level, configured.log_format)
        if configured.log_format == "json":  # for programs that read nothing else
            say = logger.error
        command = import_module(f"rocmforge.commands.{arguments.command}")
        code: int = command.run(arguments, configured)
        if sys.stdout is not None:  # it is None if the shell has closed it
            sys.stdout.flush()
        return code
    except RocmForgeError as error:
        say(error.message)
        return 2 if isinstance(error, ConfigurationError) else 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # a full disk, too many open files, ...
        logger.debug("where it happened", exc_info=error)
        if not isinstance(error, BrokenPipeError):  # whoever reads, such as `head`, has seen enough
            say(f"The operating system refuses: {error}.")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes what is left at the end
        return 1


def _say(message: str) -> None:
    print(f"rocmforge: error: {message}", file=sys.stderr)


def _count(text: str) -> int:
    """How many; at least one."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _temperature(text: str) -> float:
    """As in requests; 0 = greedy."""
    try:
        temperature = float(text)
    except ValueError:
        temperature = math.nan
    if not 0 <= temperature <= 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2")
    return temperature


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rocmforge",
        description="OpenAI-compatible model server for AMD GPUs.",
        epilog="`rocmforge COMMAND --help` shows the options of a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rocmforge {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_command = partial(commands.add_parser, allow_abbrev=False)

    serve = add_command("serve", help="serve models over HTTP")
    serve.add_argument("models", nargs="*", metavar="model", help=MODEL_HELP)
    _add_settings(serve)

    run = add_command("run", help="chat with a model in the terminal")
    run.add_argument("model", help=MODEL_HELP)
    run.add_argument("prompt", nargs="?", help="answer this and exit (default: a conversation)")
    run.add_argument("--system", help="system message")
    run.add_argument("--temperature", type=_temperature, default=0.7)
    run.add_argument("--seed", type=int)
    run.add_argument("--max-tokens", type=_count, help="longest answer (default: what fits)")
    _add_settings(run)

    inspect = add_command("inspect", help="show what is in a GGUF file")
    inspect.add_argument("model", help=MODEL_HELP)
    inspect.add_argument("--tensors", action="store_true", help="list every tensor")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.add_argument("--plan", action="store_true", help="show what it needs of a device")
    inspect.add_argument(
        "--memory", metavar="SIZE", help="plan for a device with so much free, such as 24GiB"
    )
    _add_settings(inspect)

    backends = add_command("backends", help="list backends and the devices they find")
    backends.add_argument("--json", action="store_true", help="print JSON")
    _add_settings(backends)

    doctor = add_command("doctor", help="find out why a GPU is not used, and how to repair it")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    _add_settings(doctor)

    bench = add_command("bench", help="measure a model on this machine")
    bench.add_argument("model", help=MODEL_HELP)
    bench.add_argument("--prompt-tokens", type=_count, default=128, help="length of each prompt")
    bench.add_argument("--output-tokens", type=_count, default=64, help="length of each answer")
    bench.add_argument(
        "--streams", type=_count, nargs="+", default=[1, 8], help="how many requests run at once"
    )
    bench.add_argument("--repeat", type=_count, default=3, help="runs of each, the median counts")
    bench.add_argument("--json", action="store_true", help="print JSON")
    _add_settings(bench)

    verify = add_command("verify", help="check a device against the reference")
    verify.add_argument(
        "model", nargs="?", help=f"{MODEL_HELP} (default: smollm2 if installed, or a synthetic one)"
    )
    verify.add_argument("--only", default="*", metavar="PATTERN", help="operations, such as gemv*")
    verify.add_argument("--ops-only", action="store_true", help="do not run a model")
    verify.add_argument("--tokens", type=int, default=32, help="length of each continuation")
    _add_settings(verify)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "settings", f"also read from {settings.ENV_PREFIX}<NAME> and from the file of --config"
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    for option in settings.options():
        kind: dict[str, Any] = {"metavar": option.name.rpartition("_")[2].upper()}
        if option.is_flag:
            kind = {"action": "store_true"}
        elif option.is_list:
            kind["action"] = "append"
        if option.choices and not option.is_flag:
            kind["metavar"] = "|".join(option.choices)
        shown = "" if option.default in (None, (), False) else f" (default: {option.default})"
        group.add_argument(
            option.flag,
            dest=f"setting_{option.name}",
            default=argparse.SUPPRESS,
            help=(option.description + shown).replace("%", "%%"),
            **kind,
        )


def _given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    prefix = "setting_"
    return {
        name.removeprefix(prefix): value
        for name, value in vars(arguments).items()
        if name.startswith(prefix)
    }
