"""Certificates that a test makes for itself."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str) -> Path:
    """Writes a self-signed certificate for the host `name`, and its key.

    Returns:
        `name`.pem in `folder`; `name`.key lies beside it.
    """
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return folder / f"{name}.pem"
