"""Brings machines in line with the states of their services, repeatedly until they are."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.provisioning.settling import settle
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database

SETTLE_SECONDS: Final = 2.0
"""The most services processed concurrently; each takes a transaction or an order to a Machine actor."""
_AT_ONCE: Final = 16
"""Services processed concurrently; each takes a transaction or an order to a Machine actor."""
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# A service whose machine could not take its order (its node is away, for example) is due again after 15 seconds.
_DUE: Final = """
SELECT id FROM services
WHERE NOT settled AND (tried_at IS NULL OR tried_at NOT BETWEEN now() - interval '15 seconds' AND now()) ORDER BY id"""


async def settle_due(database: Database, actors: ActorSystem) -> None:
    """Take one step for every service that is not settled. A service that cannot be settled now delays no other."""
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
