"""A customer attacks the engines' administrators and the other customers by what is in its own database, while tables
and views of it change places."""

from __future__ import annotations

import gzip
import itertools
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.databases import (
    Access,
    DatabaseError,
    DatabaseName,
    EngineKind,
    UserName,
    database_name,
    new_password,
    user_name,
)
from svc_actors.host.databases.memory import SHARE_BYTES
from svc_actors.host.folders import HostFolders
from svc_actors.host.mariadb import MariaDb, memory_tables
from svc_actors.host.mariadb import server as mariadb_server
from svc_actors.host.mariadb.tables import MariaDbTables
from svc_actors.host.postgres import Postgres, superuser
from svc_actors.host.postgres import server as postgres_server
from tests.support.databases import PSQL, Answer, Engines, ProgramEndedError, Ran, engines_in, engines_of_a_module

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MARIADB, POSTGRESQL = EngineKind.MARIADB, EngineKind.POSTGRESQL
ACCOUNT = SiteAccount(1002)
SHOP, USER = database_name(1002, "shop"), user_name(1002, "mal")
VICTIM = database_name(1003, "shop")
SCRATCH = [database_name(9, f"push1{name}") for name in ("new", "old")]
SECRET = "VICTIM-CARD-4711"
EXCHANGED = 40
MARIADB_BYTES = 832 << 20


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # A limit that a test comes to with some MiB.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mariadb_server, "_OWN_BYTES", 0)
        patch.setattr(mariadb_server, "SHARE_BYTES", MARIADB_BYTES)
        yield from running()


def running() -> Iterator[Path]:
    with engines_of_a_module() as shared:
        home = HostFolders(shared).sites / ACCOUNT.name
        home.mkdir(mode=0o711, parents=True)
        os.chown(home, ACCOUNT.uid, ACCOUNT.uid)
        yield shared


@pytest.fixture
async def engines(folder: Path) -> AsyncIterator[Engines]:
    opened = engines_in(folder)
    yield opened
    for server in opened.servers.values():
        for user in await server.users():
            await server.drop_user(user)
        for database in await server.databases():
            await server.drop_database(database)


class Attacker:
    """The user of a customer's database; another customer has the same, with a secret in it."""

    def __init__(self, engines: Engines, kind: EngineKind) -> None:
        self.engines, self.kind, self.password = engines, kind, new_password()

    async def prepare(self) -> None:
        server = self.engines.servers[self.kind]
        for database, user in ((SHOP, USER), (VICTIM, user_name(1003, "ada"))):
            await server.create_database(database)
            await server.create_user(user, server.verifier(self.password), 10)
            await server.grant(user, {database: Access.FULL})
        made = f"CREATE TABLE cards (n TEXT); INSERT INTO cards VALUES ('{SECRET}');"
        await self.engines.ask(self.kind, made, VICTIM, user_name(1003, "ada"), self.password)

    async def run(self, sql: str) -> Answer:
        return await self.engines.ask(self.kind, sql, SHOP, USER, self.password)

    async def install(self, variations: Sequence[str]) -> list[str]:
        """Those that the engine refuses."""
        return [each for each in variations if not (await self.run(each)).ok]

    async def as_administrator(self, sql: str, database: str = "") -> str:
        answer = await self.engines.ask(self.kind, sql, database)
        assert answer.ok, answer.err
        return answer.out


async def through(doors: Sequence[object], times: int) -> None:
    """Each call, again and again. What changes under it may fail."""
    for _ in range(times):
        for door in doors:
            with suppress(DatabaseError, ProgramEndedError):
                await door()  # type: ignore[operator]


F = """DELIMITER ;;
CREATE FUNCTION f() RETURNS INT SQL SECURITY INVOKER MODIFIES SQL DATA BEGIN
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  INSERT INTO s1002_shop.loot VALUES (CURRENT_USER(), 'called');
  INSERT INTO s1002_shop.loot SELECT CURRENT_USER(), n FROM s1003_shop.cards;
  UPDATE s1003_shop.cards SET n = 'CHANGED';
  UPDATE mysql.global_priv SET Priv = JSON_SET(Priv, '$.access', 549755813887) WHERE User = 's1002_mal';
  RETURN 1;
END;;
CREATE FUNCTION d() RETURNS INT SQL SECURITY INVOKER DETERMINISTIC MODIFIES SQL DATA RETURN f();;
CREATE AGGREGATE FUNCTION g(x INT) RETURNS INT SQL SECURITY INVOKER MODIFIES SQL DATA BEGIN
  DECLARE CONTINUE HANDLER FOR NOT FOUND RETURN f();
  LOOP FETCH GROUP NEXT ROW; END LOOP;
END;;
CREATE PROCEDURE p() SQL SECURITY INVOKER MODIFIES SQL DATA SET @called = f();;
CREATE PROCEDURE s() SQL SECURITY INVOKER EXECUTE IMMEDIATE 'SET @called = s1002_shop.f()';;
DELIMITER ;
"""
OPTIONS = """CREATE TABLE {name} (option_name VARCHAR(191) UNIQUE, option_value TEXT, autoload VARCHAR(20),
who VARCHAR(100) DEFAULT (CURRENT_USER())); INSERT INTO {name} (option_name, option_value) VALUES ('siteurl', 'x');"""
VIEWS = (
    "SELECT f() AS a",
    "SELECT 1 AS a WHERE f() = 1",
    "SELECT SUBSTR('abc', d()) AS a",
    "SELECT x.a FROM (SELECT f() AS a) x",
    "SELECT g(1) AS a",
    "SELECT 1 AS a LIMIT 1",
    "SELECT (SELECT d()) AS a",
    "SELECT CAST(f() AS DECIMAL(10, 2)) AS a",
    "SELECT INFO AS a FROM information_schema.PROCESSLIST",
    "SELECT LOAD_FILE('/etc/shadow') AS a",
)
"""In turn, each with two kinds of algorithm, they change places with tables."""
ALLOWED_OF_MARIADB = (
    "CREATE TABLE made (a INT, who VARCHAR(100) DEFAULT (CURRENT_USER()), up INT AS (a + 1) VIRTUAL);",
    "CREATE TRIGGER one BEFORE DELETE ON wp_options FOR EACH ROW SET @x = f();",
    "CREATE TRIGGER two AFTER DELETE ON wp_options FOR EACH ROW CALL p();",
    "CREATE TRIGGER three BEFORE INSERT ON wp_options FOR EACH ROW SET @x = f();",
    "CREATE EVENT tick ON SCHEDULE EVERY 1 SECOND DO CALL s();",
    "CREATE SEQUENCE sq; CREATE SQL SECURITY INVOKER VIEW seen AS SELECT NEXTVAL(sq) AS a, f() AS b;",
    "CREATE SQL SECURITY INVOKER VIEW wp_posts AS SELECT 'page' AS post_type WHERE f() = 1;",
)
REFUSED_BY_MARIADB = (
    "CREATE TABLE checked (a INT, CHECK (a < 7 OR CURRENT_USER() = 'root@localhost'));",
    "CREATE VIEW stolen AS SELECT n FROM s1003_shop.cards;",
    "CREATE DEFINER=root@localhost VIEW stolen AS SELECT f();",
    "CREATE DEFINER=root@localhost TRIGGER four BEFORE DELETE ON wp_options FOR EACH ROW SET @x = f();",
    "CREATE DEFINER=owner_s1003_shop@localhost PROCEDURE q() SELECT 1;",
    "CREATE TABLE merged (n TEXT) ENGINE=MERGE UNION=(s1003_shop.cards);",
    "SET sql_mode='NO_ENGINE_SUBSTITUTION'; CREATE TABLE far (n TEXT) ENGINE=FEDERATED CONNECTION='mysql://a@h/d/t';",
    "SET sql_mode='NO_ENGINE_SUBSTITUTION'; CREATE TABLE odd (n TEXT) ENGINE=CONNECT TABLE_TYPE=DOS FILE_NAME='/x';",
    "CREATE TABLE keyed (a INT, FOREIGN KEY (a) REFERENCES s1003_shop.cards (n));",
    "CREATE TABLE virtual (a INT AS (f()) VIRTUAL);",
    "CREATE TABLE here (a INT) DATA DIRECTORY='/tmp' ENGINE=InnoDB; SELECT a FROM mysql.user;",
    "CREATE TABLE log (n TEXT) ENGINE=CSV; SET GLOBAL general_log_file='x';",
    "HANDLER s1003_shop.cards OPEN;",
    "LOCK TABLES s1003_shop.cards READ;",
)


@asynccontextmanager
async def exchanging(attacker: Attacker) -> AsyncIterator[None]:
    """Four connections exchange tables and views without a pause."""
    command = ["/usr/bin/mariadb", "--no-defaults", f"--socket={attacker.engines.servers[MARIADB].socket}", "--force"]
    command += [f"--user={USER}", f"--password={attacker.password}", f"--database={SHOP}"]

    async def exchange(quarter: int) -> None:
        numbers = range(quarter, EXCHANGED, 4)
        batch = "".join(f"RENAME TABLE t{i} TO x{i}, v{i} TO t{i}, x{i} TO v{i};\n" for i in numbers)
        client = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert client.stdin is not None
        try:
            while True:
                await client.stdin.send_all(batch.encode())
        finally:
            client.kill()
            with trio.CancelScope(shield=True):
                await client.wait()

    async with trio.open_nursery() as nursery:
        for quarter in range(4):
            nursery.start_soon(exchange, quarter)
        yield
        nursery.cancel_scope.cancel()


async def test_what_changes_places_in_mariadb_is_evaluated_as_its_owner(engines: Engines, tmp_path: Path) -> None:
    attacker, run = Attacker(engines, MARIADB), Ran()
    await attacker.prepare()
    server = engines.servers[MARIADB]
    assert isinstance(server, MariaDb)
    tables = MariaDbTables(server)
    for scratch in SCRATCH:
        await server.create_database(scratch)
    setting_up = "CREATE TABLE loot (who TEXT, what TEXT) ENGINE=MyISAM;\n" + F + OPTIONS.format(name="wp_options")
    kinds = zip(range(EXCHANGED), itertools.cycle(VIEWS), itertools.cycle(("MERGE", "TEMPTABLE", "UNDEFINED")))
    for number, view, kind in kinds:
        setting_up += f"CREATE TABLE t{number} (a INT) ENGINE=MyISAM;"
        setting_up += f"CREATE ALGORITHM={kind} SQL SECURITY INVOKER VIEW v{number} AS {view};\n"
    made = await attacker.run(setting_up)
    assert made.ok, made.err
    assert await attacker.install(ALLOWED_OF_MARIADB) == []
    assert await attacker.install(REFUSED_BY_MARIADB) == list(REFUSED_BY_MARIADB)
    await attacker.as_administrator(OPTIONS.format(name="wp_options"), SCRATCH[0])
    before = await attacker.as_administrator("SELECT * FROM mysql.global_priv WHERE User NOT LIKE 'owner%';")
    names = [f"t{number}" for number in range(EXCHANGED)]
    dump, back = tmp_path / "dump.sql.gz", tmp_path / "back.sql.gz"
    await server.dump(SHOP, back, run)

    async with exchanging(attacker):
        await through(
            [
                lambda: server.dump(SHOP, dump, run),
                lambda: tables.facts(SHOP, [*names, "wp_options"], options="wp_options", volatile=["x"]),
                lambda: tables.dump(SHOP, names[:3], tmp_path / "staged.sql.gz", run),
                lambda: tables.has_posts(SHOP, "wp_posts", ["page"]),
                lambda: tables.bound(SHOP, names),
                lambda: tables.keep_options(SCRATCH[0], SHOP, "wp_options", ["siteurl"]),
                lambda: tables.keep_options(SHOP, SCRATCH[0], "wp_options", ["siteurl"]),
                lambda: tables.swap(SHOP, SCRATCH[0], SCRATCH[1], ["wp_options"]),
                lambda: tables.swap_back(SHOP, SCRATCH[0], SCRATCH[1], ["wp_options"]),
                lambda: server.sizes([SHOP]),
            ],
            2,
        )
    for loaded in (False, True):
        if loaded:
            await server.empty_database(SHOP)
            await server.load(SHOP, back, ACCOUNT, run)
        loot = await attacker.as_administrator("SELECT DISTINCT who, what FROM s1002_shop.loot;")
        callers = {line.split("\t")[0] for line in loot.splitlines()}
        # It was called, and by nobody who may do more.
        assert loaded or f"owner_{SHOP}@localhost" in callers
        assert callers <= {f"owner_{SHOP}@localhost", f"{USER}@localhost"}
        assert SECRET not in loot
    assert await attacker.as_administrator(f"SELECT n FROM {VICTIM}.cards;") == SECRET
    after = await attacker.as_administrator("SELECT * FROM mysql.global_priv WHERE User NOT LIKE 'owner%';")
    assert after == before
    shown = gzip.decompress(back.read_bytes()).decode() + (
        gzip.decompress(dump.read_bytes()).decode() if dump.exists() else ""
    )
    assert SECRET not in shown
    assert "root:" not in shown
    assert "root@localhost" not in shown.replace("= 'root@localhost'", "").replace("`root`@`localhost`", "")
    granted = await attacker.as_administrator(f"SELECT Db FROM mysql.db WHERE User = 'owner_{SHOP}';")
    assert granted == r"s1002\\_shop"


ROUTINES = r"""DELIMITER ;;
CREATE FUNCTION `odd ``name`(a INT, b VARCHAR(9) CHARACTER SET latin1) RETURNS VARCHAR(20) DETERMINISTIC NO SQL
SQL SECURITY INVOKER COMMENT 'it''s \\ Größe' RETURN CONCAT(a, 'Größe');;
CREATE AGGREGATE FUNCTION summed(x INT) RETURNS INT READS SQL DATA BEGIN
  DECLARE s INT DEFAULT 0; DECLARE CONTINUE HANDLER FOR NOT FOUND RETURN s;
  LOOP FETCH GROUP NEXT ROW; SET s = s + x; END LOOP;
END;;
SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES';;
CREATE PROCEDURE "quoted "" name"(OUT x INT) COMMENT 'a \ b' MODIFIES SQL DATA SET x = 1;;
SET sql_mode = ORACLE;;
CREATE FUNCTION ora(a INT) RETURN INT AS BEGIN RETURN a; END;;
CREATE PACKAGE pack AS FUNCTION f1 RETURN INT; END;;
CREATE PACKAGE BODY pack AS FUNCTION f1 RETURN INT AS BEGIN RETURN 1; END; END;;
SET sql_mode = DEFAULT;;
ALTER DATABASE COLLATE latin1_bin;;
CREATE PROCEDURE other(a TEXT) SELECT a;;
ALTER DATABASE COLLATE utf8mb4_unicode_ci;;
DELIMITER ;
CREATE VIEW uses AS SELECT `odd ``name`(1, 'x') AS a;
"""


async def test_routines_of_a_user_come_back_as_they_were(engines: Engines, tmp_path: Path) -> None:
    attacker, run = Attacker(engines, MARIADB), Ran()
    await attacker.prepare()
    made = await attacker.run(ROUTINES)
    assert made.ok, made.err
    columns = (
        "type, name, param_list, returns, body, sql_mode, sql_data_access, is_deterministic, security_type, comment"
    )
    columns += ", aggregate, db_collation, character_set_client, collation_connection"
    listing = f"SELECT {columns} FROM mysql.proc WHERE db = '{SHOP}' ORDER BY type, name;"
    before = await attacker.as_administrator(listing)
    server = engines.servers[MARIADB]
    await server.dump(SHOP, tmp_path / "dump.sql.gz", run)
    await server.empty_database(SHOP)
    gone = await attacker.as_administrator(listing)

    await server.load(SHOP, tmp_path / "dump.sql.gz", ACCOUNT, run)

    assert gone == ""
    assert len(before.splitlines()) == 7
    assert await attacker.as_administrator(listing) == before
    assert "Größe" in (await attacker.run("SELECT a FROM uses;")).out


ALLOWED_BY_POSTGRESQL = (
    """CREATE TABLE loot (who TEXT); GRANT ALL ON loot TO PUBLIC; GRANT ALL ON SCHEMA public TO PUBLIC;
    CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.loot VALUES (session_user || ' ' || current_user);
      BEGIN EXECUTE 'ALTER ROLE s1002_mal SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END;
      BEGIN EXECUTE $c$COPY loot TO PROGRAM 'touch {mark}'$c$; EXCEPTION WHEN OTHERS THEN NULL; END;
      RETURN 1; END $$;
    CREATE FUNCTION i(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM public.f();
      RETURN x; END $$;""",
    "CREATE VIEW looked AS SELECT f() AS a;",
    "CREATE MATERIALIZED VIEW kept AS SELECT f() AS a;",
    "CREATE TABLE indexed (x int); CREATE INDEX ON indexed (i(x)); INSERT INTO indexed VALUES (1);",
    "CREATE TABLE defaulted (x int DEFAULT f());",
    "CREATE TABLE generated (x int, y int GENERATED ALWAYS AS (i(x)) STORED); INSERT INTO generated VALUES (1);",
    "CREATE TABLE ruled (x int); CREATE RULE r AS ON INSERT TO ruled DO ALSO SELECT f();",
    "CREATE TABLE guarded (x int); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; "
    "CREATE POLICY p ON guarded USING (f() = 1);",
    "CREATE FUNCTION tr() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.f(); RETURN NEW; END $$; "
    "CREATE TABLE fired (x int); CREATE TRIGGER t BEFORE INSERT OR DELETE ON fired FOR EACH ROW EXECUTE FUNCTION tr();",
    "CREATE DOMAIN small AS int CHECK (i(VALUE) < 9); CREATE TABLE typed (x small); INSERT INTO typed VALUES (1);",
    "CREATE FUNCTION op(name, text) RETURNS bool LANGUAGE sql AS $$ SELECT public.f() = 1 $$; "
    "CREATE OPERATOR public.= (LEFTARG = name, RIGHTARG = text, FUNCTION = op);",
    "CREATE FUNCTION op(oid, oid) RETURNS bool LANGUAGE sql AS $$ SELECT public.f() = 1 $$; "
    "CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = op);",
    "CREATE VIEW pg_roles AS SELECT f() AS oid, 's1002_mal' AS rolname;",
    "CREATE VIEW pg_auth_members AS SELECT f() AS roleid, f() AS member;",
    "CREATE VIEW pg_database AS SELECT f() AS oid, 's1002_shop' AS datname;",
    "CREATE FUNCTION pg_get_userbyid(bigint) RETURNS text LANGUAGE sql AS $$ SELECT public.f()::text $$;",
    "CREATE FUNCTION starts_with(name, text) RETURNS bool LANGUAGE sql AS $$ SELECT public.f() = 1 $$;",
    "CREATE FUNCTION of_text(text) RETURNS int LANGUAGE sql AS $$ SELECT public.f() $$; "
    "CREATE TYPE pair AS (a int, b int); "
    "CREATE FUNCTION cast_it(pair) RETURNS text LANGUAGE sql AS $$ SELECT public.f()::text $$; "
    "CREATE CAST (pair AS text) WITH FUNCTION cast_it(pair) AS IMPLICIT;",
    "CREATE TABLE parted (x int) PARTITION BY RANGE (i(x)); CREATE TABLE part PARTITION OF parted DEFAULT; "
    "INSERT INTO parted VALUES (1);",
    "CREATE TABLE excluded (x int, EXCLUDE USING btree (i(x) WITH =)); INSERT INTO excluded VALUES (1);",
    "CREATE STATISTICS st ON i(x), x FROM indexed;",
    "CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');",
    "CREATE SEQUENCE numbers; CREATE TABLE numbered (x int DEFAULT nextval('numbers') + f());",
    "ALTER DATABASE s1002_shop SET search_path = public, pg_catalog; "
    "ALTER DATABASE s1002_shop SET statement_timeout = 1; "
    "ALTER DATABASE s1002_shop SET default_transaction_read_only = on; "
    "ALTER DATABASE s1002_shop SET lock_timeout = 1;",
)  # fmt: skip
REFUSED_BY_POSTGRESQL = (
    "CREATE EVENT TRIGGER e ON ddl_command_end EXECUTE FUNCTION e();",
    "CREATE EXTENSION postgres_fdw;",
    "CREATE EXTENSION dblink;",
    "CREATE EXTENSION file_fdw;",
    "CREATE FUNCTION c() RETURNS int LANGUAGE c AS 'x', 'y';",
    "ALTER DATABASE s1002_shop SET session_preload_libraries = 'x';",
    "CREATE SUBSCRIPTION s CONNECTION 'host=x' PUBLICATION p;",
    "CREATE PUBLICATION p FOR ALL TABLES;",
    "SET SESSION AUTHORIZATION postgres;",
    "ALTER TABLE loot OWNER TO owner_s1003_shop;",
)


async def test_what_is_made_in_postgresql_is_never_called_by_its_superuser(engines: Engines, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    attacker, run = Attacker(engines, POSTGRESQL), Ran()
    await attacker.prepare()
    server, mark = engines.servers[POSTGRESQL], tmp_path / "mark"
    allowed = [each.replace("{mark}", str(mark)) for each in ALLOWED_BY_POSTGRESQL]
    assert await attacker.install(allowed) == []
    assert await attacker.install(REFUSED_BY_POSTGRESQL) == list(REFUSED_BY_POSTGRESQL)
    other, dump = user_name(1002, "eve"), tmp_path / "dump.sql.gz"
    roles = await attacker.as_administrator("SELECT rolname FROM pg_roles WHERE rolsuper;")

    async def given() -> None:
        await server.create_user(UserName(other), server.verifier(attacker.password), 3)
        await server.grant(UserName(other), {SHOP: Access.FULL})
        await server.grant(UserName(other), {SHOP: Access.READ_ONLY})
        await server.drop_user(UserName(other))

    # In a database with such settings all of it still works.
    await given()
    await server.create_database(SHOP)
    assert DatabaseName(SHOP) in await server.databases()
    assert await server.granted(USER) == {SHOP: Access.FULL}
    assert (await server.sizes([SHOP]))[SHOP] > 0
    reading = "SELECT DISTINCT who FROM public.loot;"
    callers = set()
    for door in (server.dump(SHOP, dump, run), server.load(SHOP, dump, ACCOUNT, run)):
        with suppress(ProgramEndedError):
            await door
        callers |= set((await attacker.as_administrator(reading, SHOP)).splitlines())

    assert any(caller.startswith(USER) for caller in callers)
    assert {caller.split()[0] for caller in callers} <= {USER, f"owner_{SHOP}"}
    assert not mark.exists()
    assert await attacker.as_administrator("SELECT rolname FROM pg_roles WHERE rolsuper;") == roles
    assert await attacker.as_administrator("SELECT n FROM cards;", VICTIM) == SECRET


OTHER = database_name(1002, "other")
GRANTED_TO_OTHERS = (
    "CREATE TABLE gift (a int); GRANT ALL ON gift TO {role};",
    "GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON DATABASE s1002_shop TO {role};",
    "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {role};",
    "CREATE TABLE guarded (a int); CREATE POLICY p ON guarded TO {role} USING (true);",
)
CLOSED = (
    f"SET ROLE NONE; ALTER DATABASE {SHOP} ALLOW_CONNECTIONS false;",
    f"SET ROLE NONE; ALTER DATABASE {SHOP} IS_TEMPLATE true;",
    f"SET ROLE NONE; ALTER DATABASE {SHOP} CONNECTION LIMIT 0;",
    f"SET ROLE NONE; ALTER DATABASE {SHOP} SET local_preload_libraries = 'nothing';",
    f"SET ROLE NONE; ALTER DATABASE {SHOP} SET session_authorization = '{USER}';",
    f"SET ROLE NONE; ALTER DATABASE {SHOP} SET role = '{USER}';",
)


@asynccontextmanager
async def held(attacker: Attacker, sql: str) -> AsyncIterator[None]:
    """In a transaction that goes on until it is ended from outside."""
    password = {"PGPASSWORD": attacker.password}
    socket = attacker.engines.servers[POSTGRESQL].socket
    client = await trio.lowlevel.open_process(
        [
            *(PSQL, "-X", "-q", "-A", "-t", "-w", "-h", str(socket), "-U", USER, "-d", SHOP),
            *("-c", f"BEGIN; {sql} SELECT 'held'; SELECT pg_sleep(3000);"),
        ],
        env=password,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep';"
    try:
        with trio.fail_after(30):
            while await attacker.as_administrator(sleeping) != "1":
                await trio.sleep(0.05)  # Another process takes it.
        yield
    finally:
        client.kill()
        await client.wait()


async def test_no_customer_keeps_the_accounts_of_another_from_being_removed(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By granting them something in a database of her own, and closing it."""
    shorter = superuser._OPTIONS.replace("lock_timeout=30000", "lock_timeout=1000")
    monkeypatch.setattr(superuser, "_OPTIONS", shorter)
    attacker, victim = Attacker(engines, POSTGRESQL), user_name(1003, "ada")
    await attacker.prepare()
    server = engines.servers[POSTGRESQL]
    await server.create_database(OTHER)
    await server.grant(USER, {SHOP: Access.FULL, OTHER: Access.FULL})
    roles = [victim, f"owner_{VICTIM}", f"reader_{VICTIM}"]
    for number, grant in enumerate(GRANTED_TO_OTHERS):
        for role in roles:
            made = await attacker.run(
                grant.replace("gift", f"gift_{role}").format(role=role).replace("guarded", f"guarded_{number}_{role}")
            )
            assert made.ok, made.err
    uncommitted = f"GRANT ALL ON gift_gift TO {victim}; LOCK TABLE gift_gift;"
    assert (await attacker.run("CREATE TABLE gift_gift (a int);")).ok

    async with held(attacker, uncommitted):
        closed = await engines.ask(POSTGRESQL, CLOSED[0], OTHER, USER, attacker.password)
        assert closed.ok, closed.err
        await server.drop_user(victim)
        await server.drop_database(VICTIM)

    listing = "SELECT rolname FROM pg_roles WHERE rolname LIKE '%s1003%';"
    assert await attacker.as_administrator(listing) == ""
    assert await server.databases() == {SHOP, OTHER}
    assert (await attacker.run("SELECT 1;")).out == "1"


@pytest.mark.parametrize("closing", CLOSED)
async def test_what_an_owner_makes_of_its_database_keeps_it_from_nothing_of_the_panels(
    engines: Engines, closing: str
) -> None:
    attacker = Attacker(engines, POSTGRESQL)
    await attacker.prepare()
    server, eve = engines.servers[POSTGRESQL], user_name(1002, "eve")
    await server.create_database(OTHER)
    await server.create_user(eve, server.verifier(attacker.password), 3)
    await server.grant(USER, {SHOP: Access.FULL, OTHER: Access.FULL})
    made = await engines.ask(POSTGRESQL, closing, OTHER, USER, attacker.password)
    assert made.ok, made.err

    await server.create_database(SHOP)
    await server.grant(eve, {SHOP: Access.FULL})
    await server.grant(eve, {SHOP: Access.READ_ONLY})
    await server.drop_user(eve)
    await server.empty_database(SHOP)
    await engines.ask(POSTGRESQL, closing, OTHER, USER, attacker.password)
    await server.drop_user(USER)
    await server.drop_database(SHOP)
    await server.drop_database(OTHER)

    assert await server.databases() == {VICTIM}
    listing = "SELECT rolname FROM pg_roles WHERE rolname LIKE '%s1002%';"
    assert await attacker.as_administrator(listing) == ""


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


async def test_what_leads_to_and_from_a_table_is_found(engines: Engines) -> None:
    """From another database of the site too, which an owner is not shown."""
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    server, other = engines.servers[MARIADB], database_name(1002, "other")
    assert isinstance(server, MariaDb)
    await server.create_database(other)
    await server.grant(USER, {SHOP: Access.FULL, other: Access.FULL})
    made = await attacker.run(
        "CREATE TABLE `odd-one` (a INT PRIMARY KEY); CREATE TABLE two$ (a INT PRIMARY KEY); "
        "CREATE TABLE alone (a INT); CREATE TABLE fired (a INT); "
        "CREATE TABLE from_here (a INT, FOREIGN KEY (a) REFERENCES `odd-one` (a)); "
        f"CREATE TABLE {other}.there (a INT, FOREIGN KEY (a) REFERENCES {SHOP}.two$ (a)); "
        "CREATE TRIGGER t BEFORE INSERT ON fired FOR EACH ROW SET @x = 1;"
    )
    assert made.ok, made.err
    every = ["odd-one", "two$", "alone", "fired", "from_here", "there"]

    bound = await MariaDbTables(server).bound(SHOP, every)

    assert bound == ["fired", "from_here", "odd-one", "two$"]
    # Also one to which another leads can be emptied and dropped.
    await server.empty_database(SHOP)
    await server.drop_database(SHOP)
    assert SHOP not in await server.databases()


async def test_a_name_with_the_end_of_a_line_in_it_is_one_name(engines: Engines) -> None:
    attacker = Attacker(engines, MARIADB)
    await attacker.prepare()
    server = engines.servers[MARIADB]
    assert isinstance(server, MariaDb)
    odd = "\N{LINE SEPARATOR}"
    made = await attacker.run(
        f"CREATE TABLE odd (`a{odd}b` INT PRIMARY KEY AUTO_INCREMENT); INSERT INTO odd VALUES (7); "
        f"CREATE TABLE `o{odd}dd` (a INT); "
        f"CREATE TABLE wp_posts (post_type VARCHAR(20)); INSERT INTO wp_posts VALUES ('page'), ('x{odd}page');"
    )
    assert made.ok, made.err
    tables = MariaDbTables(server)

    found = await tables.facts(SHOP, ["odd"], options=None, volatile=())

    assert found["odd"].startswith("1 7 ")
    assert await tables.names(SHOP) == ["odd", "wp_posts"]
    assert await tables.has_posts(SHOP, "wp_posts", ["page"]) == ["page"]
    assert await tables.bound(SHOP, ["odd"]) == []


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
