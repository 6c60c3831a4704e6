"""The command line: arguments -> `Settings` -> one of the commands.

Flags of settings are made from the table in `settings`, so a setting exists as flag, variable
and file key or not at all; a command has the flags of the settings that it uses. This is the only
place that sets up logging and turns errors into exit codes: 0 success, 1 failure, 2 wrong usage,
130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rocmforge import __version__, served_models, setting_sources, settings
from rocmforge.arguments import CommandParser, Parser, add_settings, given_settings
from rocmforge.errors import ConfigurationError, RocmForgeError
from rocmforge.logs import set_up_logging

logger = logging.getLogger(__name__)

_LOGS = ("log_level", "log_format")
_DEVICE = ("backend", "device", "tensor_parallel", "memory_utilization")
_TYPES = ("kv_dtype", "activation_bits")
_PLAN = (
    *(*_DEVICE, *_TYPES, "max_context", "max_sequences", "max_batched_tokens", "kv_blocks"),
    *("state_snapshots", "draft_model", "device_experts"),
)
_PROOF = ("verify_action", "verify_tolerance", "verify_seconds", "verify_bundles", "verify_prompts")
_ENGINE = (*_PLAN, "graphs", "prompt_lookup_tokens", "draft_tokens", "step_timeout", "load_timeout")
_USED: Mapping[str, Sequence[str]] = {
    "serve": tuple(option.name for option in settings.options()),
    "service": tuple(option.name for option in settings.options()),
    "run": (*_ENGINE, "chat_template", "sampling", *_LOGS),
    "inspect": (*_PLAN, "host_cache", "cache_dir", "lora", *_LOGS),
    "pull": (*_PLAN, *_LOGS),
    "list": _LOGS,
    "rm": _LOGS,
    "backends": _LOGS,
    "doctor": ("host", "port", *_LOGS),
    "bench": (*_ENGINE, "max_waiting", "max_stall", *_LOGS),
    "completion": _LOGS,
    "verify": (*_DEVICE, *_TYPES, "graphs", *_LOGS),
}
"""Settings that each command uses. It has flags for these and no others; environment and file may
hold more, as they are written for the server."""

_ALIASES = {"show": "inspect"}

MODEL_HELP = (
    "path of a .gguf file or of a folder of Hugging Face; or a name: of `rocmforge list` or "
    "`rocmforge list --catalogue`, or ORGANISATION/MODEL[:QUANTISATION] of Hugging Face"
)
HUB_NAME_HELP = (
    "ORGANISATION/MODEL, ORGANISATION/MODEL:QUANTISATION, or a short name of "
    "`rocmforge list --catalogue`"
)


def main(argv: Sequence[str] | None = None, *, ready: Callable[[], object] = bool) -> int:
    """Runs one command and returns its exit code.

    Args:
        argv: the command line; None = that of the process.
        ready: is called when everything is imported, just before the command begins.
    """
    _open_closed_streams()
    parser = _parser()
    if setting_sources.is_completing():
        import_module("rocmforge.commands.terminal.completing").complete(parser)
    arguments = _parse(parser, argv)
    say: Callable[[str], None] = _say
    try:
        for place, text in enumerate(sys.argv[1:] if argv is None else argv, 1):
            setting_sources.check_text(text, f"Argument {place}")
        given = given_settings(arguments)
        command = _ALIASES.get(arguments.command, arguments.command)
        configured = setting_sources.load(given, arguments.config)
        _refuse_useless(command, arguments, given, configured)
        set_up_logging(configured.log_level, configured.log_format)
        if configured.log_format == "json":  # for programs that read nothing else
            say = logger.error
        module = import_module(f"rocmforge.commands.{command}")
        ready()
        code: int = module.run(arguments, configured)
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


def _open_closed_streams() -> None:
    """Has streams that the shell closed lead nowhere: files that are opened would take their place.

    Processes of ours inherit them, too.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.set_inheritable(number, True)
            if null != number:
                os.close(null)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _say(message: str) -> None:
    print(f"rocmforge: error: {message}", file=sys.stderr)


def _count(text: str) -> int:
    """Parses a number of at least one."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _temperature(text: str) -> float:
    """Parses a temperature as in requests; 0 = greedy."""
    try:
        temperature = float(text)
    except ValueError:
        temperature = math.nan
    if not 0 <= temperature <= 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2")
    return temperature


def _parse(parser: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line; ends the program if it makes no sense."""
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        arguments.parser.refuse(unknown)
    return arguments


def _parser() -> Parser:
    parser = Parser(
        prog="rocmforge",
        description="OpenAI-compatible model server for AMD GPUs.",
        epilog="`rocmforge COMMAND --help` shows the options of a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rocmforge {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=CommandParser
    )

    def add_command(name: str, arguments: str = "", **kind: Any) -> CommandParser:
        usage = f"%(prog)s [OPTIONS] {arguments}".rstrip()
        command = commands.add_parser(name, usage=usage, allow_abbrev=False, **kind)
        command.set_defaults(parser=command)
        return command

    serve = add_command("serve", "[MODEL ...]", help="serve models over HTTP")
    serve.add_argument("models", nargs="*", metavar="MODEL", help=MODEL_HELP)

    run = add_command("run", "MODEL [PROMPT]", help="chat with a model in the terminal")
    run.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"{MODEL_HELP}; with --url one of the server's"
    )
    run.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="answer this and exit (default: a conversation)"
    )
    run.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="text file to put behind the prompt, or image to go with it; may be repeated, and a "
        "pipe comes last",
    )
    run.add_argument(
        "--url", help="talk to the server at this address, such as http://127.0.0.1:8000"
    )
    run.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"key of that server (default: {settings.variable_of('api_key')})",
    )
    run.add_argument("--system", metavar="TEXT", help="system message")
    run.add_argument(
        "--temperature",
        type=_temperature,
        metavar="N",
        help="how random answers are, from 0 to 2; 0 = always the most probable token "
        "(default: as the model's maker recommends, see --sampling)",
    )
    run.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    run.add_argument(
        "--max-tokens", type=_count, metavar="N", help="longest answer (default: what fits)"
    )
    run.add_argument(
        "--no-history", action="store_true", help="do not keep what is typed for the next time"
    )
    run.add_argument("--quiet", action="store_true", help="show answers, warnings and errors only")

    inspect = add_command(
        "inspect", "MODEL", aliases=[*_ALIASES], help="show what is in a GGUF file or a folder"
    )
    inspect.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    inspect.add_argument("--tensors", action="store_true", help="list every tensor")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.add_argument("--plan", action="store_true", help="show what it needs of a device")
    inspect.add_argument(
        "--memory", metavar="SIZE", help="plan for a device with so much free, such as 24GiB"
    )

    pull = add_command("pull", "MODEL ...", help="fetch models from Hugging Face")
    pull.add_argument("models", nargs="+", metavar="MODEL", help=HUB_NAME_HELP)
    pull.add_argument(
        "--anyway", action="store_true", help="fetch also what this machine could not serve"
    )

    listing = add_command("list", help="list the models on this machine, whoever fetched them")
    listing.add_argument(
        "--catalogue", action="store_true", help="list the short names of models to fetch"
    )
    listing.add_argument("--json", action="store_true", help="print JSON")

    remove = add_command("rm", "MODEL ...", help="delete models from the cache of Hugging Face")
    remove.add_argument("models", nargs="+", metavar="MODEL", help="a name of `rocmforge list`")

    backends = add_command("backends", help="list backends and the devices they find")
    backends.add_argument("--json", action="store_true", help="print JSON")

    doctor = add_command("doctor", help="find out why a GPU is not used, and how to repair it")
    doctor.add_argument("--json", action="store_true", help="print JSON")

    bench = add_command("bench", "MODEL", help="measure a model on this machine")
    bench.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    for flag, default, text in (
        ("--prompt-tokens", 128, "tokens of each prompt"),
        ("--output-tokens", 64, "tokens of each answer"),
        ("--repeat", 3, "runs of each, the median counts"),
    ):
        bench.add_argument(
            flag, type=_count, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    bench.add_argument(
        "--streams",
        type=_count,
        nargs="+",
        default=[1, 8],
        metavar="N",
        help="how many requests run at once (default: 1 8)",
    )
    bench.add_argument("--json", action="store_true", help="print JSON")

    verify = add_command("verify", "[MODEL]", help="check a device against the reference")
    verify.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{MODEL_HELP} (default: smollm2 if installed, or a synthetic one)",
    )
    verify.add_argument("--only", default="*", metavar="PATTERN", help="operations, such as gemv*")
    verify.add_argument("--ops-only", action="store_true", help="do not run a model")
    verify.add_argument(
        "--replay",
        type=Path,
        metavar="BUNDLE",
        help="compute a bundle of --verify-bundles again, on the reference and on a device",
    )
    verify.add_argument(
        "--layers", action="store_true", help="with --replay: show behind which layer it goes wrong"
    )
    verify.add_argument(
        "--tokens",
        type=int,
        metavar="TOKENS",
        help="length of each continuation (default: 32)",
    )
    service = add_command(
        "service",
        "install (--user | --system) [MODEL ...]",
        help="have systemd run the server",
        description="Writes a systemd unit that serves the models, with the options of serve, and "
        "says how to start it.",
    )
    service.add_argument("action", choices=("install",), metavar="install", help="write the unit")
    service.add_argument("models", nargs="*", metavar="MODEL", help=MODEL_HELP)
    manager = service.add_mutually_exclusive_group(required=True)
    manager.add_argument("--user", action="store_true", help="for you alone, with your rights")
    manager.add_argument(
        "--system", action="store_true", help="for the machine, as a user that is nobody else"
    )
    service.add_argument("--print", action="store_true", help="print the unit, and write nothing")

    completion = add_command(
        "completion",
        "SHELL",
        help="print what makes a shell complete commands, options and models",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="bash:  echo 'source <(rocmforge completion bash)' >> ~/.bashrc\n"
        "zsh:   echo 'source <(rocmforge completion zsh)' >> ~/.zshrc\n"
        "fish:  rocmforge completion fish > ~/.config/fish/completions/rocmforge.fish",
    )
    completion.add_argument(
        "shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"
    )
    for name, used in _USED.items():
        add_settings(commands.choices[name], used)
    return parser


def _refuse_useless(
    command: str, arguments: argparse.Namespace, given: Iterable[str], configured: settings.Settings
) -> None:
    """Raises ConfigurationError for a flag of a setting that would change nothing."""
    for name in given:
        if command == "inspect" and not arguments.plan and name not in ("max_context", *_LOGS):
            reason = "needs --plan."
        elif command == "pull" and arguments.anyway and name in _PLAN:
            reason = "changes nothing with --anyway, which looks at no device."
        elif name == "draft_tokens" and not served_models.has_draft_model(configured):
            reason = "needs --draft-model."
        elif name in _PROOF and not served_models.is_verified(configured):
            reason = "needs --verify-rate."
        elif name == "verify_prompts" and configured.verify_bundles is None:
            reason = "needs --verify-bundles."
        else:
            continue
        raise ConfigurationError(f"{settings.flag_of(name)} {reason}")
