"""The hosts that images may be fetched from, and the addresses that nothing is fetched from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final, Self

from rocmforge.errors import ConfigurationError

ALL: Final = "*"
PORTS: Final = {"http": 80, "https": 443}

_NAT64: Final = IPv6Network("64:ff9b::/96")
_RULE: Final = re.compile(
    r"(?P<host>\*|(?:\*\.)?[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]+))?(?:=(?P<address>.+))?"
)


@dataclass(frozen=True, slots=True)
class HostRule:
    """A host that is allowed."""

    host: str  # a name, an address, *.name for all names that end like this, or *
    port: int | None  # None: that of the scheme
    address: str | None  # to connect to, whatever it is; None: a public one that the name has

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads HOST[:PORT][=ADDRESS].

        Raises:
            ConfigurationError: it is not written so.
        """
        found = _RULE.fullmatch(text.lower())
        if found is None:
            raise ConfigurationError(
                f"--image-hosts {text}: write a host as NAME, *.NAME, NAME:PORT, NAME=ADDRESS or "
                "ADDRESS, or * for all public ones."
            )
        host = found["host"].strip("[]")
        address = found["address"]
        if address is None and _is_address(host):
            address = host
        elif address is not None and not _is_address(address):
            raise ConfigurationError(f"--image-hosts {text}: {address} is no address.")
        elif address is not None and host.startswith(ALL):
            raise ConfigurationError(f"--image-hosts {text}: one host only can have an address.")
        return cls(host, None if found["port"] is None else int(found["port"]), address)

    def allows(self, scheme: str, host: str, port: int | None) -> bool:
        """Returns whether this is the host of an address; `port` as it stands there."""
        wanted = PORTS[scheme] if self.port is None else self.port
        if (PORTS[scheme] if port is None else port) != wanted:
            return False
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return self.host in (ALL, host)


class AllowedHosts:
    """Hosts that an operator allows. Immutable."""

    def __init__(self, rules: Sequence[str] = ()) -> None:
        """Reads the rules. Raises ConfigurationError."""
        self._rules = tuple(HostRule.parse(rule) for rule in rules)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def rule_for(self, scheme: str, host: str, port: int | None) -> HostRule | None:
        """Returns what allows a host: rather a rule that says an address; None if nothing does."""
        found = [rule for rule in self._rules if rule.allows(scheme, host, port)]
        return max(found, key=lambda rule: rule.address is not None, default=None)


def is_public(address: str) -> bool:
    """Returns whether an address is one of the internet, and not of a network or host of its own.

    Addresses that hold one of IPv4 are as public as that.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False  # with a zone, fe80::1%eth0
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip in _NAT64:
            ip = IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip.sixtofour is not None or ip.teredo is not None or ip.is_site_local:
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
