"""What a service has of its supervisor, systemd or what speaks as it does.

It is told how the service is (sd_notify(3)), and keeps the listening socket of one that is being restarted
(sd_listen_fds(3); FileDescriptorStoreMax= in systemd.service(5)).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

_FIRST_PASSED: Final = 3


def tell_supervisor(environ: Mapping[str, str], state: str) -> None:
    """Send `state`, such as `READY=1`, to the socket of NOTIFY_SOCKET; without one nobody asked to be told."""
    _send(environ, state, [])


class KeptListener:
    """The listening socket `name`, kept while the service is restarted: who connects meanwhile waits instead of being
    refused, and nobody else takes the port. A service that is stopped gives it up. Nothing is kept, and nothing is
    otherwise different, where nobody supervises or the unit has no room for it."""

    def __init__(self, environ: Mapping[str, str], name: str) -> None:
        """Before any program is started, which would hold the socket as well."""
        self._environ = environ
        self._name = name
        self._passed = _passed(environ).get(name)
        if self._passed is not None:
            os.set_inheritable(self._passed, False)

    def bind(self, address: str) -> str:
        """What hypercorn listens on for `address`, a host and a port: the socket that was kept, where it is of that
        address, as `fd://3`."""
        passed, self._passed = self._passed, None
        if passed is None:
            return address
        with socket.socket(fileno=os.dup(passed)) as listener:
            host, port = listener.getsockname()[:2]
        if f"{host}:{port}" == address.replace("[", "").replace("]", ""):
            return f"fd://{passed}"
        # The settings have changed.
        os.close(passed)
        _send(self._environ, f"FDSTOREREMOVE=1\nFDNAME={self._name}", [])
        return address

    def keep(self, listener: socket.socket) -> None:
        """Of the same socket one more is not kept."""
        _send(self._environ, f"FDSTORE=1\nFDNAME={self._name}", [listener.fileno()])


def _passed(environ: Mapping[str, str]) -> dict[str, int]:
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    names = environ.get("LISTEN_FDNAMES", "").split(":")[: int(environ.get("LISTEN_FDS", "0"))]
    return {name: descriptor for descriptor, name in enumerate(names, _FIRST_PASSED)}


def _send(environ: Mapping[str, str], state: str, descriptors: list[int]) -> None:
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        # A leading @ is an abstract address, which begins with a zero byte (unix(7)).
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        socket.send_fds(channel, [state.encode()], descriptors)
