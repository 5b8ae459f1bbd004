"""The other end of a connection: an address of a network, or a process of this server.

Over the service's own Unix socket the kernel says who connected (SO_PEERCRED, unix(7)), so nothing needs to be trusted:
root is the server's administrator; the web tier's account passes on the requests of others, has no authority of its
own, and says from which address they come; any other account is disconnected before a byte is read.
"""

from __future__ import annotations

import socket
import struct
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CLIENT_HEADER: Final = b"x-service-client"
"""The header in which the web tier passes the client's address."""
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


class PeerKind(StrEnum):
    ROOT = "root"
    WEB = "web"


@dataclass(frozen=True)
class Peer:
    """A process of this server."""

    kind: PeerKind
    uid: int


PEER: ContextVar[Peer | None] = ContextVar("peer", default=None)
"""Of the connection that the running task serves; None for one over a network."""


def peer_uid(connected: socket.socket) -> int:
    """The account of the process at the other end of a Unix socket, when it connected."""
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
