"""Adapts dumps to the database that they are loaded into: a dump comes from a server with other users, databases and
version.

What is changed or left out concerns the server rather than the data, and is said at the end (`notes`):

- MariaDB: definers of views, triggers and routines, whose owner becomes the owner of the database: only a superuser may
  name somebody else (`DEFINER=`root`@`%``, as mysqldump, phpMyAdmin and Adminer write it); collations of MySQL 8 that
  MariaDB lacks; statements about the binary log, global settings, users, and databases (`USE`, `CREATE DATABASE`);
  messages of the dump program that went into the file.
- PostgreSQL: owners and grants of roles that exist elsewhere; settings of a later version; psql's own commands of
  pg_dump (`\\restrict`, `\\connect`).

A dump of several databases is refused, because its tables would end up in one.

Rejected: to ask for a better dump, as the server's error does. People have the dump that their former host gave them.

This module is standalone, and uses the standard library only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from svc_webhost.confined.sql_look import NoDumpError
from svc_webhost.confined.sql_statements import MariaDbSplitter, PostgresSplitter, Splitter

_LONGEST_NOTE: Final = 120
_MOST_NOTES: Final = 20
"""The most notes about lines that are not SQL, and about collations: their number is determined by the file."""
# Text without an end goes up to the end of the statement, so that nothing is searched twice.
_TEXT: Final = (
    rb"'(?>(?:[^'\\]++|\\.)*)'?|\"(?>(?:[^\"\\]++|\\.)*)\"?|`[^`]*+`?"
    rb"|(?:--[ \t]|\#)[^\n]*+|/\*(?!M?!)(?>(?:[^*]++|\*(?=[^/]))*)"
)
_MARIADB_SERVER: Final = re.compile(
    rb"""(?:/\*M?!\d*\s*)?(?:
        SET\s+(?:@\w+\s*=\s*)?(?:@@(?:SESSION\.)?|SESSION\s+)?(?P<log>SQL_LOG_BIN)\b
        |SET\s+(?:@@(?P<set>GLOBAL|PERSIST)\.|(?P<global>GLOBAL|PERSIST|PASSWORD)\b)
        |(?P<database>(?:CREATE|DROP)\s+(?:DATABASE|SCHEMA))\b
        |(?P<user>(?:CREATE|DROP|ALTER|RENAME)\s+(?:OR\s+REPLACE\s+)?(?:USER|ROLE))\b
        |(?P<right>GRANT|REVOKE)\b
        |(?P<replica>(?:CHANGE|START|STOP|RESET)\s+(?:MASTER|REPLICATION|SLAVE|REPLICA|BINARY))\b
        |(?P<flush>FLUSH)\b
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_ALTER: Final = re.compile(
    rb"((?:/\*M?!\d*\s*)?ALTER\s+(?:DATABASE|SCHEMA)\s+)"
    rb"(?:`[^`]*`|(?!(?:COLLATE|CHARACTER|CHARSET|DEFAULT|COMMENT)\b)[^\s`]++)\s",
    re.IGNORECASE,
)
"""ALTER DATABASE with a name. Without a name the statement is about the current database, and sets the collation in
which the following routines are created."""
_USE: Final = re.compile(rb"USE\s+(?:`(?P<quoted>[^`]+)`|(?P<bare>[^\s;`]+))\s*$", re.IGNORECASE)
_DEFINER: Final = re.compile(
    rb"""((?:/\*M?!\d*\s*)?(?:CREATE|ALTER)\b(?:\s|\*/|/\*M?!\d*|=|\b(?:OR|REPLACE|AGGREGATE|ALGORITHM|UNDEFINED|MERGE
        |TEMPTABLE)\b)*)
        DEFINER\s*=\s*(?:CURRENT_USER(?:\s*\(\s*\))?|CURRENT_ROLE
        |(?:`[^`]*`|'[^']*'|"[^"]*"|[^\s@`'"*]+)(?:\s*@\s*(?:`[^`]*`|'[^']*'|"[^"]*"|[^\s@`'"*]+))?)""",
    re.IGNORECASE | re.VERBOSE,
)
_COLLATION: Final = re.compile(
    rb"(?P<text>" + _TEXT + rb")|\b(?P<name>utf8(?:mb[34])?_(?:[a-z_]+_)?0900_[a-z_]+)\b",
    re.IGNORECASE | re.DOTALL,
)
_SAVES: Final = re.compile(rb"@(\w+)\s*:?=\s*@@(?:SESSION\.)?SQL_MODE\b", re.IGNORECASE)
_MODE: Final = re.compile(rb"(?<!@OLD_)(?<![\w])SQL_MODE\s*=\s*('[^']*'|\"[^\"]*\"|[^,;*]+)", re.IGNORECASE)
_VARIABLE: Final = re.compile(rb"@(\w+)")
_SET: Final = re.compile(rb"(?:/\*M?!\d*\s*)?SET\b", re.IGNORECASE)

_POSTGRESQL_SERVER: Final = re.compile(
    rb"""(?:
        ALTER\s.*\s(?P<owner>OWNER\s+TO)\s+(?:"[^"]*"|[^\s;"]+)\s*$
        |(?P<right>GRANT|REVOKE|ALTER\s+DEFAULT\s+PRIVILEGES)\b
        |SET\s+(?:SESSION\s+|LOCAL\s+)?(?P<later>transaction_timeout)\b
        |(?P<role>SET\s+SESSION\s+AUTHORIZATION|RESET\s+SESSION\s+AUTHORIZATION|SET\s+ROLE)\b
        |(?P<user>(?:CREATE|DROP|ALTER)\s+(?:USER|ROLE|GROUP)(?!\s+MAPPING))\b
        |(?P<database>(?:CREATE|DROP|ALTER)\s+(?:DATABASE|TABLESPACE|SYSTEM))\b
        |(?P<extension>COMMENT\s+ON\s+EXTENSION)\b
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_SCHEMA: Final = re.compile(rb"CREATE\s+SCHEMA\s+(public\s*)$", re.IGNORECASE)
_CONNECT: Final = re.compile(rb"\\c(?:onnect)?\s+(?:-reuse-previous=on\s+)?(?P<name>\S++)")
_BACKSLASHES: Final = re.compile(
    rb"SET\s+(?:SESSION\s+|LOCAL\s+)?standard_conforming_strings\s*(?:=|\bTO\b)\s*'?(?:off|false|no|0)", re.IGNORECASE
)
_RESTRICTS: Final = re.compile(rb"\\(?:un)?restrict\b")


class _Adaptation:
    def __init__(self) -> None:
        self._left_out: Counter[str] = Counter()
        self._replaced: dict[str, str] = {}
        self._definers = 0
        self._unusual = False
        """Whether the dump has changed the meaning of a backslash in strings. It is then not known where strings end,
        so nothing more is adapted."""
        self._messages: list[str] = []
        self._unnamed = 0
        """The number of lines that are not SQL, in addition to those in `_messages`."""
        self._databases: dict[str, None] = {}

    def notes(self) -> Iterator[str]:
        """What was changed, a line each."""
        if self._definers:
            yield (
                f"Views, triggers and routines of other definers now belong to the database's owner: {self._definers}."
            )
        if self._replaced:
            pairs = ", ".join(f"{old} by {new}" for old, new in sorted(self._replaced.items())[:_MOST_NOTES])
            yield f"Collations that MariaDB does not have were replaced: {pairs}."
        if self._left_out:
            counts = ", ".join(f"{what} ({number})" for what, number in sorted(self._left_out.items()))
            yield f"Statements about the server instead of this database were left out: {counts}."
        for message in self._messages:
            yield f"A line that is no SQL was left out: {message}"
        if self._unnamed:
            yield f"{self._unnamed:,} more lines that are no SQL were left out."

    def _leave_out(self, found: re.Match[bytes]) -> None:
        word = next(word for word in found.groups() if word is not None)
        self._left_out[" ".join(word.decode("ascii", "replace").upper().split())] += 1

    def _of_database(self, name: bytes) -> None:
        self._databases[name.decode(errors="replace")] = None
        if len(self._databases) > 1:
            names = " and ".join(name[:_LONGEST_NOTE] for name in self._databases)
            raise NoDumpError(
                f"It has more than one database ({names}): export each into a file of its own, and import it there."
            )


class MariaDbAdaptation(_Adaptation):
    """Tells `splitter` whether a backslash escapes in strings: a dump sets, for each routine, the SQL mode in which the
    routine was created."""

    def __init__(self) -> None:
        super().__init__()
        self.splitter = MariaDbSplitter(self)
        self._escapes = True
        self._saved: dict[bytes, bool] = {}
        """The value of `_escapes` that each variable of the dump has saved with the SQL mode, by the variable's
        name."""

    def line(self, text: bytes) -> bytes | None:
        if len(self._messages) < _MOST_NOTES:
            self._messages.append(text.decode(errors="replace").strip()[:_LONGEST_NOTE])
        else:
            self._unnamed += 1
        return None

    def statement(self, text: bytes) -> bytes | None:
        if used := _USE.match(text):
            self._of_database(used["quoted"] or used["bare"])
            self._left_out["USE"] += 1
            return None
        if found := _MARIADB_SERVER.match(text):
            self._leave_out(found)
            return None
        is_setting = _SET.match(text) is not None
        if is_setting:
            self._note_mode(text)
        text = _ALTER.sub(rb"\1", text)
        text, number = _DEFINER.subn(rb"\1", text, count=1) if not is_setting else (text, 0)
        self._definers += number
        if b"0900" in text:
            text = _COLLATION.sub(lambda found: self._collation(found, is_setting=is_setting), text)
        return text

    def _note_mode(self, text: bytes) -> None:
        for name in _SAVES.findall(text):
            self._saved[name.lower()] = self._escapes
        for value in _MODE.findall(text):
            if restored := _VARIABLE.search(value):
                self._escapes = self._saved.get(restored[1].lower(), True)
            else:
                self._escapes = b"NO_BACKSLASH_ESCAPES" not in value.upper()
            self.splitter.set_escapes(escapes=self._escapes)

    def _collation(self, found: re.Match[bytes], *, is_setting: bool) -> bytes:
        if found["text"] is None:
            return self._known(found["name"])
        quoted: bytes = found["text"]
        name = _COLLATION.fullmatch(quoted[1:-1]) if is_setting else None
        return quoted if name is None or name["name"] is None else quoted[:1] + self._known(name["name"]) + quoted[-1:]

    def _known(self, name: bytes) -> bytes:
        """A collation of MariaDB under which values that were different stay different, since a unique index must not
        refuse them. unicode_520 is what WordPress asks for itself, and what MySQL knows as well; utf8mb4_unicode_ci
        would take all emoji for one."""
        old = name.decode().lower()
        if old.endswith("_bin"):
            new = "utf8mb4_bin"
        elif old.endswith("_as_ci"):
            new = "utf8mb4_uca1400_as_ci"
        elif old.endswith("_ai_ci"):
            new = "utf8mb4_unicode_520_ci"
        else:
            new = "utf8mb4_uca1400_as_cs"
        if len(self._replaced) < _MOST_NOTES:
            self._replaced[old] = new
        return new.encode()


class PostgresAdaptation(_Adaptation):
    def line(self, text: bytes) -> bytes | None:
        if self._unusual:
            return text
        if _RESTRICTS.match(text):
            # Left out, because our own \restrict comes before the dump and is in force up to the end of the file.
            return None
        if found := _CONNECT.match(text):
            self._of_database(found["name"])
            self._left_out["\\connect"] += 1
            return None
        return text

    def statement(self, text: bytes) -> bytes | None:
        if self._unusual or _BACKSLASHES.match(text):
            self._unusual = True
            return text
        if found := _POSTGRESQL_SERVER.match(text):
            self._leave_out(found)
            return None
        return _SCHEMA.sub(rb"CREATE SCHEMA IF NOT EXISTS \1", text)


def adaptation_of(dialect: str) -> tuple[MariaDbAdaptation | PostgresAdaptation, Splitter]:
    """The adaptation of one dump, and the splitter to which the dump must be fed. Feeding raises NoDumpError."""
    if dialect == "mariadb":
        mariadb = MariaDbAdaptation()
        return mariadb, mariadb.splitter
    postgres = PostgresAdaptation()
    return postgres, PostgresSplitter(postgres)
