"""The command line finds its commands, makes flags of the settings, and explains mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from rocmforge import cli, settings
from rocmforge.arguments import given_settings
from rocmforge.cli import main
from tests.support.models.speaking import write_speaking

COMMANDS = (
    *("serve", "run", "inspect", "pull", "list", "rm"),
    *("backends", "doctor", "bench", "verify", "service", "completion"),
)
SERVING = ("serve", "service")  # have the settings of the HTTP server


def rocmforge(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own."""
    command = [sys.executable, "-m", "rocmforge", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_module_with_a_run_function(command: str) -> None:
    assert callable(import_module(f"rocmforge.commands.{command}").run)


def flags_in_help(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    return set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))


def test_every_setting_is_a_flag_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    shown = flags_in_help("serve", capsys)
    assert {option.flag for option in settings.options()} - shown == set()


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each not in (*SERVING, "completion")]
)
def test_a_command_takes_no_settings_of_the_http_server_that_it_does_not_use(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = flags_in_help(command, capsys)
    assert shown & {"--keys-file", "--cors-origin", "--drain-timeout", "--tls-key"} == set()
    with pytest.raises(SystemExit, match="2"):
        main([command, "model", "--keys-file", "keys.toml"])
    assert "--keys-file" in capsys.readouterr().err


def test_an_address_is_a_setting_of_the_server_and_doctor_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    takers = {each for each in COMMANDS if "--port" in flags_in_help(each, capsys)}
    assert takers == {*SERVING, "doctor"}


def test_settings_of_the_server_in_the_environment_disturb_no_other_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCMFORGE_PORT", "8001")
    assert main(["backends", "--json"]) == 0


def test_a_setting_that_only_a_plan_uses_is_refused_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["inspect", "model", "--kv-blocks", "4"]) == 2
    assert "--kv-blocks needs --plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("inspect", "model", "--plan", "--tensors"), "--tensors changes nothing with --plan"),
        (("verify", "--ops-only", "smollm2"), "--ops-only runs no model: leave MODEL"),
        (("verify", "--ops-only", "--tokens", "8"), "leave MODEL and --tokens out"),
        (("pull", "a/b", "--anyway", "--device", "1"), "--device changes nothing with --anyway"),
        (("run", "model", "--draft-tokens", "3"), "--draft-tokens needs --draft-model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_option_that_would_change_nothing_is_refused(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert reason in capsys.readouterr().err


def test_draft_tokens_may_be_for_a_model_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "rocmforge.toml"
    config.write_text('[models.a]\npath = "no.gguf"\ndraft_model = "small.gguf"\n')
    assert main(["serve", "--config", str(config), "--draft-tokens", "3"]) == 1
    assert "no.gguf does not exist" in capsys.readouterr().err


def test_help_shows_settings_in_the_groups_of_their_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: rocmforge serve [OPTIONS] [MODEL ...]\n\n")
    parts = {part.split(":\n")[0]: part for part in shown.split("\n\n") if ":\n" in part}
    assert set(settings.GROUPS) <= parts.keys()
    assert "--max-context" in parts["memory and batching"]
    assert "(default: 600)" in parts["models"]
    assert "--log-level" in parts["logs"]
    with pytest.raises(SystemExit, match="0"):
        main(["doctor", "--help"])
    assert "memory and batching" not in capsys.readouterr().out


def test_help_says_what_kind_of_value_a_setting_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    for wanted in (
        *("--idle-unload SECONDS", "--slow-request SECONDS", "--port PORT", "--max-context TOKENS"),
        *("--model NAME=FILE", "--memory-utilization SHARE", "--kv-dtype auto|f32|f16|int8"),
    ):
        assert wanted in shown


@pytest.mark.parametrize(
    ("arguments", "positional"),
    [
        (["run", "smollm2", "--seed", "1", "a prompt"], {"prompt": "a prompt"}),
        (["run", "--seed", "1", "smollm2", "a prompt"], {"prompt": "a prompt"}),
        (["serve", "a.gguf", "--load", "request", "b.gguf"], {"models": ["a.gguf", "b.gguf"]}),
        (["verify", "--ops-only", "smollm2"], {"model": "smollm2"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_positional_arguments_may_stand_behind_options(
    arguments: list[str], positional: dict[str, object]
) -> None:
    parsed = vars(cli._parser().parse_args(arguments))
    assert {name: parsed[name] for name in positional} == positional


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_are_not_guessed_from_their_beginning(command: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, "model", "--por", "8000"])


def test_a_wrong_setting_exits_with_2_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "http"]) == 2
    shown = capsys.readouterr().err
    assert "--port http: the value must be a whole number from 0 to 65535." in shown


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


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        result = rocmforge("backends", "--json", stdout=write_end)
    finally:
        os.close(write_end)
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.slow
def test_a_full_disk_is_an_error_that_says_so() -> None:
    with Path("/dev/full").open("w") as full:
        result = rocmforge("backends", "--json", stdout=full.fileno())
    assert result.returncode == 1
    assert result.stderr.startswith("rocmforge: error: ")
    assert "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_programs_that_read_json_get_errors_as_json() -> None:
    result = rocmforge("inspect", "no-such.gguf", "--log-format", "json")
    assert result.returncode == 1
    line = json.loads(result.stderr)
    assert line["level"] == "error"
    assert "no-such.gguf does not exist" in line["message"]


BEYOND_UTF_8 = b"a-\xff-secret".decode(errors="surrogateescape")


@pytest.mark.parametrize("arguments", [["run", "m", BEYOND_UTF_8], ["serve", "m", BEYOND_UTF_8]])
def test_an_argument_that_is_no_text_is_refused_and_not_repeated(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("rocmforge: error: Argument 3 is not text in ")
    assert "character 3" in said
    assert "secret" not in said


def test_a_variable_that_is_no_text_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCMFORGE_API_KEY", BEYOND_UTF_8)
    assert main(["serve", "m"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("rocmforge: error: ROCMFORGE_API_KEY is not text in ")
    assert "secret" not in said


def python(program: str, redirections: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program, with redirections of a shell."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_file_takes_the_place_of_a_stream_that_the_shell_closed() -> None:
    result = python(
        "import os, sys\n"
        "from rocmforge.cli import main\n"
        "code = main(['completion', 'bash'])\n"
        "print(code, os.open('.', 0) > 2, os.get_inheritable(1), file=sys.stderr)",
        "<&- >&-",
    )
    assert result.stderr == "0 True True\n"


def test_an_interrupt_among_the_imports_ends_the_program_without_a_word() -> None:
    result = python(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in the background it is none
        "from rocmforge.__main__ import main\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'rocmforge.commands.completion':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv = ['rocmforge', 'completion', 'bash']\n"
        "main()"
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_a_command_gets_interrupts_as_python_has_them() -> None:
    result = python(
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from rocmforge.__main__ import main\n"
        "sys.argv = ['rocmforge', 'completion', 'bash']\n"
        "sys.exit(main() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler)"
    )
    assert result.returncode == 0, result.stderr


def test_a_repeated_flag_makes_a_list() -> None:
    arguments = cli._parser().parse_args(["serve", "--api-key", "a", "--api-key", "b"])
    assert given_settings(arguments) == {"api_key": ["a", "b"]}


def test_flags_that_were_not_given_do_not_hide_the_environment() -> None:
    assert given_settings(cli._parser().parse_args(["backends"])) == {}


def test_backends_lists_the_reference_with_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    rows = {row["backend"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["reference"]["devices"][0]["memory_total"] > 0


def test_json_has_the_tensors_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_speaking(tmp_path, "llama")
    assert main(["inspect", str(path), "--json", "--tensors"]) == 0
    tensors = json.loads(capsys.readouterr().out)["tensors"]
    assert {"name", "shape", "type", "bytes"} == tensors[0].keys()
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] is None


def test_a_path_is_not_broken_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(width=40)
    monkeypatch.setattr("rocmforge.commands.inspect.output_console", lambda: console)
    path = write_speaking(tmp_path, "llama")
    assert main(["inspect", str(path)]) == 0
    assert str(path) in capsys.readouterr().out


@pytest.mark.slow
def test_a_path_is_not_broken_where_no_terminal_is(tmp_path: Path) -> None:
    folder = tmp_path / ("a-very-long-name-" * 12)
    folder.mkdir()
    path = write_speaking(folder, "llama")
    assert str(path) in rocmforge("inspect", str(path)).stdout


@pytest.mark.slow
def test_a_context_above_the_models_is_said_to_be_cut(tmp_path: Path) -> None:
    path = write_speaking(tmp_path, "llama")
    for arguments in ((), ("--plan", "--backend", "reference")):
        result = rocmforge("inspect", str(path), "--max-context", "100000", *arguments)
        assert "trained for 4096 tokens: these are its context, not the 100000" in result.stderr
    result = rocmforge("inspect", str(path), "--max-context", "4096")
    assert result.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("others", "begins"),
    [((), "rocmforge: error: Architecture"), (("b={}",), "rocmforge: error: llama could not be")],
    ids=["one model", "two models"],
)
def test_what_is_wrong_at_the_start_is_said_once(
    others: tuple[str, ...], begins: str, tmp_path: Path
) -> None:
    path = str(write_speaking(tmp_path, "llama"))
    flags = [part for other in others for part in ("--model", other.format(path))]
    backend = "tests.support.fakes.fake_backend:create_unloadable"
    result = rocmforge("serve", path, *flags, "--port", "0", "--backend", backend)
    assert result.returncode == 1
    assert result.stderr.count("Architecture 'fake' is not supported") == 1
    assert result.stderr.splitlines()[-1].startswith(begins)


def test_verify_looks_for_a_device_before_it_makes_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(path: Path) -> None:
        raise AssertionError("a model was made")

    monkeypatch.setattr("rocmforge.commands.verify.write_synthetic_model", make)
    monkeypatch.setattr("rocmforge.commands.verify.DEMO_MODEL", "not-installed")
    assert main(["verify", "--backend", "reference"]) == 2
    assert "The reference backend is what others are compared with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["serv", "x"], "There is no command 'serv'. Did you mean serve?"),
        (["serve", "x", "--max-contxt", "5"], "--max-contxt 5. Did you mean --max-context?"),
        (["run", "x", "--temprature=0"], "--temprature=0. Did you mean --temperature?"),
        (["serve", "--max-sequence", "5"], "--max-sequence. Did you mean --max-sequences?"),
        (["serve", "--max-load"], "Did you mean --load or --max-loaded-models?"),
        (
            ["backends", "--zzz"],
            "--zzz. Known: --config, --help, --json, --log-format, --log-level.",
        ),
        (["serve", "--zzz"], "unrecognized arguments: --zzz.\n`rocmforge serve --help` shows"),
        (["run", "x", "why", "so"], "arguments: so. A prompt of several words stands in quotes."),
    ],
)
def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    said = capsys.readouterr().err
    assert hint in said
    assert len(said.splitlines()) == 2, "the reason is not lost under the usage"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "Name a model, or a server with --url"),
        (["model", "--api-key", "secret-key"], "--api-key is for the server of --url"),
        (["--url", "http://127.0.0.1:1", "--graphs", "on"], "--graphs is for a model on this"),
        (["--url", "localhost:8000"], "write it as http://HOST:PORT"),
    ],
)
def test_run_needs_a_model_or_a_server_with_what_is_for_it(
    arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    assert what in capsys.readouterr().err
