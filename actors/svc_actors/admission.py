"""Who may hold a connection: so many in all, and no more than a share of them from one place.

A listener that lets in whoever comes is closed to everybody by one that comes a thousand times and says nothing. Past
a bound the connection that has been idle longest makes room for the new one, at first among those from the same place;
where none is idle the new one is not let in. Invariants:

- what is at work is never ended for a newcomer;
- letting in and making room cost the same however many there are.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from typing import Final

MOST_DESCRIPTORS: Final = 65_536
"""What is asked of the kernel at the start. A service with a thousand nodes and some thousand browsers has 10,000."""
MOST_CONNECTIONS: Final = 10_000
"""Of the API. One with TLS and h2 takes some 100 kB, so this is a gigabyte."""
MOST_UNPROVEN: Final = 2_000
"""Of the gateway: connections that have not shown a node's certificate yet; and those that have, and no hello yet."""
MOST_ARRIVING: Final = 4
"""Of one node, that have not said hello yet. An agent has one; each may have sent 4 MiB of a frame that is no end."""
MOST_STREAMS: Final = 8_192
MOST_STREAMS_OF_ONE: Final = 256
"""Consoles, files and moves of one node. A stream holds a descriptor and up to half a megabyte."""

_IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"


class Admission:
    """`most` connections in all, `of_one` from one place (see `place_of`), which may be a node's id as well."""

    def __init__(self, most: int, of_one: int) -> None:
        self._most = most
        self._of_one = of_one
        self._places: dict[str, _Place] = {}
        self._idle: dict[Seat, None] = {}
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def enter(self, address: str, evict: Callable[[], None]) -> Seat | None:
        """A seat for a connection from `address`, or None when there is no room. `evict` is called when the connection,
        while idle, has to make room: it must end it, and neither block nor raise."""
        key = place_of(address)
        place = self._places.get(key)
        if place is not None and place.held >= self._of_one:
            if not place.idle:
                return None
            self._make_room(next(iter(place.idle)))
        elif self._held >= self._most:
            if not self._idle:
                return None
            self._make_room(next(iter(self._idle)))
        place = self._places.setdefault(key, _Place(key))
        place.held += 1
        self._held += 1
        seat = Seat(self, place, evict)
        seat.idle()
        return seat

    def _make_room(self, seat: Seat) -> None:
        seat.leave()
        seat.evict()


class _Place:
    __slots__ = ("held", "idle", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.held = 0
        self.idle: dict[Seat, None] = {}


class Seat:
    """One connection's, idle until it says otherwise. `leave` may be repeated."""

    __slots__ = ("_admission", "_left", "_place", "evict")

    def __init__(self, admission: Admission, place: _Place, evict: Callable[[], None]) -> None:
        self._admission = admission
        self._place = place
        self._left = False
        self.evict = evict

    def idle(self) -> None:
        """From now on it may be ended for another's sake. The longest idle goes first."""
        if not self._left:
            self.busy()
            self._place.idle[self] = self._admission._idle[self] = None

    def busy(self) -> None:
        self._place.idle.pop(self, None)
        self._admission._idle.pop(self, None)

    def leave(self) -> None:
        if self._left:
            return
        self.busy()
        self._left = True
        self._place.held -= 1
        self._admission._held -= 1
        if not self._place.held:
            del self._admission._places[self._place.key]


def place_of(address: str) -> str:
    """Whom an address stands for: an IPv4 address for itself, an IPv6 address for its /64, which is the least that one
    subscriber has (RFC 6177). What is no address is a place of its own."""
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
    """Ask the kernel for as many descriptors as it gives, up to `MOST_DESCRIPTORS`; gives how many there are now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MOST_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def of_clients() -> Admission:
    """For the API: half of the descriptors at most, so that nodes, the database and files have theirs; a quarter of
    that from one place."""
    most = min(MOST_CONNECTIONS, _descriptors() // 2)
    return Admission(most, max(1, most // 4))


def of_strangers() -> Admission:
    """For those at the gateway who have not proven to be a node: an eighth of the descriptors at most, half of that
    from one place, since a thousand nodes may come back at once from behind one address."""
    most = min(MOST_UNPROVEN, _descriptors() // 8)
    return Admission(most, max(1, most // 2))


def of_arriving_nodes() -> Admission:
    """For connections at the gateway that have proven to be a node's and have not said hello."""
    return Admission(min(MOST_UNPROVEN, _descriptors() // 8), MOST_ARRIVING)


def of_streams() -> Admission:
    """For streams that nodes have opened: a quarter of the descriptors at most."""
    most = min(MOST_STREAMS, _descriptors() // 4)
    return Admission(most, min(MOST_STREAMS_OF_ONE, max(1, most // 2)))


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
