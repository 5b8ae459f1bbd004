"""Runs a file of SQL in an engine's own client, so that its statements reach its database and nothing else: `python -I
-S confined/sql.py ORDER`

The order is a JSON object: `uid` and `gid` of a site's account; `root` and `path` of a file of the site's, both null if
the file is standard input; `dialect`, mariadb or postgresql; `command`, the client and its arguments; `rows`, whether
to print a line `rows ["TABLE", NUMBER]` for each table of MariaDB that it fills (`sql_rows`). The account of the
database comes in the environment. Without a `command` the file is only checked (`sql_look`), and a line `holds NUMBER`
says how many bytes of SQL it has.

Anybody may have written a dump. Beyond SQL it could use the client's own commands: run programs, read and write files,
connect elsewhere. The client runs in the site's view of the server (`enter_site`), so that other programs of the same
account that reach into it find nothing else there. Four defences apply:

- the client's own restricted mode: `mariadb --sandbox`, `psql` after a \\restrict whose key no dump knows;
- this process and the client are the site's account without any privilege, and Landlock lets them write no file, read
  only what programs need, make no TCP connection, and execute the client alone: `mariadb --sandbox` still runs an
  editor;
- the server knows the account as the owner of this one database, without rights on files, programs, or others;
- a file that ends too early (a part of a compressed one) is never taken for a complete one: the client is killed before
  it sees an end, since the start of a statement may be another statement.

This module is standalone, and uses the standard library only.
"""

from __future__ import annotations

import bz2
import ctypes
import glob
import gzip
import io
import json
import lzma
import os
import resource
import secrets
import signal
import stat
import subprocess
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, cast

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.confined import kernel
from svc_webhost.confined.sql_adapt import adaptation_of
from svc_webhost.confined.sql_look import LOOKED, NoDumpError, SqlLook
from svc_webhost.confined.sql_rows import ROWS, RowCounter
from svc_webhost.confined.sql_statements import Splitter

_BLOCK: Final = 1 << 20
_FAILED: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_LIMITS: Final = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: 256,
    # A whole statement is held in memory. No server accepts one of more than a GiB.
    resource.RLIMIT_DATA: 1 << 30,
}
_READABLE: Final = ("/usr", "/etc")
_INTERPRETERS: Final = "/lib*/ld-*.so.*"
"""The program loader, such as ld-linux-x86-64.so.2 or ld-linux-aarch64.so.1."""

_libc = ctypes.CDLL(None, use_errno=True)


class RefusedError(Exception):
    """The file cannot be run; the message says why."""


def main() -> int:
    order = json.loads(sys.argv[1])
    try:
        file, nowhere = _confine(order), os.open(os.devnull, os.O_RDWR)
        return _look(order, file) if order["command"] is None else _run(order, file, nowhere)
    except (RefusedError, NoDumpError, OSError) as error:
        print(error, flush=True)
        return _FAILED


def _confine(order: dict[str, Any]) -> int:
    """Become the account; returns the file, which was opened as this account."""
    uid, gid = order["uid"], order["gid"]
    if uid == 0 or gid == 0:
        raise RefusedError("A dump is never run as root.")
    root = None if order["root"] is None else os.open(order["root"], os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    if os.geteuid() == 0:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kernel.refuse_new_privileges()
    return 0 if root is None else _site_file(root, order["path"], uid)


def _site_file(root: int, path: str, uid: int) -> int:
    try:
        file = kernel.open_beneath(root, os.fsencode(path), os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise RefusedError(f"{path} cannot be opened: {error.strerror}.") from error
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise RefusedError(f"{path} is no file.")
    if found.st_nlink > 1 and found.st_uid != uid:
        raise RefusedError(f"{path} belongs to somebody else.")
    return file


def _look(order: dict[str, Any], file: int) -> int:
    """Read the file to its end. The returned size is that of the SQL after decompression, as the engine would get
    it."""
    _lock(None)
    for limit, most in _LIMITS.items():
        resource.setrlimit(limit, (most, most))
    look, (_, splitter) = SqlLook(order["dialect"]), adaptation_of(order["dialect"])
    try:
        with os.fdopen(file, "rb") as raw:
            for begins, piece in _lines(_unpacked(raw)):
                look.feed(piece, at_line_start=begins)
                # Only to find what makes a dump unfit for one database. The adapted statements are dropped; `_run`
                # produces them again.
                deque(splitter.feed(piece), maxlen=0)
            deque(splitter.feed(b"", last=True), maxlen=0)
    except (OSError, EOFError, lzma.LZMAError, zlib.error, MemoryError) as error:
        raise RefusedError(f"The file cannot be read to its end: {error}") from error
    look.finish()
    print(f"{LOOKED}{look.size}", flush=True)
    return 0


def _run(order: dict[str, Any], file: int, nowhere: int) -> int:
    _lock(order["command"][0])
    for limit, most in _LIMITS.items():
        resource.setrlimit(limit, (most, most))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    counter = RowCounter() if order["rows"] and order["dialect"] == "mariadb" else None
    adaptation, splitter = adaptation_of(order["dialect"])
    # The output of queries in the dump is dropped; the client's errors are reported to the job.
    with subprocess.Popen(
        order["command"], stdin=subprocess.PIPE, stdout=nowhere, preexec_fn=_ends_with_us, restore_signals=True
    ) as client:
        assert client.stdin is not None
        try:
            if order["dialect"] == "postgresql":
                client.stdin.write(b"\\restrict " + secrets.token_hex(32).encode() + b"\n")
            with os.fdopen(file, "rb") as raw:
                for block in _adapted(_unpacked(raw), splitter):
                    client.stdin.write(block)
                    if counter is not None:
                        counter.feed(block)
            client.stdin.close()
        except BrokenPipeError:
            pass  # The client has stopped at an error, which it reports itself.
        except (OSError, EOFError, lzma.LZMAError, zlib.error, MemoryError) as error:
            client.kill()
            raise RefusedError(f"The file cannot be read to its end: {error}") from error
        except NoDumpError:
            client.kill()
            raise
        status = client.wait()
    # If the dump failed, no notes follow: the client's last line is the answer.
    for note in adaptation.notes() if status == 0 else ():
        print(note)
    if counter is not None and status == 0:
        for table, rows in counter.finish().items():
            print(ROWS + json.dumps([table, rows]))
    sys.stdout.flush()
    return status if status >= 0 else 128 - status


def _lock(program: str | None) -> None:
    """`program`: the only program that may be started."""
    abi = kernel.landlock_abi()
    if abi < kernel.LOWEST_ABI:
        raise RefusedError(
            f"This kernel cannot confine a dump: it has Landlock {abi}, and {kernel.LOWEST_ABI} is needed."
        )
    readable = [os.open(folder, os.O_PATH | os.O_CLOEXEC) for folder in _READABLE]
    runs = () if program is None else (program, *glob.glob(_INTERPRETERS))
    programs = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in runs]
    kernel.landlock_reading(readable, programs, abi)
    for descriptor in (*readable, *programs):
        os.close(descriptor)


def _ends_with_us() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _unpacked(raw: BinaryIO) -> BinaryIO:
    buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(Any, raw))
    begin = buffered.peek(8)
    if begin.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=buffered))
    if begin.startswith(b"BZh"):
        return cast(BinaryIO, bz2.BZ2File(buffered))
    if begin.startswith(b"\xfd7zXZ\x00"):
        return cast(BinaryIO, lzma.LZMAFile(buffered))
    if begin.startswith((b"PK\x03\x04", b"PGDMP", b"\x28\xb5\x2f\xfd")):
        raise RefusedError(
            "The file is neither SQL nor SQL compressed by gzip, bzip2 or xz: unpack or convert it first."
        )
    return buffered


def _lines(file: BinaryIO) -> Iterator[tuple[bool, bytes]]:
    """Lines, or pieces of long ones; and whether each starts a line."""
    begins = True
    while piece := file.readline(_BLOCK):
        yield begins, piece
        begins = piece.endswith(b"\n")


def _adapted(file: BinaryIO, splitter: Splitter) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield from splitter.feed(block)
    yield from splitter.feed(b"", last=True)


if __name__ == "__main__":
    sys.exit(main())
