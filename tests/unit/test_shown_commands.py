"""Every command that a page shows is run by some test, or looked at here as far as it can be."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rocmforge import cli, setting_sources
from rocmforge.api.http.keys import read_keys
from rocmforge.backend import registry
from rocmforge.served_models import served_models
from tests.support.processes.pages import PAGES, ROOT
from tests.support.processes.shown import Shown, fences, shell_blocks, shown_commands
from tests.unit.test_documentation import flags_of_ours

SHOWN = tuple(shown_commands())
KEY = "a-key-of-many-characters"

# Programs that no test runs, and why.
NOT_RUN = {
    "aider": "a client of others: `test_shown_requests.py` sends requests like its own",
    "claude": "the same",
    "cline": "the same",
    "buildx": "part of a loop over registries; `tests/docker` holds its list to the files",
    "docker": "there is no Docker daemon in CI; `tests/docker` holds the files to their schemas",
    "do": "the same",
    "done": "the same",
    "echo": "the same",
    "for": "the same",
    "export": "changes the shell; the variables are those of other programs",
    "helm": "there is no cluster in CI; `tests/docker` renders the chart, and holds it to schemas",
    "kubectl": "the same",
    "image": "pushes images; `test_release.py` runs it with programs in place of Docker and cosign",
    "git": "stands for whatever is piped",
    "ls": "shows the nodes of an AMD GPU",
    "lspci": "shows an AMD GPU",
    "pip": "changes the environment; `.ci/run` installs the same packages from the lock",
    "printf": "takes a key of yours",
    "serve": "starts a Ray cluster; `test_ray.py` deploys as it does, and checks the file",
    "sha256sum": "the same",
    "sudo": "changes the machine",
    "tr": "part of the loop over registries",
    "uv": "changes the environment, as pip",
    ".": "changes the shell",
}
CHECKED = ("rocmforge", "python", "pytest", "just", "curl")
PYTEST_OPTIONS = {"-n", "--dist", "-k", "-p", "-q"}


def test_readme_lists_every_command() -> None:
    names = re.findall(r"^    (\w+)\b", run_help(), re.MULTILINE)
    assert {"serve", "run", "doctor"} <= set(names)
    rows = "\n".join(re.findall(r"^\| `.*$", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert [name for name in names if not re.search(rf"\b{name}\b", rows)] == []


def run_help() -> str:
    printed = StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        cli.main(["--help"])
    return printed.getvalue()


def test_every_command_is_run_or_it_is_said_why_not() -> None:
    assert len(SHOWN) > 80
    known = {*NOT_RUN, *CHECKED}
    assert {(each.page, each.words) for each in SHOWN if each.program not in known} == set()
    assert set(NOT_RUN) - {each.program for each in SHOWN} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_are_shell(page: Path) -> None:
    for block in shell_blocks(page):
        done = subprocess.run(
            ["bash", "-n"], input=block, text=True, capture_output=True, check=False
        )
        assert done.stderr == "", block


def of_rocmforge() -> list[tuple[str, tuple[str, ...]]]:
    """The arguments of each `rocmforge`, also within a container."""
    found = []
    for each in SHOWN:
        for place, word in enumerate(each.words[:-1]):
            if word.endswith("rocmforge") and re.fullmatch("[a-z]+", each.words[place + 1]):
                found.append((each.page, each.words[place + 1 :]))
    return found


def exit_code(arguments: list[str]) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Lets `rocmforge` end where its command would begin: the command line makes sense."""
    module = SimpleNamespace(run=lambda arguments, settings: 0)
    monkeypatch.setattr(cli, "import_module", lambda name: module)
    monkeypatch.setattr(cli, "set_up_logging", lambda level, format: None)
    monkeypatch.chdir(tmp_path)
    (operations,) = (page for page in PAGES if page.name == "operations.md")
    (tmp_path / "rocmforge.toml").write_text(fences(operations, "toml")[0])
    return tmp_path


def test_commands_of_rocmforge_are_taken(parsed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = of_rocmforge()
    assert len(shown) > 25
    wrong = []
    for page, words in shown:
        arguments = [re.sub(r"\$\w+", KEY, word) for word in words if word != "..."]
        if exit_code(arguments):
            wrong.append((page, words, capsys.readouterr().err))
    assert wrong == []


@pytest.mark.parametrize(
    "arguments",
    [["serve", "m.gguf", "--max-contxt", "1"], ["serve", "m.gguf", "--port", "x"], ["srve", "m"]],
)
def test_a_mistake_in_such_a_command_would_be_seen(parsed: Path, arguments: list[str]) -> None:
    assert exit_code(arguments) == 2


def is_ours(flag: str) -> bool:
    return flag.partition("=")[0] in flags_of_ours() | PYTEST_OPTIONS


@pytest.mark.parametrize("each", [s for s in SHOWN if s.program in ("python", "pytest", "just")])
def test_programs_of_ours_exist_and_have_these_options(each: Shown) -> None:
    words = each.words
    if each.program == "python" and words[1] == "-m":
        assert find_spec(words[2]) is not None
        words = words[3:]
    elif each.program == "just":
        recipes = (ROOT / "justfile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}\b.*:", recipes, re.MULTILINE)
        words = words[2:]
    paths = [word for word in words[1:] if word.startswith(("tests/", "server/", "benchmarks/"))]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    if "convert_lora_to_gguf.py" not in words:  # llama.cpp's
        options = [word for word in words if word.startswith("-") and len(word) > 1]
        assert [option for option in options if not is_ours(option)] == []


def test_files_of_settings_and_keys_are_taken(tmp_path: Path) -> None:
    tables = 0
    for page in PAGES:
        for block in fences(page, "toml"):
            values = tomllib.loads(block)
            file = tmp_path / "file.toml"
            file.write_text(block)
            if "key" in values:
                assert [key.name for key in read_keys(file)]
            elif "model_providers" not in values and "project" not in values:  # not Codex's
                assert served_models(["m.gguf"], setting_sources.load({}, file))
            tables += 1
    assert tables >= 5


def test_other_examples_can_be_read() -> None:
    for page in PAGES:
        for block in fences(page, "yaml"):
            assert yaml.safe_load(block)
        for block in fences(page, "json"):
            assert json.loads(block)
        for block in fences(page, "python"):
            compile(block, str(page), "exec")


def test_the_example_of_a_backend_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (extending,) = (page for page in PAGES if page.name == "extending.md")
    (tmp_path / "loud.py").write_text(fences(extending, "python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    found = registry.choose("loud:create")
    assert found.backend.name == "loud"
    assert found.probe.devices
