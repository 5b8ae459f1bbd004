"""Machines are made what the states of their services say, until they are."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.provisioning.settling import settle
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database

SETTLE_SECONDS: Final = 2.0
"""How often `settle_due` is done; `keep_repeating` does it, one a process."""
_AT_ONCE: Final = 16
"""Services that are looked at side by side; each is a transaction or an order to a Machine actor."""
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# A machine that could not take its order (its node is away, say) is asked again after a quarter of a minute.
_DUE: Final = """
SELECT id FROM services
WHERE NOT settled AND (tried_at IS NULL OR tried_at NOT BETWEEN now() - interval '15 seconds' AND now()) ORDER BY id"""


async def settle_due(database: Database, actors: ActorSystem) -> None:
    """One step of every service that is not settled. One that cannot be made so now holds up no other."""
    at_once = trio.CapacityLimiter(_AT_ONCE)
    async with trio.open_nursery() as nursery:
        for row in await database.fetch(_DUE):
            nursery.start_soon(_settle, database, actors, row["id"], at_once)


async def _settle(database: Database, actors: ActorSystem, service_id: UUID, at_once: trio.CapacityLimiter) -> None:
    async with at_once:
        try:
            await settle(database, actors, service_id)
        except DomainError as error:
            log.warning("service_watch.not_settled", service_id=str(service_id), error=str(error))
