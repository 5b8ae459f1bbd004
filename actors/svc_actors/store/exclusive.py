"""One service per database: a second one is refused before it changes anything.

A session holds an advisory lock for as long as the service runs, so the lock ends with the service however it ends.
When the session is lost (PostgreSQL restarted, the connection broke) the lock is taken again as soon as the server
answers; if another service has it by then, this one stops. Until it notices, within `_CHECK_PERIOD` and the time it
takes to detect a dead connection, both may run: what must hold even then is a constraint in the database.

Several controllers on one database do not take this lock: it is taken in one place, where the service is composed.

Rejected: stopping at once when the session is lost. Each restart of PostgreSQL would end the service, although no other
service competes for the lock.

Why: docs/decisions/0011-schema-and-the-only-service.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

import structlog
import trio

from svc_actors.store.database import Database
from svc_actors.store.failures import DRIVER_ERRORS
from svc_actors.store.nurseries import background_nursery
from svc_actors.store.transactions import Session
from svc_common.errors import ServiceError

_LOCK: Final = 0x5356_4304  # See `sequencing._SEQUENCER_LOCK`.
_CHECK_PERIOD, _RETRY_PAUSE = 1.0, 0.2
_DYING: Final = 2.0
"""How long the server may take to notice that a predecessor was killed, in seconds."""
_KEEPALIVE: Final = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""Settings of the server's side of a TCP connection: a controller whose host lost its power frees the lock after 20 s
(5 s of silence and three probes 5 s apart), not after the kernel's 2 hours."""

log = structlog.get_logger(__name__)


class AnotherServiceError(RuntimeError):
    """Another service of this kind runs on the database; the message says which, and that nothing was changed."""


@asynccontextmanager
async def exclusive(database: Database, service: str) -> AsyncIterator[None]:
    """Be the only `service` on this database for the length of the block.

    Raises `AnotherServiceError` at once when there is another. When another service gets the lock later, the block is
    cancelled and raises the same error in an exception group. When the database has lost what this service committed
    (`svc_actors.store.marks`), it raises `SteppedBackError` in the same way.
    """
    async with background_nursery() as nursery:
        await nursery.start(_hold, database, service)
        yield


async def _hold(database: Database, service: str, task_status: trio.TaskStatus[None]) -> None:
    me = f"svc {service} {uuid4()}"
    held = False
    while True:
        try:
            async with database.session() as session:
                await session.execute(_KEEPALIVE)
                await session.execute("SELECT set_config('application_name', $1, false)", me)
                await _take(session, service, me)
                if held:
                    log.warning("service_lock.retaken", service=service)
                else:
                    held = True
                    task_status.started()
                while True:
                    await _pause(database)
                    if database.marks is None:
                        await session.fetchval("SELECT 1")
                    else:
                        await database.marks.still_there(session)
        except (ServiceError, *DRIVER_ERRORS) as error:
            # If the lock was never held, this is a failed start. Otherwise the server may only be restarting.
            if not held:
                raise
            log.warning("service_lock.lost", service=service, error=str(error))
            _require_present(database)
            await trio.sleep(_RETRY_PAUSE)


async def _pause(database: Database) -> None:
    """Wait for the next check. Raises `SteppedBackError` as soon as any connection has shown a step back."""
    if database.marks is None:
        await trio.sleep(_CHECK_PERIOD)
        return
    with trio.move_on_after(_CHECK_PERIOD):
        await database.marks.stepped_back.wait()
    _require_present(database)


def _require_present(database: Database) -> None:
    if database.marks is not None and database.marks.stepped_back.is_set():
        raise database.marks.error


async def _take(session: Session, service: str, me: str) -> None:
    """Take the lock, or raise `AnotherServiceError` once it is clear that its holder lives."""
    # pg_locks shows the lock's key as two halves, which lead to the holder; the second half is a signed hash.
    give_up_at = trio.current_time() + _DYING
    while not await session.fetchval("SELECT pg_try_advisory_lock($1, hashtext($2))", _LOCK, service):
        holder = await session.fetchrow(
            """
            SELECT pid, application_name AS name, coalesce(host(client_addr), 'this host') AS address, backend_start
            FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE locktype = 'advisory' AND granted AND objsubid = 2
              AND classid = $1::bigint::oid AND pg_locks.objid = (hashtext($2)::bigint & 4294967295)::oid
              AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            """,
            _LOCK,
            service,
        )
        if holder is not None and holder["name"] == me:
            # The holder is our own previous session: its connection is gone, but the server has not noticed it yet.
            await session.execute("SELECT pg_terminate_backend($1)", holder["pid"])
        elif trio.current_time() >= give_up_at:
            where = f" It connected from {holder['address']} at {holder['backend_start']:%F %T} UTC." if holder else ""
            raise AnotherServiceError(
                f"Another {service} runs on this database.{where} This one has stopped, and changed nothing. "
                "Stop the other one, or give this one a database of its own."
            )
        await trio.sleep(_RETRY_PAUSE)
