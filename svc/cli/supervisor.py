"""What a service has of its supervisor, systemd or what speaks as it does.

It is told how the service is (sd_notify(3)), and keeps the listening sockets of one that is being restarted
(sd_listen_fds(3); FileDescriptorStoreMax= in systemd.service(5)).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

_FIRST_PASSED: Final = 3


def tell_supervisor(environ: Mapping[str, str], state: str) -> None:
    """Send `state`, such as `READY=1`, to the socket of NOTIFY_SOCKET; without one nobody asked to be told."""
    _send(environ, state, [])


class KeptListener:
    """The listening sockets `name`, kept while the service is restarted: who connects meanwhile waits instead of being
    refused, and nobody else takes the port. They come from a socket unit, or are those that an earlier process of the
    service bound. A service that is stopped gives up what it bound itself. Nothing is kept, and nothing is otherwise
    different, where nobody supervises or the unit has no room for it."""

    def __init__(self, environ: Mapping[str, str], name: str) -> None:
        """Before any program is started, which would hold the sockets as well."""
        self._environ = environ
        self._name = name
        self._passed = _passed(environ).get(name, [])
        for descriptor in self._passed:
            os.set_inheritable(descriptor, False)

    def bind(self, addresses: Sequence[str]) -> list[str]:
        """What hypercorn listens on for these addresses, each a host and a port: a socket that was kept, where there is
        one of that address, as `fd://3`."""
        kept = {_address(descriptor): descriptor for descriptor in self._passed}
        bound = [kept.pop(address.replace("[", "").replace("]", ""), None) for address in addresses]
        others = [descriptor for descriptor in self._passed if descriptor not in bound]
        self._passed = []
        if others:
            # The settings have changed; or two are of one address, and one is enough.
            for descriptor in others:
                os.close(descriptor)
            _send(self._environ, f"FDSTOREREMOVE=1\nFDNAME={self._name}", [])
        return [
            address if descriptor is None else f"fd://{descriptor}"
            for address, descriptor in zip(addresses, bound, strict=True)
        ]

    def keep(self, listeners: Sequence[socket.socket]) -> None:
        """Of the same socket one more is not kept."""
        _send(self._environ, f"FDSTORE=1\nFDNAME={self._name}", [listener.fileno() for listener in listeners])


def _address(descriptor: int) -> str:
    with socket.socket(fileno=os.dup(descriptor)) as listener:
        host, port = listener.getsockname()[:2]
    return f"{host}:{port}"


def _passed(environ: Mapping[str, str]) -> dict[str, list[int]]:
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    names = environ.get("LISTEN_FDNAMES", "").split(":")[: int(environ.get("LISTEN_FDS", "0"))]
    passed: dict[str, list[int]] = {}
    for descriptor, name in enumerate(names, _FIRST_PASSED):
        passed.setdefault(name, []).append(descriptor)
    return passed


def _send(environ: Mapping[str, str], state: str, descriptors: list[int]) -> None:
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        # A leading @ is an abstract address, which begins with a zero byte (unix(7)).
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        socket.send_fds(channel, [state.encode()], descriptors)
