"""HTTP to servers that somebody else named: publishers of images and of their checksums.

Invariants, at the first request and at every redirect:

- the addresses that a name resolves to are checked, and one of exactly these is dialled, so that a name which resolves
  differently a moment later changes nothing. Only addresses of the public Internet, and of networks that the operator
  allows, are dialled: the server's owner must not reach the loopback interface of this host, or the network behind it,
  through us;
- a response is never decompressed. We do not ask for a Content-Encoding, and 1 kB that was compressed may become a
  gigabyte;
- proxies and credentials of the environment are not used.

The agent and the controller share this module; it depends on neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpx
import trio

Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host, in the order in which to try them. Raises `OSError` if there are none."""

CONNECT_SECONDS: Final = 10.0
MOST_REDIRECTS: Final = 5
_MOST_ADDRESSES_TRIED: Final = 4
_EMBEDDED_IPV4: Final = ip_network("64:ff9b::/96")
"""Addresses with which a NAT64 gateway reaches the IPv4 address in their last 32 bits (RFC 6052)."""
_ROUTED_IPV6: Final = ip_network("2000::/3")
"""The routed range. Python also considers embedded IPv4 (::127.0.0.1) and site-local addresses global."""
_AZURE: Final = ip_address("168.63.129.16")
"""The metadata service of Azure, at a public address."""


class AddressRefused(httpx.RequestError):
    """The server's address, or one that it redirects to, is not allowed."""


async def resolve(host: str, port: int) -> list[str]:
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def client(
    *,
    timeout: float,
    allowed: Sequence[Network] = (),
    https_only: bool = False,
    resolve: Resolve = resolve,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """A client that follows redirects and keeps the invariants. `timeout`: seconds of silence that end a request.
    `https_only`: for content that is trusted because of its sender. `transport` replaces the network in tests."""
    guarded = _Guarded(transport or httpx.AsyncHTTPTransport(trust_env=False), resolve, tuple(allowed), https_only)
    return httpx.AsyncClient(
        transport=guarded,
        timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
        follow_redirects=True,
        max_redirects=MOST_REDIRECTS,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
    )


class _Guarded(httpx.AsyncBaseTransport):
    """Called once for each request of a chain of redirects."""

    def __init__(
        self, network: httpx.AsyncBaseTransport, resolve: Resolve, allowed: tuple[Network, ...], https_only: bool
    ) -> None:
        self._network = network
        self._resolve = resolve
        self._allowed = allowed
        self._https_only = https_only

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._https_only and request.url.scheme != "https":
            raise AddressRefused(f"{request.url.host} is only contacted by TLS", request=request)
        response = await self._dial(request, await self._addresses(request))
        # Names of codings are the same in any case (RFC 9110, section 8.4.1), and an empty field names none.
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            await response.aclose()
            raise httpx.DecodingError("the server sent a compressed answer, which was not requested", request=request)
        return response

    async def aclose(self) -> None:
        await self._network.aclose()

    async def _addresses(self, request: httpx.Request) -> list[str]:
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        try:
            with trio.fail_after(CONNECT_SECONDS):
                addresses = await self._resolve(host, port)
        except (OSError, trio.TooSlowError) as error:
            raise httpx.ConnectError(f"{host} has no address: {error}", request=request) from error
        for address in addresses:
            if not self._permits(address):
                raise AddressRefused(
                    f"{host} is {address}, which is not an address of the public Internet", request=request
                )
        return addresses

    def _permits(self, text: str) -> bool:
        address = ip_address(text.partition("%")[0])
        return is_public(address) or any(
            address.version == network.version and address in network for network in self._allowed
        )

    async def _dial(self, request: httpx.Request, addresses: list[str]) -> httpx.Response:
        """Send the request to the first address that accepts a connection. Host header and certificate stay the
        name's."""
        failure: httpx.TransportError = httpx.ConnectError("the name has no address", request=request)
        for address in addresses[:_MOST_ADDRESSES_TRIED]:
            dialled = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": request.url.host},
            )
            try:
                return await self._network.handle_async_request(dialled)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the public Internet, including an IPv4 address embedded in it."""
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if embedded is None and address in _EMBEDDED_IPV4:
            embedded = IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(embedded)
        if address not in _ROUTED_IPV6:
            return False
    return address.is_global and not address.is_multicast and address != _AZURE
