"""Listening sockets that a service is handed: bound here, kept while it is replaced, gone when it is stopped."""

from __future__ import annotations

import os
import socket
import stat

from svc_actors.host.keeper.definition import RefusedError, Socket, accounts, owned_by_root

_WAITING = 4096
"""Connections that wait while the service is replaced; the kernel lowers it to net.core.somaxconn."""


def bind(path: str, mode: int, uid: int, gid: int) -> socket.socket:
    """Listening at `path`. A socket that an earlier process left there is replaced; anything else is not ours."""
    owned_by_root(os.path.dirname(path))
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise RefusedError(f"{path} is there and is not a socket: move it away.")
        os.unlink(path)
    except FileNotFoundError:
        pass
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
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


def bind_for_service(wanted: Socket) -> socket.socket:
    return bind(wanted.path, wanted.mode, *accounts(wanted.owner, wanted.group))


def release(held: socket.socket, path: str) -> None:
    held.close()
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def inode(held: socket.socket) -> int:
    return os.fstat(held.fileno()).st_ino
