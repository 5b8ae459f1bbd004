"""Compares an imported site with its source: the rows of its tables, its PHP version and the PHP extensions.

A table's rows are counted in the dump while it is loaded (`svc_webhost.confined.sql_rows`), and right afterwards in the
database, with a checksum. So a row that was lost during the import, which blocks the verification, can be distinguished
from a row that was written here since, which is only reported. The old host is not needed again; its credentials are
deleted by then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from svc_actors.panel.imports.comparing import check
from svc_actors.panel.imports.plan import labels_of
from svc_actors.panel.imports.records import read_import
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Database
from svc_webhost.archives.model import FoundSite
from svc_webhost.confined.sql_rows import ROWS
from svc_webhost.databases import DatabaseError, DatabaseName, database_name
from svc_webhost.mariadb.tables import StagedTables

NOT_LOADED: Final = "its dump was not loaded: "
"""How the note about a database that was imported without its content starts."""
MOST_TABLES: Final = 300
"""The most tables that a report lists."""
_LOOK_SECONDS: Final = 600.0
"""The time for reading the tables of one database; tables that were not read by then are reported as unknown."""
_NAMED: Final = 3
_SERVED_BY: Final = re.compile(r"\bPHP/([5-9]\.[0-9])")

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class TableFacts:
    """`before`: rows of the dump, None if they cannot be counted. `came` and `checksum`: rows here right after loading,
    and their checksum; None if the table could not be read."""

    before: int | None
    came: int | None
    checksum: str | None

    @property
    def lost(self) -> bool:
        return self.before is not None and self.came is not None and self.came != self.before


class Counted:
    """Runs the program that loads a dump, and takes its row counts out of the output for the log."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self.rows: dict[str, int | None] = {}

    async def program(
        self,
        command: tuple[str, ...],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: Path | None = None,
    ) -> None:
        await self._run.program(command, seconds=seconds, environment=environment, stdin=stdin, read=self._read)

    async def _read(self, lines: list[str]) -> None:
        rest = []
        for line in lines:
            if line.startswith(ROWS):
                table, rows = json.loads(line.removeprefix(ROWS))
                self.rows[table] = rows
            else:
                rest.append(line)
        if rest:
            await self._run.log(*rest)


async def imported_state(
    tables: StagedTables, database: DatabaseName, rows: Mapping[str, int | None]
) -> dict[str, TableFacts]:
    """The state of these tables right after loading."""
    here = await _here(tables, database, rows) or {}
    return {table: TableFacts(before, *here.get(table, (None, None))) for table, before in rows.items()}


def lost_rows(came: Mapping[str, TableFacts]) -> list[str]:
    """The lost rows in words, by table."""
    return [
        f"{table}: {facts.came} of {facts.before} rows were imported" for table, facts in came.items() if facts.lost
    ]


def served_by(headers: Mapping[str, str]) -> str | None:
    """The version of PHP that an answer names in its headers."""
    found = _SERVED_BY.search(headers.get("x-powered-by", ""))
    return None if found is None else found[1]


class Contents:
    """`loaded` returns the PHP extensions that are loaded in a version here."""

    def __init__(
        self, database: Database, tables: StagedTables, loaded: Callable[[str], Awaitable[Collection[str]]]
    ) -> None:
        self._database = database
        self._tables = tables
        self._loaded = loaded

    async def tables(self, site: SiteRow) -> tuple[Lines, Lines]:
        """The report's lines about tables, and their checks."""
        row = await self._database.fetchrow("SELECT import_id, tables FROM import_sites WHERE site_id = $1", site.id)
        if row is None or not row["tables"]:
            return [], []
        labels = labels_of((await read_import(self._database, row["import_id"])).account)
        found: Lines = []
        lost, missing, written, unknown = [], [], [], []
        for database, told in row["tables"].items():
            came = {table: TableFacts(*facts) for table, facts in told.items()}
            here = await _here(self._tables, database_name(site.number, labels[database]), came)
            for table, facts in came.items():
                rows, checksum = (None, None) if here is None else here.get(table, (None, None))
                changed = None if rows is None or facts.checksum is None else checksum != facts.checksum
                name = f"{database}.{table}"
                if here is not None and rows is None:
                    missing.append(name)
                if here is None or facts.before is None or facts.came is None:
                    unknown.append(name)
                if facts.lost:
                    lost.append(f"{name} ({facts.came} of {facts.before})")
                if changed:
                    written.append(f"{name} ({facts.came} rows then, {rows} now)")
                found.append(
                    {
                        "database": database,
                        "table": table,
                        "rows_before": facts.before,
                        "rows_imported": facts.came,
                        "rows": rows,
                        "changed": changed,
                    }
                )
        checks = [
            check("tables", not missing, f"{len(missing)} tables no longer exist here: {_some(missing)}"),
            check("rows", not lost, f"{len(lost)} tables lack rows of the dump: {_some(lost)}"),
            check("rows_unknown", not unknown, f"{len(unknown)} were not compared: {_some(unknown)}", stops=False),
            check("written", not written, f"{len(written)} changed here since: {_some(written)}", stops=False),
        ]
        found.sort(key=lambda one: (_as_it_was(one), one["database"], one["table"]))
        return found[:MOST_TABLES], checks

    async def php(
        self, site: SiteRow, source: FoundSite | None, served: str | None
    ) -> tuple[dict[str, Any] | None, Lines]:
        """`served`: the PHP version that the old host's answer named. Extensions that only the old host's command line
        has are reported and block nothing: its websites may have used another PHP, and a site needs few of the
        extensions."""
        now = site.php.get("version")
        if now is None:
            return None, []
        sure = served or (None if source is None else source.php)
        before = sure or (None if source is None else source.command_line_php)
        checks = [check("php", before in (None, now), f"it had PHP {before} and now has {now}", stops=sure is not None)]
        missing: list[str] = []
        others: list[str] = []
        if source is not None:
            try:
                loaded = frozenset(await self._loaded(now))
            except OSError as error:
                checks.append(check("extensions", False, f"PHP {now} could not be queried: {error}"))
            else:
                missing = [name for name in source.extensions if name not in loaded]
                others = [name for name in source.command_line_extensions if name not in {*loaded, *missing}]
                said = f"its files require extensions that PHP {now} does not have: {', '.join(missing)}"
                checks.append(check("extensions", not missing, said))
                said = f"the command line of the old host also had: {', '.join(others)}"
                checks.append(check("other_extensions", not others, said, stops=False))
        return {"before": before, "now": now, "missing": missing, "others_missing": others}, checks


async def _here(
    tables: StagedTables, database: DatabaseName, wanted: Collection[str]
) -> dict[str, tuple[int, str]] | None:
    """Rows and checksum of the existing tables here; None if they cannot be read, or not in time."""
    with trio.move_on_after(_LOOK_SECONDS):
        try:
            told = await tables.facts(database, wanted, options=None, volatile=())
        except DatabaseError:
            return None
        return {table: (int(words.split()[0]), words.split()[-1]) for table, words in told.items()}
    return None


def _as_it_was(one: Mapping[str, Any]) -> bool:
    return one["rows_before"] == one["rows_imported"] == one["rows"] and one["changed"] is False


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"[:400]
