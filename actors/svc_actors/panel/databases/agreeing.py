"""Makes the engines agree with the records of a site's databases: creates, changes and drops databases and users.

Invariants:
- recorded changes are carried out, however often that takes: after a kill between any two steps the next core repeats
  them, and a round every half minute retries an engine that did not answer;
- per site, one task at a time talks to the engines;
- an engine runs exactly as long as a database or user in it has a record.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.databases.changes import delete_all_of_site
from svc_actors.panel.databases.records import (
    DatabaseRow,
    DatabaseUserRow,
    count_users,
    grants_of,
    read_database,
    remove_record,
    under_way,
    write_move,
    write_problem,
    write_user_applied,
    write_users_wanted,
)
from svc_actors.panel.databases.states import DatabaseMove, DatabaseStatus
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Database, Transaction
from svc_common.errors import ServiceError, unavailable
from svc_webhost.databases import CONNECTIONS, DatabaseError, DatabaseServer, DatabaseServers, EngineKind, Session
from svc_webhost.launcher import LauncherError

RESUME_SECONDS: Final = 30.0
_LOOK_MOST_SECONDS: Final = 10.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.databases")


class SiteDatabases:
    """One per process."""

    def __init__(self, database: Database, servers: DatabaseServers) -> None:
        self._database = database
        self._servers = servers
        self._sites: defaultdict[UUID, trio.Lock] = defaultdict(trio.Lock)
        self._engines = {kind: trio.Lock() for kind in EngineKind}
        self.ended: Counter[str] = Counter()
        """How many database sessions of each site account were ended because of their memory, since this process
        started."""

    def server(self, kind: EngineKind) -> DatabaseServer:
        return self._servers[kind]

    async def agree(self, site_id: UUID) -> None:
        """Make the engines agree with a site's records. Raises `unavailable` if an engine failed; the rounds retry
        until this succeeds."""
        async with self._sites[site_id]:
            await self._agree(site_id)

    async def empty(self, database_id: UUID) -> None:
        """Drop the content of the database; its users stay. Raises not_found, and `unavailable`."""
        row = await read_database(self._database, database_id)
        async with self._sites[row.site_id]:

            async def write(tx: Transaction) -> None:
                await write_move(tx, [row.id], DatabaseMove.EMPTY)
                await write_users_wanted(tx, row.id)

            await self._database.transact(write)
            await self._told(row, lambda server: server.empty_database(row.name))
            await self._agree(row.site_id)

    async def remove_all(self, site: SiteRow) -> None:
        """Drop the databases and users of a site that is being deleted. Raises `unavailable`."""
        async with self._sites[site.id]:
            await self._database.transact(lambda tx: delete_all_of_site(tx, site))
            await self._agree(site.id)

    async def resume(self) -> None:
        """One round: run the engines that are needed, stop the others, and retry what was left undone."""
        for kind in EngineKind:
            await self._run_as_needed(kind)
        rows = await self._database.fetch(
            """SELECT site_id FROM databases WHERE status <> 'active'
               UNION SELECT site_id FROM database_users WHERE status <> 'active' OR applied < wanted"""
        )
        for row in rows:
            # The problem is in the record, and the caller was informed at the time; the next round retries.
            with suppress(ServiceError):
                await self.agree(row["site_id"])

    async def end_greedy(self, kind: EngineKind) -> None:
        """One check of how much of an engine's memory the sessions of sites take."""
        ended: list[Session] = []
        with trio.move_on_after(_LOOK_MOST_SECONDS):
            try:
                ended = await self._servers[kind].end_greedy()
            except DatabaseError as error:
                log.warning("databases.memory_not_looked_at", engine=kind.value, error=str(error))
        for session in ended:
            self.ended[session.site] += 1
            log.warning("databases.session_ended", engine=kind.value, user=session.user, mib=session.bytes >> 20)

    async def _agree(self, site_id: UUID) -> None:
        databases, users = await under_way(self._database, site_id)
        subjects: list[DatabaseRow | DatabaseUserRow] = [*databases, *users]
        for kind, subject in {row.engine: row for row in subjects}.items():
            async with self._engines[kind]:
                await self._told(subject, lambda server: server.ensure())
        for row in databases:
            if row.status is DatabaseStatus.CREATING:
                await self._create(row)
        for user in users:
            await self._remove_user(user) if user.deleting else await self._set_user(user)
        for row in databases:
            if row.status is DatabaseStatus.DELETING:
                await self._remove(row)

    async def _create(self, row: DatabaseRow) -> None:
        await self._told(row, lambda server: server.create_database(row.name))
        await self._database.transact(lambda tx: write_move(tx, [row.id], DatabaseMove.MADE))

    async def _remove(self, row: DatabaseRow) -> None:
        await self._told(row, lambda server: server.drop_database(row.name))
        await remove_record(self._database, row)

    async def _set_user(self, user: DatabaseUserRow) -> None:
        access = await grants_of(self._database, user)
        of_site, of_customer = await count_users(self._database, user)
        connections = CONNECTIONS[user.engine].of_user(of_site=of_site, of_customer=of_customer)

        async def work(server: DatabaseServer) -> None:
            await server.create_user(user.name, user.verifier, connections)
            await server.grant(user.name, access)

        await self._told(user, work)
        await write_user_applied(self._database, user)

    async def _remove_user(self, user: DatabaseUserRow) -> None:
        await self._told(user, lambda server: server.drop_user(user.name))
        await remove_record(self._database, user)

    async def _told(
        self, subject: DatabaseRow | DatabaseUserRow, work: Callable[[DatabaseServer], Awaitable[None]]
    ) -> None:
        """Record the engine's error with the database or user, and raise it for the caller."""
        try:
            await work(self._servers[subject.engine])
        except DatabaseError as error:
            await write_problem(self._database, subject, str(error))
            log.warning("databases.not_done", name=subject.name, engine=subject.engine.value, error=str(error))
            raise unavailable(
                f"{subject.name} could not be brought into the requested state yet: {error}",
                hint="It is retried every 30 s until it succeeds.",
            ) from error

    async def _run_as_needed(self, kind: EngineKind) -> None:
        """Run or stop an engine as needed. This takes the same lock as `agree`, which starts the engine: what was
        recorded earlier is seen here, and what is recorded later waits for the lock and then starts the engine
        again."""
        async with self._engines[kind]:
            server = self._servers[kind]
            needed = await self._database.fetchval(
                "SELECT EXISTS (SELECT FROM databases WHERE engine = $1) "
                "OR EXISTS (SELECT FROM database_users WHERE engine = $1)",
                kind.value,
            )
            try:
                if needed:
                    await server.ensure()
                elif server.exists:
                    await server.stop()
            except (DatabaseError, LauncherError) as error:
                log.warning("databases.engine_not_run", engine=kind.value, error=str(error))
