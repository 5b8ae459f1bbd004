"""Tables of MariaDB one by one: what is in them, some of them dumped, and swapped with those of another database.

A swap is one RENAME TABLE: the server does all of it or nothing, also when it is killed (atomic DDL, since 10.6). Where
the tables are is what says whether it was done, so undoing it may be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

from svc_actors.host.databases.instance import ask_client
from svc_actors.host.databases.names import DatabaseName, checked
from svc_actors.host.databases.server import DatabaseError, RunProgram
from svc_actors.host.databases.transfer import DUMP_SECONDS, dump_command

_CLIENT: Final = "/usr/bin/mariadb"
_DUMP: Final = "/usr/bin/mariadb-dump"
_MARKER: Final = "-- Dump completed"
_NAME: Final = re.compile(r"[A-Za-z0-9_$-]{1,64}")
_WORD: Final = re.compile(r"[A-Za-z0-9_.:%-]{1,191}")


class StagedTables(Protocol):
    """Every method raises `DatabaseError`. Only tables whose names are of letters, digits and `_ $ -` are seen."""

    async def names(self, database: DatabaseName) -> list[str]: ...

    async def facts(
        self, database: DatabaseName, tables: Collection[str], *, options: str | None, volatile: Sequence[str]
    ) -> dict[str, str]:
        """By table: rows, the highest key, and a checksum, in words that are the same where nothing has changed. Of the
        table `options` rows that are called as one of `volatile` (patterns of LIKE) do not count."""
        ...

    async def has_posts(self, database: DatabaseName, table: str, types: Collection[str]) -> list[str]:
        """The types of which there are posts in it."""
        ...

    async def bound(self, database: DatabaseName, tables: Collection[str]) -> list[str]:
        """Those that cannot be moved on their own: they have triggers, or foreign keys lead to or from them."""
        ...

    async def dump(self, database: DatabaseName, tables: Sequence[str], file: Path, run: RunProgram) -> None: ...

    async def keep_options(self, new: DatabaseName, live: DatabaseName, table: str, kept: Sequence[str]) -> None:
        """Options that are called as one of `kept` (patterns of LIKE) are in the new table as in the live one."""
        ...

    async def swap(self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]) -> None:
        """The tables of `new` are in `live`, and those that were there are in `old`."""
        ...

    async def swap_back(
        self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]
    ) -> bool:
        """Whether they were swapped. What was swapped is as it was before: the tables, all of which `new` had then."""
        ...


class MariaDbTables:
    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def names(self, database: DatabaseName) -> list[str]:
        found = await self._ask(
            "SELECT TABLE_NAME FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = '{checked(database)}' AND TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_NAME"
        )
        return [line for line in found.splitlines() if _NAME.fullmatch(line)]

    async def facts(
        self, database: DatabaseName, tables: Collection[str], *, options: str | None, volatile: Sequence[str]
    ) -> dict[str, str]:
        wanted = [table for table in await self.names(database) if table in tables]
        keys = dict(await self._keys(database))
        found = {}
        for table in wanted:
            place = _place(database, table)
            highest = f"coalesce(max({_quoted(keys[table])}), 0)" if table in keys else "0"
            if table == options:
                where = " AND ".join(f"option_name NOT LIKE '{_pattern(name)}'" for name in volatile) or "true"
                row = "CONCAT_WS('\\0', option_name, option_value, autoload)"
                statement = f"SELECT count(*), 0, coalesce(bit_xor(crc32({row})), 0) FROM {place} WHERE {where}"
                found[table] = " ".join((await self._ask(statement)).split())
            else:
                counted = await self._ask(f"SELECT count(*), {highest} FROM {place}", f"CHECKSUM TABLE {place}")
                counts, checksum = counted.splitlines()
                found[table] = " ".join([*counts.split(), checksum.split()[-1]])
        return found

    async def has_posts(self, database: DatabaseName, table: str, types: Collection[str]) -> list[str]:
        listed = ", ".join(f"'{_word(each)}'" for each in sorted(types))
        found = await self._ask(
            f"SELECT DISTINCT post_type FROM {_place(database, table)} WHERE post_type IN ({listed}) ORDER BY 1"
        )
        return found.splitlines()

    async def bound(self, database: DatabaseName, tables: Collection[str]) -> list[str]:
        name = checked(database)
        found = await self._ask(
            f"SELECT EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = '{name}'",
            f"SELECT TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = '{name}'",
            "SELECT REFERENCED_TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS "
            f"WHERE UNIQUE_CONSTRAINT_SCHEMA = '{name}'",
        )
        return sorted(set(found.splitlines()) & set(tables))

    async def dump(self, database: DatabaseName, tables: Sequence[str], file: Path, run: RunProgram) -> None:
        for table in tables:
            _place(database, table)
        command = (
            *(_DUMP, "--no-defaults", f"--socket={self._socket}", "--user=root", "--single-transaction", "--quick"),
            *("--hex-blob", "--no-tablespaces", "--skip-triggers", "--max-allowed-packet=64M"),
            *("--default-character-set=utf8mb4", "--dump-date", "--", checked(database), *tables),
        )
        await run(dump_command(file, _MARKER, command), seconds=DUMP_SECONDS)

    async def keep_options(self, new: DatabaseName, live: DatabaseName, table: str, kept: Sequence[str]) -> None:
        into, source = _place(new, table), _place(live, table)
        where = " OR ".join(f"option_name LIKE '{_pattern(name)}'" for name in kept)
        columns = "option_name, option_value, autoload"
        await self._ask(
            "START TRANSACTION",
            f"DELETE QUICK FROM {into} WHERE {where}",
            f"INSERT {into} ({columns}) SELECT {columns} FROM {source} WHERE {where}",
            "COMMIT",
        )

    async def swap(self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]) -> None:
        there = set(await self.names(live))
        moves = []
        for table in tables:
            if table in there:
                moves.append(f"{_place(live, table)} TO {_place(old, table)}")
            moves.append(f"{_place(new, table)} TO {_place(live, table)}")
        await self._ask(f"RENAME TABLE {', '.join(moves)}")

    async def swap_back(
        self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]
    ) -> bool:
        put_aside, waiting = await self.names(old), set(await self.names(new))
        came = [table for table in tables if table not in waiting]
        if not came:
            return False
        moves = [f"{_place(live, table)} TO {_place(new, table)}" for table in came]
        moves += [f"{_place(old, table)} TO {_place(live, table)}" for table in put_aside]
        await self._ask(f"RENAME TABLE {', '.join(moves)}")
        return True

    async def _keys(self, database: DatabaseName) -> list[tuple[str, str]]:
        found = await self._ask(
            "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS "
            f"WHERE TABLE_SCHEMA = '{checked(database)}' AND EXTRA LIKE '%auto_increment%'"
        )
        return [(table, column) for table, column in (line.split("\t") for line in found.splitlines())]

    async def _ask(self, *statements: str) -> str:
        command = (
            _CLIENT,
            "--no-defaults",
            f"--socket={self._socket}",
            "--user=root",
            "--batch",
            "--skip-column-names",
        )
        return await ask_client(command, "".join(f"{statement};\n" for statement in statements))


def _place(database: DatabaseName, table: str) -> str:
    if not _NAME.fullmatch(table):
        raise DatabaseError(f"{table!r} is no name of a table that is moved")
    return f"`{checked(database)}`.`{table}`"


def _quoted(column: str) -> str:
    escaped = column.replace("`", "``")
    return f"`{escaped}`"


def _word(text: str) -> str:
    """Of ours: no quote can be in it."""
    if not _WORD.fullmatch(text):
        raise DatabaseError(f"{text!r} is no name of an option or a type of posts")
    return text


def _pattern(text: str) -> str:
    """Of LIKE: any text stands for %."""
    return _word(text).replace("_", r"\_")
