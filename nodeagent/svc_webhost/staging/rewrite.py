"""Rewrites a dump of MariaDB: `python -I -S rewrite.py ORDER FROM TO`

The order is a JSON object: `hosts` and `homes` as `Addresses` takes them. FROM and TO are files compressed by gzip; TO
gets its name once it is complete.

mariadb-dump writes each statement's data on one line, some megabytes at most, so memory is limited by the longest row
(some ten times its size), however large a table is. A line longer than MOST_LINE is refused. Only values of INSERT are
changed: texts, and the bytes that `--hex-blob` writes. A value is unescaped, changed (`phpserialize.changed`), and
escaped again, so that all bytes survive. The column `guid` of posts stays: feed readers identify a post by it. This
module is standalone, and uses the standard library only.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, cast

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.staging.addresses import Addresses, substituted
from svc_webhost.staging.phpserialize import changed

MOST_LINE: Final = 64 << 20
"""More than MariaDB's programs accept in one statement by default."""
_LEVEL: Final = 2
_TABLE: Final = re.compile(rb"CREATE TABLE (?:IF NOT EXISTS )?`((?:[^`]|``)+)` \(")
_COLUMN: Final = re.compile(rb"  `((?:[^`]|``)+)` ")
_INSERT: Final = re.compile(rb"INSERT (?:IGNORE )?INTO `((?:[^`]|``)+)` (?:\(([^)]*)\) )?VALUES\s*")
# Possessive quantifiers (*+) keep no positions for backtracking, which would take hundreds of megabytes for a text of a
# few megabytes.
_VALUE: Final = re.compile(rb"'((?:[^'\\]++|\\.|'')*+)'|0x([0-9A-Fa-f]++)|`(?:[^`]|``)*+`", re.DOTALL)
_TOKEN: Final = re.compile(rb"'(?:[^'\\]++|\\.|'')*+'|0x[0-9A-Fa-f]++|[(),]|[^(),']++", re.DOTALL)
_POSTS: Final = re.compile(rb"(?:^|_)posts$")
_KEPT: Final = b"guid"
_ESCAPES: Final = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"Z": b"\x1a"}
_ESCAPE: Final = re.compile(rb"\\(.)|''", re.DOTALL)
_SPECIAL: Final = {
    b"\0": rb"\0",
    b"\n": rb"\n",
    b"\r": rb"\r",
    b"\x1a": rb"\Z",
    b"\\": rb"\\",
    b"'": rb"\'",
    b'"': rb"\"",
}
_TO_ESCAPE: Final = re.compile(rb"[\0\n\r\x1a\\'\"]")


class LongLineError(Exception):
    """A row is too long to be rewritten within the memory limit."""


def rewritten(lines: Iterable[bytes], addresses: Addresses) -> Iterator[bytes]:
    """The lines of a dump, with the URLs in its data replaced."""
    columns: list[bytes] = []
    in_table = in_insert = False
    guid: int | None = None
    for line in lines:
        if in_insert or (found := _INSERT.match(line)) is not None:
            if not in_insert:
                assert found is not None
                named = [name.strip(b"` ") for name in found[2].split(b",")] if found[2] else columns
                is_posts = _POSTS.search(found[1]) is not None and _KEPT in named
                guid = named.index(_KEPT) if is_posts else None
            # Since 10.7 MariaDB's dumps have each row of a statement on a line of its own.
            in_insert = not line.rstrip(b"\r\n").endswith(b";")
            if addresses.may_be_in(line) or b"0x" in line:
                line = _insert(line, addresses, guid)
        elif _TABLE.match(line):
            columns, in_table = [], True
        elif in_table:
            column = _COLUMN.match(line)
            if column is None:
                in_table = False
            else:
                columns.append(column[1])
        yield line


def _insert(line: bytes, addresses: Addresses, guid: int | None) -> bytes:
    head = _INSERT.match(line)
    begin = head.end() if head is not None else 0
    if guid is None:
        return substituted(_VALUE, lambda found: _value(found, addresses), line, begin)
    out, column, depth = bytearray(line[:begin]), 0, 0
    for found in _TOKEN.finditer(line, begin):
        token = found[0]
        if token == b"(":
            depth += 1
            column = 0 if depth == 1 else column
        elif token == b")":
            depth -= 1
        elif token == b"," and depth == 1:
            column += 1
        elif depth == 1 and column != guid and token[:1] in (b"'", b"0"):
            token = _VALUE.sub(lambda each: _value(each, addresses), token)
        out += token
    return bytes(out)


def _value(found: re.Match[bytes], addresses: Addresses) -> bytes:
    whole = found[0]
    if found[1] is not None:
        if not addresses.may_be_in(whole):
            return whole
        text = _unescaped(found[1])
        new = changed(text, addresses.replace)
        return whole if new == text else b"'%b'" % _escaped(new)
    if found[2] is not None and len(found[2]) % 2 == 0:
        blob = bytes.fromhex(found[2].decode())
        if addresses.may_be_in(blob):
            new = changed(blob, addresses.replace)
            return whole if new == blob else b"0x" + new.hex().upper().encode()
    return whole


def _unescaped(text: bytes) -> bytes:
    """The text as MariaDB reads it, with backslash escapes on."""
    if b"\\" not in text and b"''" not in text:
        return text
    return substituted(_ESCAPE, lambda found: b"'" if found[1] is None else _ESCAPES.get(found[1], found[1]), text)


def _escaped(text: bytes) -> bytes:
    return substituted(_TO_ESCAPE, lambda found: _SPECIAL[found[0]], text)


def _lines(read: BinaryIO) -> Iterator[bytes]:
    """Raises `LongLineError`."""
    while line := read.readline(MOST_LINE + 1):
        if len(line) > MOST_LINE:
            raise LongLineError(f"The dump has a row of more than {MOST_LINE >> 20} MiB; nothing was changed.")
        yield line


def main() -> int:
    order, source, target = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    homes = order["homes"]
    addresses = Addresses(order["hosts"], (homes[0], homes[1]) if homes else None)
    unfinished = f"{target}.part"
    with (
        gzip.open(source, "rb") as read,
        open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as raw,
    ):
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as packed:
            try:
                for line in rewritten(_lines(cast(BinaryIO, read)), addresses):
                    packed.write(line)
            except LongLineError as error:
                print(error, file=sys.stderr)
                return 1
        raw.flush()
        os.fsync(raw.fileno())
    os.rename(unfinished, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
