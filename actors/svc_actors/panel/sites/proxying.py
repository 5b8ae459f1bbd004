"""Allowed targets of a site of type proxy.

When a target is set, its name is resolved, each of the addresses is checked, and the web server connects only to these
addresses: if the name points elsewhere later, that gives no access. Customers may name public addresses, but neither
addresses of this server nor names of its sites, because these would be a proxy loop. An administrator may name any
target, including programs on this server.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import trio
from pydantic import TypeAdapter

from svc_actors.store import Queryable
from svc_common.errors import invalid
from svc_common.outbound import is_public, resolve
from svc_webhost.nginx import ProxyHost

_RESOLVE_SECONDS: Final = 10.0
_MOST_ADDRESSES: Final = 16
_HOSTS: Final[TypeAdapter[Any]] = TypeAdapter(ProxyHost)

IPAddress = IPv4Address | IPv6Address


async def proxy_addresses(
    queryable: Queryable, target: str, own: Collection[IPAddress], *, names: Collection[str] = (), anywhere: bool
) -> list[IPAddress]:
    """The addresses of a target such as `https://shop.example.org:8443`. `own`: this server's public addresses, which
    behind NAT are not on its own interfaces; `names`: names that the site is about to get. Raises `invalid`."""
    host = _host(target)
    if not anywhere and (host in names or await _is_site(queryable, host)):
        raise invalid(
            f"The target {host} is a site of this server itself: proxy loop.",
            hint="Give the server that hosts the site.",
        )
    addresses = await _addresses(host)
    for address in addresses:
        if not anywhere and (not is_public(address) or address in own or _is_own(address)):
            raise invalid(
                f"The target {host} is {address}, which sites may not proxy to.",
                hint="Give a server of the public Internet. An administrator may give any.",
            )
    return addresses


def _host(target: str) -> str:
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise invalid(f"The target is not a URL: {error}.") from None
    if host is None or port == 0:
        raise invalid("The target is not the URL of a server.", hint="Give one such as https://app.example.org:8443.")
    _check_host(host)
    return host


def _check_host(host: str) -> None:
    """Accepts an address in its usual form, or a name that cannot be an address: the system's resolver would also take
    16909060 and 1.2.0x304 as addresses."""
    try:
        ip_address(host)
    except ValueError:
        pass
    else:
        return
    last = host.rpartition(".")[2]
    try:
        _HOSTS.validate_python(host)
    except ValueError:
        is_name = False
    else:
        is_name = not (last.isdigit() or last.startswith("0x"))
    if not is_name:
        raise invalid(
            f"The target {host} is neither a domain name nor an address.",
            hint="Give a name of at least two labels, or an address: http://127.0.0.1:3000 for http://localhost:3000.",
        )


async def _is_site(queryable: Queryable, host: str) -> bool:
    return bool(await queryable.fetchval("SELECT EXISTS (SELECT FROM site_domains WHERE name = $1)", host))


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
    """Whether this server has the address: binding fails for any other."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
