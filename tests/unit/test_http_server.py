"""The HTTP server below the application, over real sockets: listener, bounds, certificate."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocmforge.commands.http.protocol import MAX_HEADER_BYTES
from rocmforge.commands.http.server import Certificate, HttpServer, http_config, listen
from rocmforge.errors import ConfigurationError
from rocmforge.logs import FIELDS
from tests.support.files.certificates import make_certificate
from tests.support.processes.acknowledgements import wait_for_them

pytestmark = pytest.mark.slow

TLS = Path(__file__).parents[1] / "data/tls"
HOST = b"Host: localhost\r\n"
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
PATIENCE_S = 60.0
LEFT = b"left"


class Application:
    """Reads a body and answers with how many headers there were; `/wait` waits to be told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.seen: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request, or the server's start and end."""
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/wait" and not await self._waits(receive):
            self.seen.append(LEFT)
            return
        body = b"%d headers" % len(scope["headers"])
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _waits(self, receive: Any) -> bool:
        """Until `go_on` is set; False if the client left first."""
        leaving = asyncio.create_task(receive())
        going = asyncio.create_task(asyncio.to_thread(self.go_on.wait, PATIENCE_S))
        await asyncio.wait((leaving, going), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.go_on.set()
        leaving.cancel()
        return await going and not leaving.done()


class Running:
    """A server in a thread of this process."""

    def __init__(self, tls: tuple[str, str] | None = None) -> None:
        certificate, key = tls or (None, None)
        self.application = Application()
        self.listener = listen("127.0.0.1", 0)
        self.address: tuple[str, int] = self.listener.getsockname()
        config = http_config(
            self.application,
            receive_timeout_s=PATIENCE_S,
            tls_certificate=certificate,
            tls_key=key,
        )
        self.certificate = Certificate(config)
        self.server = HttpServer(config)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        asyncio.run(self.server.serve([self.listener]))

    def connect(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection(self.address, timeout=PATIENCE_S)

    def talk(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Sends `data` and returns everything until the server hangs up."""
        with self.connect() as connection:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


@contextmanager
def running(tls: tuple[str, str] | None = None) -> Iterator[Running]:
    server = Running(tls)
    server.thread.start()
    try:
        yield server
    finally:
        server.application.go_on.set()
        server.server.should_exit = True
        server.thread.join(PATIENCE_S)
        assert not server.thread.is_alive()


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as server:
        yield server


def get(*lines: bytes, path: bytes = b"/", version: bytes = b"1.1") -> bytes:
    head = b"\r\n".join((b"GET %s HTTP/%s" % (path, version), *lines))
    return head + b"\r\nConnection: close\r\n\r\n"


# --- headers and trailers ---


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError) as error:
            listen("127.0.0.1", port)
    why = "Address already in use. Choose another with --port."
    assert error.value.message == f"Cannot listen on 127.0.0.1 port {port}: {why}"


def test_complete_headers_above_the_limit_are_a_431(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    filler = b"X-Filler: " + b"a" * MAX_HEADER_BYTES
    answer = server.talk(get(HOST.strip(), filler))
    (fields,) = [getattr(r, FIELDS) for r in caplog.records if r.name == "rocmforge.request"]
    assert (fields["path"], fields["status"]) == ("/", 431)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b'"code":"headers_too_large"' in answer


def test_so_is_a_request_line(server: Running) -> None:
    path = b"/?" + b"a" * MAX_HEADER_BYTES
    assert b" 431 " in server.talk(get(HOST.strip(), path=path))


def test_headers_just_below_the_limit_are_taken(server: Running) -> None:
    answer = server.talk(get(HOST.strip(), b"X-Filler: " + b"a" * (MAX_HEADER_BYTES - 200)))
    assert answer.endswith(b"3 headers")


def test_trailers_do_not_become_headers(server: Running) -> None:
    answer = server.talk(
        CHUNKED + b"0\r\nX-Trailer: 1\r\nHost: evil.example\r\n\r\n", half_close=True
    )
    assert answer.endswith(b"2 headers")


@pytest.mark.parametrize("start", [b"0\r\n", b"0\r\nX: ", b"1;", b"0" * 100], ids=repr)
def test_what_never_becomes_a_body_is_refused_at_the_limit(server: Running, start: bytes) -> None:
    """Trailers, one trailer, the extension of a chunk, and the zeros before its size."""
    filler = {b"0\r\n": b"X: " + b"a" * 995 + b"\r\n", b"0" * 100: b"0" * 1000}
    sent, piece = 0, filler.get(start, b"a" * 1000)
    with server.connect() as connection:
        connection.sendall(CHUNKED + start)
        with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012 - each send may fail
            while sent < 50_000_000:
                sent += connection.send(piece * 50)
                time.sleep(0.001)
    assert sent < 10_000_000


# --- which host is meant ---


@pytest.mark.parametrize(
    ("lines", "path", "version"),
    [
        ((b"Host: localhost", b"Host: evil.example"), b"/", b"1.1"),
        ((b"Host: localhost", b"Host: localhost"), b"/", b"1.1"),
        ((), b"/", b"1.1"),
        ((b"Host: localhost",), b"http://evil.example/", b"1.1"),
        ((b"Host: localhost",), b"http://user@localhost/", b"1.1"),
        ((b"Host: localhost",), b"http://evil.example", b"1.1"),
    ],
)
def test_a_request_for_two_hosts_or_none_is_a_400(
    server: Running, lines: tuple[bytes, ...], path: bytes, version: bytes
) -> None:
    answer = server.talk(get(*lines, path=path, version=version))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"param":"host"' in answer


@pytest.mark.parametrize(
    ("lines", "path", "version"),
    [
        ((b"Host: localhost",), b"/", b"1.1"),
        ((b"Host: localhost:1",), b"http://LOCALHOST:1/?a=b://c", b"1.1"),
        ((b"Host: localhost",), b"/a://evil.example", b"1.1"),
        ((), b"/", b"1.0"),
    ],
)
def test_a_request_for_one_host_is_served(
    server: Running, lines: tuple[bytes, ...], path: bytes, version: bytes
) -> None:
    assert b" 200 " in server.talk(get(*lines, path=path, version=version))


def test_a_refusal_never_ends_up_in_the_answer_of_another_request(server: Running) -> None:
    waiting = b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n"
    assert server.talk(waiting + get(b"Host: a", b"Host: b")) == b""


# --- clients that send no more ---


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_closes_its_side_only_is_answered(server: Running, version: bytes) -> None:
    timer = threading.Timer(0.3, server.application.go_on.set)
    timer.start()
    answer = server.talk(get(HOST.strip(), path=b"/wait", version=version), half_close=True)
    assert answer.endswith(b"2 headers")
    assert server.application.seen == []


def test_one_whose_answer_comes_at_once_gets_nothing_but_that(server: Running) -> None:
    answer = server.talk(get(HOST.strip()), half_close=True)
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_one_that_closes_both_has_left(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(get(HOST.strip(), path=b"/wait"))
        time.sleep(0.1)
    deadline = time.monotonic() + PATIENCE_S
    while not server.application.seen:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert server.application.seen == [LEFT]


def test_one_that_closes_in_the_middle_of_its_body_has_left(server: Running) -> None:
    assert server.talk(CHUNKED + b"1\r\n", half_close=True) == b""


# --- small packets ---


def trips(server: Running, wrap: Any = lambda connection: connection) -> list[float]:
    """Seconds that each of many requests on one connection takes."""
    request = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    found = []
    with wrap(server.connect()) as connection:
        for _ in range(30):
            begin, received = time.perf_counter(), b""
            connection.sendall(request)
            while not received.endswith(b"1 headers"):
                received += connection.recv(65536)
            found.append(time.perf_counter() - begin)
    return found


def test_an_answer_on_a_kept_connection_does_not_wait_for_an_acknowledgement(
    server: Running,
) -> None:
    assert not wait_for_them(lambda: trips(server))


def test_nor_does_it_with_tls() -> None:
    trust = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
    with running((str(TLS / "certificate.pem"), str(TLS / "key.pem"))) as server:

        def wrap(plain: socket.socket) -> ssl.SSLSocket:
            return trust.wrap_socket(plain, server_hostname="localhost")

        assert not wait_for_them(lambda: trips(server, wrap))


# --- another certificate ---


def shown(server: Running, name: str | None) -> bytes:
    """The certificate that a handshake brings."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with trust.wrap_socket(server.connect(), server_hostname=name) as connection:
        found = connection.getpeercert(binary_form=True)
        assert found is not None
        return found


@pytest.mark.parametrize("name", ["localhost", None], ids=["named", "unnamed"])
def test_a_certificate_beside_the_old_key_changes_nothing_until_both_are_new(
    tmp_path: Path, name: str | None
) -> None:
    old, new = (make_certificate(tmp_path, which) for which in ("old", "new"))
    used, key = tmp_path / "used.pem", tmp_path / "used.key"
    shutil.copy(old, used)
    shutil.copy(old.with_suffix(".key"), key)

    with running((str(used), str(key))) as server:
        before = shown(server, name)
        shutil.copy(new, used)
        with pytest.raises(ConfigurationError, match="key values mismatch"):
            server.certificate.read()
        assert shown(server, name) == before
        shutil.copy(new.with_suffix(".key"), key)
        server.certificate.use(server.certificate.read())
        after = shown(server, name)
    assert before == ssl.PEM_cert_to_DER_cert(old.read_text())
    assert after == ssl.PEM_cert_to_DER_cert(new.read_text())
