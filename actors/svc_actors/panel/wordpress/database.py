"""The database of a WordPress: an ordinary database of its site on MariaDB, with a user who may do everything in it.

It is recorded like the customer's own databases: the customer sees it and can export it, and it is deleted with the
site.
"""

from __future__ import annotations

from typing import Final

from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.databases.changes import create_database, create_user, set_password
from svc_actors.panel.databases.records import DATABASE_COLUMNS, USER_COLUMNS, DatabaseUserRow, as_database, as_user
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Caller, Database, Queryable, Transaction, service_itself
from svc_webhost.databases import Access, EngineKind, database_name, new_password, user_name
from svc_webhost.wordpress import SiteDatabase

LABEL: Final = "wordpress"
_ENGINE: Final = EngineKind.MARIADB
_CREATION: Final = service_itself("site.create")


class WordPressDatabases:
    def __init__(self, database: Database, databases: SiteDatabases) -> None:
        self._database = database
        self._databases = databases

    async def make(self, site: SiteRow, label: str = LABEL, caller: Caller = _CREATION) -> SiteDatabase:
        """Create the database if it does not exist, and set a new password of its user. The panel stores only a
        verifier of the password; the password itself goes into wp-config.php. Raises `unavailable`, and `conflict` if
        the plan allows no further database."""
        password = new_password()
        await self._database.transact(lambda tx: self.record(tx, site, password, caller, label))
        await self._databases.agree(site.id)
        return SiteDatabase(database_name(site.number, label), user_name(site.number, label), password)

    async def make_reader(self, site: SiteRow, label: str, reader: str, caller: Caller) -> None:
        """Create a user who can only read the database `label`, with a password that nobody knows until it is reset.
        Nothing is changed if the site has a user of that name. Raises `conflict` if it cannot have a further user."""
        verifier = self._databases.server(_ENGINE).verifier(new_password())

        async def work(tx: Transaction) -> None:
            row = await tx.fetchrow(
                f"SELECT {DATABASE_COLUMNS} FROM databases WHERE engine = $1 AND name = $2",
                _ENGINE.value,
                database_name(site.number, label),
            )
            if row is not None and await _user(tx, site, reader) is None:
                await create_user(tx, caller, as_database(row), reader, Access.READ_ONLY, verifier)

        await self._database.transact(work)
        await self._databases.agree(site.id)

    async def record(self, tx: Transaction, site: SiteRow, password: str, caller: Caller, label: str = LABEL) -> None:
        """Record the database and its user with this password; `SiteDatabases.agree` then updates the engine. Raises
        `conflict` if the plan allows no further database."""
        verifier = self._databases.server(_ENGINE).verifier(password)
        row = await tx.fetchrow(
            f"SELECT {DATABASE_COLUMNS} FROM databases WHERE engine = $1 AND name = $2",
            _ENGINE.value,
            database_name(site.number, label),
        )
        database = await create_database(tx, caller, site.id, _ENGINE, label) if row is None else as_database(row)
        user = await _user(tx, site, label)
        if user is None:
            await create_user(tx, caller, database, label, Access.FULL, verifier)
        else:
            await set_password(tx, caller, user, verifier)

    async def has_password(self, queryable: Queryable, site: SiteRow, password: str) -> bool:
        """Whether the database's user exists and has this password."""
        user = await _user(queryable, site)
        return user is not None and user.verifier == self._databases.server(_ENGINE).verifier(password)


async def _user(queryable: Queryable, site: SiteRow, label: str = LABEL) -> DatabaseUserRow | None:
    row = await queryable.fetchrow(
        f"SELECT {USER_COLUMNS} FROM database_users WHERE engine = $1 AND name = $2",
        _ENGINE.value,
        user_name(site.number, label),
    )
    return None if row is None else as_user(row)
