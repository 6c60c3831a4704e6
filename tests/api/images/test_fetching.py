"""Images from real servers on loopback, good ones and hostile ones."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocmforge.api.images import fetching
from rocmforge.api.images.fetching import Fetcher, FetchLimits
from rocmforge.api.images.hosts import AllowedHosts
from rocmforge.errors import InvalidParameter
from tests.support.files.certificates import make_certificate

Write = Callable[[asyncio.StreamWriter], Awaitable[None]]
FILE = b"\x89PNG and so on"


def answer(status: str = "200 OK", body: bytes = FILE, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Host:
    """A server that writes one answer to each request, and notes them."""

    def __init__(self, write: bytes | Write | None = None) -> None:
        self._write = answer() if write is None else write
        self.requests: list[bytes] = []
        self.port = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            if isinstance(self._write, bytes):
                writer.write(self._write)
                await writer.drain()
            else:
                await self._write(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(
        self, address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[int]:
        """Serves until the end of the block; gives the port."""
        server = await asyncio.start_server(self._serve, address, port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self.port
        finally:
            server.close()


def fetched(
    host: Host, address: str, *rules: str, tls: ssl.SSLContext | None = None, **limits: Any
) -> bytes:
    """What comes of an address; {port} in it and in the rules is the host's."""

    async def run() -> bytes:
        async with host.running() as port:
            hosts = AllowedHosts([rule.format(port=port) for rule in rules])
            fetcher = Fetcher(hosts, FetchLimits(**limits), tls)
            return await fetcher.fetch(address.format(port=port))

    return asyncio.run(run())


def test_an_image_comes_from_a_host_that_was_allowed_with_its_address() -> None:
    host = Host()
    found = fetched(
        host, "http://pictures.test:{port}/a/b.png?c=d#e", "pictures.test:{port}=127.0.0.1"
    )
    assert found == FILE
    (request,) = host.requests
    assert request.startswith(b"GET /a/b.png?c=d HTTP/1.1\r\n")
    assert f"host: pictures.test:{host.port}\r\n".encode() in request
    assert b"cookie" not in request.lower()
    assert b"authorization" not in request.lower()


@pytest.mark.parametrize(
    ("address", "rules", "reason"),
    [
        ("http://127.0.0.1:{port}/", (), "this server fetches no images"),
        ("http://127.0.0.1:{port}/", ("other.test",), "fetches none from 127.0.0.1:"),
        ("http://127.0.0.1:{port}/", ("127.0.0.1",), "fetches none from 127.0.0.1:"),
        ("http://localhost:{port}/", ("localhost:{port}",), "is not a public one"),
        ("http://2130706433:{port}/", ("*:{port}",), "is not a public one"),
        ("http://[::ffff:127.0.0.1]:{port}/", ("*:{port}",), "is not a public one"),
        ("http://0:{port}/", ("*:{port}",), "is not a public one"),
        ("http://name.invalid:{port}/", ("*:{port}",), "is not known"),
        ("http://me:secret@127.0.0.1:{port}/", ("127.0.0.1:{port}",), "holds a user name"),
        ("ftp://127.0.0.1/", ("*",), "must begin with https://"),
        ("file:///etc/passwd", ("*",), "must begin with https://"),
        ("/etc/passwd", ("*",), "must begin with https://"),
        ("http://", ("*",), "must begin with https://"),
        ("http://a:b:c/", ("*",), "its address is none"),
    ],
)
def test_what_is_not_allowed_is_never_asked(
    address: str, rules: tuple[str, ...], reason: str
) -> None:
    host = Host()
    with pytest.raises(InvalidParameter, match=reason.replace("[", r"\[")):
        fetched(host, address, *rules)
    assert host.requests == []


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{other}/",
        "//127.0.0.1:{other}/",
        "http://localhost:{other}/x",
        "file:///x",
    ],
)
def test_a_redirect_to_a_private_host_is_not_followed(target: str) -> None:
    private = Host()

    async def run() -> bytes:
        async with private.running() as other:
            redirect = answer("302 Found", b"", f"location: {target.format(other=other)}")
            async with Host(redirect).running() as port:
                rules = [f"front.test:{port}=127.0.0.1", f"localhost:{other}"]
                return await Fetcher(AllowedHosts(rules)).fetch(f"http://front.test:{port}/")

    with pytest.raises(InvalidParameter, match="cannot be fetched"):
        asyncio.run(run())
    assert private.requests == []


def test_a_redirect_to_an_allowed_host_is_followed() -> None:
    async def run() -> bytes:
        async with Host().running() as last:
            redirect = answer("307 Temporary Redirect", b"", f"location: http://b.test:{last}/x")
            async with Host(redirect).running() as first:
                hosts = AllowedHosts([f"a.test:{first}=127.0.0.1", f"b.test:{last}=127.0.0.1"])
                return await Fetcher(hosts).fetch(f"http://a.test:{first}/")

    assert asyncio.run(run()) == FILE


def test_redirects_in_a_circle_end() -> None:
    host = Host(answer("301 Moved", b"", "location: /again"))
    with pytest.raises(InvalidParameter, match="more than 3 redirects"):
        fetched(host, "http://a.test:{port}/", "a.test:{port}=127.0.0.1")
    assert len(host.requests) == 4


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (answer("404 Not Found"), "answers with status 404"),
        (answer("206 Partial Content"), "answers with status 206"),
        (answer("302 Found", b""), "answers with status 302"),
        (answer("200 OK", FILE, "content-encoding: gzip"), "sends it compressed"),
        (answer("200 OK", bytes(2_000)), "has more than 1,000 bytes"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nfew", "cannot be reached"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", "cannot be reached"),
        (b"", "cannot be reached"),
    ],
)
def test_an_answer_that_is_no_image_is_refused(given: bytes, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        fetched(Host(given), "http://a.test:{port}/", "a.test:{port}=127.0.0.1", num_bytes=1_000)


async def _trickles(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _trickles_its_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _says_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("write", [_trickles, _trickles_its_body, _says_nothing])
def test_a_host_that_takes_its_time_is_left(write: Write) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidParameter, match=r"a\.test takes more than 0\.5 s"):
        fetched(Host(write), "http://a.test:{port}/", "a.test:{port}=127.0.0.1", seconds=0.5)
    assert time.monotonic() - started < 30


def all_come(seconds: float) -> bool:
    """Whether one host is waited for four times in turn, which takes longer than it may each time.

    It takes a little more than a quarter of that.
    """

    async def is_slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds / 3.8)
        writer.write(answer())

    async def run() -> list[bytes]:
        async with Host(is_slow).running() as port:
            hosts = AllowedHosts([f"a.test:{port}=127.0.0.1"])
            fetcher = Fetcher(hosts, FetchLimits(seconds=seconds, at_once=1))
            address = f"http://a.test:{port}/"
            return [*await asyncio.gather(*(fetcher.fetch(address) for _ in range(4)))]

    try:
        return asyncio.run(run()) == [FILE] * 4
    except InvalidParameter:
        return False


def test_waiting_for_others_is_not_held_against_a_host() -> None:
    assert any(map(all_come, (1.9, 7.6, 30.4))), "on a busy machine, a host needs more time"


async def _never_ends(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        await writer.drain()


def test_a_body_without_end_is_left_at_the_limit() -> None:
    with pytest.raises(InvalidParameter, match="has more than 1,000,000 bytes"):
        fetched(
            Host(_never_ends),
            "http://a.test:{port}/",
            "a.test:{port}=127.0.0.1",
            num_bytes=1_000_000,
        )


def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter(["127.0.0.2", "127.0.0.1"])  # what a hostile name server says, one after another
    monkeypatch.setattr(fetching, "is_public", lambda address: address == "127.0.0.2")
    public, private = Host(), Host()

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "rebound.test"
        return [(2, 1, 6, "", (next(answers), port))]

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        async with public.running("127.0.0.2") as port, private.running("127.0.0.1", port):
            hosts = AllowedHosts([f"rebound.test:{port}"])
            return await Fetcher(hosts).fetch(f"http://rebound.test:{port}/")

    assert asyncio.run(run()) == FILE
    assert (len(public.requests), len(private.requests)) == (1, 0)
    assert next(answers) == "127.0.0.1"


@pytest.mark.parametrize(("name", "works"), [("right.test", True), ("wrong.test", False)])
def test_a_certificate_must_be_that_of_the_name(tmp_path: Path, name: str, works: bool) -> None:
    certificate = make_certificate(tmp_path, "right.test")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificate, certificate.with_suffix(".key"))
    ours = ssl.create_default_context(cafile=str(certificate))
    host = Host()

    async def run() -> bytes:
        async with host.running(tls=theirs) as port:
            hosts = AllowedHosts([f"{name}:{port}=127.0.0.1"])
            return await Fetcher(hosts, tls=ours).fetch(f"https://{name}:{port}/")

    if works:
        assert asyncio.run(run()) == FILE
    else:
        with pytest.raises(InvalidParameter, match="cannot be reached"):
            asyncio.run(run())
        assert host.requests == []
