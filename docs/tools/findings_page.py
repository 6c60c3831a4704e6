"""The page of what `rocmforge doctor` finds: its own words on machines with one fault each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from docs.tools.markdown import code, table
from rocmforge.commands.diagnosis.finding import Finding, Level
from rocmforge.commands.diagnosis.machine import User
from tests.unit import test_doctor
from tests.unit.test_doctor import GIB, Tree

_HEAD = """# What `rocmforge doctor` finds

`rocmforge doctor` looks at everything that stands between a GPU and the server, in the order in
which it has to work, and names the command that repairs what it finds. These are its findings on
machines with one fault each; numbers, names and paths are those of the machine. An error keeps the
GPU from being used, a warning does not. It also warns of a nearly full disk and of a port that is
taken. [Troubleshooting](../troubleshooting.md) is about everything else.

This page is made of the code by `just reference`.
"""


def text() -> str:
    """Returns the page."""
    findings: dict[str | None, Finding] = {}
    for damage in (*_damages(), _no_render_node, _selinux, _equal_gpus_without_rccl, _unlisted_gpu):
        with TemporaryDirectory() as folder:
            tree = Tree(Path(folder))
            damage(tree)
            for found in tree.findings():
                if found.level is not Level.OK:
                    findings.setdefault(found.repair, found)
    rows = (
        (found.level.value, found.message, code(found.repair or "")) for found in findings.values()
    )
    return f"{_HEAD}\n{table(('', 'finding', 'repair'), rows)}\n"


def _damages() -> Iterator[Callable[[Tree], None]]:
    """The faults that the tests know."""
    for name, function in vars(test_doctor).items():
        if inspect.isfunction(function) and not name.startswith("test_"):
            signature = inspect.signature(function)
            if list(signature.parameters) == ["tree"]:
                yield function


def _no_render_node(tree: Tree) -> None:
    tree.remove("dev/dri/renderD128")


def _selinux(tree: Tree) -> None:
    tree.write(".dockerenv", "")
    tree.write("sys/fs/selinux/enforce", "1")


def _equal_gpus_without_rccl(tree: Tree) -> None:
    tree.gpu(2, "0000:43:00.0", 110000, 129, vram=24 * GIB)
    tree.user = User(0, frozenset({0}))


def _unlisted_gpu(tree: Tree) -> None:
    tree.gpu(2, "0000:43:00.0", 120001, 129, vram=16 * GIB)
