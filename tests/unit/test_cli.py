"""The command line finds its commands, makes flags of the settings, and explains mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rocmforge import cli, settings
from rocmforge.cli import main

COMMANDS = ("serve", "run", "inspect", "backends", "bench", "verify")


def rocmforge(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own."""
    command = [sys.executable, "-m", "rocmforge", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_module_with_a_run_function(command: str) -> None:
    assert callable(import_module(f"rocmforge.commands.{command}").run)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_setting_is_a_flag_of_every_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert [option.flag for option in settings.options() if option.flag not in shown] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_are_not_guessed_from_their_beginning(command: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, "model", "--por", "8000"])


def test_a_wrong_setting_exits_with_2_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--port", "http"]) == 2
    assert "command line: port = 'http'" in capsys.readouterr().err


def test_a_missing_model_exits_with_1_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no-such.gguf"]) == 1
    assert "no-such.gguf does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--temperature", "2.5"),
        ("run", "--temperature", "nan"),
        ("run", "--temperature", "warm"),
        ("run", "--max-tokens", "0"),
        ("run", "--max-tokens", "many"),
        ("bench", "--streams", "1", "-1"),
        ("bench", "--repeat", "0"),
        ("bench", "--prompt-tokens", "0"),
        ("bench", "--output-tokens", "0"),
    ],
    ids=" ".join,
)
def test_a_number_that_makes_no_sense_is_refused_with_its_flag(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    command, flag, *values = arguments
    with pytest.raises(SystemExit, match="2"):
        main([command, "model", flag, *values])
    shown = capsys.readouterr().err
    assert f"argument {flag}" in shown
    assert values[-1] in shown


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = rocmforge("backends", "--json", stdout=write_end)
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (1, "")


def test_a_full_disk_is_an_error_that_says_so() -> None:
    with Path("/dev/full").open("w") as full:
        result = rocmforge("backends", "--json", stdout=full.fileno())
    assert result.returncode == 1
    assert result.stderr.startswith("rocmforge: error: ")
    assert "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


def test_programs_that_read_json_get_errors_as_json() -> None:
    result = rocmforge("inspect", "no-such.gguf", "--log-format", "json")
    assert result.returncode == 1
    line = json.loads(result.stderr)
    assert line["level"] == "error"
    assert "no-such.gguf does not exist" in line["message"]


def test_a_repeated_flag_makes_a_list() -> None:
    arguments = cli._parser().parse_args(["backends", "--api-key", "a", "--api-key", "b"])
    assert cli._given_settings(arguments) == {"api_key": ["a", "b"]}


def test_flags_that_were_not_given_do_not_hide_the_environment() -> None:
    assert cli._given_settings(cli._parser().parse_args(["backends"])) == {}


def test_backends_lists_the_reference_with_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    rows = {row["backend"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["reference"]["devices"][0]["memory_total"] > 0
