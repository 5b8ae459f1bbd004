"""Checks a dump before anything is removed for it: it must be SQL of this engine, have a statement, and be complete.

Programs that write dumps name themselves in the first lines, and most mark the end. A dump whose writer died (a full
disk, a killed process) may be cut between two statements: each statement before the cut is valid, so the engine accepts
it, and the later tables are missing. Such a dump is refused here. Dumps without these comments (`mysqldump
--skip-comments`, `--compact`) cannot be checked for completeness, and are accepted.

Recognised (first lines, last lines):

    -- MySQL dump 10.13  Distrib 8.0.36          -- Dump completed on 2026-01-02  3:04:05 (no date by --skip-dump-date)
    -- MariaDB dump 10.19-11.4.2-MariaDB         the same; /*M!999999\\- enable the sandbox mode */ may come first
    -- PostgreSQL database dump                  -- PostgreSQL database dump complete, then perhaps \\unrestrict
    -- PostgreSQL database cluster dump          -- PostgreSQL database cluster dump complete (pg_dumpall)
    -- phpMyAdmin SQL Dump                       settings from the start are restored: COMMIT, character sets
    -- Adminer 4.8.1 MySQL 8.0.29 dump           -- 2026-01-02 03:04:05

Lines are checked in one pass, each by its start, so the time is that of reading the file. This module is standalone,
and uses the standard library only.
"""

from __future__ import annotations

import re
from typing import Final

LOOKED: Final = "holds "
"""How the line starts that reports the bytes of SQL of a checked file."""
HEAD: Final = 1 << 13
"""The first bytes of a file, in which the program that wrote it names itself; comments and warnings of other programs
may come before that."""
_UTF_8: Final = b"\xef\xbb\xbf"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_ENGINES: Final = {"mariadb": "MariaDB or MySQL", "postgresql": "PostgreSQL"}
_WRITERS: Final = (
    (re.compile(rb"-- (?:MySQL|MariaDB) dump \d"), "mariadb"),
    (re.compile(rb"-- phpMyAdmin SQL Dump"), "mariadb"),
    (re.compile(rb"-- Adminer \S+ MySQL "), "mariadb"),
    (re.compile(rb"-- Adminer \S+ PostgreSQL "), "postgresql"),
    (re.compile(rb"-- PostgreSQL database (?:cluster )?dump\s*$"), "postgresql"),
)
_BEGINS: Final = (
    # Older versions (9.x, of MySQL 4.0) write no last line, so they do not match.
    ("mysqldump", re.compile(rb"-- (?:MySQL|MariaDB) dump [1-9]\d+\.")),
    ("pg_dump", re.compile(rb"-- PostgreSQL database dump\s*$")),
    ("pg_dumpall", re.compile(rb"-- PostgreSQL database cluster dump\s*$")),
    ("Adminer", re.compile(rb"-- Adminer \S+ .*dump\s*$")),
)
_ENDS: Final = (
    ("mysqldump", re.compile(rb"-- Dump completed")),
    ("pg_dump", re.compile(rb"-- PostgreSQL database dump complete")),
    ("pg_dumpall", re.compile(rb"-- PostgreSQL database cluster dump complete")),
    ("Adminer", re.compile(rb"-- \d{4}-\d\d-\d\d \d\d:\d\d:\d\d")),
)
_PHPMYADMIN: Final = b"-- phpMyAdmin SQL Dump"
_PHPMYADMIN_SETS: Final = {
    b"START TRANSACTION;": b"COMMIT;",
    b"/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;": (
        b"/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;"
    ),
}
_CODE: Final = (b"/*!", b"/*M!")
"""How comments start that MariaDB and MySQL execute as statements."""
_FIRST: Final = re.compile(rb"[(\\;/]|[A-Za-z]+(?![^\s(;/`\"'@:*=.+-])")
"""The start of a statement, or of a psql command."""


class NoDumpError(Exception):
    """The dump cannot be loaded; the message says why."""


class SqlLook:
    """Gets all lines of a file, or pieces of long ones."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.size = 0
        self._named: set[str] = set()
        """The program that named itself at the start of the file."""
        self._open: set[str] = set()
        """The programs whose dump has started and not ended."""
        self._awaited: set[bytes] = set()
        """Lines that still have to come before the end of a phpMyAdmin dump."""
        self._phpmyadmin = False
        self._in_comment = False
        self._has_statement = False

    def feed(self, piece: bytes, *, at_line_start: bool) -> None:
        """`at_line_start`: the piece starts a line. Raises NoDumpError."""
        if self.size == 0:
            if piece.startswith(_UTF_16):
                raise NoDumpError("It is text in UTF-16, as PowerShell writes it: convert it to UTF-8 first.")
            piece = piece.removeprefix(_UTF_8)
        if b"\0" in piece:
            raise NoDumpError("It contains NUL bytes: it is text in UTF-16, or not text at all.")
        if not self._has_statement:
            self._find_statement(piece)
        if at_line_start:
            self._note(piece)
        self.size += len(piece)

    def finish(self) -> None:
        """Raises NoDumpError."""
        if not self._has_statement:
            raise NoDumpError("It holds no statement: it is empty, or comments alone.")
        if self._open or self._awaited:
            writer = min(self._open, default="phpMyAdmin")
            raise NoDumpError(f"It is incomplete: {writer} wrote it, but its last line is missing. Create it again.")

    def _note(self, line: bytes) -> None:
        if line.startswith(b"-- "):
            # Only the first such line counts, because rows of data may contain similar text.
            if self.size < HEAD and not self._named:
                self._note_writer(line)
            for writer, pattern in _BEGINS:
                if writer in self._named and pattern.match(line):
                    self._open.add(writer)
            for writer, pattern in _ENDS:
                if pattern.match(line):
                    self._open.discard(writer)
        elif self._phpmyadmin:
            stripped = line.strip()
            if self.size < HEAD and stripped in _PHPMYADMIN_SETS:
                self._awaited.add(_PHPMYADMIN_SETS[stripped])
            self._awaited.discard(stripped)

    def _note_writer(self, line: bytes) -> None:
        for pattern, dialect in _WRITERS:
            if pattern.match(line) and dialect != self._dialect:
                raise NoDumpError(
                    f"It is a dump of {_ENGINES[dialect]}, and the database is one of {_ENGINES[self._dialect]}."
                )
        self._named = {writer for writer, pattern in _BEGINS if pattern.match(line)}
        self._phpmyadmin |= line.startswith(_PHPMYADMIN)

    def _find_statement(self, piece: bytes) -> None:
        """Note whether the file has more than blanks and comments by now."""
        rest = piece
        while rest:
            if self._in_comment:
                _, end, rest = rest.partition(b"*/")
                self._in_comment = not end
                continue
            rest = rest.lstrip()
            if not rest or rest.startswith(b"--") or (rest.startswith(b"#") and self._dialect == "mariadb"):
                return
            if rest.startswith(b"/*") and not rest.startswith(_CODE):
                self._in_comment, rest = True, rest[2:]
                continue
            if not _FIRST.match(rest):
                raise NoDumpError("It is not SQL: no statement starts like this.")
            self._has_statement = True
            return
