"""A customer of the database engines who attacks the others, and the engines that tests of such attacks share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from svc_webhost.accounts import SiteAccount
from svc_webhost.databases import (
    Access,
    EngineKind,
    database_name,
    new_password,
    user_name,
)
from svc_webhost.folders import HostFolders
from tests.support.databases import Answer, Engines, engines_in, engines_of_a_module

MARIADB, POSTGRESQL = EngineKind.MARIADB, EngineKind.POSTGRESQL
ACCOUNT = SiteAccount(1002)
SHOP, USER = database_name(1002, "shop"), user_name(1002, "mal")
VICTIM = database_name(1003, "shop")
SECRET = "VICTIM-CARD-4711"


@contextmanager
def engines_beside_a_site() -> Iterator[Path]:
    """The folder of both engines, and of the home of the attacker's site."""
    with engines_of_a_module() as shared:
        home = HostFolders(shared).sites / ACCOUNT.name
        home.mkdir(mode=0o711, parents=True)
        os.chown(home, ACCOUNT.uid, ACCOUNT.uid)
        yield shared


@asynccontextmanager
async def emptied_after(folder: Path) -> AsyncIterator[Engines]:
    """Both engines; users and databases that a test has made are removed."""
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
