"""The other end of a connection: an address of a network, or a process of this server.

Over the service's own Unix socket the kernel says which account connected (SO_PEERCRED, unix(7)). Root is the server's
administrator. The web tier's account has no authority of its own: it passes on requests of others, with the address
that each came from. Any other account is disconnected before a byte is read.
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
"""The process at the other end of the connection that the current task serves; None for a network connection."""


def peer_uid(connected: socket.socket) -> int:
    """The account of the process at the other end of a Unix socket, when it connected."""
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)
