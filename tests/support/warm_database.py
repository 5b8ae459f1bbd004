"""A database that serves one test after another: each finds it as the template is, and its connections warm.

A fresh copy costs the server more than most tests do: the copy itself, and then every connection to it loads the
catalogues and compiles its statements anew. So what a test leaves behind is undone instead:

- Sessions that are not handed on are ended first: nothing is written behind the cleaner's back.
- Rows are deleted rather than truncated, since a truncated table has every session compile its statements again.
  Truncated is only a table that has grown past a page, so that the next test's rows lie in the order they were written.
- Rows that migrations made are put back, sequences set to where they were.
- Connections that lie idle in the pool at the end go to the next test, with the statements that they have prepared.

What changes anything else (a table, a trigger, a grant) is not undone: `clean` says so, and the next test gets a copy.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from svc_actors.store import Database
from svc_actors.store.driver import Connection, Connector
from svc_actors.store.failures import DRIVER_ERRORS

_MOST_TESTS = 100
"""As long as one database is used: what lies about in indexes is never vacuumed."""
_POLL = 0.001
_END_TIMEOUT = 10.0
_PAGE = 8192

_CATALOGUES = (
    "pg_attrdef",
    "pg_attribute",
    "pg_class",
    "pg_constraint",
    "pg_default_acl",
    "pg_description",
    "pg_event_trigger",
    "pg_extension",
    "pg_index",
    "pg_namespace",
    "pg_policy",
    "pg_proc",
    "pg_rewrite",
    "pg_sequence",
    "pg_statistic_ext",
    "pg_trigger",
    "pg_type",
)
_END_OTHERS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL ($1::int[])
"""
_TABLES = """
    SELECT pg_class.oid::regclass::text AS name,
           (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
            WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') AS columns,
           ARRAY (SELECT quote_ident(tgname) FROM pg_trigger
                  WHERE tgrelid = pg_class.oid AND tgenabled = 'A' ORDER BY 1) AS guards
    FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1
"""
_SEQUENCES = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"
_RESET = """
    SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; SET SESSION AUTHORIZATION DEFAULT; RESET ALL;
    DISCARD SEQUENCES
"""


@dataclass(frozen=True)
class _Guarded:
    """A table whose triggers refuse that its rows go, to superusers as well: they are switched off for a moment."""

    name: str
    triggers: Sequence[str]

    def emptying(self) -> str:
        disable = [f"ALTER TABLE {self.name} DISABLE TRIGGER {trigger}" for trigger in self.triggers]
        enable = [f"ALTER TABLE {self.name} ENABLE ALWAYS TRIGGER {trigger}" for trigger in self.triggers]
        return "; ".join([*disable, f"TRUNCATE {self.name} CASCADE", *enable])


@dataclass
class WarmDatabase:
    """`url` is for the role that tests run as; the cleaner is a superuser's connection."""

    name: str
    url: str
    connector: Connector
    cleaner: Connection
    guarded: Sequence[_Guarded]
    written: str
    """The statement that lists tables with how they were written."""
    seeds: dict[str, str]
    """The columns of each table that has rows in the template."""
    seeded: dict[str, str]
    sequences: dict[str, tuple[int, bool]]
    objects: Sequence[int]
    since: str = ""
    """The transaction before which the catalogues were as they are to be."""
    tests: int = 0
    idle: list[Connection] = field(default_factory=list)

    @classmethod
    async def prepare(cls, name: str, url: str, superuser_url: str) -> WarmDatabase:
        """Of the fresh copy `name` of a template."""
        cleaner = await Connector(superuser_url, application_name="cleaner").connect()
        await cleaner.execute("SET session_replication_role = replica")  # no triggers, no foreign keys
        tables = await cleaner.fetch(_TABLES)
        guarded = [_Guarded(row["name"], row["guards"]) for row in tables if row["guards"]]
        seeds: dict[str, str] = {}
        plain: list[str] = []
        for table, columns, guards in tables:
            if await cleaner.fetchval(f"SELECT EXISTS (SELECT FROM {table})"):
                await cleaner.execute(f"CREATE TEMPORARY TABLE seeds_of_{table} AS TABLE {table}")
                seeds[table] = columns
            elif not guards:
                plain.append(table)
        written = "UNION ALL".join(
            f" SELECT '{table}', EXISTS (SELECT FROM {table}), pg_relation_size('{table}') " for table in plain
        )
        sequences = [row[0] for row in await cleaner.fetch(_SEQUENCES)]
        warm = cls(
            name,
            url,
            Connector(url, application_name="svc"),
            cleaner,
            guarded,
            written,
            seeds,
            {},
            dict.fromkeys(sequences, (0, False)),
            (),
        )
        warm.seeded, warm.sequences = await warm._seeded(), await warm._sequences()
        warm.since = await warm._next_transaction()
        warm.objects = await warm._objects()
        return warm

    @asynccontextmanager
    async def pool(self, size: int) -> AsyncIterator[Database]:
        idle, self.idle = self.idle, []
        async with Database.over(self.connector, size=size, idle=idle) as pool:
            yield pool
            self.idle = pool.take_idle()
        for connection in self.idle:
            connection.idle_since = -math.inf  # each Trio run has a clock of its own

    async def clean(self) -> bool:
        """Have everything as it was; False when this database is to be dropped."""
        self.tests += 1
        try:
            return await self._clean()
        except (*DRIVER_ERRORS, trio.TooSlowError):  # a test may end every session there is, or hold what is to go
            return False

    async def _clean(self) -> bool:
        await self._reset_sessions()
        await self._end_other_sessions()
        if self.tests >= _MOST_TESTS or await self._objects() != self.objects:
            return False
        await self._empty_tables()
        await self._put_back_seeds()
        await self._put_back_sequences()
        self.since = await self._next_transaction()
        return True

    async def close(self) -> None:
        for connection in [*self.idle, self.cleaner]:
            connection.terminate()

    async def _reset_sessions(self) -> None:
        kept, self.idle = self.idle, []
        for connection in kept:
            try:
                if connection.reusable() and connection.is_quiet():
                    await connection.execute(_RESET)
                    self.idle.append(connection)
                    continue
            except DRIVER_ERRORS:  # the server has ended it just now
                pass
            connection.terminate()

    async def _end_other_sessions(self) -> None:
        kept = [connection.link.backend[0] for connection in self.idle]
        with trio.fail_after(_END_TIMEOUT):
            while await self.cleaner.fetchval(_END_OTHERS, kept):
                await trio.sleep(_POLL)

    async def _objects(self) -> Sequence[int]:
        """How many rows the catalogues have, and how many of them are new."""
        parts = (
            f"SELECT count(*) AS all, count(*) FILTER (WHERE age(xmin) <= age($1::text::xid)) AS new FROM {catalogue}"
            for catalogue in _CATALOGUES
        )
        rows = await self.cleaner.fetch(" UNION ALL ".join(parts), self.since)
        return [number for row in rows for number in row]

    async def _next_transaction(self) -> str:
        number: int = await self.cleaner.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return str(number % 2**32)

    async def _empty_tables(self) -> None:
        rows = await self.cleaner.fetch(self.written)
        large = [name for name, _, size in rows if size > _PAGE]
        statements = [f"DELETE FROM {name}" for name, filled, size in rows if filled and size <= _PAGE]
        if large:
            statements.insert(0, f"TRUNCATE {', '.join(large)} CASCADE")
        for table in self.guarded:
            if await self.cleaner.fetchval(f"SELECT pg_relation_size('{table.name}')"):
                statements.append(table.emptying())
        if statements:
            await self.cleaner.execute("; ".join(statements))

    async def _put_back_seeds(self) -> None:
        found = await self._seeded()
        for table, columns in self.seeds.items():
            if found[table] != self.seeded[table]:
                # In a table of several pages, new rows would go wherever there is room.
                pages = await self.cleaner.fetchval(f"SELECT pg_relation_size('{table}') / {_PAGE}")
                emptying = f"TRUNCATE {table}" if pages > 1 else f"DELETE FROM {table}"
                await self.cleaner.execute(
                    f"{emptying}; INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE "
                    f"SELECT {columns} FROM seeds_of_{table}"
                )

    async def _seeded(self) -> dict[str, str]:
        parts = (
            f"SELECT '{table}', md5(string_agg({table}::text, '' ORDER BY ctid)) FROM {table}" for table in self.seeds
        )
        return {table: rows for table, rows in await self.cleaner.fetch(" UNION ALL ".join(parts))}

    async def _put_back_sequences(self) -> None:
        for name, found in (await self._sequences()).items():
            if found != self.sequences[name]:
                await self.cleaner.execute("SELECT setval($1::text::regclass, $2, $3)", name, *self.sequences[name])

    async def _sequences(self) -> dict[str, tuple[int, bool]]:
        parts = (f"SELECT '{name}', last_value, is_called FROM {name}" for name in self.sequences)
        return {name: (value, called) for name, value, called in await self.cleaner.fetch(" UNION ALL ".join(parts))}
