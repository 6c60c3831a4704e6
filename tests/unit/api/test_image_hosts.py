"""Which hosts an operator allows, and which addresses are public."""

from __future__ import annotations

import pytest

from rocmforge.api.images.addresses import read_data
from rocmforge.api.images.hosts import AllowedHosts, is_public
from rocmforge.errors import ConfigurationError, InvalidParameter


@pytest.mark.parametrize(
    ("rule", "scheme", "host", "port"),
    [
        ("example.com", "https", "example.com", None),
        ("Example.COM", "http", "example.com", 80),
        ("example.com:8443", "https", "example.com", 8443),
        ("*.example.com", "https", "a.b.example.com", None),
        ("*", "https", "anything.org", 443),
        ("10.0.0.5", "http", "10.0.0.5", None),
        ("[::1]:8000", "http", "::1", 8000),
    ],
)
def test_a_rule_allows_its_host(rule: str, scheme: str, host: str, port: int | None) -> None:
    assert AllowedHosts([rule]).rule_for(scheme, host, port) is not None


@pytest.mark.parametrize(
    ("rule", "scheme", "host", "port"),
    [
        ("example.com", "https", "www.example.com", None),
        ("example.com", "https", "example.com.evil.org", None),
        ("example.com", "https", "example.com", 8443),
        ("example.com:443", "http", "example.com", None),
        ("*.example.com", "https", "example.com", None),
        ("*.example.com", "https", "evilexample.com", None),
        ("*", "http", "anything.org", 22),
        ("10.0.0.5", "http", "10.0.0.50", None),
    ],
)
def test_a_rule_allows_no_other_host(rule: str, scheme: str, host: str, port: int | None) -> None:
    assert AllowedHosts([rule]).rule_for(scheme, host, port) is None


def test_an_address_is_connected_to_only_where_the_operator_wrote_it() -> None:
    hosts = AllowedHosts(["*", "inside.example=10.1.2.3", "10.0.0.5"])
    found = [hosts.rule_for("http", host, None) for host in ("inside.example", "10.0.0.5", "a.org")]
    assert [rule and rule.address for rule in found] == ["10.1.2.3", "10.0.0.5", None]


@pytest.mark.parametrize(
    "rule",
    ["", "http://example.com", "example.com/", "a b", "host=name", "*=10.0.0.1", "*.a=10.0.0.1"],
)
def test_a_rule_that_makes_no_sense_ends_the_start(rule: str) -> None:
    with pytest.raises(ConfigurationError, match="--image-hosts"):
        AllowedHosts([rule])


@pytest.mark.parametrize(
    "address",
    ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"],
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.3.4", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fec0::1"),
        *("ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2001:0:4136:e378::", "x"),
    ],
)
def test_special_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("data:image/png;base64", "must be written as data:image/png;base64,"),
        ("data:image/png,AAAA", "must be written as data:image/png;base64,"),
        ("data:text/html;base64,AAAA", "is 'text/html', which is not one of image/jpeg"),
        ("data:image/svg+xml;base64,AAAA", "is 'image/svg"),
        ("data:image/png;base64,A", "is not valid base64"),
        ("data:image/png;base64,AAE\nC\nA", "is not valid base64"),
        ("data:image/png;base64,AAA*", "is not valid base64"),
        ("data:image/png;base64,é", "is not valid base64"),
        ("data:image/png;base64," + "A" * 200, "has more than 100 bytes"),
    ],
)
def test_a_data_address_that_holds_no_image_is_refused(address: str, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason.replace("+", r"\+")):
        read_data(address, 100)


@pytest.mark.parametrize(
    "head", ["data:image/png;base64", "DATA:image/JPG;charset=x;BASE64", "data:image/webp ; base64"]
)
def test_a_data_address_holds_its_file(head: str) -> None:
    assert read_data(f"{head},AAEC", 100) == b"\0\1\2"


def test_base64_may_be_written_in_lines() -> None:
    """As `base64` and Python's `encodebytes` do, and browsers read it."""
    assert read_data("data:image/png;base64,AAEC\r\nAw==\n", 100) == b"\0\1\2\3"
