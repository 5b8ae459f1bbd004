"""Writes a dump: `python -I -S dump.py FILE MARKER PROGRAM ARGUMENT... [--then PROGRAM ARGUMENT...]`

The output of the programs, one after the other, goes to FILE, compressed by gzip. The file gets its name when each
program has succeeded, the output has ended with a line that starts with MARKER, and all of it is on the disk. Otherwise
nothing is left. This module is standalone, and uses the standard library only.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

THEN = "--then"
"""The argument that separates two programs."""
_BLOCK = 1 << 20
_TAIL = 4096
"""The marker is within this many bytes before the end: empty lines and psql's final commands follow it."""
_LEVEL = 4
"""gzip's level: a third faster than level 6, and the result is a few percent larger."""


def main() -> int:
    file, marker, commands = sys.argv[1], sys.argv[2].encode(), list(_commands(sys.argv[3:]))
    unfinished = f"{file}.part"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as raw:
            tail = b""
            with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as packed:
                for command in commands:
                    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
                        assert program.stdout is not None
                        while block := program.stdout.read(_BLOCK):
                            packed.write(block)
                            tail = (tail + block)[-_TAIL:]
                    if program.returncode != 0:
                        return _failed(unfinished, "", program.returncode)
            if not any(line.startswith(marker) for line in tail.split(b"\n")):
                return _failed(unfinished, "The dump ended before its last line; it was not kept.", 1)
            raw.flush()
            os.fsync(raw.fileno())
    except OSError as error:
        return _failed(unfinished, f"The dump could not be written: {error.strerror}.", 1)
    os.rename(unfinished, file)
    folder = os.open(os.path.dirname(file), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    return 0


def _commands(words: list[str]) -> Iterator[list[str]]:
    while THEN in words:
        yield words[: words.index(THEN)]
        words = words[words.index(THEN) + 1 :]
    yield words


def _failed(unfinished: str, why: str, status: int) -> int:
    if why:
        print(why, flush=True)
    with suppress(FileNotFoundError):
        os.unlink(unfinished)
    return status if status > 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
