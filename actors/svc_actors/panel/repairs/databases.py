"""The databases and users of a site, compared with their engines."""

from __future__ import annotations

from collections.abc import Sequence

from svc_actors.panel.databases import DatabaseStatus, SiteDatabases
from svc_actors.panel.databases.records import (
    DATABASE_COLUMNS,
    USER_COLUMNS,
    DatabaseRow,
    DatabaseUserRow,
    as_database,
    as_user,
    grants_of,
    write_user_wanted,
)
from svc_actors.panel.repairs.parts import Finding
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Database, Transaction
from svc_common.errors import unavailable
from svc_webhost.databases import DatabaseError, EngineKind
from svc_webhost.databases import DatabaseServer as Engine


class Databases:
    """A lost database is not created anew: it would be empty, and the site would look healthy."""

    def __init__(self, database: Database, databases: SiteDatabases) -> None:
        self._database = database
        self._databases = databases

    async def look(self, site: SiteRow) -> list[Finding]:
        databases, users = await self._recorded(site)
        findings: list[Finding] = []
        for kind in sorted({row.engine for row in databases} | {row.engine for row in users}):
            engine = self._databases.server(kind)
            of_kind = [row for row in databases if row.engine is kind], [row for row in users if row.engine is kind]
            try:
                findings += await self._compared(kind, engine, *of_kind)
            except DatabaseError as error:
                findings.append(Finding(f"{kind.value} does not answer: {error}"))
        return findings

    async def mend(self, site: SiteRow) -> None:
        _, users = await self._recorded(site)
        for kind in sorted({row.engine for row in users}):
            try:
                await self._databases.server(kind).ensure()
            except DatabaseError as error:
                raise unavailable(f"{kind.value} does not answer: {error}") from error

        async def tell_anew(tx: Transaction) -> None:
            for user in users:
                await write_user_wanted(tx, user.id)

        await self._database.transact(tell_anew)
        await self._databases.agree(site.id)

    async def _recorded(self, site: SiteRow) -> tuple[list[DatabaseRow], list[DatabaseUserRow]]:
        """Databases and users that exist and are not being deleted."""
        databases = await self._database.fetch(
            f"SELECT {DATABASE_COLUMNS} FROM databases WHERE site_id = $1 AND status = $2 ORDER BY name",
            site.id,
            DatabaseStatus.ACTIVE.value,
        )
        users = await self._database.fetch(
            f"SELECT {USER_COLUMNS} FROM database_users WHERE site_id = $1 AND status = 'active' ORDER BY name", site.id
        )
        return [as_database(row) for row in databases], [as_user(row) for row in users]

    async def _compared(
        self, kind: EngineKind, engine: Engine, databases: Sequence[DatabaseRow], users: Sequence[DatabaseUserRow]
    ) -> list[Finding]:
        there, known = await engine.databases(), await engine.users()
        findings = [
            Finding(f"The database {row.name} is gone from {kind.value}: restore it from a backup.", mendable=False)
            for row in databases
            if row.name not in there
        ]
        for user in users:
            if user.name not in known:
                findings.append(Finding(f"{kind.value} does not know the user {user.name}."))
                continue
            wanted, granted = await grants_of(self._database, user), await engine.granted(user.name)
            findings += [
                Finding(f"{user.name} lacks its access to {name} ({access.value}).")
                for name, access in wanted.items()
                if granted.get(name) is not access
            ]
            findings += [
                Finding(f"{user.name} has access to {name}, which was not granted.") for name in granted.keys() - wanted
            ]
        return findings
