"""Fetches a site from another host by SSH, into a tar archive: `python -I -S confined/fetch.py`

The order is a JSON object on standard input, so that its secrets stand in no process list and on no disk: `uid` and
`gid` of an account that owns nothing but `folder`; `address`, `port`. Without a `user` it prints the host's keys, a
line each: `key TYPE BASE64`. Else `user`, `host_key` as in known_hosts, `password` or `private_key`; `description`, the
first entry of the archive; `asked`, `entry` and `command` of each question that may stay without an answer; `dump`,
null or `entry`, `command` and `input` of what writes SQL; `command`, which writes the tar archive of the folders;
`most`, the bytes that may come, and `stalled`, the seconds in which some have to.

OpenSSH runs as that account (`other_host`). Nothing of what comes is run or unpacked here. The last line says what
failed.
"""

from __future__ import annotations

import json
import os
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

from svc_actors.host.confined import other_host
from svc_actors.host.confined.other_host import FetchError, printable

KEY: Final = "key "
_SAID: Final = f"{other_host.HOME}/said"
_BLOCK: Final = 1 << 18
_RECORD: Final = 512
_ANSWER_SECONDS: Final = 60.0
_MOST_ANSWERED: Final = 1 << 16
_HARMLESS: Final = ("changed as we read it", "removed before we read it")
"""What GNU tar says of a site that is used meanwhile, and ends with status 1."""


def main() -> int:
    order = json.load(sys.stdin)
    return other_host.talk(order, lambda: fetch(order) if "user" in order else show_keys(order))


def show_keys(order: dict[str, Any]) -> None:
    command = ["ssh-keyscan", "-T", "10", "-t", "ed25519,ecdsa,rsa", "-p", str(order["port"]), order["address"]]
    answer = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
    )
    for line in answer.stdout.decode(errors="replace").splitlines():
        parts = line.split()
        if len(parts) == 3 and not line.startswith("#"):
            print(printable(f"{KEY}{parts[1]} {parts[2]}"))
    sys.stdout.flush()


def fetch(order: dict[str, Any]) -> None:
    """Raises FetchError; what has come until then is of no use."""
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
                raise FetchError("The database was not dumped: nothing came.")
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

    def entry(self, name: str, content: bytes) -> None:
        self._archive.write(_header(name, len(content)) + content + b"\0" * (-len(content) % _RECORD))

    def answer(self, command: str) -> bytes:
        """What the command says, if it does."""
        try:
            process = subprocess.run(
                [*other_host.ssh(self._order), command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=other_host.environment(),
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return b""
        return process.stdout[:_MOST_ANSWERED] if process.returncode == 0 else b""

    def take(self, command: str, given: bytes, what: str) -> None:
        with open(_SAID, "wb") as said:
            process = subprocess.Popen(
                [*other_host.ssh(self._order), command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=other_host.environment(),
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
                raise FetchError(f"The other host has sent nothing for {self._order['stalled']} seconds.")
            block = os.read(source, _BLOCK)
            if not block:
                return
            self._left -= len(block)
            total += len(block)
            if self._left < 0:
                raise FetchError(f"The site has more than {self._order['most']:,} bytes, for which there is room here.")
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
        raise FetchError(other_host.why_failed(status, lines, what))


def _header(name: str, size: int) -> bytes:
    told = tarfile.TarInfo(name)
    told.size = size
    return told.tobuf(tarfile.GNU_FORMAT)


if __name__ == "__main__":
    sys.exit(main())
