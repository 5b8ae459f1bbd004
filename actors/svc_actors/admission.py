"""Limits connections: a total number, and a share of it for each source address.

Without a limit, a single client that opens a thousand idle connections closes a listener to all others. At a limit, an
idle connection is closed to make room for the new one. The longest idle connection is chosen, if possible one of the
same source. If no connection is idle, the new one is refused. Invariants:

- a busy connection is never closed for a new one;
- admission and eviction take constant time, however many connections there are.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from typing import Final

MOST_DESCRIPTORS: Final = 65_536
"""Requested from the kernel at the start. A service with a thousand nodes and some thousand browsers uses 10,000."""
MOST_CONNECTIONS: Final = 10_000
"""The most connections of the API. A connection with TLS and HTTP/2 takes some 100 kB, so this is a gigabyte."""
MOST_UNPROVEN: Final = 2_000
"""The most connections of the gateway that have shown no node's certificate yet; and, counted separately, the most with
a certificate that have sent no hello yet."""
MOST_ARRIVING: Final = 4
"""Connections of one node without a hello. An agent has one; each may hold 4 MiB of an incomplete frame."""
MOST_STREAMS: Final = 8_192
MOST_STREAMS_OF_ONE: Final = 256
"""Consoles, file transfers and migrations of one node. A stream holds a descriptor and up to half a megabyte."""

_IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"


class Admission:
    """Admits at most `most` connections, and `of_one` from one source: what `source_of` gives for an address, or a
    node's id."""

    def __init__(self, most: int, of_one: int) -> None:
        self._most = most
        self._of_one = of_one
        self._sources: dict[str, _Source] = {}
        self._idle: dict[ConnectionSlot, None] = {}
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def enter(self, address: str, evict: Callable[[], None]) -> ConnectionSlot | None:
        """A slot for a connection from `address`, or None if there is no room. `evict` is called when the idle
        connection has to make room: it must close the connection, and neither block nor raise."""
        key = source_of(address)
        source = self._sources.get(key)
        if source is not None and source.held >= self._of_one:
            if not source.idle:
                return None
            self._make_room(next(iter(source.idle)))
        elif self._held >= self._most:
            if not self._idle:
                return None
            self._make_room(next(iter(self._idle)))
        source = self._sources.setdefault(key, _Source(key))
        source.held += 1
        self._held += 1
        slot = ConnectionSlot(self, source, evict)
        slot.idle()
        return slot

    def _make_room(self, slot: ConnectionSlot) -> None:
        slot.leave()
        slot.evict()


class _Source:
    __slots__ = ("held", "idle", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.held = 0
        self.idle: dict[ConnectionSlot, None] = {}


class ConnectionSlot:
    """The slot of one connection, idle until `busy` is called. `leave` may be repeated."""

    __slots__ = ("_admission", "_left", "_source", "evict")

    def __init__(self, admission: Admission, source: _Source, evict: Callable[[], None]) -> None:
        self._admission = admission
        self._source = source
        self._left = False
        self.evict = evict

    def idle(self) -> None:
        """Mark the connection as idle: it may be closed for a new one. The connection that has been idle longest is
        closed first."""
        if not self._left:
            self.busy()
            self._source.idle[self] = self._admission._idle[self] = None

    def busy(self) -> None:
        self._source.idle.pop(self, None)
        self._admission._idle.pop(self, None)

    def leave(self) -> None:
        if self._left:
            return
        self.busy()
        self._left = True
        self._source.held -= 1
        self._admission._held -= 1
        if not self._source.held:
            del self._admission._sources[self._source.key]


def source_of(address: str) -> str:
    """The source that an address counts for: an IPv4 address itself; the /64 of an IPv6 address, the least that one
    subscriber has (RFC 6177). Text that is not an address is a source of its own."""
    if ":" not in address:
        return address
    try:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except OSError:
        return address
    if packed.startswith(_IPV4_MAPPED):
        return socket.inet_ntoa(packed[len(_IPV4_MAPPED) :])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"


def raise_descriptor_limit() -> int:
    """Raise the limit as far as the kernel allows, up to `MOST_DESCRIPTORS`; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MOST_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def of_clients() -> Admission:
    """The limits of the API's connections: at most half of the descriptors, so that some remain for nodes, the database
    and files; a quarter of that per source."""
    most = min(MOST_CONNECTIONS, _descriptors() // 2)
    return Admission(most, max(1, most // 4))


def of_unauthenticated() -> Admission:
    """The limits of connections at the gateway without a node's certificate: at most an eighth of the descriptors, half
    of that per source, since a thousand nodes may come back at once from behind one address."""
    most = min(MOST_UNPROVEN, _descriptors() // 8)
    return Admission(most, max(1, most // 2))


def of_arriving_nodes() -> Admission:
    """The limits of connections at the gateway with a node's certificate that have sent no hello yet."""
    return Admission(min(MOST_UNPROVEN, _descriptors() // 8), MOST_ARRIVING)


def of_streams() -> Admission:
    """The limits of streams that nodes have opened: at most a quarter of the descriptors."""
    most = min(MOST_STREAMS, _descriptors() // 4)
    return Admission(most, min(MOST_STREAMS_OF_ONE, max(1, most // 2)))


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
