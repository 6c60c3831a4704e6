"""The systemd unit of `rocmforge service install`, as systemd itself judges it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocmforge.cli import main
from rocmforge.commands import service
from rocmforge.commands.service import Manager, _check_readable
from rocmforge.errors import ConfigurationError

SAFE = 3.0
"""The exposure level, of 10, that `systemd-analyze security` may find."""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["service", "install", "--print", *arguments]) == 0
    return capsys.readouterr().out


def analyze(*arguments: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.mark.parametrize("who", ["--user", "--system"])
def test_systemd_finds_nothing_wrong_with_the_unit(
    who: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = tmp_path / "rocmforge.service"
    unit.write_text(
        printed(
            capsys,
            who,
            "qwen3-8b",
            "--model",
            "a b=qwen3-4b",
            "--port",
            "0",
            "--max-sequences",
            "3",
        )
    )
    analyze("verify", "--man=no", str(unit))


def test_systemd_finds_that_the_service_of_the_machine_is_hardly_exposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = tmp_path / "rocmforge.service"
    unit.write_text(printed(capsys, "--system", "qwen3-8b"))
    report = analyze("security", "--offline=true", str(unit))
    level = re.search(r"exposure level for rocmforge.service: ([\d.]+)", report)
    assert level is not None
    assert float(level[1]) <= SAFE


def test_only_the_devices_of_the_gpu_are_open(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--system", "qwen3-8b").splitlines()
    assert [line for line in lines if line.startswith("Device")] == [
        "DevicePolicy=closed",
        "DeviceAllow=/dev/kfd rw",
        "DeviceAllow=char-drm rw",
    ]


@pytest.mark.parametrize("known", ["render", "video"])
def test_systemd_is_given_no_group_that_the_machine_lacks(
    known: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Path("/dev/no-such-device")
    monkeypatch.setattr(service, "KFD", nothing)
    monkeypatch.setattr(service, "DRI", nothing)
    monkeypatch.setattr("grp.getgrall", lambda: [SimpleNamespace(gr_name=known)])
    lines = printed(capsys, "--system", "qwen3-8b").splitlines()
    wanted = "render" if known == "render" else ""
    assert f"SupplementaryGroups={wanted}" in lines


def test_the_command_is_that_of_serve_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCMFORGE_MAX_WAITING", "7")
    monkeypatch.setenv("ROCM_PATH", "/opt/100% rocm")
    for name in ("keys.toml", "my $model.gguf"):
        Path(name).touch()
    arguments = ("--keys-file", "keys.toml", "--model", "a=my $model.gguf", "--resume")
    unit = printed(capsys, "--user", "qwen3-8b", *arguments)
    assert " -m rocmforge serve --" in unit
    assert f' --keys-file {tmp_path}/keys.toml --model "a={tmp_path}/my $$model.gguf" ' in unit
    assert " --resume qwen3-8b\n" in unit
    assert "Environment=ROCMFORGE_MAX_WAITING=7\n" in unit
    assert 'Environment="ROCM_PATH=/opt/100%% rocm"\n' in unit
    assert "ExecReload=/bin/kill -HUP" in unit


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("qwen3-8b", "--api-key", "a-long-secret"), "give --keys-file"),
        (("no-such.gguf",), "no-such.gguf does not exist"),
        ((), "There is no model to serve"),
    ],
    ids=["key", "no file", "no model"],
)
def test_what_could_not_be_served_is_refused(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "install", "--print", "--user", *arguments]) > 0
    shown = capsys.readouterr()
    assert reason in shown.err
    assert shown.out == ""


def test_a_key_of_the_environment_is_not_written_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROCMFORGE_API_KEY", "a-long-secret")
    assert main(["service", "install", "--print", "--user", "qwen3-8b"]) == 2
    assert "unset the variable" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where units go; beside it `called` tells how systemctl was called, which always succeeds."""
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    program.chmod(0o755)
    manager = Manager(False, (str(program), "--user"), tmp_path / "units")
    monkeypatch.setattr(service, "_manager", lambda is_system: manager)
    monkeypatch.setattr(service, "BOOTED", tmp_path)
    return tmp_path


def test_the_unit_is_written_and_read_and_the_next_commands_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # its own unit is written anew
        assert main(["service", "install", "--user", "qwen3-8b"]) == 0
    told = capsys.readouterr().out
    assert (folder / "called").read_text() == "--user daemon-reload\n" * 2
    assert "qwen3-8b" in (folder / "units/rocmforge.service").read_text()
    assert "enable --now rocmforge" in told
    assert "loginctl enable-linger" in told


def test_a_unit_of_somebody_else_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = folder / "units/rocmforge.service"
    unit.parent.mkdir()
    unit.write_text("[Unit]\n")
    assert main(["service", "install", "--user", "qwen3-8b"]) == 2
    assert "was not written by this command" in capsys.readouterr().err
    assert unit.read_text() == "[Unit]\n"


def test_where_no_systemd_runs_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "BOOTED", folder / "nothing")
    assert main(["service", "install", "--user", "qwen3-8b"]) == 2
    assert "systemd does not run here. With --print, this command shows the unit" in (
        capsys.readouterr().err
    )
    assert not (folder / "units").exists()


def test_a_file_that_the_service_could_not_read_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "home"
    closed.mkdir()
    (closed / "model.gguf").touch()
    closed.chmod(0o700)
    with pytest.raises(ConfigurationError, match="is closed to others"):
        _check_readable(closed / "model.gguf")
    _check_readable(Path("/etc/passwd"))
