"""The database that tests use one after another: a test finds nothing of those before it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg
import pytest
import trio

from svc_actors.store import Database
from svc_actors.store.embedded import SERVICE_ROLE
from tests.conftest import Cluster
from tests.support.kept_cluster import SUPERUSER
from tests.support.schema import schema_of
from tests.support.warm_database import WarmDatabase

TEMPLATES = CONTROLLER, PANEL = "svc_template", "svc_panel_template"

TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
GRANTS = """
    SELECT relname, relacl::text, relowner::regrole::text, relrowsecurity, reloptions::text FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT concat(attrelid::regclass, '.', attname), attacl::text, attstattarget::text, atthasdef, attoptions::text
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT proname, proacl::text, proowner::regrole::text, prosecdef, proconfig::text FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace
    ORDER BY 1, 2, 3
"""
SEQUENCES = """
    SELECT sequencename::text, start_value, min_value, max_value, increment_by, cycle, last_value FROM pg_sequences
    WHERE schemaname = 'public' ORDER BY 1
"""
SETTINGS = "SELECT setrole::text, setconfig::text FROM pg_db_role_setting ORDER BY 1"
COLUMNS = """
    SELECT quote_ident(attname) AS name, format_type(atttypid, NULL) AS type,
           attnotnull AND NOT atthasdef AND attidentity = '' AS required
    FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
VALUES = {
    "text": "'x' || random()",
    "uuid": "gen_random_uuid()",
    "timestamp with time zone": "now()",
    "date": "current_date",
    "boolean": "true",
    "jsonb": "'{}'",
    "json": "'{}'",
    "bytea": r"'\x00'",
    "inet": "'192.0.2.1'",
    "cidr": "'192.0.2.0/24'",
    "text[]": "'{x}'",
    "interval": "'1 day'",
}


SPECIAL = ("schema", "grants", "sequences", "settings")


@dataclass(frozen=True)
class Writing:
    """What a test does to a table: new rows, then each row written anew, then none left."""

    rows: int
    updates: bool
    deletes: bool


async def contents_of(url: str) -> dict[str, object]:
    """All there is in a database; the rows of each table in the order they lie in."""
    async with Database.open(as_superuser(url), size=1) as database:
        found: dict[str, object] = {"schema": await schema_of(database)}
        for what, sql in {"grants": GRANTS, "sequences": SEQUENCES, "settings": SETTINGS}.items():
            found[what] = [tuple(row.values()) for row in await database.fetch(sql)]
        for (table,) in await database.fetch(TABLES):
            rows = await database.fetch(f"SELECT {table}::text FROM {table} ORDER BY ctid")
            found[table] = [row[0] for row in rows]
        return found


async def write(url: str, plan: Mapping[str, Writing]) -> int:
    """Do what the plan says, as far as constraints allow it; how many tables were written."""
    async with Database.open(as_superuser(url), size=1) as database:
        await database.execute("SET session_replication_role = replica")
        written = 0
        for table, writing in plan.items():
            columns = await database.fetch(COLUMNS, table)
            required = [row for row in columns if row["required"]]
            names = ", ".join(row["name"] for row in required)
            values = ", ".join(VALUES.get(row["type"], "number") for row in required)
            into = f"{table} ({names})" if required else table
            changed = await attempt(
                database, f"INSERT INTO {into} SELECT {values} FROM generate_series(1, {writing.rows}) AS number"
            )
            if writing.updates:
                name = columns[0]["name"]
                changed |= await attempt(database, f"UPDATE {table} SET {name} = {name}")
            if writing.deletes:
                changed |= await attempt(database, f"DELETE FROM {table}")
            written += changed
        await database.fetch("SELECT nextval(oid) FROM pg_class WHERE relkind = 'S'")
        return written


async def attempt(database: Database, sql: str) -> bool:
    try:
        return await database.change(sql) > 0
    except asyncpg.PostgresError:
        return False


def as_superuser(url: str) -> str:
    return url.replace(f"//{SERVICE_ROLE}@", f"//{SUPERUSER}@", 1)


@pytest.fixture(autouse=True)
def new_database(database_cluster: Cluster) -> None:
    """One that has served many tests is given up whatever the last one did."""
    database_cluster.give_up_warm_databases()


@pytest.mark.parametrize("template", TEMPLATES)
def test_whatever_a_test_writes_the_next_one_finds_the_template(database_cluster: Cluster, template: str) -> None:
    expected = trio.run(contents_of, database_cluster.fresh_database(template))
    tables = sorted(expected.keys() - SPECIAL)
    for seed in range(4):
        chance = random.Random(seed)
        plan = {
            table: Writing(chance.choice((1, 3, 400)), chance.random() < 0.5, chance.random() < 0.3)
            for table in chance.sample(tables, len(tables) * 2 // 3)
        }
        with database_cluster.warm_database(template) as warm:
            written = trio.run(write, warm.url, plan)
        with database_cluster.warm_database(template) as next_one:
            assert written > len(plan) // 4
            assert next_one is warm
            assert trio.run(contents_of, next_one.url) == expected


def test_the_session_of_the_next_test_knows_nothing_of_the_last(database_cluster: Cluster) -> None:
    state = """
        SELECT current_setting('work_mem'), current_user::text,
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
               (SELECT count(*) FROM pg_listening_channels()), pg_backend_pid()
    """

    async def look(warm: WarmDatabase) -> tuple[object, ...]:
        async with warm.pool(1) as pool:
            return tuple((await pool.fetchone(state)).values())

    async def leave_behind(warm: WarmDatabase) -> None:
        async with warm.pool(1) as pool:
            await pool.execute("SET work_mem = '17MB'; SELECT pg_advisory_lock(1); LISTEN news")

    with database_cluster.warm_database(CONTROLLER) as warm:
        before = trio.run(look, warm)
    with database_cluster.warm_database(CONTROLLER) as warm:
        trio.run(leave_behind, warm)
    with database_cluster.warm_database(CONTROLLER) as warm:
        assert trio.run(look, warm) == before


def test_what_a_session_still_does_is_ended_before_the_next_test(database_cluster: Cluster) -> None:
    async def leave_at_work(warm: WarmDatabase) -> None:
        connection = await warm.connector.connect()
        with trio.move_on_after(0.1):
            await connection.execute("SELECT pg_sleep(60); INSERT INTO settings (name, value) VALUES ('late', '1')")

    with database_cluster.warm_database(CONTROLLER) as warm:
        trio.run(leave_at_work, warm)
    with database_cluster.warm_database(CONTROLLER) as next_one:
        assert next_one is warm
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()"
        assert trio.run(warm.cleaner.fetchval, sessions, warm.name) == len(warm.idle)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE mine (number int)",
        "DROP TABLE settings CASCADE",
        "ALTER TABLE settings ADD COLUMN mine text",
        "ALTER TABLE audit DISABLE TRIGGER audit_stays",
        "ALTER SEQUENCE audit_id_seq INCREMENT 2",
        "GRANT TRUNCATE ON audit TO PUBLIC",
        "GRANT UPDATE (at) ON audit TO PUBLIC",
        "CREATE INDEX mine ON settings (name)",
        "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "ALTER TABLE settings ALTER COLUMN name SET STATISTICS 5",
        "CREATE SCHEMA mine",
        "CREATE TEMPORARY TABLE mine (number int)",
    ],
)
def test_a_test_that_changes_more_than_rows_is_the_last_on_its_database(database_cluster: Cluster, change: str) -> None:
    async def run(url: str) -> None:
        async with Database.open(as_superuser(url), size=1) as database:
            await database.execute(change)

    with database_cluster.warm_database(CONTROLLER) as warm:
        trio.run(run, warm.url)
    with database_cluster.warm_database(CONTROLLER) as next_one:
        assert next_one is not warm


def test_a_test_that_ends_every_session_gets_no_other_test_into_trouble(database_cluster: Cluster) -> None:
    everybody = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"

    async def end_all(url: str) -> None:
        async with Database.open(as_superuser(url), size=1) as database:
            await database.execute(f"{everybody} AND pid <> pg_backend_pid()")

    with database_cluster.warm_database(CONTROLLER) as warm:
        trio.run(end_all, warm.url)
    with database_cluster.warm_database(CONTROLLER) as next_one:
        assert trio.run(contents_of, next_one.url)
