"""Compiling processors: with numba's CUDA target, which needs no GPU, as PTX."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rocmforge.errors import ConfigurationError
from rocmforge.logits import Parameter, logits_processor
from rocmforge.logits.builtin import BUILTIN
from rocmforge.logits.registry import load_processors
from rocmforge_hip.jit import compiler
from rocmforge_hip.jit.compiler import CannotCompile, compile_processors, prepare_processors
from rocmforge_hip.jit.source import ARGUMENTS
from tests.support.files.distribution import WALK, install

pytestmark = pytest.mark.slow

TARGET = "sm_90"
PROCESSORS = {processor.name: processor for processor in BUILTIN}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the built-in processors."""
    folder = tmp_path_factory.mktemp("cache")
    compile_processors(PROCESSORS, TARGET, folder)
    return folder


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes compiling fail."""

    def fail(job: object) -> NoReturn:
        raise AssertionError(f"compiles {job}")

    monkeypatch.setattr(compiler, "_run_worker", fail)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A folder that this process and the compiler's import from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        yield tmp_path


def test_kernels_have_the_arguments_that_are_packed(cache: Path, no_worker: None) -> None:
    made = compile_processors(PROCESSORS, TARGET, cache)
    assert set(made) == {"dry", "typical_p", "xtc"}
    for each in made.values():
        head = each.code.decode().partition(f".entry {each.symbol}")[2].partition(")")[0]
        kinds = [line.split()[1] for line in head.splitlines() if ".param" in line]
        assert kinds == [".u64" if kind.endswith("*") else ".u32" for _, kind in ARGUMENTS]


def test_a_second_start_compiles_nothing(cache: Path, no_worker: None) -> None:
    assert compile_processors(PROCESSORS, TARGET, cache).keys() == PROCESSORS.keys()


def test_a_damaged_kernel_is_made_anew(
    cache: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    (file,) = cache.glob("xtc-*")
    file.write_bytes(file.read_bytes()[:-7] + b"garbage")
    wanted = {"xtc": PROCESSORS["xtc"]}
    with caplog.at_level(logging.WARNING):
        made = compile_processors(wanted, TARGET, cache)
    assert str(file) in caplog.text
    request.getfixturevalue("no_worker")
    assert compile_processors(wanted, TARGET, cache) == made


def test_another_target_has_kernels_of_its_own(cache: Path, no_worker: None) -> None:
    with pytest.raises(AssertionError, match="sm_80"):
        compile_processors(PROCESSORS, "sm_80", cache)


def helper(logit: Any) -> Any:
    return logit + 1


def other_helper(logit: Any) -> Any:
    return logit + 2


def keys(helper: Any, default: float = 1.0) -> str:
    @logits_processor("probe", parameters=(Parameter("p", default),))
    def probe(logit: Any) -> Any:
        return helper(logit)

    return compiler._key(probe, TARGET, "1.0")


def test_the_name_in_the_cache_follows_everything_a_kernel_is_made_of() -> None:
    base = keys(helper)
    assert base == keys(helper)
    assert len({base, keys(other_helper), keys(helper, default=2.0)}) == 3


def test_what_numba_cannot_compile_is_refused_with_its_line(path: Path, tmp_path: Path) -> None:
    source = WALK.replace("    return where(", "    words = {'a': str(step)}\n    return where(")
    install(path, "walk", source)
    line = source[: source.index("    words =")].count("\n") + 1
    with pytest.raises(ConfigurationError) as raised:
        compile_processors({"walk": load_processors()["walk"]}, TARGET, tmp_path / "cache")
    message = str(raised.value)
    assert message.startswith(f"The logits processor 'walk' cannot be compiled for {TARGET}")
    assert f"walk ({path}/walk_sampler.py:{line})" in message


@pytest.mark.parametrize(
    ("target", "says"), [("host-w32", "no target host-w32"), ("gfx1100", "numba-hip")]
)
def test_without_a_compiler_processors_run_on_the_host_and_say_so(
    target: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def not_installed(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(compiler, "version", not_installed)
    with caplog.at_level(logging.WARNING):
        kernels = prepare_processors(PROCESSORS, target, tmp_path)
    assert kernels.made is None
    assert kernels.processors == PROCESSORS
    assert "run on the host" in kernels.note
    assert says in kernels.note
    assert kernels.note in caplog.text


def test_a_compiler_that_crashes_is_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CannotCompile):
        compile_processors(PROCESSORS, TARGET, tmp_path)


def test_the_traceback_of_a_compiler_that_crashes_is_for_debugging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\ncat >/dev/null; echo Traceback >&2; echo 'needs another NumPy' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    caplog.set_level(logging.DEBUG)
    note = prepare_processors(PROCESSORS, TARGET, tmp_path).note
    assert "their compiler failed (needs another NumPy)" in note
    loud = [record for record in caplog.records if record.levelno > logging.INFO]
    assert [record.getMessage() for record in loud] == [note]
    assert "Traceback" in caplog.text
