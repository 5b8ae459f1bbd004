"""A customer attacks the engines' administrators and the other customers by what is in its own database, while tables
and views of it change places."""

from __future__ import annotations

import gzip
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from svc_webhost.databases import (
    Access,
    DatabaseError,
    DatabaseName,
    UserName,
    database_name,
    user_name,
)
from svc_webhost.mariadb import MariaDb
from svc_webhost.mariadb.tables import MariaDbTables
from svc_webhost.postgres import superuser
from tests.support.database_attacks import (
    ACCOUNT,
    MARIADB,
    POSTGRESQL,
    SECRET,
    SHOP,
    USER,
    VICTIM,
    Attacker,
    emptied_after,
    engines_beside_a_site,
)
from tests.support.databases import PSQL, Engines, ProgramEndedError, Ran

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SCRATCH = [database_name(9, f"push1{name}") for name in ("new", "old")]
EXCHANGED = 40


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with engines_beside_a_site() as shared:
        yield shared


@pytest.fixture
async def engines(folder: Path) -> AsyncIterator[Engines]:
    async with emptied_after(folder) as opened:
        yield opened


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
