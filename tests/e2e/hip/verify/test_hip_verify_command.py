"""`rocmforge verify`: what it reports, how it ends, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocmforge.cli import main
from rocmforge.commands import verify
from rocmforge.gguf.synthetic import write_synthetic_model
from rocmforge_hip.device.discovery import find_devices
from rocmforge_hip.device.platform import select_platform
from tests.data.models.text.tiny_encoders import by_name
from tests.data.models.text.tiny_folders import write_folder
from tests.support.launches.host_platform import HostPlatform
from tests.support.launches.planting import Launch, change_launches, do_nothing, scaled


@pytest.fixture(autouse=True)
def clean(host: HostPlatform | None) -> Iterator[None]:
    """Gives the next test a clean slate."""
    yield
    if host:
        host.reset()


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that stands in where there is no real one."""
    path = tmp_path_factory.mktemp("verify") / "synthetic.gguf"
    write_synthetic_model(path)
    return path


def test_the_report_names_device_checks_and_model(
    synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", str(synthetic), "--backend", "hip", "--only", "take_rows", "--tokens", "4"]
    assert main(command) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {"device", "target", "wave", "HIP", "take_rows", "model", "load"} <= lines.keys()
    assert lines["prefill"].startswith("ok")
    assert lines["graphs"].startswith("ok     8 of 8 checked in ")
    assert "100.0% of 16 generated tokens; mean KL" in lines["decode,"]
    assert "ok     the first 4, 4, 4, 4 of 4 tokens are" in lines["greedy,"]
    assert lines["result"].startswith("PASSED")
    assert "tokens/s" in lines["decode"]


def test_two_devices_are_checked_each_and_then_together(
    synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = find_devices(select_platform())
    if len(found) < 2:
        pytest.skip("there is one device")
    command = ["verify", str(synthetic), "--backend", "hip", "--only", "take_rows", "--tokens", "4"]
    assert main([*command, "--tensor-parallel", "2", "--device", "1,0", "--graphs", "on"]) == 0
    lines = capsys.readouterr().out.splitlines()
    addresses = [found[index].properties.pci_id for index in (1, 0)]
    devices = [line for line in lines if line.startswith("device ")]
    assert [address in line for address, line in zip(addresses, devices, strict=True)] == [True] * 2
    assert sum(line.startswith("take_rows") for line in lines) == 2
    (load,) = (line for line in lines if line.startswith("load "))
    assert load.endswith(f"on 2 devices together: {', '.join(addresses)}")
    for way in ("prefill", "decode, token by token", "decode, batch of 4", "greedy, batch of 4"):
        assert any(line.startswith(f"{way:<29}ok ") for line in lines)
    assert lines[-1].split()[1] == "PASSED"


def test_a_wrong_operation_ends_with_status_1_and_is_named(
    synthetic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_launches(monkeypatch, "rf_take_rows", do_nothing)
    assert main(["verify", str(synthetic), "--backend", "hip", "--only", "take_rows"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED" in shown
    assert "take_rows (5 of 12 rows)" in shown


def test_a_wrong_model_ends_with_status_1_although_what_was_checked_is_right(
    synthetic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend_elsewhere(launch: Launch, arguments: dict[str, Any]) -> None:
        launch(**scaled(arguments, 3))

    change_launches(monkeypatch, "rf_attention_decode_f16*", attend_elsewhere)
    command = ["verify", str(synthetic), "--backend", "hip", "--only", "take_rows", "--tokens", "4"]
    assert main([*command, "--graphs", "off"]) == 1
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].split()[1] == "FAILED"


def test_wrong_replays_end_with_status_1_and_are_named(
    synthetic: Path,
    capsys: pytest.CaptureFixture[str],
    host: HostPlatform | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if host is None:
        pytest.skip("replays of a real device are what they are")
    monkeypatch.setattr(verify, "compare", lambda *_: ())  # other tests have right answers
    command = ["verify", str(synthetic), "--backend", "hip", "--only", "take_rows"]
    with host.stale_replays(0):
        assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    (graphs,) = (line for line in lines if line.startswith("graphs "))
    assert graphs.split()[1:4] == ["FAILED", "not", "used:"]
    assert lines[-1].split()[1] == "FAILED"


def test_nothing_to_verify_is_an_error_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--backend", "reference"]) == 2
    assert "is what others are compared with" in capsys.readouterr().err


def test_a_pattern_that_matches_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--backend", "hip", "--only", "gevm"]) == 2
    assert "No operation is called 'gevm'" in capsys.readouterr().err


def test_an_encoder_is_refused_with_what_checks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(by_name("xlm-roberta"), tmp_path / "encoder")
    assert main(["verify", str(folder), "--backend", "hip"]) == 2
    assert "encoder is an encoder, but what is compared" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", ["0", "224"])
def test_a_length_that_the_context_cannot_hold_is_refused(
    tokens: str, synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(synthetic), "--backend", "hip", "--tokens", tokens]) == 2
    shown = capsys.readouterr()
    assert "--tokens must be from 1 to 223: of a context of 256 tokens" in shown.err
    assert shown.out == ""


def test_the_longest_answers_that_fit_are_not_refused(
    synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", str(synthetic), "--backend", "hip", "--tokens", "223"]
    assert main([*command, "--only", "gevm"]) == 2
    assert "No operation is called 'gevm'" in capsys.readouterr().err
