"""A customer takes what both engines have for all of them: memory, room on the disk, numbers of transactions."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from svc_webhost.databases import (
    DatabaseError,
    user_name,
)
from svc_webhost.databases.memory import SHARE_BYTES
from svc_webhost.mariadb import MariaDb, memory_tables
from svc_webhost.mariadb import server as mariadb_server
from svc_webhost.mariadb.tables import MariaDbTables
from svc_webhost.postgres import Postgres
from svc_webhost.postgres import server as postgres_server
from tests.support.database_attacks import (
    MARIADB,
    POSTGRESQL,
    SHOP,
    USER,
    VICTIM,
    Attacker,
    emptied_after,
    engines_beside_a_site,
)
from tests.support.databases import Answer, Engines

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MARIADB_BYTES = 832 << 20


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # A limit that a test comes to with some MiB.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mariadb_server, "_OWN_BYTES", 0)
        patch.setattr(mariadb_server, "SHARE_BYTES", MARIADB_BYTES)
        with engines_beside_a_site() as shared:
            yield shared


@pytest.fixture
async def engines(folder: Path) -> AsyncIterator[Engines]:
    async with emptied_after(folder) as opened:
        yield opened


async def test_who_keeps_the_numbers_of_transactions_of_all_is_ended(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an idle session with a temporary table, which nothing can clean up as long as it is there."""
    attacker, victim = Attacker(engines, POSTGRESQL), user_name(1003, "ada")
    await attacker.prepare()
    server = engines.servers[POSTGRESQL]
    assert isinstance(server, Postgres)
    left: list[Answer] = []

    async def keep(sql: str, database: str, user: str) -> None:
        waiting = f"{sql} SELECT pg_sleep(3000);"
        left.append(await engines.ask(POSTGRESQL, waiting, database, user, attacker.password))

    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    monkeypatch.setattr(postgres_server, "_NUMBERS_SECONDS", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, "CREATE TEMPORARY TABLE kept (a int);", SHOP, USER)
        with trio.fail_after(30):
            while await attacker.as_administrator(f"{sleeping};") != "1":
                await trio.sleep(0.05)  # Another process takes it.
        await server.end_who_keeps_numbers()
        spared = list(left)
        # As if so many transactions had come meanwhile: those of a new database are as old as the server.
        age = await attacker.as_administrator(f"SELECT age(datfrozenxid) FROM pg_database WHERE datname = '{SHOP}';")
        monkeypatch.setattr(postgres_server, "_MOST_NUMBERS", int(age) - 1)
        await server.end_who_keeps_numbers()
        with trio.fail_after(30):
            while not left:
                await trio.sleep(0.05)  # It is ended outside of this process.

    assert spared == []
    assert "terminating connection" in left[0].err
    assert (await engines.ask(POSTGRESQL, "SELECT 1;", VICTIM, victim, attacker.password)).out == "1"


def variables(number: int) -> str:
    """Of 32 MB each."""
    return "".join(f"SET @v{each} = REPEAT('x', 32000000);\n" for each in range(number))


async def test_a_session_that_takes_too_much_memory_of_mariadb_is_ended_and_no_other(engines: Engines) -> None:
    attacker, victim = Attacker(engines, MARIADB), user_name(1003, "ada")
    await attacker.prepare()
    server, pid = engines.servers[MARIADB], await engines.pid(MARIADB)
    left: list[Answer] = []

    async def keep(sql: str, database: str, user: str) -> None:
        left.append(await engines.ask(MARIADB, sql, database, user, attacker.password))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, "SELECT 'mine', SLEEP(3);", VICTIM, victim)
        nursery.start_soon(keep, variables(8) + "SELECT 'held', SLEEP(3000);", SHOP, USER)
        with trio.fail_after(60):
            while not (ended := await server.end_greedy(200 << 20)):
                await trio.sleep(0.05)  # The client fills its variables outside of this process.
        with trio.fail_after(60):
            while await server.end_greedy(200 << 20):
                await trio.sleep(0.05)  # It is ended outside of this process.

    assert [(session.user, session.bytes > 200 << 20) for session in ended] == [(USER, True)]
    assert {answer.ok for answer in left} == {True, False}
    assert [answer.out for answer in left if answer.ok] == ["mine\t0"]
    assert await engines.pid(MARIADB) == pid


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEMPORARY TABLE big ENGINE=Aria SELECT seq, REPEAT('x', 1000) AS a FROM seq_1_to_100000; "
        "SELECT SLEEP(3000);",
        "SET sort_buffer_size = 32768; SELECT SUM(LENGTH(a)) FROM "
        "(SELECT REPEAT(MD5(seq), 20) AS a FROM seq_1_to_30000000 ORDER BY a LIMIT 30000000) x;",
    ],
    ids=["tables", "sorting"],
)
async def test_a_session_that_fills_the_disk_with_temporary_files_is_ended(engines: Engines, statement: str) -> None:
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    server = engines.servers[MARIADB]
    assert isinstance(server, MariaDb)
    left: list[Answer] = []

    async def fill() -> None:
        left.append(await attacker.run(statement))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill)
        with trio.fail_after(60):
            while not (ended := await server.end_greedy(files_most=30 << 20)):
                await trio.sleep(0.05)  # Its files grow outside of this process.

    assert [(session.user, session.bytes > 30 << 20) for session in ended] == [(USER, True)]
    assert not left[0].ok


async def test_who_keeps_what_was_sorted_is_ended(engines: Engines) -> None:
    """The files are there until the last row was read, while the session is in no state of sorting."""
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    server = engines.servers[MARIADB]
    assert isinstance(server, MariaDb)
    rows = "SELECT seq, REPEAT('x', 1000) FROM seq_1_to_1000000 ORDER BY MD5(seq)"
    reader = await trio.lowlevel.open_process(
        [
            *("/usr/bin/mariadb", "--no-defaults", f"--socket={server.socket}", f"--user={USER}", "--quick"),
            *(f"--database={SHOP}", f"--execute=SET sort_buffer_size = 32768; {rows}"),
        ],
        stdout=subprocess.PIPE,
        env={"MYSQL_PWD": attacker.password},
    )
    try:
        with trio.fail_after(30):
            assert reader.stdout is not None
            await reader.stdout.receive_some(1)  # All is sorted, and nothing more is read.
            ended = await server.end_greedy(files_most=4 << 20)
    finally:
        reader.kill()
        await reader.wait()

    assert [(session.user, session.bytes > 4 << 20) for session in ended] == [(USER, True)]


async def test_a_view_that_says_too_much_is_refused_and_the_core_keeps_its_memory(engines: Engines) -> None:
    """In the place of a table that a preview of staging reads: what it says of itself differs each time."""
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    server = engines.servers[MARIADB]
    assert isinstance(server, MariaDb)
    made = await attacker.run(
        "DELIMITER ;;\nCREATE FUNCTION f(n INT) RETURNS LONGTEXT NO SQL BEGIN SET @n = COALESCE(@n, 0) + 1; "
        "RETURN IF(@n % 2, 'page', CONCAT(n, REPEAT('x', 1000000))); END;;\nDELIMITER ;\n"
        "CREATE VIEW wp_posts AS SELECT f(seq) AS post_type FROM seq_1_to_40;"
    )
    assert made.ok, made.err

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DatabaseError):
        await MariaDbTables(server).has_posts(SHOP, "wp_posts", ["page"])

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


async def test_prepared_statements_are_bounded_by_the_memory_of_sessions_before_the_server_counts_them(
    engines: Engines,
) -> None:
    """It counts those of all together, so that one customer could take those of everybody."""
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    taken = "SELECT MEMORY_USED FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID();"
    prepared = "".join(f"PREPARE s{number} FROM 'SELECT 1';" for number in range(200))

    answer = await attacker.run(f"{taken} {prepared} {taken} SELECT @@max_prepared_stmt_count;")

    before, after, most = map(int, answer.out.split())
    assert most * (after - before) / 200 > 4 * SHARE_BYTES


async def test_tables_in_memory_are_emptied_above_what_a_database_may_have(engines: Engines) -> None:
    """One after the other and in parts, which count for one table."""
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    server = engines.servers[MARIADB]
    assert isinstance(server, MariaDb)
    filling = "INSERT IGNORE INTO {} SELECT seq, REPEAT('x', 60000) FROM seq_1_to_250;"
    row = "(a INT, b VARCHAR(60000)) CHARSET latin1 ENGINE=MEMORY"
    names = [f"`odd {number}`" for number in range(6)]
    made = "".join(f"CREATE TABLE {name} {row}; {filling.format(name)}" for name in names)
    made += f"CREATE TABLE parted {row} PARTITION BY HASH (a) PARTITIONS 6;" + filling.format("parted") * 5
    await attacker.run(made)
    victim = (VICTIM, user_name(1003, "ada"), attacker.password)
    await engines.ask(MARIADB, "CREATE TABLE few (a INT) ENGINE=MEMORY; INSERT INTO few VALUES (1);", *victim)
    total = "SELECT SUM(DATA_LENGTH + INDEX_LENGTH) FROM information_schema.TABLES WHERE ENGINE = 'MEMORY';"
    before = int((await attacker.run(total)).out)

    await server.empty_memory_tables()

    assert before > memory_tables.DATABASE_BYTES
    assert int((await attacker.run(total)).out) <= memory_tables.DATABASE_BYTES
    assert int((await attacker.run("SELECT SUM(a) FROM `odd 0`;")).out) > 0
    assert (await engines.ask(MARIADB, "SELECT a FROM few;", *victim)).out == "1"


ASLEEP = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User sleep';"


async def test_tables_in_memory_are_emptied_also_while_somebody_holds_on_to_them(engines: Engines) -> None:
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    server = engines.servers[MARIADB]
    assert isinstance(server, MariaDb)
    row = "(a INT, b VARCHAR(60000)) CHARSET latin1 ENGINE=MEMORY PARTITION BY HASH (a) PARTITIONS 10"
    filling = "INSERT IGNORE INTO parted SELECT seq, REPEAT('x', 60000) FROM seq_1_to_2500;"
    await attacker.run(f"CREATE TABLE parted {row}; {filling}")
    size = "SELECT DATA_LENGTH + INDEX_LENGTH FROM information_schema.TABLES WHERE TABLE_NAME = 'parted';"
    before = int((await attacker.run(size)).out)
    left: list[Answer] = []

    async def hold() -> None:
        left.append(await attacker.run("START TRANSACTION; SELECT COUNT(*) FROM parted; SELECT SLEEP(3000);"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        with trio.fail_after(30):
            while (await attacker.run(ASLEEP)).out != "1":
                await trio.sleep(0.05)  # Another process takes it.
        with trio.fail_after(30):
            await server.empty_memory_tables()

    assert before > memory_tables.DATABASE_BYTES
    assert int((await attacker.run(size)).out) <= memory_tables.DATABASE_BYTES
    assert not left[0].ok


async def test_mariadb_outlives_what_passes_its_limit_of_memory(engines: Engines) -> None:
    """A user of it may set no buffer above its maximum, and what is allocated above the limit fails alone."""
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    pid = await engines.pid(MARIADB)
    assert pid is not None
    limits = Path(f"/proc/{pid}/limits").read_text()

    greedy = await attacker.run(variables(16))
    other = await attacker.run("SELECT 'alive';")
    raised = await attacker.run(
        "SET sort_buffer_size = 1 << 40, join_buffer_size = 1 << 40, max_heap_table_size = 1 << 40; "
        "SELECT @@sort_buffer_size <= 32 << 20, @@join_buffer_size <= 32 << 20, @@max_heap_table_size <= 16 << 20;"
    )

    assert str(MARIADB_BYTES) in limits.partition("Max data size")[2].splitlines()[0]
    assert "Out of memory" in greedy.err
    assert other.out == "alive"
    assert raised.out == "1\t1\t1"
    assert await engines.pid(MARIADB) == pid


async def test_a_session_of_postgresql_that_wants_too_much_fails_alone(engines: Engines) -> None:
    attacker = Attacker(engines, POSTGRESQL)
    await attacker.prepare()
    server, pid = engines.servers[POSTGRESQL], await engines.pid(POSTGRESQL)
    started = await attacker.as_administrator("SELECT pg_postmaster_start_time();")
    left: list[Answer] = []

    async def keep() -> None:
        filling = "SELECT array_agg(repeat('x', 1000)) FROM generate_series(1, 50000)"
        left.append(await attacker.run(f"SELECT length(a::text), pg_sleep(3000) FROM ({filling}) x(a);"))

    single = await attacker.run("SET work_mem = '2000000'; SELECT length(repeat('x', 400000000));")
    unbounded = await attacker.run("SET temp_file_limit = -1;")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep)
        with trio.fail_after(60):
            while not (ended := await server.end_greedy(4 << 20)):
                await trio.sleep(0.05)  # The client fills its memory outside of this process.

    assert "out of memory" in single.err
    assert "permission denied" in unbounded.err
    assert [session.user for session in ended] == [USER]
    assert not left[0].ok
    assert await attacker.as_administrator("SELECT pg_postmaster_start_time();") == started
    assert await engines.pid(POSTGRESQL) == pid
