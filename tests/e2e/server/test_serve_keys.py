"""`rocmforge serve` with a certificate and a file of keys, which change while it runs."""

from __future__ import annotations

import shutil
import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import serve_command
from tests.e2e.server.test_serve import rocmforge
from tests.support.files.certificates import make_certificate
from tests.support.processes.server import LiveServer

pytestmark = pytest.mark.model

TLS = Path(__file__).parents[2] / "data/tls"
CERTIFICATE = ("--tls-certificate", str(TLS / "certificate.pem"), "--tls-key", str(TLS / "key.pem"))
PATIENCE_S = 60.0


def key_file(*names: str) -> str:
    """A user's key for each name, which is its name in capitals."""
    entries = [f'[[key]]\nname = "{name}"\nkey = "KEY-OF-{name.upper()}"\n' for name in names]
    return "\n".join(entries)


class TlsServer(LiveServer):
    """One that speaks HTTPS."""

    def __init__(self, command: tuple[str, ...], log: Path) -> None:
        super().__init__(command, log)
        self.url = f"https://localhost:{self.port}"
        self.trust = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))

    def is_ready(self) -> bool:
        return (
            httpx.get(f"{self.url}/ready", verify=self.trust, timeout=PATIENCE_S).status_code == 200
        )

    def models(self, name: str) -> int:
        """The status that a key gets."""
        headers = {"authorization": f"Bearer KEY-OF-{name.upper()}"}
        return httpx.get(
            f"{self.url}/v1/models", headers=headers, verify=self.trust, timeout=PATIENCE_S
        ).status_code

    def reload(self, said: str) -> None:
        """Sends SIGHUP and waits for one more line of the log that says so."""
        before = self.log.count(said)
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE_S
        while self.log.count(said) == before:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(key_file("alice"))
    return path


@pytest.fixture(scope="module")
def server(
    smollm2_path: Path, keys: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsServer]:
    flags = ("--keys-file", str(keys), "--host", "0.0.0.0", *CERTIFICATE)
    command = serve_command(smollm2_path, *flags)
    with TlsServer(command, tmp_path_factory.mktemp("server") / "log") as server:
        yield server


def test_it_speaks_https_and_tells_browsers_to_stay_with_it(server: TlsServer) -> None:
    answer = httpx.get(f"{server.url}/health", verify=server.trust, timeout=PATIENCE_S)
    assert answer.status_code == 200
    assert "strict-transport-security" in answer.headers
    assert "server" not in answer.headers


def test_plain_http_gets_no_answer(server: TlsServer) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://localhost:{server.port}/health", timeout=PATIENCE_S)


def test_sighup_reads_the_keys_again_and_a_broken_file_changes_nothing(
    server: TlsServer, keys: Path
) -> None:
    keys.write_text(key_file("alice"))
    server.reload("were read again")
    assert (server.models("alice"), server.models("bob")) == (200, 401)

    keys.write_text(key_file("bob"))
    server.reload("were read again")
    assert (server.models("alice"), server.models("bob")) == (401, 200)

    keys.write_text("[[key]")
    server.reload("nothing was reloaded")
    assert (server.models("alice"), server.models("bob")) == (401, 200)
    assert "KEY-OF" not in server.log


def test_sighup_with_half_of_a_new_certificate_changes_nothing(
    smollm2_path: Path, tmp_path: Path
) -> None:
    """Whoever renews a certificate writes two files, one after the other."""
    used, key = tmp_path / "used.pem", tmp_path / "used.key"
    shutil.copy(TLS / "certificate.pem", used)
    shutil.copy(TLS / "key.pem", key)
    new = make_certificate(tmp_path, "localhost")
    renewed = ssl.create_default_context(cafile=str(new))

    flags = ("--tls-certificate", str(used), "--tls-key", str(key))
    with TlsServer(serve_command(smollm2_path, *flags), tmp_path / "log") as renewing:

        def status(trust: ssl.SSLContext) -> int:
            return httpx.get(f"{renewing.url}/health", verify=trust, timeout=PATIENCE_S).status_code

        shutil.copy(new, used)
        renewing.reload("nothing was reloaded")
        assert status(renewing.trust) == 200
        shutil.copy(new.with_suffix(".key"), key)
        renewing.reload("were read again")
        assert status(renewed) == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            status(renewing.trust)


def test_a_certificate_without_its_key_is_refused(smollm2_path: Path) -> None:
    result = rocmforge("serve", str(smollm2_path), *CERTIFICATE[:2])
    assert result.returncode == 2
    assert "--tls-key" in result.stderr


def test_a_certificate_that_is_none_is_refused_by_name(smollm2_path: Path) -> None:
    broken = ("--tls-certificate", str(TLS / "README.md"), "--tls-key", str(TLS / "key.pem"))
    result = rocmforge("serve", str(smollm2_path), "--port", "0", *broken)
    assert result.returncode == 2
    assert "README.md" in result.stderr
