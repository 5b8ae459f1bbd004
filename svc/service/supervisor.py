"""The interface to a service's supervisor: systemd, or a program that speaks its protocol.

The service reports its state (sd_notify(3)); the supervisor keeps the listening sockets while the service restarts
(sd_listen_fds(3); FileDescriptorStoreMax= in systemd.service(5)).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

_FIRST_PASSED: Final = 3
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound


def tell_supervisor(environ: Mapping[str, str], state: str) -> None:
    """Send `state`, such as `READY=1`, to the socket of NOTIFY_SOCKET; does nothing without one."""
    _send(environ, state, [])


class KeptListener:
    """The listening sockets `name`, kept while the service restarts: clients that connect meanwhile wait instead of
    being refused, and no other program takes the port. The sockets come from a socket unit, or an earlier process of
    the service bound them. A service that is stopped gives up the sockets it bound itself. Without a supervisor, or if
    the unit has no room for them, nothing is kept and everything else works the same."""

    def __init__(self, environ: Mapping[str, str], name: str, *, of_unit: bool = False) -> None:
        """Create this before any program is started, which would inherit the sockets. `of_unit`: a socket unit holds
        the port at every address, so that a single address of it cannot be bound; its sockets serve that address."""
        self._environ = environ
        self._name = name
        self._of_unit = of_unit
        self._passed = _passed(environ).get(name, [])
        for descriptor in self._passed:
            os.set_inheritable(descriptor, False)

    def bind(self, addresses: Sequence[str]) -> list[str]:
        """What hypercorn listens on for these addresses, each a host and a port: kept sockets, as `fd://3`, and the
        addresses without one. A unit's sockets may accept connections to other addresses and of both families: the
        server drops these."""
        kept = {_address(descriptor): descriptor for descriptor in self._passed}
        wanted = {address.replace("[", "").replace("]", ""): address for address in addresses}
        ports = {each.rpartition(":")[2] for each in wanted}
        wide = {f"{host}:{port}" for host in _EVERYWHERE for port in ports} if self._of_unit else set[str]()
        taken = {address: kept[address] for address in kept if address in wanted or address in wide}
        free = [wanted[each] for each in wanted if each not in taken and _everywhere_like(each) not in taken]
        others = [descriptor for descriptor in self._passed if descriptor not in taken.values()]
        self._passed = []
        if others:
            # These sockets are not needed: the settings have changed, or two sockets have the same address.
            for descriptor in others:
                os.close(descriptor)
            _send(self._environ, f"FDSTOREREMOVE=1\nFDNAME={self._name}", [])
        return [*(f"fd://{descriptor}" for descriptor in taken.values()), *free]

    def keep(self, listeners: Sequence[socket.socket]) -> None:
        """Have the supervisor keep these listeners. A socket that the supervisor keeps already is not kept twice."""
        _send(self._environ, f"FDSTORE=1\nFDNAME={self._name}", [listener.fileno() for listener in listeners])


def _everywhere_like(address: str) -> str:
    """The wildcard address of the same family, with the same port."""
    host, _, port = address.rpartition(":")
    return f"{_EVERYWHERE[':' in host]}:{port}"


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
        # A leading @ marks an abstract address, which starts with a zero byte (unix(7)).
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        socket.send_fds(channel, [state.encode()], descriptors)
