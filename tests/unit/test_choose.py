"""The tests of a file are found by name, by what they import and by what they mention."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.choose import ROOT, Repository, changed_files, chosen_for

FILES = {
    "server/rocmforge/__init__.py": "",
    "server/rocmforge/queue.py": "",
    "server/rocmforge/parts/__init__.py": "from rocmforge.parts.inner import Inner",
    "server/rocmforge/parts/inner.py": "from rocmforge.parts import leaf",
    "server/rocmforge/parts/leaf.py": "",
    "server/rocmforge/parts/relative.py": "from ..queue import Queue",
    "server/rocmforge/start.py": "from rocmforge import parts",
    "kernels/__init__.py": "",
    "kernels/src/scale.hip": "",
    "kernels/include/rf/wave.h": "",
    "docs/queue.md": "",
    "docker/compose.yaml": "",
    "tests/__init__.py": "",
    "tests/support/helper.py": "from rocmforge.parts import relative",
    "tests/unit/test_queue.py": "import math",
    "tests/api/test_waiting.py": "import rocmforge.queue",
    "tests/api/test_parts.py": "from rocmforge.parts import Inner",
    "tests/e2e/conftest.py": "import rocmforge.start",
    "tests/e2e/test_serve.py": "",
    "tests/unit/test_helped.py": "from tests.support.helper import help",
    "tests/unit/test_documentation.py": "",
    "tests/kernels/test_scale.py": "",
    "tests/kernels/test_rest.py": "",
    "tests/docker/test_image.py": "",
    "tests/api/test_compose.py": "FILE = 'compose.yaml'",
}


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tests/unit/test_queue.py", "unit/test_queue"),
        ("tests/e2e/conftest.py", "e2e/test_serve"),
        # By its name and by an import, be it of the package that has it.
        ("server/rocmforge/queue.py", "unit/test_queue api/test_waiting"),
        ("server/rocmforge/parts/inner.py", "api/test_parts"),
        # Nothing imports these but other modules, a helper, or the fixtures of a folder.
        ("server/rocmforge/parts/leaf.py", "api/test_parts"),
        ("server/rocmforge/parts/relative.py", "unit/test_helped"),
        ("server/rocmforge/start.py", "e2e/test_serve"),
        ("server/rocmforge/parts", "api/test_parts unit/test_helped"),
        ("kernels/src/scale.hip", "kernels/test_scale"),
        ("kernels/include/rf/wave.h", "kernels/test_scale kernels/test_rest"),
        ("docs/queue.md", "unit/test_documentation"),
        ("docker/compose.yaml", "docker/test_image api/test_compose"),
        ("server/rocmforge/deleted.py", ""),
    ],
)
def test_tests_are_found(tmp_path: Path, path: str, tests: str) -> None:
    write(tmp_path, FILES)
    expected = {Path(f"tests/{test}.py") for test in tests.split()}
    assert chosen_for(Repository(tmp_path), Path(path)) == expected


def test_changed_files_are_those_since_the_branch_left(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(("git", *who, *command), cwd=tmp_path, check=True, capture_output=True)

    git("init", "--initial-branch=main")
    write(tmp_path, {"kept.py": "", "edited.py": "", "committed.py": "", ".gitignore": "*.log"})
    git("add", ".")
    git("commit", "-m", "a")
    git("checkout", "-b", "branch")
    write(tmp_path, {"committed.py": "1"})
    git("commit", "-am", "b")
    write(tmp_path, {"edited.py": "1", "new.py": "", "ignored.log": ""})
    found = changed_files(tmp_path, "main")
    assert found == [Path("committed.py"), Path("edited.py"), Path("new.py")]


@pytest.mark.slow
def test_every_module_of_this_repository_has_tests() -> None:
    repository = Repository(ROOT)
    sources = [
        path for path in repository.modules.values() if path.parts[0] in ("server", "backends")
    ]
    assert len(sources) > 100
    lonely = [path for path in sources if not chosen_for(repository, path)]
    # Started as programs, or empty.
    assert [path for path in lonely if path.name not in ("__init__.py", "__main__.py")] == []
