"""Single tables of MariaDB: facts about their content, partial dumps, and swaps with tables of another database.

A swap is one RENAME TABLE: the server does all of it or nothing, even when it is killed (atomic DDL, since 10.6). The
places of the tables show whether it was done, so undoing it may be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

from svc_webhost.databases.names import DatabaseName, checked
from svc_webhost.databases.server import DatabaseError, RunProgram
from svc_webhost.databases.transfer import DUMP_SECONDS, dump_command
from svc_webhost.mariadb.owner import Session
from svc_webhost.mariadb.root import RootStatement
from svc_webhost.mariadb.server import DUMP, DUMP_MARKER, DUMP_OPTIONS, MariaDb

_NAME: Final = re.compile(r"[A-Za-z0-9_$-]{1,64}")
_WORD: Final = re.compile(r"[A-Za-z0-9_.:%-]{1,191}")


class StagedTables(Protocol):
    """Every method raises `DatabaseError`. Only tables with names of letters, digits and `_ $ -` are seen."""

    async def names(self, database: DatabaseName) -> list[str]: ...

    async def facts(
        self, database: DatabaseName, tables: Collection[str], *, options: str | None, volatile: Sequence[str]
    ) -> dict[str, str]:
        """For each table a text that stays equal while its content does: number of rows, highest key and checksum. In
        the table `options`, rows whose names match one of `volatile` (LIKE patterns) are ignored."""
        ...

    async def has_posts(self, database: DatabaseName, table: str, types: Collection[str]) -> list[str]:
        """The types of posts of which the site has any."""
        ...

    async def bound(self, database: DatabaseName, tables: Collection[str]) -> list[str]:
        """Tables that cannot be moved alone: they have triggers, or foreign keys to or from them."""
        ...

    async def dump(self, database: DatabaseName, tables: Sequence[str], file: Path, run: RunProgram) -> None: ...

    async def keep_options(self, new: DatabaseName, live: DatabaseName, table: str, patterns: Sequence[str]) -> None:
        """Copy options with names like one of `patterns` (LIKE patterns) from the live table into the new one."""
        ...

    async def swap(self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]) -> None:
        """Move the tables of `new` to `live`, and their predecessors to `old`."""
        ...

    async def swap_back(
        self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]
    ) -> bool:
        """Undo a swap; returns whether there was one. Afterwards the tables, all of which `new` had then, are as
        before."""
        ...


class MariaDbTables:
    """Works as the owner of the database, and not as the administrator: customers may have replaced a table by a view
    by the time that it is read."""

    def __init__(self, server: MariaDb) -> None:
        self._root = server.root
        self._owners = server.owners

    async def names(self, database: DatabaseName) -> list[str]:
        async with self._owners.session(database) as owner:
            return await _names(owner, database)

    async def facts(
        self, database: DatabaseName, tables: Collection[str], *, options: str | None, volatile: Sequence[str]
    ) -> dict[str, str]:
        async with self._owners.session(database) as owner:
            wanted = [table for table in await _names(owner, database) if table in tables]
            keys = await _keys(owner, database)
            found = {}
            for table in wanted:
                place = _place(database, table)
                if table == options:
                    where = " AND ".join(f"option_name NOT LIKE '{_pattern(name)}'" for name in volatile) or "true"
                    row = "CONCAT_WS('\\0', option_name, option_value, autoload)"
                    statements = [
                        f"SELECT count(*), 0 FROM {place} WHERE {where}",
                        f"SELECT '', coalesce(bit_xor(crc32({row})), 0) FROM {place} WHERE {where}",
                    ]
                else:
                    highest = f"coalesce(max({_quoted(keys[table])}), 0)" if table in keys else "0"
                    statements = [f"SELECT count(*), {highest} FROM {place}", f"CHECKSUM TABLE {place}"]
                # Each table has a statement of its own, so the statement's time limit applies to each table.
                counts, checksum = _lines(await owner.ask(*statements))
                found[table] = " ".join([*counts.split(), checksum.split()[-1]])
        return found

    async def has_posts(self, database: DatabaseName, table: str, types: Collection[str]) -> list[str]:
        listed = ", ".join(f"'{_word(each)}'" for each in sorted(types))
        async with self._owners.session(database) as owner:
            found = await owner.ask(
                f"SELECT DISTINCT post_type FROM {_place(database, table)} WHERE post_type IN ({listed}) ORDER BY 1"
            )
        return _lines(found)

    async def bound(self, database: DatabaseName, tables: Collection[str]) -> list[str]:
        name = checked(database)
        async with self._owners.session(database) as owner:
            triggered = await owner.ask(
                f"SELECT EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = '{name}'"
            )
        # Asked as root: an owner cannot see references from another database of its site.
        leading = await self._root.ask(RootStatement.FOREIGN_KEYS(files=name))
        ends = [place for line in _lines(leading) for place in line.split("\t")]
        found = {*_lines(triggered), *(_of_file(place) for place in ends if place.startswith(f"{name}/"))}
        return sorted(found & set(tables))

    async def dump(self, database: DatabaseName, tables: Sequence[str], file: Path, run: RunProgram) -> None:
        for table in tables:
            _place(database, table)
        async with self._owners.session(database) as owner:
            command = (DUMP, *owner.login, *DUMP_OPTIONS, "--skip-triggers", "--", checked(database), *tables)
            await run(dump_command(file, DUMP_MARKER, command), seconds=DUMP_SECONDS, environment=owner.environment)

    async def keep_options(self, new: DatabaseName, live: DatabaseName, table: str, patterns: Sequence[str]) -> None:
        into, source = _place(new, table), _place(live, table)
        where = " OR ".join(f"option_name LIKE '{_pattern(name)}'" for name in patterns)
        columns = "option_name, option_value, autoload"
        async with self._owners.session(live, also=[new]) as owner:
            await owner.ask(
                "START TRANSACTION",
                f"DELETE QUICK FROM {into} WHERE {where}",
                f"INSERT {into} ({columns}) SELECT {columns} FROM {source} WHERE {where}",
                "COMMIT",
            )

    async def swap(self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]) -> None:
        async with self._owners.session(live, also=[new, old]) as owner:
            there = set(await _names(owner, live))
            moves = []
            for table in tables:
                if table in there:
                    moves.append(f"{_place(live, table)} TO {_place(old, table)}")
                moves.append(f"{_place(new, table)} TO {_place(live, table)}")
            await owner.ask(f"RENAME TABLE {', '.join(moves)}")

    async def swap_back(
        self, live: DatabaseName, new: DatabaseName, old: DatabaseName, tables: Collection[str]
    ) -> bool:
        async with self._owners.session(live, also=[new, old]) as owner:
            put_aside, waiting = await _names(owner, old), set(await _names(owner, new))
            came = [table for table in tables if table not in waiting]
            if not came:
                return False
            moves = [f"{_place(live, table)} TO {_place(new, table)}" for table in came]
            moves += [f"{_place(old, table)} TO {_place(live, table)}" for table in put_aside]
            await owner.ask(f"RENAME TABLE {', '.join(moves)}")
            return True


async def _names(owner: Session, database: DatabaseName) -> list[str]:
    found = await owner.ask(
        "SELECT TABLE_NAME FROM information_schema.TABLES "
        f"WHERE TABLE_SCHEMA = '{checked(database)}' AND TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_NAME"
    )
    return [line for line in _lines(found) if _NAME.fullmatch(line)]


async def _keys(owner: Session, database: DatabaseName) -> dict[str, str]:
    found = await owner.ask(
        "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS "
        f"WHERE TABLE_SCHEMA = '{checked(database)}' AND EXTRA LIKE '%auto_increment%'"
    )
    return {table: column for table, column in (line.split("\t") for line in _lines(found))}


def _lines(answer: str) -> list[str]:
    """The lines of the client's answer. The client escapes line feeds within a value, but not the other characters that
    `splitlines` takes for line ends."""
    return answer.removesuffix("\n").split("\n") if answer else []


def _of_file(place: str) -> str:
    """The table in InnoDB's `database/table`, in which characters other than letters, digits and _ are like `@002d`."""
    return re.sub(r"@([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), place.partition("/")[2])


def _place(database: DatabaseName, table: str) -> str:
    if not _NAME.fullmatch(table):
        raise DatabaseError(f"{table!r} is no name of a table that is moved")
    return f"`{checked(database)}`.`{table}`"


def _quoted(column: str) -> str:
    escaped = column.replace("`", "``")
    return f"`{escaped}`"


def _word(text: str) -> str:
    """A literal of the panel's own: it cannot contain a quote."""
    if not _WORD.fullmatch(text):
        raise DatabaseError(f"{text!r} is no name of an option or a type of posts")
    return text


def _pattern(text: str) -> str:
    """A LIKE pattern: % matches any text."""
    return _word(text).replace("_", r"\_")
