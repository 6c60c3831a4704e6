"""Fetches images from hosts that the operator allows, and from nowhere else.

A name is resolved once, its addresses are checked, and the connection goes to a checked one: a name
that means something else a moment later (DNS rebinding) changes nothing. Redirects are looked at in
the same way, each. No proxy, no cookie and no credential takes part.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Final

import httpx2

from rocmforge import __version__
from rocmforge.api.images.hosts import PORTS, AllowedHosts, is_public
from rocmforge.errors import InvalidParameter

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_HEADERS: Final = {
    "accept": "image/jpeg, image/png, image/webp, image/gif",
    "accept-encoding": "identity",  # what is unpacked could be of any size
    "user-agent": f"rocmforge/{__version__}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """The most that an image may take."""

    num_bytes: int = 32 * 1024 * 1024
    seconds: float = 10.0  # with all redirects
    redirects: int = 3
    at_once: int = 16  # of all requests


class Fetcher:
    """Fetches images. Mutable: it counts those under way.

    Args:
        hosts: that are allowed.
        limits: of each image.
        tls: how certificates are checked, if not as everywhere.
    """

    def __init__(
        self,
        hosts: AllowedHosts,
        limits: FetchLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = hosts
        self._limits = limits or FetchLimits()
        self._slots = asyncio.Semaphore(self._limits.at_once)
        self._tls = tls

    async def fetch(self, address: str) -> bytes:
        """Fetches a file.

        Args:
            address: http: or https:.

        Raises:
            InvalidParameter: it is not allowed, too large, too slow or not there. The message goes
                on after "the image".
        """
        url = _parsed(address)
        self._given(url)  # before anything is waited for
        try:
            async with self._slots, asyncio.timeout(self._limits.seconds):
                for _ in range(1 + self._limits.redirects):
                    found = await self._get(url)
                    if isinstance(found, bytes):
                        return found
                    url = found
        except TimeoutError:
            raise _cannot(f"{url.host} takes more than {self._limits.seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError) as error:
            raise _cannot(f"{url.host} cannot be reached ({type(error).__name__})") from None
        raise _cannot(f"there are more than {self._limits.redirects} redirects")

    async def _get(self, url: httpx2.URL) -> bytes | httpx2.URL:
        """Returns what is there, or where it is instead."""
        failed: httpx2.HTTPError | None = None
        for address in await self._addresses(url):
            # One connection each: none is taken that was made for another name.
            transport = httpx2.AsyncHTTPTransport(
                verify=self._context(url.scheme), trust_env=False, retries=0
            )
            request = httpx2.Request(
                "GET",
                url.copy_with(host=address, fragment=None),
                headers={**_HEADERS, "host": url.netloc.decode("ascii")},
                extensions={
                    "sni_hostname": url.raw_host.decode("ascii"),
                    "timeout": httpx2.Timeout(self._limits.seconds).as_dict(),
                },
            )
            async with transport:
                try:
                    response = await transport.handle_async_request(request)
                except httpx2.ConnectError as error:
                    failed = error
                    continue
                try:
                    return await self._taken(url, response)
                finally:
                    await response.aclose()
        assert failed is not None, "every name has an address"
        raise failed

    async def _taken(self, url: httpx2.URL, response: httpx2.Response) -> bytes | httpx2.URL:
        if response.status_code in _REDIRECTS and "location" in response.headers:
            return _parsed(str(url.join(response.headers["location"])))
        if response.status_code != 200:
            raise _cannot(f"{url.host} answers with status {response.status_code}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise _cannot(f"{url.host} sends it compressed, which was not asked for")
        most = self._limits.num_bytes
        data = bytearray()
        async for part in response.aiter_raw():
            data += part
            if len(data) > most:
                raise InvalidParameter(f"has more than {most:,} bytes")
        return bytes(data)

    async def _addresses(self, url: httpx2.URL) -> tuple[str, ...]:
        """Returns where a host may be reached."""
        given = self._given(url)
        if given is not None:
            return (given,)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(url.raw_host.decode("ascii"), url.port)
        except (OSError, UnicodeError):
            raise _cannot(f"the host {url.host} is not known") from None
        addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not addresses or not all(map(is_public, addresses)):
            raise _cannot(f"the host {url.host} is not a public one")
        return addresses

    def _given(self, url: httpx2.URL) -> str | None:
        """Returns the address that the operator gave a host, if any. Raises InvalidParameter."""
        host = url.raw_host.decode("ascii").lower().rstrip(".")
        rule = self._hosts.rule_for(url.scheme, host, url.port)
        if rule is None:
            place = url.netloc.decode("ascii")
            what = f"fetches none from {place}" if self._hosts else "fetches no images"
            raise _cannot(
                f"this server {what} (its operator allows hosts with --image-hosts). "
                "Send it as a data: address"
            )
        return rule.address

    def _context(self, scheme: str) -> ssl.SSLContext | bool:
        """Returns how certificates are checked, which takes a while; only https: has some."""
        if self._tls is None and scheme == "https":
            self._tls = httpx2.create_ssl_context()
        return False if self._tls is None else self._tls


def _parsed(address: str) -> httpx2.URL:
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL:
        raise _cannot("its address is none") from None
    if url.scheme not in PORTS or not url.host:
        raise _cannot(
            "its address must begin with https:// or http://. Send an image of your own as "
            "a data: address (data:image/png;base64,...)"
        )
    if url.userinfo:
        raise _cannot("its address holds a user name or password")
    return url


def _cannot(reason: str) -> InvalidParameter:
    return InvalidParameter(f"cannot be fetched: {reason}")
