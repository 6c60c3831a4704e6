"""What lies beside a wheel of a release: its bill of materials, and a signed word on its origin."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from base64 import b64decode, b64encode
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from release import provenance, sbom

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "page"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a program of others prints."""
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with our metadata and nothing else."""
    path = tmp_path_factory.mktemp("dist") / "rocmforge-0.1.0-py3-none-any.whl"
    text = distribution("rocmforge").read_text("METADATA")
    assert text is not None
    with ZipFile(path, "w") as archive:
        archive.writestr("rocmforge-0.1.0.dist-info/METADATA", text)
    return path


@pytest.fixture(scope="module")
def bom(wheel: Path) -> Any:
    return json.loads(sbom.make_bom(wheel))


def packages(bom: Any, kind: str) -> set[tuple[str, str]]:
    """Names and versions of the components of a registry."""
    found = [each for each in bom["components"] if each["purl"].startswith(f"pkg:{kind}/")]
    return {("/".join(filter(None, (c.get("group"), c["name"]))), c["version"]) for c in found}


def test_the_bill_of_materials_lists_what_pip_installs_with_the_wheel(bom: Any) -> None:
    tree = run("uv", "pip", "tree", "--package", "rocmforge")
    installed = set(re.findall(r"─ ([\w.-]+)(?:\[.*?\])? v(\S+)", tree))
    assert len(installed) > 40
    assert packages(bom, "pypi") == installed


def test_what_an_extra_needs_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "rocmforge-0.1.0-py3-none-any.whl"
    text = "Name: rocmforge\nVersion: 0.1.0\nLicense-Expression: Apache-2.0\n"
    with ZipFile(path, "w") as archive:
        needs = "Requires-Dist: hip-python[systems]\nRequires-Dist: ray; extra == 'ray'\n\n"
        archive.writestr("rocmforge-0.1.0.dist-info/METADATA", text + needs)
    names = {name for name, _ in packages(json.loads(sbom.make_bom(path)), "pypi")}
    assert "rocm-bindings-systems" in names
    assert "ray" not in names


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_it_lists_the_libraries_of_the_page_as_npm_does(bom: Any, tmp_path: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        found = json.loads((PAGE / name).read_text())
        for own in (found, found.get("packages", {}).get("", {})):
            own["version"] = "0.0.0"  # npm wants one of the page itself
        (tmp_path / name).write_text(json.dumps(found))
    command = ("npm", "sbom", "--package-lock-only", "--omit", "dev", "--sbom-format", "cyclonedx")
    theirs = json.loads(run(*command, cwd=tmp_path))
    assert packages(bom, "npm") == packages(theirs, "npm")
    hashes = {each["purl"]: each["hashes"] for each in theirs["components"] if "hashes" in each}
    ours = {each["purl"]: each["hashes"] for each in bom["components"] if "hashes" in each}
    assert ours == {purl: found for purl, found in hashes.items() if purl in ours}


def test_it_names_the_wheel_by_its_checksum(bom: Any, wheel: Path) -> None:
    component = bom["metadata"]["component"]
    (digest, _) = run("sha256sum", wheel).split()
    assert component["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert component["licenses"] == [{"expression": "Apache-2.0"}]
    known = {each["bom-ref"] for each in bom["components"]} | {component["bom-ref"]}
    edges = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    assert {*edges} == known
    assert any("litestar" in ref for ref in edges["rocmforge"])
    assert any("preact" in ref for ref in edges["rocmforge"])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private key and its public half, made as the page says."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "KEY.pem", folder / "KEY.pub.pem"
    run("openssl", "genpkey", "-algorithm", "ed25519", "-out", private)
    run("openssl", "pkey", "-in", private, "-pubout", "-out", public)
    return private, public


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with nothing but the files that pin things."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "page").mkdir()
    for name in ("pyproject.toml", "requirements.lock", "page/package-lock.json"):
        shutil.copy(ROOT / name, folder / name)
    run("git", "init", "-q", cwd=folder)
    run("git", "add", ".", cwd=folder)
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    run("git", *identity, "commit", "-qm", "Pins", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def signed(wheel: Path, keys: tuple[Path, Path], checkout: Path) -> str:
    return provenance.sign(wheel, keys[0], "a test", checkout)


def test_a_statement_tells_the_commit(
    signed: str, wheel: Path, keys: tuple[Path, Path], checkout: Path
) -> None:
    commit = run("git", "rev-parse", "HEAD", cwd=checkout).strip()
    assert provenance.check(wheel, signed, keys[1]) == commit
    statement = json.loads(b64decode(json.loads(signed)["payload"]))
    (source, *pins) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": commit}
    for pin in pins:
        assert pin["digest"]["sha256"] == run("sha256sum", checkout / pin["name"]).split()[0]


def test_openssl_finds_the_signature_right(
    signed: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    envelope = json.loads(signed)
    kind, payload = envelope["payloadType"].encode(), b64decode(envelope["payload"])
    # The encoding that DSSE's specification has signed.
    text = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    (tmp_path / "text").write_bytes(text)
    (tmp_path / "signature").write_bytes(b64decode(envelope["signatures"][0]["sig"]))
    command = ("openssl", "pkeyutl", "-verify", "-pubin", "-inkey", keys[1], "-rawin")
    assert "Verified" in run(*command, "-in", tmp_path / "text", "-sigfile", tmp_path / "signature")


def test_what_is_not_as_it_was_signed_is_refused(
    signed: str, wheel: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / wheel.name
    other.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(SystemExit, match="not of"):
        provenance.check(other, signed, keys[1])
    envelope = json.loads(signed)
    payload = b64decode(envelope["payload"]).replace(b"a test", b"others")
    forged = json.dumps(envelope | {"payload": b64encode(payload).decode()})
    with pytest.raises(SystemExit, match="not signed"):
        provenance.check(wheel, forged, keys[1])
    run("openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "k")
    run("openssl", "pkey", "-in", tmp_path / "k", "-pubout", "-out", tmp_path / "p")
    with pytest.raises(SystemExit, match="not signed"):
        provenance.check(wheel, signed, tmp_path / "p")


def test_nothing_is_signed_that_is_not_committed(
    wheel: Path, keys: tuple[Path, Path], checkout: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "checkout"
    shutil.copytree(checkout, changed)
    (changed / "pyproject.toml").write_text("")
    with pytest.raises(SystemExit, match=r"not what is committed:\n.*pyproject"):
        provenance.sign(wheel, keys[0], "a test", changed)


PINNED = "debian:forky-slim@sha256:" + 64 * "a"
BUILT = "sha256:" + 64 * "b"
NOTING = f"""#!/bin/sh
echo "$(basename "$0")" "$@" >> "$TOLD"
while [ $# -gt 0 ]; do
  [ "$1" = --metadata-file ] && echo '{{"containerimage.digest": "{BUILT}"}}' > "$2"
  shift
done
exit 0
"""


def build_images(folder: Path, base: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Runs the script in a clean checkout; what docker and cosign would have been told."""
    checkout, programs, told = folder / "checkout", folder / "bin", folder / "told"
    (checkout / "release").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(ROOT / "release/image", checkout / "release/image")
    run("git", "init", "-q", cwd=checkout)
    run("git", "add", ".", cwd=checkout)
    run("git", *("-c", "user.name=A", "-c", "user.email=a@b.c"), "commit", "-qm", "A", cwd=checkout)
    for name in ("docker", "cosign"):
        (programs / name).write_text(NOTING)
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [checkout / "release/image", "registry.example/rocmforge", "1.2.3", "cosign.key"],
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "BASE_IMAGE": base,
            "TOLD": str(told),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done, told.read_text().splitlines() if told.exists() else []


def test_images_are_built_from_a_digest_and_signed_by_theirs(tmp_path: Path) -> None:
    done, told = build_images(tmp_path, PINNED)
    assert done.returncode == 0, done.stderr
    signed = f"cosign sign --yes --key cosign.key registry.example/rocmforge@{BUILT}"
    assert told[1::2] == [signed, signed]
    for line, target in zip(told[::2], ("rocm", "nvidia"), strict=True):
        assert line.startswith("docker buildx build --file docker/Dockerfile ")
        for part in (f"--target {target} ", f"BASE_IMAGE={PINNED} ", "--provenance mode=max "):
            assert part in line
        assert "--sbom true " in line
        assert "--push" in line
    assert done.stdout.endswith(f"rocmforge:1.2.3-nvidia registry.example/rocmforge@{BUILT}\n")


@pytest.mark.parametrize("base", ["", "debian:forky-slim", f"{PINNED}0"])
def test_an_image_is_not_built_from_a_tag(tmp_path: Path, base: str) -> None:
    done, told = build_images(tmp_path, base)
    assert (done.returncode, told) == (1, [])
    assert "without a digest" in done.stderr
