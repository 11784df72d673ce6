"""Which hosts and addresses an HTTP tool may reach (SSRF: a model chooses the URL). Pure.

A host is reached because the operator listed it, an address because it is a public one or lies in a network the operator listed: a
listed name that resolves to the inside of the operator's own network reaches nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast
from urllib.parse import SplitResult, urlsplit

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
MAX_LISTED: Final = 1_000
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER_PUBLIC: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in (
        # Special-purpose registries of IPv4 and IPv6: what counts as global in `ipaddress` changes with the release of Python.
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
        "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
        "203.0.113.0/24", "224.0.0.0/3",
        "::/8", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
        "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
)  # fmt: skip


class NotAllowed(ValueError):
    """A URL or address that is not to be reached; the text says why, and is safe to tell."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be fetched from the addresses that `check_address` admits."""

    scheme: str
    host: str
    port: int
    path: str
    """With the query; never empty."""

    @property
    def authority(self) -> str:
        """As the Host header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AllowList:
    """What an operator allows. A host is a name, `*.` and a name for everything below it, or an address; with `:port` where it is not 80 or 443."""

    hosts: frozenset[str]
    networks: tuple[Network, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> AllowList:
        """From the tool's settings: `hosts` and `networks`. Errors: `NotAllowed` for settings that cannot be meant."""
        hosts = [text.lower().rstrip(".") for text in _texts(settings, "hosts")]
        if not hosts:
            raise NotAllowed("The operator allows no host: list some under settings.hosts of the tool.")
        try:
            return cls(frozenset(hosts), tuple(ipaddress.ip_network(text) for text in _texts(settings, "networks")))
        except ValueError:
            raise NotAllowed("A network under settings.networks of the tool is none.") from None

    def target(self, url: str) -> Target:
        """The URL, if its host is listed. Errors: `NotAllowed`."""
        parts = _split(url)
        host, port = (parts.hostname or "").lower().rstrip("."), parts.port or DEFAULT_PORTS[parts.scheme]
        if not host or not host.isascii():
            raise NotAllowed("The URL has no host, or one that is not ASCII.")
        default = port == DEFAULT_PORTS[parts.scheme]
        shown = f"[{host}]" if ":" in host else host
        above = host.split(".")
        names = {shown, host, *(f"*.{'.'.join(above[number:])}" for number in range(1, len(above)))}
        wanted = {f"{name}:{port}" for name in names} | (names if default else set[str]())
        if not wanted & self.hosts:
            raise NotAllowed("The operator does not allow this host and port.")
        path = parts.path or "/"
        return Target(parts.scheme, host, port, f"{path}?{parts.query}" if parts.query else path)

    def check_address(self, text: str) -> str:
        """The address, if it may be connected to. Errors: `NotAllowed` for one that is not public and in no listed network."""
        address = ipaddress.ip_address(text.partition("%")[0])
        for one in (address, *_embedded(address)):
            listed = any(one in network for network in self.networks if network.version == one.version)
            special = any(one in network for network in _NEVER_PUBLIC if network.version == one.version)
            if not listed and (special or not one.is_global or one.is_reserved):
                raise NotAllowed("The host has an address that is not public.")
        return str(address)


def _embedded(address: Address) -> list[Address]:
    """The IPv4 addresses that reaching this IPv6 address may come to."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
    if address.teredo is not None:
        found += address.teredo
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in found if one is not None]


def _split(url: str) -> SplitResult:
    if any(character.isspace() or ord(character) < 0x20 or character == "\\" for character in url):
        raise NotAllowed("The URL holds blanks, control characters or backslashes.")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise NotAllowed("The URL cannot be read.") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise NotAllowed("The URL must begin with https:// or http://.")
    if parts.username is not None or parts.password is not None:
        raise NotAllowed("The URL must hold no credentials.")
    return parts


def _texts(settings: Mapping[str, Any], name: str) -> list[str]:
    given: Any = settings.get(name, [])
    if not isinstance(given, list):
        raise NotAllowed(f"settings.{name} of the tool is no list.")
    found = cast("list[object]", given)[:MAX_LISTED]
    if not all(isinstance(item, str) for item in found):
        raise NotAllowed(f"settings.{name} of the tool is no list of texts.")
    return cast("list[str]", found)
