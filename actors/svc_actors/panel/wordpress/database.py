"""The database of a WordPress: one of the site's own on the server's MariaDB, with a user who may do everything in it.

It is recorded like one that the customer has made: they see it, export it, and it goes with the site.
"""

from __future__ import annotations

from typing import Final

from svc_actors.host.databases import Access, EngineKind, database_name, new_password, user_name
from svc_actors.host.wordpress import SiteDatabase
from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.databases.changes import create_database, create_user, set_password
from svc_actors.panel.databases.records import DATABASE_COLUMNS, USER_COLUMNS, as_database, as_user
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Caller, Database, Transaction, service_itself

LABEL: Final = "wordpress"
_ENGINE: Final = EngineKind.MARIADB
_CREATION: Final = service_itself("site.create")


class WordPressDatabases:
    def __init__(self, database: Database, databases: SiteDatabases) -> None:
        self._database = database
        self._databases = databases

    async def make(self, site: SiteRow, caller: Caller = _CREATION) -> SiteDatabase:
        """It is there, and its user has another password than before, which is kept in wp-config.php alone. Raises
        `unavailable`, and `conflict` where the plan allows no further database."""
        server, password = self._databases.server(_ENGINE), new_password()
        await self._database.transact(lambda tx: _record(tx, caller, site, server.verifier(password)))
        await self._databases.agree(site.id)
        return SiteDatabase(database_name(site.number, LABEL), user_name(site.number, LABEL), password, server.socket)


async def _record(tx: Transaction, caller: Caller, site: SiteRow, verifier: str) -> None:
    row = await tx.fetchrow(
        f"SELECT {DATABASE_COLUMNS} FROM databases WHERE engine = $1 AND name = $2",
        _ENGINE.value,
        database_name(site.number, LABEL),
    )
    database = await create_database(tx, caller, site.id, _ENGINE, LABEL) if row is None else as_database(row)
    row = await tx.fetchrow(
        f"SELECT {USER_COLUMNS} FROM database_users WHERE engine = $1 AND name = $2",
        _ENGINE.value,
        user_name(site.number, LABEL),
    )
    if row is None:
        await create_user(tx, caller, database, LABEL, Access.FULL, verifier)
    else:
        await set_password(tx, caller, as_user(row), verifier)
