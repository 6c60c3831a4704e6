"""pyproject.toml asks for what is used; requirements.lock pins it, with hashes and no address."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Its numba owns the same files as that of the development tools: see [tool.uv].
CONFLICTING = "jit"
OF_OTHERS = {
    "hip-python": "rocm.bindings",  # of a distribution that it asks for
    "httptools": "uvicorn.protocols.http.httptools_impl",  # imports it
}
"""What is imported for the sake of a dependency that is not imported itself."""


def locked() -> dict[str, str]:
    """Returns the versions of the lock; one of several that differ by Python's version."""
    text = (ROOT / "requirements.lock").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def asked() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    lists = (
        PROJECT["project"]["dependencies"],
        *PROJECT["dependency-groups"].values(),
        PROJECT["build-system"]["requires"],
        *(names for extra, names in extras.items() if extra != CONFLICTING),
    )
    return [Requirement(name) for names in lists for name in names]


def test_all_that_an_installation_brings_is_imported() -> None:
    """Or a part of it: what nothing imports is a download for nothing."""
    sources = "\n".join(
        path.read_text() for root in ("server", "backends") for path in (ROOT / root).rglob("*.py")
    )
    modules = set(re.findall(r"^\s*(?:from|import) ([\w.]+)", sources, re.MULTILINE))
    owners = packages_distributions()
    imported = {
        canonicalize_name(owner)
        for module in modules
        for owner in owners.get(module.partition(".")[0], ())
    }
    dependencies = map(Requirement, PROJECT["project"]["dependencies"])
    unused = {each.name for each in dependencies if canonicalize_name(each.name) not in imported}
    assert unused == OF_OTHERS.keys()
    for module in OF_OTHERS.values():
        assert any(f"{each}.".startswith(f"{module}.") for each in modules), module


@pytest.mark.parametrize("requirement", asked(), ids=str)
def test_what_the_project_asks_for_is_pinned(requirement: Requirement) -> None:
    versions = locked()
    assert requirement.name in versions, "run `just lock`"
    assert requirement.specifier.contains(versions[requirement.name]), "run `just lock`"


def test_each_package_has_hashes_and_no_line_an_address() -> None:
    text = (ROOT / "requirements.lock").read_text()
    packages = re.split(r"\n(?=\S)", text.strip())
    pinned = [package for package in packages if not package.startswith("#")]
    assert len(pinned) > 80
    assert [package for package in pinned if "--hash=sha256:" not in package] == []
    assert re.findall(r"^.*(?:://|--index|--find-links|@ ).*$", text, re.MULTILINE) == []
