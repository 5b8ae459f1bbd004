"""The real engines: what a user may do with its own database, that it may do nothing else, and dumps of both kinds."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.backups import Places
from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.databases import (
    CONNECTIONS,
    Access,
    DatabaseName,
    EngineKind,
    SiteFile,
    UserName,
    database_name,
    new_password,
    transfer,
    user_name,
)
from svc_webhost.folders import HostFolders
from tests.support.databases import Engines, ProgramEndedError, Ran, engines_in, engines_of_a_module
from tests.support.restic import RecordedRestic
from tests.support.site_backups import open_backed
from tests.support.site_files import give

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MARIADB, POSTGRESQL = EngineKind.MARIADB, EngineKind.POSTGRESQL
BOTH = pytest.mark.parametrize("kind", list(EngineKind))
ACCOUNT, OTHER_ACCOUNT = SiteAccount(1001), SiteAccount(1002)
TABLE = "CREATE TABLE things (id int PRIMARY KEY, name varchar(100)); INSERT INTO things VALUES (1, 'Größe');"
READ = "SELECT id, name FROM things ORDER BY id;"
RECREATE = "DROP TABLE IF EXISTS things; " + TABLE


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with engines_of_a_module() as shared:
        yield shared


@pytest.fixture
async def engines(folder: Path) -> AsyncIterator[Engines]:
    """Without any database and user at the end."""
    opened = engines_in(folder)
    yield opened
    for server in opened.servers.values():
        await server.ensure()
        for user in await server.users():
            await server.drop_user(user)
        for database in await server.databases():
            await server.drop_database(database)


@pytest.fixture
def home(folder: Path) -> Path:
    """The folder of the site's files, which its account reaches, without any."""
    made = HostFolders(folder).sites / ACCOUNT.name
    made.parent.mkdir(mode=0o711, exist_ok=True)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    os.chown(made, ACCOUNT.uid, ACCOUNT.uid)
    return made


async def made(engines: Engines, kind: EngineKind, number: int = 1001) -> tuple[DatabaseName, UserName, str]:
    """A database with a user who may do everything with it."""
    server, password = engines.servers[kind], new_password()
    database, user = database_name(number, "shop"), user_name(number, "ada")
    await server.create_database(database)
    await server.create_user(user, server.verifier(password), 10)
    await server.grant(user, {database: Access.FULL})
    return database, user, password


def dumped(home: Path, sql: str) -> SiteFile:
    file = home / "dump.sql"
    file.write_text(sql)
    os.chown(file, ACCOUNT.uid, ACCOUNT.uid)
    return SiteFile(home, "dump.sql")


@BOTH
async def test_a_user_works_in_its_own_database_and_reaches_no_other(engines: Engines, kind: EngineKind) -> None:
    database, user, password = await made(engines, kind)
    other, _, _ = await made(engines, kind, 1002)

    works = await engines.ask(kind, TABLE + "SELECT name FROM things;", database, user, password)
    wrong = await engines.ask(kind, "SELECT 1;", database, user, "guessed")
    foreign = await engines.ask(kind, "SELECT 1;", other, user, password)

    assert (works.ok, works.out) == (True, "Größe"), works.err
    assert not wrong.ok
    assert not foreign.ok


async def test_a_user_of_mariadb_is_shown_its_own_databases_alone(engines: Engines) -> None:
    _, user, password = await made(engines, MARIADB)
    await made(engines, MARIADB, 1002)
    # Its name matches the other's as a pattern in which _ is any character.
    await engines.servers[MARIADB].create_database(database_name(1001, "sh_p"))
    await engines.servers[MARIADB].grant(user, {database_name(1001, "sh_p"): Access.FULL})

    shown = await engines.ask(MARIADB, "SHOW DATABASES;", "", user, password)

    assert set(shown.out.split()) == {"information_schema", "s1001_sh_p"}


async def test_a_user_of_postgresql_connects_to_no_database_but_its_own(engines: Engines) -> None:
    _, user, password = await made(engines, POSTGRESQL)

    answers = [
        await engines.ask(POSTGRESQL, "SELECT 1;", database, user, password) for database in ("postgres", "template1")
    ]

    assert not any(answer.ok for answer in answers)


@BOTH
async def test_who_may_read_does_not_write_and_who_may_nothing_does_not_connect(
    engines: Engines, kind: EngineKind
) -> None:
    server = engines.servers[kind]
    database, user, password = await made(engines, kind)
    reader, secret = user_name(1001, "reader"), new_password()
    await server.create_user(reader, server.verifier(secret), 10)
    await server.grant(reader, {database: Access.READ_ONLY})
    await engines.ask(kind, TABLE, database, user, password)

    reads = await engines.ask(kind, READ, database, reader, secret)
    writes = await engines.ask(kind, "DELETE FROM things;", database, reader, secret)
    makes = await engines.ask(kind, "CREATE TABLE more (id int);", database, reader, secret)
    await server.grant(user, {database: Access.READ_ONLY})
    lowered = await engines.ask(kind, "DELETE FROM things;", database, user, password)
    await server.grant(user, {})
    revoked = await engines.ask(kind, READ, database, user, password)

    assert reads.ok, reads.err
    assert reads.out.split() in (["1", "Größe"], ["1|Größe"])
    assert not any(answer.ok for answer in (writes, makes, lowered, revoked))


@BOTH
async def test_what_one_user_makes_another_with_full_access_changes(engines: Engines, kind: EngineKind) -> None:
    server = engines.servers[kind]
    database, user, password = await made(engines, kind)
    second, secret = user_name(1001, "bob"), new_password()
    await server.create_user(second, server.verifier(secret), 10)
    await server.grant(second, {database: Access.FULL})

    await engines.ask(kind, TABLE, database, user, password)
    changed = await engines.ask(kind, "ALTER TABLE things ADD price int;", database, second, secret)
    await server.drop_user(user)
    kept = await engines.ask(kind, READ, database, second, secret)

    assert changed.ok, changed.err
    assert kept.ok, kept.err


@BOTH
async def test_a_new_password_takes_the_place_of_the_old_one(engines: Engines, kind: EngineKind) -> None:
    server = engines.servers[kind]
    database, user, old = await made(engines, kind)
    new = new_password()

    await server.create_user(user, server.verifier(new), 10)

    assert (await engines.ask(kind, "SELECT 1;", database, user, new)).ok
    assert not (await engines.ask(kind, "SELECT 1;", database, user, old)).ok


@BOTH
async def test_a_dump_is_loaded_by_code_that_lies_where_no_site_sees(
    engines: Engines, kind: EngineKind, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "of-root" / "svc_webhost"
    shutil.copytree(transfer._PACKAGE, code, ignore=shutil.ignore_patterns("__pycache__"))
    code.parent.chmod(0o700)
    monkeypatch.setattr(transfer, "_PACKAGE", code)
    monkeypatch.setattr(transfer, "_SQL", code / transfer._SQL.relative_to(transfer._SQL.parents[1]))
    database, user, password = await made(engines, kind)

    await engines.servers[kind].load(database, dumped(home, TABLE), ACCOUNT, Ran())

    read = await engines.ask(kind, READ, database, user, password)
    assert read.ok, read.err


@BOTH
@pytest.mark.usefixtures("home")
async def test_a_dump_brings_back_what_was_damaged(engines: Engines, kind: EngineKind, tmp_path: Path) -> None:
    server, run = engines.servers[kind], Ran()
    database, user, password = await made(engines, kind)
    more = TABLE + "CREATE VIEW seen AS SELECT name FROM things; INSERT INTO things VALUES (2, 'a\\\\restrict b');"
    if kind is MARIADB:
        more += "CREATE TRIGGER loud BEFORE INSERT ON things FOR EACH ROW SET NEW.name = upper(NEW.name);"
        more += "CREATE PROCEDURE greet() SELECT 'hello';"
    else:
        more += "RESET ROLE; CREATE SCHEMA mine; CREATE TABLE mine.own (id int); INSERT INTO mine.own VALUES (7);"
    if kind is POSTGRESQL:
        await engines.ask(kind, f"GRANT CREATE ON DATABASE {database} TO {user};")
    filled = await engines.ask(kind, more, database, user, password)
    before = await engines.ask(kind, READ, database, user, password)

    await server.dump(database, tmp_path / "shop.sql.gz", run)
    damaged = await engines.ask(kind, "DROP VIEW seen; DROP TABLE things;", database, user, password)
    await server.load(database, tmp_path / "shop.sql.gz", ACCOUNT, run)
    after = await engines.ask(kind, READ + "SELECT * FROM seen;", database, user, password)

    assert filled.ok, filled.err
    assert damaged.ok, damaged.err
    assert after.ok, after.err
    assert after.out.startswith(before.out)
    assert "Größe" in before.out
    if kind is MARIADB:
        called = await engines.ask(
            kind, "INSERT INTO things VALUES (3, 'x'); CALL greet(); " + READ, database, user, password
        )
        assert called.ok, called.err
        assert "X" in called.out
    assert list(tmp_path.glob("*.part")) == []


async def test_postgresql_gives_a_dump_and_a_load_the_room_that_large_rows_and_indexes_take(
    engines: Engines, home: Path, tmp_path: Path
) -> None:
    """Users have none for a row that is several times as large while it is written, and for an index that spills."""
    server, run, file = engines.servers[POSTGRESQL], Ran(), tmp_path / "shop.sql.gz"
    database, user, password = await made(engines, POSTGRESQL)
    bounds = f"ALTER DATABASE {database} SET temp_file_limit = '1MB'; "
    bounds += f"ALTER DATABASE {database} SET maintenance_work_mem = '1MB';"

    async def spill() -> str:
        return (await engines.ask(POSTGRESQL, "CREATE INDEX again ON rows (a);", database, user, password)).err

    filled = await engines.ask(
        POSTGRESQL,
        "CREATE TABLE large (a bytea); INSERT INTO large SELECT convert_to(repeat('x', 60000000), 'UTF8'); "
        "CREATE TABLE rows (a text); "
        "INSERT INTO rows SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 5000) i, "
        "generate_series(1, 20) j GROUP BY i; CREATE INDEX ON rows (a);",
        database,
        user,
        password,
    )
    written = await engines.ask(POSTGRESQL, "COPY large TO STDOUT;", database, user, password)
    await server.dump(database, file, run)
    await server.empty_database(database)
    assert (await engines.ask(POSTGRESQL, bounds)).ok
    await server.load(database, file, ACCOUNT, run)
    left = await engines.ask(POSTGRESQL, f"SELECT rolconfig FROM pg_roles WHERE rolname = 'owner_{database}';")

    assert filled.ok, filled.err
    assert "out of memory" in written.err
    assert (await engines.ask(POSTGRESQL, "SELECT length(a) FROM large;", database)).out == "60000000"
    await server.grant(user, {database: Access.FULL})
    assert "temp_file_limit" in await spill()
    assert left.out == ""


@BOTH
async def test_a_database_is_emptied_and_still_its_users(engines: Engines, kind: EngineKind) -> None:
    server = engines.servers[kind]
    database, user, password = await made(engines, kind)
    await engines.ask(kind, TABLE, database, user, password)

    await server.empty_database(database)
    await server.grant(user, {database: Access.FULL})

    assert not (await engines.ask(kind, READ, database, user, password)).ok
    assert (await engines.ask(kind, TABLE, database, user, password)).ok


# What is about the server is left out, so the next statement fails.
HOSTILE = {
    MARIADB: {
        r"\! touch {mark}": "sandbox",
        "system touch {mark}": "sandbox",
        "source /etc/passwd": "sandbox",
        "tee {mark}": "sandbox",
        "edit\n:!touch {mark}\n": "Can't create/write",
        "SELECT 1 INTO OUTFILE '{mark}';": "FILE privilege",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE things;": "Access denied",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE things;": "local infile",
        "USE s1002_shop;": "nonsense",
        "USE mysql;": "nonsense",
        "DROP TABLE s1002_shop.things;": "denied",
        "connect mysql 127.0.0.1": "connect",
        "CREATE DEFINER=`root`@`localhost` PROCEDURE evil() SELECT 1;": "nonsense",
        "GRANT ALL PRIVILEGES ON *.* TO `s1001_ada`@`localhost`;": "nonsense",
        "SET GLOBAL general_log = 1;": "nonsense",
    },
    POSTGRESQL: {
        r"\! touch {mark}": "restricted",
        r"\connect s1002_shop": "nonsense",
        r"\i /etc/passwd": "restricted",
        r"\o {mark}": "restricted",
        r"\copy things TO '{mark}'": "restricted",
        "\\unrestrict abc": "nonsense",
        "COPY things FROM PROGRAM 'touch {mark}';": "pg_execute_server_program",
        "COPY things TO '{mark}';": "pg_write_server_files",
        "COPY things FROM '/etc/passwd';": "pg_read_server_files",
        "SELECT pg_read_file('/etc/passwd');": "permission denied",
        "ALTER ROLE s1001_ada SUPERUSER;": "nonsense",
        "CREATE EXTENSION dblink;": "permission denied",
        "SET ROLE postgres;": "nonsense",
    },
}  # fmt: skip


@BOTH
async def test_a_hostile_dump_does_nothing_and_is_told(engines: Engines, home: Path, kind: EngineKind) -> None:
    """Where the mark is to be made everybody could make it."""
    marks = home / "marks"
    marks.mkdir()
    for reached in (home, marks):
        reached.chmod(0o777)
    database, user, password = await made(engines, kind)
    other, stranger, secret = await made(engines, kind, 1002)
    await engines.ask(kind, TABLE, other, stranger, secret)
    await engines.ask(kind, TABLE, database, user, password)
    told: dict[str, str] = {}

    for statement in HOSTILE[kind]:
        sql = statement.replace("{mark}", str(marks / "pwned")) + "\nDROP TABLE nonsense;\n"
        with pytest.raises(ProgramEndedError) as refused:
            await engines.servers[kind].load(database, dumped(home, sql), ACCOUNT, Ran())
        told[statement] = str(refused.value)

    assert {statement: said for statement, said in HOSTILE[kind].items() if said not in told[statement]} == {}
    assert list(marks.iterdir()) == []
    assert (await engines.ask(kind, READ, other, stranger, secret)).out != ""
    assert (await engines.ask(kind, READ, database, user, password)).out != ""


@BOTH
async def test_a_file_that_is_cut_off_is_not_taken_for_a_whole_one(
    engines: Engines, home: Path, kind: EngineKind
) -> None:
    database, user, password = await made(engines, kind)
    await engines.ask(kind, TABLE, database, user, password)
    file = dumped(home, "")
    # Cut behind "DELETE FROM things", which is a statement of its own.
    packed = gzip.compress(b"DELETE FROM things WHERE id = 77;\n" + os.urandom(1 << 16))
    (home / "dump.sql").write_bytes(packed[: len(packed) - 9000])

    with pytest.raises(ProgramEndedError, match="cannot be read to its end"):
        await engines.servers[kind].load(database, file, ACCOUNT, Ran())

    assert (await engines.ask(kind, READ, database, user, password)).out != ""


@BOTH
async def test_a_link_out_of_the_site_is_not_followed(engines: Engines, home: Path, kind: EngineKind) -> None:
    database, _, _ = await made(engines, kind)
    outside = home.parent / "outside.sql"
    outside.write_text(TABLE)
    outside.chmod(0o644)
    (home / "link.sql").symlink_to(outside)

    with pytest.raises(ProgramEndedError, match=r"link\.sql cannot be opened"):
        await engines.servers[kind].load(database, SiteFile(home, "link.sql"), ACCOUNT, Ran())


async def test_a_failed_load_leaves_postgresql_as_it_was(engines: Engines, home: Path) -> None:
    database, user, password = await made(engines, POSTGRESQL)
    await engines.ask(POSTGRESQL, TABLE, database, user, password)

    with pytest.raises(ProgramEndedError, match="nonsense"):
        await engines.servers[POSTGRESQL].load(
            database, dumped(home, "DELETE FROM things; SELECT * FROM nonsense;"), ACCOUNT, Ran()
        )

    assert "Größe" in (await engines.ask(POSTGRESQL, READ, database, user, password)).out


@BOTH
async def test_the_owner_of_a_database_logs_in_for_nobody(engines: Engines, home: Path, kind: EngineKind) -> None:
    database, _, _ = await made(engines, kind)
    seen = Ran()
    passwords: list[str] = []

    async def run(command: tuple[str, ...], **options: object) -> None:
        environment = options["environment"]
        assert isinstance(environment, dict)
        passwords.append(environment.get("MYSQL_PWD") or environment["PGPASSWORD"])
        assert not any(passwords[0] in word for word in command)
        await seen(command, **options)  # type: ignore[arg-type]

    await engines.servers[kind].load(database, dumped(home, TABLE), ACCOUNT, run)

    answer = await engines.ask(kind, "SELECT 1;", database, f"owner_{database}", passwords[0])
    assert not answer.ok


@BOTH
async def test_a_dump_that_dies_leaves_no_file(engines: Engines, kind: EngineKind, tmp_path: Path) -> None:
    database, _, _ = await made(engines, kind)
    await engines.servers[kind].drop_database(database)
    await engines.servers[kind].create_database(database)

    async def damage(command: tuple[str, ...], **options: object) -> None:
        await Ran()(tuple(word for word in command if word != database and "--dbname" not in word), **options)  # type: ignore[arg-type]

    with pytest.raises(ProgramEndedError):
        await engines.servers[kind].dump(database, tmp_path / "shop.sql.gz", damage)

    assert list(tmp_path.iterdir()) == []


@BOTH
async def test_an_engine_that_is_killed_comes_back_with_what_it_had(engines: Engines, kind: EngineKind) -> None:
    database, user, password = await made(engines, kind)
    await engines.ask(kind, TABLE, database, user, password)
    pid = await engines.pid(kind)
    assert pid is not None

    os.kill(pid, signal.SIGKILL)
    with trio.fail_after(60):
        while await engines.pid(kind) in (pid, None):
            await trio.sleep(0.05)  # The keeper starts it outside of this process.
    await engines.servers[kind].ensure()

    assert "Größe" in (await engines.ask(kind, READ, database, user, password)).out


@BOTH
async def test_the_next_core_finds_the_engine_that_runs(engines: Engines, kind: EngineKind) -> None:
    database, user, password = await made(engines, kind)
    pid = await engines.pid(kind)

    successor = engines_in(engines.folder)
    await successor.servers[kind].ensure()

    assert await successor.pid(kind) == pid
    assert (await successor.ask(kind, "SELECT 1;", database, user, password)).ok


@BOTH
async def test_of_what_was_dropped_nothing_is_left(engines: Engines, kind: EngineKind) -> None:
    server = engines.servers[kind]
    database, user, password = await made(engines, kind)
    kept, _, _ = await made(engines, kind, 1002)
    await engines.ask(kind, TABLE, database, user, password)

    for _ in range(2):
        await server.drop_user(user)
        await server.drop_database(database)

    accounts = "SELECT User FROM mysql.global_priv;" if kind is MARIADB else "SELECT rolname FROM pg_roles;"
    assert await server.databases() == {kept}
    assert await server.users() == {user_name(1002, "ada")}
    assert "s1001" not in (await engines.ask(kind, accounts)).out


@BOTH
async def test_sizes_are_those_of_the_disk(engines: Engines, kind: EngineKind) -> None:
    database, user, password = await made(engines, kind)
    server = engines.servers[kind]
    empty = (await server.sizes([database]))[database]
    rows = ", ".join(f"({number}, '{'x' * 90}')" for number in range(2, 10_002))

    filled = await engines.ask(kind, TABLE + f"INSERT INTO things VALUES {rows};", database, user, password)

    assert filled.ok, filled.err
    assert (await server.sizes([database, database_name(1001, "absent")])).keys() == {database}
    assert (await server.sizes([database]))[database] > empty + 900_000


async def test_no_statement_of_mariadb_runs_without_a_connection_that_is_counted(engines: Engines) -> None:
    database, user, password = await made(engines, MARIADB)
    event = "CREATE EVENT again ON SCHEDULE EVERY 1 SECOND DO SELECT SLEEP(1000);"

    made_one = await engines.ask(MARIADB, event, database, user, password)
    scheduler = await engines.ask(MARIADB, "SELECT @@global.event_scheduler;", database, user, password)
    switched_on = await engines.ask(MARIADB, "SET GLOBAL event_scheduler = ON;", database, user, password)

    assert made_one.ok  # A dump that has events is imported.
    assert scheduler.out == "OFF"
    assert not switched_on.ok


async def test_only_so_many_connections_of_one_user_are_open_at_a_time(engines: Engines) -> None:
    database, user, password = await made(engines, MARIADB)
    server = engines.servers[MARIADB]
    await server.create_user(user, server.verifier(password), 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engines.ask, MARIADB, "SELECT SLEEP(300);", database, user, password)
        with trio.fail_after(60):
            while "SLEEP" not in (await engines.ask(MARIADB, "SHOW PROCESSLIST;")).out:
                await trio.sleep(0.05)  # The client starts outside of this process.
        second = await engines.ask(MARIADB, "SELECT 1;", database, user, password)
        nursery.cancel_scope.cancel()

    assert not second.ok
    assert "max_user_connections" in second.err


async def test_another_program_of_the_site_that_reaches_into_an_import_finds_nothing_of_the_server(
    engines: Engines, folder: Path, home: Path
) -> None:
    database, _, _ = await made(engines, MARIADB)
    seen: list[list[str]] = []

    async def run(command: tuple[str, ...], **options: Any) -> None:
        async def look() -> None:
            # What a process of the same user may open while the import sleeps.
            while not (processes := [pid for pid in os.listdir("/proc") if is_import(pid, folder)]):
                await trio.sleep(0.02)
            root = Path(f"/proc/{processes[0]}/root")
            seen.append(sorted(path.name for path in (root / folder.relative_to("/")).iterdir()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await Ran()(command, **options)

    await engines.servers[MARIADB].load(database, dumped(home, "SELECT SLEEP(3);"), ACCOUNT, run)

    assert seen == [["run", "sites"]]


def is_import(pid: str, folder: Path) -> bool:
    """Into one of these servers: other panels on this machine have the same accounts."""
    try:
        process = Path("/proc", pid)
        return (
            pid.isdigit()
            and process.stat().st_uid == ACCOUNT.uid
            and b"--sandbox" in (command := (process / "cmdline").read_bytes())
            and os.fsencode(folder) in command
        )
    except OSError:
        return False


@BOTH
async def test_the_engine_takes_all_connections_of_twenty_sites_and_those_of_another(
    engines: Engines, kind: EngineKind
) -> None:
    connections = CONNECTIONS[kind].site

    reserved = "current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
    taken = await engines.ask(kind, {MARIADB: "SELECT @@max_connections;", POSTGRESQL: f"SELECT {reserved};"}[kind])

    assert int(taken.out) >= 21 * connections


ORDERS = "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1), (2), (3);"
CREATED = "CREATE TABLE other (id int);\n"
CUT_OF_MARIADB = f"-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB\n--\n{CREATED}".encode()
CUT_OF_POSTGRESQL = f"--\n-- PostgreSQL database dump\n--\n{CREATED}".encode()
PACKED = gzip.compress(CREATED.encode() * 200)
WRONG: dict[str, bytes | None] = {
    # Refused by a look at the file.
    "empty.sql": b"",
    "blanks.sql": b"\n \t\r\n",
    "comments.sql": b"-- only a comment\n/* and another */\n",
    "empty.sql.gz": gzip.compress(b""),
    "comment.sql.bz2": bz2.compress(b"-- only a comment\n"),
    "dump.sql.zip": b"PK\x03\x04\x14\x00\x00\x00rest of a zip",
    "dump.sql.zst": b"\x28\xb5\x2f\xfdrest",
    "dump.custom": b"PGDMP\x01\x0erest of pg_dump's own format",
    "cut-early.sql.gz": PACKED[:40],
    "cut-late.sql.gz": PACKED[:-8],
    "damaged.sql.gz": PACKED[:30] + b"\xff" * 10 + PACKED[40:],
    "cut.sql.bz2": bz2.compress(CREATED.encode() * 9000)[:60],
    "cut.sql.xz": lzma.compress(CREATED.encode() * 9000)[:60],
    "utf-16.sql": b"\xff\xfe" + CREATED.encode("utf-16-le"),
    "utf-16-without-mark.sql": CREATED.encode("utf-16-be"),
    "page.sql": b"<!DOCTYPE html><title>404 Not Found</title>",
    "api.sql": b'{"error": "denied"}',
    "picture.sql": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "random.sql": hashlib.shake_256(b"seed").digest(20_000),
    "zeros.sql": bytes(4096),
    "full-disk.sql": CREATED.encode() + bytes(4096),
    "archive.sql": b"dump.sql" + bytes(504) + CREATED.encode(),
    "folder": None,
    # Refused by the engine, after the first statements were run.
    "prose.sql": b"Dear customer, your database is attached.\n",
    "typing-error.sql": CREATED.encode() + b"INSRT INTO other VALUES (1);\n",
    "open-string.sql": CREATED.encode() + b"INSERT INTO other VALUES ('1\n",
    "drops-first.sql": b"DROP TABLE IF EXISTS orders;\nCREATE TABLE orders (id int;\n",
    "twice.sql": b"CREATE TABLE orders (id int PRIMARY KEY);\nINSERT INTO orders VALUES (1), (1);\n",
    "foreign.sql": CREATED.encode() + b"INSERT INTO s1999_shop.other VALUES (1);\n",
}
OF_ENGINE: dict[EngineKind, dict[str, bytes | None]] = {
    MARIADB: {
        **WRONG,
        "cut.sql": CUT_OF_MARIADB,
        "cut.sql.gz": gzip.compress(CUT_OF_MARIADB),
        "of-another.sql": CUT_OF_POSTGRESQL + b"-- PostgreSQL database dump complete\n",
        "collation.sql": b"CREATE TABLE u (n varchar(20) COLLATE utf8mb4_9999_ai_ci);\n",
    },
    POSTGRESQL: {
        "cut.sql": CUT_OF_POSTGRESQL,
        "of-another.sql": CUT_OF_MARIADB + b"-- Dump completed on 2026-01-02  3:04:05\n",
        "collation.sql": b'CREATE TABLE u (n text COLLATE "xx_XX");\n',
        **{name: WRONG[name] for name in ("empty.sql", "comments.sql", "cut-late.sql.gz", "utf-16.sql", "folder")},
        **{name: WRONG[name] for name in ("typing-error.sql", "twice.sql", "drops-first.sql")},
    },
}


async def test_nothing_is_lost_when_a_wrong_file_replaces_what_is_in_a_database(
    engines: Engines, folder: Path, panel_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the panel's own jobs. Its folder is that of the engines, as the programs of sites see both."""
    shutil.rmtree(HostFolders(folder).sites, ignore_errors=True)
    wrong: dict[str, str] = {}
    async with open_backed(panel_database, folder, RecordedRestic(), engines.servers) as world:
        give(world.home, "private/folder/inside", b"")
        for kind in EngineKind:
            order = {"site_id": str(world.site), "name": "shop", "engine": kind.value, "user": "ada"}
            made = (await world.ada.post("/databases", order)).json()
            database, login = made["database"], made["login"]
            filled = await engines.ask(kind, ORDERS, database["name"], login["user"]["name"], login["password"])
            assert filled.ok, filled.err

            async def replace(path: str, order: str = f"/databases/{database['id']}/import") -> dict[str, Any]:
                return await world.ended(await world.ada.post(order, {"path": f"private/{path}", "replace": True}))

            async def judge(path: str, kind: EngineKind = kind, name: str = database["name"]) -> None:
                job = await replace(path)
                left = await engines.ask(kind, "SELECT id FROM orders ORDER BY id;", name)
                if job["status"] != "failed" or left.out.split() != ["1", "2", "3"]:
                    wrong[f"{kind.value} {path}"] = f"{job['status']}: {job['error']}; {left}"

            for path, content in OF_ENGINE[kind].items():
                if content is not None:
                    give(world.home, f"private/{path}", content)
                await judge(path)
            give(world.home, "private/good.sql", CREATED.encode())
            with monkeypatch.context() as full:
                full.setattr(Places, "free_bytes", lambda places: 1 << 20)
                await judge("good.sql")
            good = await replace("good.sql")
            after = await engines.ask(kind, "SELECT count(*) FROM other;", database["name"])

            assert good["status"] == "succeeded", good
            assert after.out == "0"
        kept = Places(HostFolders(folder)).kept_aside()

    assert wrong == {}
    assert kept == []
