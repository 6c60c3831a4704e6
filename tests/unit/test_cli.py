"""The command line finds its commands, makes flags of the settings, and explains mistakes."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from rocmforge import cli, settings
from rocmforge.cli import main

COMMANDS = ("serve", "run", "inspect", "backends", "bench", "verify")


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


def test_a_repeated_flag_makes_a_list() -> None:
    arguments = cli._parser().parse_args(["backends", "--api-key", "a", "--api-key", "b"])
    assert cli._given_settings(arguments) == {"api_key": ["a", "b"]}


def test_flags_that_were_not_given_do_not_hide_the_environment() -> None:
    assert cli._given_settings(cli._parser().parse_args(["backends"])) == {}


def test_backends_lists_the_reference_with_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    rows = {row["backend"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["reference"]["devices"][0]["memory_total"] > 0
