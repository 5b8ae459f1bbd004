"""Dumps of other hosts' programs, loaded by the real engines into a database of a site."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from svc_webhost.accounts import SiteAccount
from svc_webhost.databases import Access, EngineKind, SiteFile, database_name, new_password, user_name
from svc_webhost.folders import HostFolders
from tests.support.databases import Engines, Ran, engines_in, engines_of_a_module
from tests.support.foreign_dumps import ADMINER, HEIDISQL, MYSQL_8, PG_17, PHPMYADMIN

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MARIADB, POSTGRESQL = EngineKind.MARIADB, EngineKind.POSTGRESQL
ACCOUNT = SiteAccount(1001)
WRITERS = {"mysqldump 8": MYSQL_8, "phpMyAdmin": PHPMYADMIN, "Adminer": ADMINER, "HeidiSQL": HEIDISQL}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with engines_of_a_module() as shared:
        yield shared


@pytest.fixture
async def engines(folder: Path) -> AsyncIterator[Engines]:
    opened = engines_in(folder)
    yield opened
    for server in opened.servers.values():
        await server.ensure()
        for user in await server.users():
            await server.drop_user(user)
        for database in await server.databases():
            await server.drop_database(database)


async def loaded(engines: Engines, folder: Path, kind: EngineKind, dump: bytes, ask: str) -> tuple[str, list[str]]:
    """The answer of the site's user once the dump is in its database, and what the load has said."""
    home = HostFolders(folder).sites / ACCOUNT.name
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.parent.chmod(0o711)
    (home / "dump.sql").write_bytes(dump)
    for path in (home, home / "dump.sql"):
        os.chown(path, ACCOUNT.uid, ACCOUNT.uid)
    server, password, run = engines.servers[kind], new_password(), Ran()
    database, user = database_name(ACCOUNT.number, "shop"), user_name(ACCOUNT.number, "ada")
    await server.create_database(database)
    await server.create_user(user, server.verifier(password), 10)
    await server.grant(user, {database: Access.FULL})
    source = SiteFile(home, "dump.sql")
    await server.look(source, ACCOUNT, run)
    await server.load(database, source, ACCOUNT, run)
    answer = await engines.ask(kind, ask, database, user, password)
    assert answer.ok, answer.err
    return answer.out, run.lines


@pytest.mark.parametrize("writer", WRITERS)
async def test_a_dump_of_mysql_8_is_in_mariadb_whoever_wrote_it(engines: Engines, folder: Path, writer: str) -> None:
    rows, said = await loaded(engines, folder, MARIADB, WRITERS[writer], "SELECT count(*), max(n) FROM v;")

    assert rows == "2\tutf8mb4_0900_ai_ci" if writer == "mysqldump 8" else rows.endswith("\tit's; USE `other`;")
    assert rows.startswith("2\t")
    assert "utf8mb4_0900_ai_ci by utf8mb4_unicode_520_ci" in "\n".join(said)
    assert "database's owner: 2" in "\n".join(said)


async def test_a_dump_of_postgresql_17_belongs_to_the_databases_owner(engines: Engines, folder: Path) -> None:
    # pgcrypto is an extension that an owner may have; the comment on it is not the owner's.
    dump = PG_17.replace(b"COMMENT ON EXTENSION", b"CREATE EXTENSION IF NOT EXISTS pgcrypto;\nCOMMENT ON EXTENSION")
    dump = dump.replace(b"COPY public.empty (id) FROM stdin;\n\\.\n", b"")

    rows, said = await loaded(engines, folder, POSTGRESQL, dump, """SELECT word FROM "o'r;d" ORDER BY id;""")

    assert rows.splitlines()[0] == "ALTER TABLE x OWNER TO y;"
    assert "OWNER TO (3)" in "\n".join(said)


async def test_values_that_were_different_in_mysql_8_still_are(engines: Engines, folder: Path) -> None:
    dump = """CREATE TABLE a (n varchar(20) COLLATE utf8mb4_0900_ai_ci UNIQUE);
INSERT INTO a VALUES ('\U0001f600'),('\U0001f601'),('a'),('b');
CREATE TABLE b (n varchar(20) COLLATE utf8mb4_0900_as_cs UNIQUE);
INSERT INTO b VALUES ('a'),('A'),('ä'),('\U0001f600');
CREATE TABLE c (n varchar(20) COLLATE utf8mb4_0900_as_ci UNIQUE);
INSERT INTO c VALUES ('a'),('ä');
CREATE TABLE d (n varchar(20) COLLATE utf8mb4_de_pb_0900_ai_ci UNIQUE, m varchar(9) COLLATE utf8mb4_0900_bin);
INSERT INTO d VALUES ('a','b');
"""

    rows, _ = await loaded(
        engines,
        folder,
        MARIADB,
        dump.encode(),
        "SELECT count(*) FROM a UNION ALL SELECT count(*) FROM b UNION ALL SELECT count(*) FROM c;",
    )

    assert rows.split() == ["4", "4", "2"]
