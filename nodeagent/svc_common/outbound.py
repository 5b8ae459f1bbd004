"""Connections to servers that users name: which addresses are allowed, and how they are dialled (against SSRF).

Invariants:
- a name is resolved once per connection, all its addresses are checked, and one of these is dialled: a name that
  resolves differently a moment later gains nothing, and neither does one with a good address among bad ones;
- only addresses of the public Internet, or of a network that the operator allows, are dialled. An address that embeds
  another one (6to4, Teredo, NAT64, IPv4-mapped) is not public, whatever it embeds;
- at this server itself only the port that serves sites is dialled: no other listener here is reachable;
- proxies of the environment are not used.

The node agent has its own version (svc_nodeagent.outbound): it depends on no other package, and follows redirects,
which nothing here does.

Why: docs/decisions/0015-webhooks.md.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpcore
import trio

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Resolves the addresses of a host, in the order to try them. Raises `OSError` if there are none."""

_MOST_ADDRESSES_TRIED: Final = 4
_SECONDS_AN_ADDRESS: Final = 4.0
"""Time limit for connecting to one address if there are others to try."""

_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network: Linux takes 0.0.0.0 for the host itself
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and the metadata service of Alibaba Cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # the metadata service in Azure; elsewhere a public address
        "169.254.0.0/16",  # link-local, and the metadata service of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, and the metadata service of Oracle Cloud
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_UNICAST_6: Final = IPv6Network("2000::/3")
"""All routed addresses. NAT64, IPv4-mapped, unique local, link-local and multicast addresses lie outside."""
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)


class AddressRefused(Exception):  # noqa: N818 - named for what it says
    """The server's address is not allowed."""


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public Internet and embeds no other address (IANA's registries of
    special-purpose addresses, RFC 6890)."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _GLOBAL_UNICAST_6 and not any(address in network for network in _NOT_PUBLIC_6)


def networks(text: str) -> tuple[Network, ...]:
    """Parse networks and addresses separated by commas or spaces. Raises ValueError for anything else."""
    return tuple(ip_network(part) for part in text.replace(",", " ").split())


async def resolve(host: str, port: int) -> list[str]:
    """Resolve with the system's resolver. After a cancellation its thread remains until the resolver gives up."""
    found = await trio.to_thread.run_sync(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), abandon_on_cancel=True, limiter=_resolving()
    )
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


_limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("svc_common.outbound.resolving")


def _resolving() -> trio.CapacityLimiter:
    """A separate limit of threads: a resolver that does not answer must not block other work in threads."""
    try:
        return _limiters.get()
    except LookupError:
        limiter = trio.CapacityLimiter(256)
        _limiters.set(limiter)
        return limiter


@dataclass(frozen=True)
class Outbound:
    """Decides which addresses may be dialled. `allowed`: networks that the operator allows besides the public Internet.
    `sites_port`: the only port that may be dialled at this server's own addresses."""

    allowed: tuple[Network, ...] = ()
    sites_port: int = 443
    resolve: Resolve = resolve

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses to dial for `host`. Raises `AddressRefused` if one of them is not allowed, and OSError for a
        name without any."""
        found = [host] if _is_literal(host) else await self.resolve(host, port)
        for text in found:
            address = ip_address(text.partition("%")[0])
            if any(address.version == network.version and address in network for network in self.allowed):
                continue
            if "%" in text or not is_public(address):
                raise AddressRefused(f"{host} is {text}, which is not an address of the public Internet")
            if port != self.sites_port and _is_own(address, port):
                raise AddressRefused(f"{host} is this server, where port {port} is not one that sites are served at")
        return found


class VettedNetwork(httpcore.AsyncNetworkBackend):
    """Network backend for a connection pool. Certificates are verified, and Host headers set, by the URL's name."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        self._network = httpcore.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises `AddressRefused`, and httpcore's `ConnectError` if no address accepts the connection."""
        try:
            addresses = await self._outbound.addresses(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} has no address: {error.strerror or error}") from error
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        tried = addresses[:_MOST_ADDRESSES_TRIED]
        for address in tried:
            patience = timeout if address == tried[-1] else _SECONDS_AN_ADDRESS
            try:
                return await self._network.connect_tcp(address, port, patience, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_own(address: Address, port: int) -> bool:
    """Whether an address is this server's: the kernel then chooses it as the source, too. Nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), port))
        except OSError:
            return False  # There is no route to the address, so it is not our own.
        return ip_address(probe.getsockname()[0].partition("%")[0]) == address
