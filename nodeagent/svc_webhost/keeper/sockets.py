"""Listening sockets of services: bound here, kept while a service is replaced, removed when it is stopped.

That programs bind their own was rejected: while nginx was replaced, visitors were refused for up to ten seconds. Here
their connections wait in the queue of the socket.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

from svc_webhost.keeper.definition import Port, RefusedError, Socket, accounts, owned_by_root

_WAITING = 4096
"""The most connections that wait while the service is replaced. The kernel lowers it to net.core.somaxconn, 4096 by
default."""


def bind(path: str, mode: int, uid: int, gid: int) -> socket.socket:
    """A socket that listens at `path`. It replaces a socket that an earlier process left there, and no other file."""
    owned_by_root(os.path.dirname(path))
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise RefusedError(f"{path} exists and is not a socket: move it away.")
        os.unlink(path)
    except FileNotFoundError:
        pass
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The socket is created without any permissions, and gets them after it has its owner: so nobody can connect while
    # it has the wrong one.
    before = os.umask(0o777)
    try:
        listening.bind(path)
        os.chown(path, uid, gid)
        os.chmod(path, mode)
        listening.listen(_WAITING)
    except OSError as error:
        listening.close()
        raise RefusedError(f"{path} cannot be listened at: {error}.") from error
    finally:
        os.umask(before)
    return listening


def _bind_port(wanted: Port) -> socket.socket:
    version6 = ":" in wanted.address
    listening = socket.socket(socket.AF_INET6 if version6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Connections of the previous process may still be closing (TIME_WAIT), and would block the port.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # IPv4 has a socket of its own for the same port; without this option, the socket of "::" would claim both.
        if version6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((wanted.address, wanted.port))
        listening.listen(_WAITING)
    except OSError as error:
        listening.close()
        raise RefusedError(f"Port {wanted.port} of {wanted.address} cannot be listened at: {error}.") from error
    return listening


def bind_for_service(address: Socket | Port) -> socket.socket:
    if isinstance(address, Port):
        return _bind_port(address)
    return bind(address.path, address.mode, *accounts(address.owner, address.group))


def release(held: socket.socket, address: Socket | Port) -> None:
    held.close()
    if isinstance(address, Socket):
        with suppress(FileNotFoundError):
            os.unlink(address.path)


def inode(held: socket.socket) -> int:
    return os.fstat(held.fileno()).st_ino
