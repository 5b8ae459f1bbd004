"""Talks SSH to another host, in a process of an account that owns nothing.

OpenSSH runs without new privileges. The system must know its account, so it sees an /etc/passwd of its own, and a home
in memory with the credentials of the other host: both are in a mount namespace that ends with this process. Only the
confirmed host key is accepted, and no configuration of the user or the system is read.

An order has `uid` and `gid` of the account, `address` and `port`; and to sign in `user`, `host_key` as in known_hosts,
and one of `password` and `private_key` that is not null. `most`: the bytes of a file that may be written.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from svc_actors.host.confined import kernel

HOME: Final = "/root"
_REFUSED: Final = 3
"""Exit status of a process whose last line of output says why it ended."""
FAILED: Final = 255
"""OpenSSH's exit status for its own failures, as opposed to those of the remote command."""
_NAME: Final = "svc-import"
_libc: Final = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS: Final = 0x0002_0000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 1, 1 << 2, 1 << 12, 1 << 14, 1 << 18
_MEANINGS: Final = {
    "host key verification failed": "presents another host key than the confirmed one",
    "permission denied (": "does not let the account in with what was given",
    "connection refused": "does not answer (connection refused)",
    "timed out": "does not answer (nothing was heard from it)",
    "no route to host": "does not answer (there is no way to it)",
    "network is unreachable": "does not answer (there is no way to it)",
}


class FetchError(Exception):
    """The transfer has failed; the message says why."""


def talk(order: Mapping[str, Any], work: Callable[[], None]) -> int:
    """Do the work as that account. Returns the exit status of this process, whose last line of output is the error."""
    try:
        _see(order)
        _become(order["uid"], order["gid"], order.get("most", 0))
        if "user" in order:
            _keep(order)
        work()
    except FetchError as error:
        print(printable(str(error)), flush=True)
        return _REFUSED
    except OSError as error:
        print(f"The other host cannot be asked from here: {error.strerror}.", flush=True)
        return _REFUSED
    return 0


def _see(order: Mapping[str, Any]) -> None:
    """Mount a home in memory, and an /etc/passwd with the account."""
    uid, gid = order["uid"], order["gid"]
    _checked(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("none", HOME, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size=4m,mode=0700,uid={uid},gid={gid}")
    accounts = f"{HOME}/passwd"
    _write(
        accounts, f"root:x:0:0:root:/root:/usr/sbin/nologin\n{_NAME}:x:{uid}:{gid}::{HOME}:/usr/sbin/nologin\n", 0o644
    )
    _mount(accounts, "/etc/passwd", None, _MS_BIND)


def _become(uid: int, gid: int, most: int) -> None:
    """`most`: the bytes of a file that it may write, plus a margin. Raises FetchError."""
    if uid == 0 or gid == 0:
        raise FetchError("Nothing is fetched as root.")
    room = most + (8 << 20)
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: room, resource.RLIMIT_NOFILE: 256}
    for limit, value in {**limits, resource.RLIMIT_NPROC: 32}.items():
        resource.setrlimit(limit, (value, value))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kernel.refuse_new_privileges()
    os.umask(0o077)


def _keep(order: Mapping[str, Any]) -> None:
    """Write the credentials of the other host into its home."""
    _write(f"{HOME}/known_hosts", f"{_NAME} {order['host_key']}\n")
    if order["private_key"] is not None:
        _write(f"{HOME}/key", order["private_key"].rstrip("\n") + "\n")
    if order["password"] is not None:
        # ssh asks a program for the password. This one prints its own second line, so no argument and no other file has
        # it.
        _write(f"{HOME}/answer", f"#!/usr/bin/sed -ne2{{p;q}}\n{order['password']}\n", 0o700)


def environment() -> dict[str, str]:
    return {**os.environ, "HOME": HOME, "SSH_ASKPASS": f"{HOME}/answer", "SSH_ASKPASS_REQUIRE": "force"}


def ssh(order: Mapping[str, Any]) -> list[str]:
    """The OpenSSH command with all options, without the remote command."""
    options = {
        "BatchMode": "no" if order["password"] is not None else "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f"{HOME}/known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": _NAME,
        "UpdateHostKeys": "no",
        "IdentitiesOnly": "yes",
        "IdentityFile": f"{HOME}/key" if order["private_key"] is not None else "none",
        "IdentityAgent": "none",
        "PreferredAuthentications": "publickey,password,keyboard-interactive",
        "NumberOfPasswordPrompts": "1",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ControlPath": "none",
        "LogLevel": "ERROR",
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
    }
    told = [argument for name, value in options.items() for argument in ("-o", f"{name}={value}")]
    return ["ssh", "-T", "-F", "none", *told, "-p", str(order["port"]), "-l", order["user"], order["address"]]


def why_failed(status: int, said: Sequence[str], what: str) -> str:
    """The failure as a sentence. `said`: errors that ssh, or the program on the other host, wrote. `what`: what
    failed."""
    if status != FAILED:
        return f"{what}: {said[0] if said else f'exit status {status} there'}"
    whole = "\n".join(said).lower()
    how = next((meaning for words, meaning in _MEANINGS.items() if words in whole), None)
    return f"The other host {how or 'ended the connection: ' + (said or ['it said nothing'])[-1]}."


def printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:500])


def _write(path: str, content: str, mode: int = 0o600) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    _checked(_libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options)))


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
