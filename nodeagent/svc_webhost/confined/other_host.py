"""Talks to another host by SSH, as an account that owns nothing on this server.

OpenSSH cannot gain privileges. It refuses to run for a uid without an account, so it gets an /etc/passwd of its own.
Its home is in memory and holds the credentials for the other host. Both are in a mount namespace that ends with this
process. OpenSSH talks only to a host that has the confirmed key, and reads no configuration of users or of the system.

Why so: the other host is not trusted. It could attack the client by its answers, so nothing of the client's account is
worth taking, and the credentials go neither to a disk nor into arguments that other processes can read.

An order has `uid` and `gid` of the account, `address` and `port`; to sign in also `user`, `host_key` as in known_hosts,
and `password` or `private_key`, the other one null. `most`: the largest file that may be written, in bytes.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from svc_webhost.confined import kernel

# The home in memory is mounted over this folder, which every server has, so nothing has to be created on the disk.
HOME: Final = "/root"
_REFUSED: Final = 3
"""Exit status of a process whose last line says why it ended."""
FAILED: Final = 255
"""Exit status of ssh when the connection failed, as opposed to the program on the other host."""
_NAME: Final = "svc-import"
_libc: Final = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS: Final = 0x0002_0000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 1, 1 << 2, 1 << 12, 1 << 14, 1 << 18
# Meanings of words in OpenSSH's messages, in lower case. The exit status does not help, because it is the same in all
# these cases.
_MEANINGS: Final = {
    "host key verification failed": "presents another host key than the confirmed one",
    "permission denied (": "rejects the credentials of the account",
    "connection refused": "does not answer (connection refused)",
    "timed out": "does not answer (nothing was heard from it)",
    "no route to host": "does not answer (there is no way to it)",
    "network is unreachable": "does not answer (there is no way to it)",
}


class FetchError(Exception):
    """The connection ended or was refused; the message says why."""


def run_as_account(order: Mapping[str, Any], work: Callable[[], None]) -> int:
    """Do the work as that account. Returns the exit status of this process, whose last line says what failed."""
    try:
        # The order matters: mounts need root, and the credentials must be written by the account that may read them.
        _see(order)
        _become(order["uid"], order["gid"], order.get("most", 0))
        if "user" in order:
            _keep(order)
        work()
    except FetchError as error:
        print(printable(str(error)), flush=True)
        return _REFUSED
    except OSError as error:
        print(f"The other host cannot be connected to from here: {error.strerror}.", flush=True)
        return _REFUSED
    return 0


def _see(order: Mapping[str, Any]) -> None:
    """Mount a home in memory, and an /etc/passwd with the account."""
    uid, gid = order["uid"], order["gid"]
    _checked(_libc.unshare(_CLONE_NEWNS))
    # Made private first: where mounts are shared, as under systemd, the mounts below would appear on the whole server.
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    # At most 4 MiB of the server's memory, for a key, a password, known_hosts, and the errors of ssh.
    _mount("none", HOME, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size=4m,mode=0700,uid={uid},gid={gid}")
    accounts = f"{HOME}/passwd"
    _write(
        accounts, f"root:x:0:0:root:/root:/usr/sbin/nologin\n{_NAME}:x:{uid}:{gid}::{HOME}:/usr/sbin/nologin\n", 0o644
    )
    _mount(accounts, "/etc/passwd", None, _MS_BIND)


def _become(uid: int, gid: int, most: int) -> None:
    """`most`: the largest file that it may write, in bytes. Raises FetchError."""
    if uid == 0 or gid == 0:
        raise FetchError("Nothing is fetched as root.")
    # 8 MiB more than the largest file, because the limit also applies to files such as the one with ssh's errors.
    room = most + (8 << 20)
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: room, resource.RLIMIT_NOFILE: 256}
    for limit, value in {**limits, resource.RLIMIT_NPROC: 32}.items():
        resource.setrlimit(limit, (value, value))
    # The uid is changed last, because only root can give up the groups.
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kernel.refuse_new_privileges()
    os.umask(0o077)


def _keep(order: Mapping[str, Any]) -> None:
    """Put the credentials for the other host into the home."""
    _write(f"{HOME}/known_hosts", f"{_NAME} {order['host_key']}\n")
    if order["private_key"] is not None:
        _write(f"{HOME}/key", order["private_key"].rstrip("\n") + "\n")
    if order["password"] is not None:
        # ssh gets the password from a program that prints it. The program is a sed script that prints its own second
        # line, so the password is in no argument and no environment variable. The kernel passes the rest of the first
        # line as a single argument.
        _write(f"{HOME}/answer", f"#!/usr/bin/sed -ne2{{p;q}}\n{order['password']}\n", 0o700)


def environment() -> dict[str, str]:
    return {**os.environ, "HOME": HOME, "SSH_ASKPASS": f"{HOME}/answer", "SSH_ASKPASS_REQUIRE": "force"}


def ssh(order: Mapping[str, Any]) -> list[str]:
    """The command line of OpenSSH, without the command to run on the other host."""
    # StrictHostKeyChecking with an alias: the host's key must be the confirmed one, whatever the name or address.
    # UpdateHostKeys: the host may not add keys. Forwarding, agent and control sockets: the host gets no access to this
    # server. One prompt: sending the same wrong password again would only help to lock the account. If the host is
    # silent, ssh gives up after 20 s during the connection's start, and after 4 * 15 s later on.
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
    """Why something failed, in one sentence. `said`: what ssh, or the program on the other host, wrote as errors.
    `what`: what failed."""
    if status != FAILED:
        return f"{what}: {said[0] if said else f'exit status {status} there'}"
    whole = "\n".join(said).lower()
    how = next((meaning for words, meaning in _MEANINGS.items() if words in whole), None)
    return f"The other host {how or 'ended the connection: ' + (said or ['it said nothing'])[-1]}."


def printable(text: str) -> str:
    # The other host's text is shown in pages and terminals, so it is cut, and escape sequences and line ends are
    # replaced.
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
