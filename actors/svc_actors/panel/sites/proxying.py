"""Where a site of the type proxy may lead.

The name of a target is resolved when it is set, each of its addresses is looked at, and the web server connects to
these alone: a name that leads elsewhere later opens nothing. Customers may name public addresses that are not this
server's; an administrator may name any, a program of this server among them.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

import trio

from svc_actors.errors import invalid
from svc_actors.outbound import is_public, resolve

_RESOLVE_SECONDS: Final = 10.0
_MOST_ADDRESSES: Final = 16

IPAddress = IPv4Address | IPv6Address


async def proxy_addresses(target: str, *, anywhere: bool) -> list[IPAddress]:
    """The addresses of a target such as `https://shop.example.org:8443`. Raises `invalid`."""
    host = _host(target)
    addresses = await _addresses(host)
    for address in addresses:
        if not anywhere and (not is_public(address) or _is_own(address)):
            raise invalid(
                f"The target {host} is {address}, which no site may be a proxy of.",
                hint="Give a server of the public Internet. An administrator may give any.",
            )
    return addresses


def _host(target: str) -> str:
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise invalid(f"The target is no URL: {error}.") from None
    if host is None or port == 0:
        raise invalid("The target is no URL of a server.", hint="Give one such as https://app.example.org:8443.")
    return host


async def _addresses(host: str) -> list[IPAddress]:
    try:
        return [ip_address(host)]
    except ValueError:
        pass
    try:
        with trio.fail_after(_RESOLVE_SECONDS):
            found = await resolve(host, 0)
    except (OSError, trio.TooSlowError):
        raise invalid(f"The target {host} has no address.", hint="Check the name, and its DNS records.") from None
    return [ip_address(text.partition("%")[0]) for text in found[:_MOST_ADDRESSES]]


def _is_own(address: IPAddress) -> bool:
    """Whether this server has the address: one that it has not cannot be bound to."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
