"""Chooses the tests that concern files: `python -m tests.choose server/rocmforge/engine/core.py`.

Prints test modules, one a line. With --changed the files are those that differ from where the
branch left main, committed or not. Nothing is imported: the imports of all files are read.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = ("server", "backends/hip", "backends/reference", "")
FOLDERS = ("server", "backends", "kernels", "benchmarks", "tests")


@dataclass(frozen=True)
class Repository:
    """The Python files of a checkout, and what each imports. Paths are relative to `root`."""

    root: Path

    @cached_property
    def modules(self) -> Mapping[str, Path]:
        """Returns the file of each module, by the module's dotted name."""
        files = [path for folder in FOLDERS for path in (self.root / folder).rglob("*.py")]
        return {
            self.name(path.relative_to(self.root)): path.relative_to(self.root) for path in files
        }

    @cached_property
    def imports(self) -> Mapping[Path, frozenset[Path]]:
        """Returns what each file imports, with what the packages it names import in turn."""
        direct = {
            path: frozenset(self._imported(name, path)) for name, path in self.modules.items()
        }
        return {
            path: found.union(*(direct[other] for other in found if other.name == "__init__.py"))
            for path, found in direct.items()
        }

    @cached_property
    def _inside(self) -> Mapping[str, list[str]]:
        """Returns the modules in each package, by its dotted name with a dot behind."""
        inside: defaultdict[str, list[str]] = defaultdict(list)
        for name in self.modules:
            parts = name.split(".")
            for count in range(1, len(parts)):
                inside[".".join(parts[:count]) + "."].append(name)
        return inside

    @cached_property
    def tests(self) -> tuple[Path, ...]:
        """Returns all test modules."""
        return tuple(sorted(p for p in self.modules.values() if p.name.startswith("test_")))

    def name(self, path: Path) -> str:
        """Returns the dotted name of a file's module."""
        root = next(r for r in SOURCE_ROOTS if path.is_relative_to(r))
        parts = path.relative_to(root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def text(self, path: Path) -> str:
        """Returns what is in a file."""
        return (self.root / path).read_text()

    def _imported(self, name: str, path: Path) -> Iterator[Path]:
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(self.text(path))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join((*above, *filter(None, [node.module])))
                # A name of a package may be a module in it.
                names = [
                    inner if (inner := f"{base}.{alias.name}") in self.modules else base
                    for alias in node.names
                ]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # For `python -m` or importlib, which may add the name of a module in a package.
                names = [node.value, *self._inside.get(node.value, ())]
            else:
                continue
            yield from (self.modules[found] for found in names if found in self.modules)


def chosen_for(repository: Repository, path: Path) -> set[Path]:
    """Returns the test modules that concern a file or folder, which need not exist any more."""
    if (repository.root / path).is_dir():
        inner = {p for p in repository.modules.values() if p.is_relative_to(path)}
        return set().union(*(chosen_for(repository, p) for p in inner))
    if path in repository.tests:
        return {path}
    if path.name == "conftest.py":
        return {test for test in repository.tests if test.is_relative_to(path.parent)}
    if path.suffix == ".py":
        return _tests_of_module(repository, path)
    return _tests_of_text(repository, path)


def _tests_of_module(repository: Repository, path: Path) -> set[Path]:
    named = _named_after(repository, path)
    found = named | _importing(repository, {path}, repository.tests)
    # Nothing tests it by itself: then whatever tests those that use it, step by step outwards.
    users, seen = {path}, {path}
    while not found and users:
        users = _importing(repository, users, repository.imports) - seen
        seen |= users
        found = users.intersection(repository.tests)
        for folder in {user.parent for user in users if user.name == "conftest.py"}:
            found |= {test for test in repository.tests if test.is_relative_to(folder)}
    return found


def _tests_of_text(repository: Repository, path: Path) -> set[Path]:
    """Returns tests that name the file, and those of its group: one called like it, or all."""
    if path.suffix == ".md":
        group = {test for test in repository.tests if test.name == "test_documentation.py"}
    else:
        folder = Path("tests", "platform" if "platform" in path.parts else path.parts[0])
        group = {test for test in repository.tests if test.is_relative_to(folder)}
        group = group & _named_after(repository, path) or group
    mention = re.compile(rf"(?<![\w.]){re.escape(path.name)}\b")
    return group | {test for test in repository.tests if mention.search(repository.text(test))}


def _named_after(repository: Repository, path: Path) -> set[Path]:
    called = f"test_{path.stem}.py"
    return {test for test in repository.tests if test.name == called}


def _importing(repository: Repository, wanted: set[Path], candidates: Iterable[Path]) -> set[Path]:
    return {path for path in candidates if repository.imports[path] & wanted}


def changed_files(root: Path, base: str) -> list[Path]:
    """Returns the files that differ from where the branch left `base`, new ones included."""

    def lines(*command: str) -> list[str]:
        done = subprocess.run(
            ("git", *command), cwd=root, check=True, capture_output=True, text=True
        )
        return done.stdout.splitlines()

    (start,) = lines("merge-base", base, "HEAD")
    new = lines("ls-files", "--others", "--exclude-standard")
    return sorted(Path(name) for name in {*lines("diff", "--name-only", start), *new})


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.choose", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--changed", metavar="BASE", help="files that differ from this branch")
    parser.add_argument("--files", action="store_true", help="print those files, not their tests")
    options = parser.parse_args()
    paths = [path.resolve().relative_to(ROOT) for path in options.paths]
    missing = [path for path in paths if not (ROOT / path).exists()]
    if missing:
        parser.error(f"there is no {missing[0]}")
    if options.changed:
        paths += changed_files(ROOT, options.changed)
    if options.files:
        found = {path for path in paths if (ROOT / path).is_file()}
    else:
        repository = Repository(ROOT)
        found = set().union(*(chosen_for(repository, path) for path in paths))
    print(*sorted(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
