"""Fetches a site from another host by SSH, into a tar archive: `python -I -S confined/fetch.py`

The order is a JSON object on standard input, so that its secrets stand in no process list and on no disk: `uid` and
`gid` of an account that owns nothing but `folder`; `address`, `port`. Without a `user` it prints the host's keys, a
line each: `key TYPE BASE64`. Else `user`, `host_key` as in known_hosts, `password` or `private_key`; `description`, the
first entry of the archive; `asked`, `entry` and `command` of each question that may stay without an answer; `dump`,
null or `entry`, `command` and `input` of what writes SQL; `command`, which writes the tar archive of the folders;
`most`, the bytes that may come, and `stalled`, the seconds in which some have to.

OpenSSH runs as that account, without new privileges. It has to be known to the system, so it sees an /etc/passwd of its
own, and a home in memory that has what opens the other host: both are in a mount namespace that ends with this process.
Only the key that was confirmed is talked to, and nothing of the user's or the system's configuration is read. Nothing
of what comes is run or unpacked here. The last line says what failed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from typing import Any, BinaryIO, Final

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only what lies beside this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))

from svc_actors.host.confined import kernel

KEY: Final = "key "
_libc: Final = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS: Final = 0x0002_0000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 1, 1 << 2, 1 << 12, 1 << 14, 1 << 18
_HOME: Final = "/root"
_NAME: Final = "svc-import"
_SAID: Final = f"{_HOME}/said"
_REFUSED: Final = 3
_BLOCK: Final = 1 << 18
_RECORD: Final = 512
_SSH_FAILED: Final = 255
_ANSWER_SECONDS: Final = 60.0
_MOST_ANSWERED: Final = 1 << 16
_HARMLESS: Final = ("changed as we read it", "removed before we read it")
"""What GNU tar says of a site that is used meanwhile, and ends with status 1."""
_MEANINGS: Final = {
    "host key verification failed": "shows another host key than the one that was confirmed",
    "permission denied (": "does not let the account in with what was given",
    "connection refused": "does not answer (connection refused)",
    "timed out": "does not answer (nothing was heard from it)",
    "no route to host": "does not answer (there is no way to it)",
    "network is unreachable": "does not answer (there is no way to it)",
}


class _FetchError(Exception):
    """Nothing more comes; says why."""


def main() -> int:
    order = json.load(sys.stdin)
    try:
        _see(order)
        _become(order["uid"], order["gid"], order.get("most", 0))
        if "user" in order:
            fetch(order)
        else:
            show_keys(order)
    except _FetchError as error:
        print(_printable(str(error)), flush=True)
        return _REFUSED
    except OSError as error:
        print(f"The other host cannot be asked from here: {error.strerror}.", flush=True)
        return _REFUSED
    return 0


def show_keys(order: dict[str, Any]) -> None:
    command = ["ssh-keyscan", "-T", "10", "-t", "ed25519,ecdsa,rsa", "-p", str(order["port"]), order["address"]]
    answer = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
    )
    for line in answer.stdout.decode(errors="replace").splitlines():
        parts = line.split()
        if len(parts) == 3 and not line.startswith("#"):
            print(_printable(f"{KEY}{parts[1]} {parts[2]}"))
    sys.stdout.flush()


def fetch(order: dict[str, Any]) -> None:
    """Raises _FetchError; what has come until then is of no use."""
    with open(f"{order['folder']}/archive", "wb") as archive:
        coming = _Coming(archive, order)
        coming.entry(order["description"]["entry"], order["description"]["text"].encode())
        for question in order["asked"]:
            coming.entry(question["entry"], coming.answer(question["command"]))
        if order["dump"] is not None:
            begin = archive.tell()
            archive.write(b"\0" * _RECORD)
            coming.take(order["dump"]["command"], order["dump"]["input"].encode(), "The database was not dumped")
            size = archive.tell() - begin - _RECORD
            if size == 0:
                raise _FetchError("The database was not dumped: nothing came.")
            archive.write(b"\0" * (-size % _RECORD))
            end = archive.tell()
            archive.seek(begin)
            archive.write(_header(order["dump"]["entry"], size))
            archive.seek(end)
        coming.take(order["command"], b"", "The files were not read")


class _Coming:
    """What comes from the other host, into the archive."""

    def __init__(self, archive: BinaryIO, order: dict[str, Any]) -> None:
        self._archive = archive
        self._order = order
        self._left = int(order["most"])
        _write(f"{_HOME}/known_hosts", f"{_NAME} {order['host_key']}\n")
        if order["private_key"] is not None:
            _write(f"{_HOME}/key", order["private_key"].rstrip("\n") + "\n")
        if order["password"] is not None:
            # ssh asks a program. This one prints its own second line, so neither its arguments nor any file say more.
            _write(f"{_HOME}/answer", f"#!/usr/bin/sed -ne2{{p;q}}\n{order['password']}\n", 0o700)

    def entry(self, name: str, content: bytes) -> None:
        self._archive.write(_header(name, len(content)) + content + b"\0" * (-len(content) % _RECORD))

    def answer(self, command: str) -> bytes:
        """What the command says, if it does."""
        try:
            process = subprocess.run(
                [*_ssh(self._order), command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return b""
        return process.stdout[:_MOST_ANSWERED] if process.returncode == 0 else b""

    def take(self, command: str, given: bytes, what: str) -> None:
        with open(_SAID, "wb") as said:
            process = subprocess.Popen(
                [*_ssh(self._order), command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=_environment(),
            )
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(given)
        with suppress(BrokenPipeError):
            process.stdin.close()
        self._copy(process.stdout.fileno())
        status = process.wait(self._order["stalled"])
        if status != 0:
            self._judge(status, what)

    def _copy(self, source: int) -> None:
        poll = select.poll()
        poll.register(source, select.POLLIN)
        told = time.monotonic()
        total = 0
        while True:
            if not poll.poll(self._order["stalled"] * 1000):
                raise _FetchError(f"The other host has sent nothing for {self._order['stalled']} seconds.")
            block = os.read(source, _BLOCK)
            if not block:
                return
            self._left -= len(block)
            total += len(block)
            if self._left < 0:
                raise _FetchError(
                    f"The site has more than {self._order['most']:,} bytes, for which there is room here."
                )
            self._archive.write(block)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                print(f"{total:,} bytes have come.", flush=True)

    def _judge(self, status: int, what: str) -> None:
        with open(_SAID, "rb") as file:
            lines = [line for line in file.read(1 << 16).decode(errors="replace").splitlines() if line.strip()]
        if status == 1 and lines and all(any(words in line for words in _HARMLESS) for line in lines):
            print(f"{len(lines)} files were changed while they were read.", flush=True)
            return
        if status == _SSH_FAILED:
            said = "\n".join(lines).lower()
            how = next((meaning for words, meaning in _MEANINGS.items() if words in said), None)
            raise _FetchError(f"The other host {how or 'ended the connection: ' + (lines or ['it said nothing'])[-1]}.")
        raise _FetchError(f"{what}: {lines[0] if lines else f'exit status {status} there'}")


def _environment() -> dict[str, str]:
    return {**os.environ, "HOME": _HOME, "SSH_ASKPASS": f"{_HOME}/answer", "SSH_ASKPASS_REQUIRE": "force"}


def _ssh(order: dict[str, Any]) -> list[str]:
    """OpenSSH, told everything."""
    options = {
        "BatchMode": "no" if order["password"] is not None else "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f"{_HOME}/known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": _NAME,
        "UpdateHostKeys": "no",
        "IdentitiesOnly": "yes",
        "IdentityFile": f"{_HOME}/key" if order["private_key"] is not None else "none",
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


def _see(order: dict[str, Any]) -> None:
    """A home in memory, and an /etc/passwd that has the account."""
    uid, gid = order["uid"], order["gid"]
    _checked(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("none", _HOME, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size=4m,mode=0700,uid={uid},gid={gid}")
    accounts = f"{_HOME}/passwd"
    _write(
        accounts, f"root:x:0:0:root:/root:/usr/sbin/nologin\n{_NAME}:x:{uid}:{gid}::{_HOME}:/usr/sbin/nologin\n", 0o644
    )
    _mount(accounts, "/etc/passwd", None, _MS_BIND)


def _become(uid: int, gid: int, most: int) -> None:
    if uid == 0 or gid == 0:
        raise _FetchError("Nothing is fetched as root.")
    room = most + (8 << 20)
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: room, resource.RLIMIT_NOFILE: 256}
    for limit, value in {**limits, resource.RLIMIT_NPROC: 32}.items():
        resource.setrlimit(limit, (value, value))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kernel.refuse_new_privileges()
    os.umask(0o077)


def _header(name: str, size: int) -> bytes:
    told = tarfile.TarInfo(name)
    told.size = size
    return told.tobuf(tarfile.GNU_FORMAT)


def _write(path: str, content: str, mode: int = 0o600) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:500])


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    _checked(_libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options)))


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main())
