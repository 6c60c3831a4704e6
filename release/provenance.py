"""Says where a wheel comes from, signed: `python -m release.provenance WHEEL --key KEY.pem`.

The statement lies beside the wheel as WHEEL.intoto.jsonl: an in-toto statement with SLSA's
provenance in a DSSE envelope. It names the wheel's checksum, the commit that it was built from and
the files that pin what it was built with. `--public KEY.pub.pem` in place of `--key` checks it.

    openssl genpkey -algorithm ed25519 -out KEY.pem
    openssl pkey -in KEY.pem -pubout -out KEY.pub.pem
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_BUILD_TYPE: Final = "https://packaging.python.org/en/latest/specifications/pyproject-toml/"
_PINS: Final = ("pyproject.toml", "requirements.lock", "page/package-lock.json")
_ROOT: Final = Path(__file__).parents[1]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--builder", default="local", help="a name for the machine that built it")
    key = parser.add_mutually_exclusive_group(required=True)
    key.add_argument("--key", type=Path, help="private key to sign with, PEM")
    key.add_argument("--public", type=Path, help="public key to check with, PEM")
    options = parser.parse_args()
    path = options.wheel.with_name(f"{options.wheel.name}.intoto.jsonl")
    if options.key is not None:
        path.write_text(sign(options.wheel, options.key, options.builder, _ROOT), encoding="utf-8")
        print(path)
        return
    commit = check(options.wheel, path.read_text(encoding="utf-8"), options.public)
    print(f"{options.wheel} was built from commit {commit}.")


def sign(wheel: Path, key: Path, builder: str, root: Path) -> str:
    """Returns the signed statement of a wheel, one line of JSON.

    Args:
        wheel: its file.
        key: file of the private key.
        builder: what built it.
        root: of the checkout that it was built from.

    Raises:
        SystemExit: The working tree is not what is committed.
    """
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    if changed:
        raise SystemExit(f"The working tree is not what is committed:\n{changed}")
    payload = json.dumps(_statement(wheel, builder, root)).encode()
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(load_pem_private_key(key.read_bytes(), None)))
    return json.dumps(envelope.to_dict()) + "\n"


def check(wheel: Path, signed: str, public: Path) -> str:
    """Returns the commit that a wheel was built from.

    Raises:
        SystemExit: The signature is of another key, or the statement is of another file.
    """
    envelope = Envelope.from_dict(json.loads(signed))
    key = SSlibKey.from_crypto(load_pem_public_key(public.read_bytes()))
    try:
        envelope.verify([key], 1)
    except VerificationError as error:
        raise SystemExit(f"The statement is not signed with {public}.") from error
    statement = json.loads(envelope.payload)
    subject = {"name": wheel.name, "digest": {"sha256": _sha256(wheel)}}
    if envelope.payload_type != PAYLOAD_TYPE or statement["subject"] != [subject]:
        raise SystemExit(f"The statement is not of {wheel}.")
    (source, *_) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    return str(source["digest"]["gitCommit"])


def _statement(wheel: Path, builder: str, root: Path) -> dict[str, Any]:
    source = {"name": "source", "digest": {"gitCommit": _git(root, "rev-parse", "HEAD")}}
    pins = [{"name": name, "digest": {"sha256": _sha256(root / name)}} for name in _PINS]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": wheel.name, "digest": {"sha256": _sha256(wheel)}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"command": "uv build --wheel"},
                "resolvedDependencies": [source, *pins],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
