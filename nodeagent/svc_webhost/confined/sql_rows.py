"""Counts the rows per table in a dump of MariaDB or MySQL, while the dump is read.

Counted is `INSERT INTO table [(columns)] VALUES (...), (...);` at the start of a line, as every dump tool writes it; a
table that is created and never filled has none. If a table is filled in another way (`INSERT IGNORE`, `REPLACE`,
`INSERT ... SELECT`, ON DUPLICATE KEY), or rows cannot be separated, the count is unknown: None, and never a wrong
number.

Memory is limited by the longest row that a server accepts. This module is standalone, and uses the standard library
only.
"""

from __future__ import annotations

import re
from typing import Final

ROWS: Final = "rows "
"""How the line starts that reports a table's row count."""
MOST_TABLES: Final = 5000
_LEAST: Final = 1 << 18
"""Bytes that are collected before they are parsed."""
_LONGEST: Final = 64 << 20
"""The most bytes of a row: servers accept no longer ones (max_allowed_packet of the client)."""
_LONGEST_HEAD: Final = 1 << 16
_NAME: Final = rb"(?:`[^`]+`\s*\.\s*)?(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>[A-Za-z0-9_$]+))"
_STATEMENT: Final = re.compile(
    rb"^(?:(?P<fill>(?:INSERT|REPLACE)\s)|(?P<create>CREATE\s+TABLE\s)"
    rb"|(?P<odd>(?:/\*!\d+\s+)?SET\s[^\n]*NO_BACKSLASH_ESCAPES))",
    re.MULTILINE | re.IGNORECASE,
)
_CREATE: Final = re.compile(rb"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+|(?!IF\s))" + _NAME + rb"[\s(]", re.IGNORECASE)
_PLAIN: Final = re.compile(rb"INSERT\s+INTO\s+" + _NAME + rb"\s*(?:\([^()]*\)\s*)?VALUES\s*(?=\()", re.IGNORECASE)
_INTO: Final = re.compile(
    rb"(?:INSERT|REPLACE)\s+(?:(?:LOW_PRIORITY|DELAYED|HIGH_PRIORITY|IGNORE)\s+){0,3}INTO\s+" + _NAME + rb"[\s(]",
    re.IGNORECASE,
)
"""No other words are allowed in between: a pattern that allows them would be searched for in all following
statements."""
_STRING: Final = rb"'(?:[^'\\]++|\\.)*+'|\"(?:[^\"\\]++|\\.)*+\""
# Possessive quantifiers: an incomplete row is scanned only once. Functions in a row may have arguments in brackets.
_ROW: Final = re.compile(
    rb"\s*+,?\s*+\((?:[^'\"()]++|" + _STRING + rb"|\((?:[^'\"()]++|" + _STRING + rb")*+\))*+\)", re.DOTALL
)
_END: Final = re.compile(rb"\s*+;")
_ROW_BEGINS: Final = re.compile(rb"\s*+(?:,\s*+)?(?:\(|\Z)")


class RowCounter:
    def __init__(self) -> None:
        self._tables: dict[str, int | None] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = _LEAST
        self._text = b""
        self._at = 0
        self._filling: str | None = None
        """The table whose rows come next."""
        self._odd = False
        """Whether strings are not in the usual notation: then nothing can be counted."""

    def feed(self, block: bytes) -> None:
        self._parts.append(block)
        self._size += len(block)
        if self._size >= self._wanted:
            self._look(last=False)

    def finish(self) -> dict[str, int | None]:
        """The numbers of rows by table, in the order in which the tables came."""
        self._look(last=True)
        return {} if self._odd else self._tables

    def _look(self, *, last: bool) -> None:
        self._text, self._at = b"".join(self._parts), 0
        while not self._odd and (self._statement(last) if self._filling is None else self._rows(last)):
            pass
        rest = b"" if self._odd else self._text[self._at :]
        self._parts, self._size, self._text = [rest], len(rest), b""
        # Incomplete data is parsed again only when its size has doubled, not for each line that arrives.
        self._wanted = max(_LEAST, 2 * len(rest))

    def _statement(self, last: bool) -> bool:
        """Skip the start of the next statement; False if more input is needed."""
        found = _STATEMENT.search(self._text, self._at)
        if found is None:
            line = max(self._text.rfind(b"\n") + 1, self._at)
            # A line that is longer than any start of a statement, and is no statement yet, cannot become one. \0 is
            # kept in place of its start.
            short = len(self._text) - line < _LONGEST_HEAD
            self._text, self._at = (self._text[line:] if short else b"\0"), 0
            return False
        self._at = found.start()
        if found["odd"]:
            self._odd = True
            return False
        create = found["create"] is not None
        head = (_CREATE if create else _PLAIN).match(self._text, self._at)
        if head is None and not last and len(self._text) - self._at < _LONGEST_HEAD:
            return False
        self._at = head.end() if head is not None else found.end()
        if head is None:
            filled = _INTO.match(self._text, found.start())
            if filled is not None:
                self._note(_name(filled), None)
            return True
        self._note(_name(head), 0 if create else self._tables.get(_name(head), 0))
        if not create:
            self._filling = _name(head)
        return True

    def _rows(self, last: bool) -> bool:
        """Skip and count the complete rows; False if more input is needed."""
        assert self._filling is not None
        table, rows = self._filling, 0
        while (row := _ROW.match(self._text, self._at)) is not None:
            self._at = row.end()
            rows += 1
        before = self._tables.get(table)
        self._note(table, None if before is None else before + rows)
        end = _END.match(self._text, self._at)
        if end is not None:
            self._at, self._filling = end.end(), None
            return True
        known = _ROW_BEGINS.match(self._text, self._at) is not None
        if known and not last and len(self._text) - self._at < _LONGEST:
            return False
        self._note(table, None)
        self._filling = None
        return True

    def _note(self, table: str, rows: int | None) -> None:
        if table in self._tables or len(self._tables) < MOST_TABLES:
            self._tables[table] = rows


def _name(found: re.Match[bytes]) -> str:
    name: bytes = found["quoted"].replace(b"``", b"`") if found["quoted"] is not None else found["bare"]
    return name.decode(errors="replace")[:64]
