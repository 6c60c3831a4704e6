"""Writes the bill of materials of a wheel as CycloneDX: `python -m release.sbom WHEEL`.

It lies beside the wheel as WHEEL.cdx.json. In it are the wheel with its checksum, what it needs at
run time in the versions of requirements.lock, without extras and for this platform, and the
libraries that its page at / holds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from email import message_from_bytes
from email.message import Message
from importlib.metadata import requires
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT: Final = Path(__file__).parents[1]
_LOCK: Final = _ROOT / "requirements.lock"
_PAGE_LOCK: Final = _ROOT / "page/package-lock.json"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel
    target = wheel.with_name(f"{wheel.name}.cdx.json")
    target.write_text(make_bom(wheel), encoding="utf-8")
    print(target)


def make_bom(wheel: Path) -> str:
    """Returns the bill of materials of a wheel, as JSON that keeps to CycloneDX's schema.

    Raises:
        SystemExit: A package is not in requirements.lock, or not installed.
    """
    metadata = _metadata(wheel)
    name, version = str(metadata["Name"]), str(metadata["Version"])
    root = Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION,
        purl=PackageURL("pypi", name=name, version=version),
        bom_ref=name,
        licenses=[LicenseExpression(str(metadata["License-Expression"]))],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=_sha256(wheel))],
    )
    bom = Bom()
    bom.metadata.component = root
    pinned, edges = _pinned(), _needs(metadata.get_all("Requires-Dist") or [])
    packages = {each: _package(each, pinned) for each in edges if each}
    libraries = list(_libraries())
    for component in (*packages.values(), *libraries):
        bom.components.add(component)
    bom.register_dependency(root, [*(packages[each] for each in edges[""]), *libraries])
    for each, component in packages.items():
        bom.register_dependency(component, [packages[other] for other in edges[each]])
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise SystemExit(f"The bill of materials breaks CycloneDX's schema: {problem}")
    return f"{text}\n"


def _metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pinned() -> dict[str, str]:
    """Returns the versions that requirements.lock names for this Python and platform."""
    lines = re.findall(r"^[\w.-]+==[^\\\n]+", _LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    found = [Requirement(line) for line in lines]
    return {
        canonicalize_name(each.name): str(each.specifier).removeprefix("==")
        for each in found
        if each.marker is None or each.marker.evaluate()
    }


def _needs(declared: list[str]) -> Mapping[str, set[str]]:
    """Returns what each package needs of others, all that the declared ones lead to; "" is ours."""
    edges: dict[str, set[str]] = {"": set()}
    todo = [("", text, "") for text in declared]
    seen = set[tuple[str, str]]()
    while todo:
        owner, text, extra = todo.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        edges[owner].add(name)
        edges.setdefault(name, set())
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                todo += [(name, each, wanted) for each in requires(name) or []]
    return edges


def _package(name: str, pinned: Mapping[str, str]) -> Component:
    if name not in pinned:
        raise SystemExit(f"{name} is not in requirements.lock: `just lock`.")
    version = pinned[name]
    purl = PackageURL("pypi", name=name, version=version)
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl))


def _libraries() -> Iterator[Component]:
    """Yields the libraries of the page, which are in the wheel."""
    lock = json.loads(_PAGE_LOCK.read_text(encoding="utf-8"))
    for path, entry in lock["packages"].items():
        if not path or entry.get("dev"):
            continue
        group, _, name = path.rpartition("node_modules/")[2].rpartition("/")
        purl = PackageURL("npm", group or None, name, entry["version"])
        digest = b64decode(entry["integrity"].removeprefix("sha512-")).hex()
        yield Component(
            name=name,
            group=group or None,
            version=entry["version"],
            purl=purl,
            bom_ref=str(purl),
            licenses=[LicenseExpression(entry["license"])],
            hashes=[HashType(alg=HashAlgorithm.SHA_512, content=digest)],
        )


if __name__ == "__main__":
    main()
