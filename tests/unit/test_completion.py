"""What shells offer after a half-typed command, with the script of `rocmforge completion`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rocmforge.cli import main
from tests.support.processes.terminal import PROMPT, Terminal

# Calls the function that bash calls when somebody presses Tab.
ASK = """
COMP_LINE={line}; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
_python_argcomplete rocmforge
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with a GGUF file, and a hub's cache with a model."""
    (tmp_path / "own.gguf").touch()
    repository = tmp_path / "hub/models--org--tiny"
    for name in ("refs/main", "snapshots/0a/tiny-Q8_0.gguf"):
        file = repository / name
        file.parent.mkdir(parents=True)
        file.write_text("0a")
    return tmp_path


def environment(machine: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_CACHE": str(machine / "hub"),
    }


def offered(shell: list[str], program: str, machine: Path) -> list[str]:
    """The lines that a program in the language of that shell prints."""
    done = subprocess.run(
        [*shell, "-c", program],
        cwd=machine,
        env=os.environ | environment(machine),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [word.strip() for word in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "wanted", "unwanted"),
    [
        ("rocmforge ser", {"serve", "service"}, {"run"}),
        ("rocmforge serve --max-c", {"--max-context"}, {"--max-sequences"}),
        ("rocmforge serve x --kv-dtype ", {"auto", "f16", "int8"}, {"own.gguf"}),
        ("rocmforge serve ", {"qwen3-8b", "own.gguf"}, {"--port"}),
        ("rocmforge rm ", {"Q8_0"}, {"qwen3-8b"}),
    ],
)
def test_bash_completes(line: str, wanted: set[str], unwanted: set[str], machine: Path) -> None:
    # Bash breaks words at colons: of org/tiny:Q8_0 it is given what stands behind.
    program = "source <(rocmforge completion bash)\n" + ASK.format(line=shlex.quote(line))
    words = {word.rpartition(":")[2] for word in offered(["bash"], program, machine)}
    assert wanted <= words
    assert words & unwanted == set()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_and_says_what_a_word_means(machine: Path) -> None:
    lines = ("rocmforge ser", "rocmforge serve x --kv-dtype ", "rocmforge rm ", "rocmforge run ow")
    asked = "; ".join(f"complete -C {shlex.quote(line)}" for line in lines)
    program = f"rocmforge completion fish | source; {asked}"
    words = offered(["fish", "--no-config"], program, machine)
    assert "serve\tserve models over HTTP" in words
    assert {"f16", "own.gguf"} <= {*words}
    assert any(word.endswith("tiny:Q8_0") for word in words)
    assert not any(word.startswith(("run", "--port")) for word in words)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_without_a_configuration_of_its_own(machine: Path) -> None:
    zsh = Terminal(
        *("-f", "-i"), environment=environment(machine) | {"HOME": str(machine)}, program=["zsh"]
    )
    with zsh:
        zsh.wait_for(PROMPT)
        zsh.type("source <(rocmforge completion zsh); echo status $?\n")
        zsh.wait_for("status 0")
        zsh.wait_for(PROMPT)
        zsh.type("rocmforge ser\t\t")
        zsh.wait_for("serve    -- serve models over HTTP")
        zsh.type("\x15rocmforge serve --max-c\t")
        zsh.wait_for("--max-context ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "rocmforge" in capsys.readouterr().out


def test_help_shows_each_shell_a_line_to_copy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["completion", "--help"])
    lines = [line.partition(":")[2].strip() for line in capsys.readouterr().out.splitlines()]
    assert "echo 'source <(rocmforge completion bash)' >> ~/.bashrc" in lines
    assert "echo 'source <(rocmforge completion zsh)' >> ~/.zshrc" in lines
    assert "rocmforge completion fish > ~/.config/fish/completions/rocmforge.fish" in lines
