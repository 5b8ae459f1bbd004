"""Fetches a site from another host by SSH, into a tar archive: `python -I -S confined/fetch.py`

The order is a JSON object on standard input, so that its secrets are in no process list and on no disk: `uid` and `gid`
of an account that owns nothing but `folder`; `address`, `port`. Without a `user` it prints the host's keys, a line
each: `key TYPE BASE64`. Otherwise: `user`, `host_key` as in known_hosts, `password` or `private_key`; `description`,
the first entry of the archive; `asked`, `entry` and `command` of each question that may stay without an answer;
`passwords`: the `folders`, the command that lists the password files `named` there, and the arguments that `read` one,
followed by its path; `dump`, null or `entry`, `command` and `input` of the program that writes SQL; `folders`, and
`command`, which writes a tar archive of them; `most`, the bytes that may come, and `stalled`, the seconds without data
after which it gives up.

On an account without a shell, which may only transfer files, no command is run; its folders are read by SFTP.

OpenSSH runs as that account (`other_host`). Received data is neither run nor unpacked here. The last line of output is
the error.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.archives.fetched import named_passwords
from svc_webhost.confined import other_host
from svc_webhost.confined.other_host import FetchError, printable
from svc_webhost.confined.sftp_client import EndedError, SftpClient
from svc_webhost.confined.sftp_tree import TreeEntry, tree

KEY: Final = "key "
_SAID: Final = f"{other_host.HOME}/said"
_ANSWER: Final = f"{other_host.HOME}/output"
_BLOCK: Final = 1 << 18
_RECORD: Final = 512
_ANSWER_SECONDS: Final = 60.0
_TELL_SECONDS: Final = 10.0
_MOST_ANSWERED: Final = 1 << 16
_ECHO: Final = "svc-import"
_NO_SHELL: Final = ("exec request failed", "request failed on channel")
"""OpenSSH's messages if the other host does not run commands at all."""
_NO_DUMP: Final = (
    "The database was not dumped: the account there may only transfer files. Fetch the site without its database, and "
    "import a dump of it afterwards."
)
_HARMLESS: Final = ("changed as we read it", "removed before we read it")
"""GNU tar's messages about a site that is in use while it is packed; its exit status is then 1."""


def main() -> int:
    order = json.load(sys.stdin)
    return other_host.run_as_account(order, lambda: fetch(order) if "user" in order else show_keys(order))


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
    """Fetch the site. Raises FetchError; the data received until then is useless."""
    with open(f"{order['folder']}/archive", "wb") as archive:
        coming = _Coming(archive, order)
        coming.entry(order["description"]["entry"], order["description"]["text"].encode())
        if not coming.has_a_shell():
            print("The account there has no shell: its files are read by SFTP.", flush=True)
            if order["dump"] is not None:
                raise FetchError(_NO_DUMP)
            coming.take_by_sftp(order["folders"])
            return
        for question in order["asked"]:
            coming.entry(question["entry"], coming.answer(question["command"]))
        asked = order["passwords"]
        for path in named_passwords(coming.answer(asked["named"]).decode(errors="replace"), asked["folders"]):
            # If the file is missing or unreadable, this is reported in the plan.
            if content := coming.answer(shlex.join([*asked["read"], path])):
                coming.entry(path.lstrip("/"), content)
        if order["dump"] is not None:
            begin = archive.tell()
            archive.write(b"\0" * _RECORD)
            coming.take(order["dump"]["command"], order["dump"]["input"].encode(), "The database was not dumped")
            size = archive.tell() - begin - _RECORD
            if size == 0:
                raise FetchError("The database was not dumped: no data arrived.")
            archive.write(b"\0" * (-size % _RECORD))
            end = archive.tell()
            archive.seek(begin)
            archive.write(_header(order["dump"]["entry"], size))
            archive.seek(end)
        coming.take(order["command"], b"", "The files were not read")


class _Coming:
    """Data from the other host on its way into the archive."""

    def __init__(self, archive: BinaryIO, order: dict[str, Any]) -> None:
        self._archive = archive
        self._order = order
        self._left = int(order["most"])
        self._came = 0
        self._told = time.monotonic()
        self._shortened = 0

    def entry(self, name: str, content: bytes) -> None:
        self._archive.write(_header(name, len(content)) + content + b"\0" * (-len(content) % _RECORD))

    def has_a_shell(self) -> bool:
        """Whether the account may run commands on the other host. Raises FetchError if it may not sign in."""
        status, answer = self._ask(f"echo {_ECHO}")
        said = _said()
        if status == other_host.FAILED and not any(words in line for line in said for words in _NO_SHELL):
            raise FetchError(other_host.why_failed(status, said, "The files were not read"))
        return _ECHO.encode() in answer.splitlines()

    def answer(self, command: str) -> bytes:
        """The command's output, empty if it fails."""
        status, answer = self._ask(command)
        return answer if status == 0 else b""

    def _ask(self, command: str) -> tuple[int | None, bytes]:
        """The command's exit status (None if it takes too long) and its output. The files used here are in memory,
        whose size is limited."""
        with open(_ANSWER, "w+b") as answer, open(_SAID, "wb") as said:
            process = subprocess.Popen(
                [*other_host.ssh(self._order), command],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=said,
                env=other_host.environment(),
            )
            try:
                status = process.wait(_ANSWER_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return None, b""
            answer.seek(0)
            return status, answer.read(_MOST_ANSWERED)

    def take_by_sftp(self, folders: Sequence[str]) -> None:
        with open(_SAID, "wb") as said:
            process = subprocess.Popen(
                [*other_host.ssh(self._order), "-s", "sftp"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=other_host.environment(),
            )
        assert process.stdin is not None
        assert process.stdout is not None
        client = SftpClient(process.stdin.fileno(), process.stdout.fileno(), self._order["stalled"])
        try:
            client.handshake()
            for folder in folders:
                for found in tree(client, folder):
                    self._keep(found)
        except EndedError as ended:
            status = process.wait(self._order["stalled"])
            raise FetchError(other_host.why_failed(status, _said(), "The files were not read")) from ended
        finally:
            process.kill()
        self._tell_changes(self._shortened)

    def _keep(self, found: TreeEntry) -> None:
        header = found.header.tobuf(tarfile.GNU_FORMAT)
        self._count(len(header) + found.header.size)
        begin = self._archive.tell()
        self._archive.write(header)
        size = sum(self._archive.write(block) for block in found.blocks)
        self._archive.write(b"\0" * (-size % _RECORD))
        if size < found.header.size:
            self._shortened += 1
            end, found.header.size = self._archive.tell(), size
            self._archive.seek(begin)
            self._archive.write(found.header.tobuf(tarfile.GNU_FORMAT))
            self._archive.seek(end)

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
        while True:
            if not poll.poll(self._order["stalled"] * 1000):
                raise FetchError(f"The other host has sent nothing for {self._order['stalled']} seconds.")
            block = os.read(source, _BLOCK)
            if not block:
                return
            self._count(len(block))
            self._archive.write(block)

    def _count(self, size: int) -> None:
        """Count received bytes. Raises FetchError if they are too many."""
        self._left -= size
        self._came += size
        if self._left < 0:
            raise FetchError(f"The site has more than the {self._order['most']:,} bytes that there is room for here.")
        if time.monotonic() - self._told > _TELL_SECONDS:
            self._told = time.monotonic()
            print(f"{self._came:,} bytes were received.", flush=True)

    def _judge(self, status: int, what: str) -> None:
        lines = _said()
        if status == 1 and lines and all(any(words in line for words in _HARMLESS) for line in lines):
            self._tell_changes(len(lines))
            return
        raise FetchError(other_host.why_failed(status, lines, what))

    def _tell_changes(self, count: int) -> None:
        if count:
            print(f"{count} files were changed while they were read.", flush=True)


def _said() -> list[str]:
    """Errors that ssh, or the program on the other host, wrote."""
    with open(_SAID, "rb") as file:
        return [line for line in file.read(1 << 16).decode(errors="replace").splitlines() if line.strip()]


def _header(name: str, size: int) -> bytes:
    told = tarfile.TarInfo(name)
    told.size = size
    return told.tobuf(tarfile.GNU_FORMAT)


if __name__ == "__main__":
    sys.exit(main())
