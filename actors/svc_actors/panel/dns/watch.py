"""Makes sure that Knot serves exactly the recorded zones, whatever happened to either since the last round.

A round costs two queries and one question to Knot. Zones are compared record by record only in the first round, and
when a revision or serial says that something changed. Knot raises a zone's serial with every change by anybody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from svc_actors.panel.dns.records import ZoneRow, as_zone
from svc_actors.panel.dns.zone import DnsZone
from svc_actors.panel.host_work import Ordered, finished
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_webhost.knot import KnotAway, KnotError, NameServer

ROUND_SECONDS: Final = 5.0


class ZoneWatch:
    def __init__(self, database: Database, actors: ActorSystem, name_server: NameServer) -> None:
        self._database = database
        self._actors = actors
        self._name_server = name_server
        self._compared = False
        self._failed: dict[str, DomainError] = {}
        """Zones that failed in the last round. The next round compares them even if their serials are equal."""

    async def round(self) -> None:
        """Raises unavailable if Knot does not answer. If zones fail, raises the first error after all zones were tried;
        the next round tries them again."""
        try:
            await self._round()
        except KnotError as error:
            raise unavailable(f"Zones could not be compared with what Knot serves: {error}") from error

    async def _round(self) -> None:
        serials = await self._serials()
        zones = {row["name"]: as_zone(row) for row in await self._database.fetch("SELECT * FROM dns_zones")}
        if missing := zones.keys() - serials.keys():
            # All missing zones are added at once, because Knot reads its configuration again for each addition.
            await self._name_server.add(sorted(missing))
        again, self._failed = self._failed, {}
        for name in await self._left():
            await self._ask(name, DnsZone.release)
        for name in sorted(serials.keys() | zones.keys()):
            zone = zones.get(name)
            known = self._compared and name not in again
            if zone is None or not known or not zone.served or serials.get(name) != zone.serial:
                await self._ask(name, DnsZone.agree)
        self._compared = True
        for error in self._failed.values():
            raise error

    async def _ask(self, name: str, mend: Callable[[DnsZone], Awaitable[Ordered[ZoneRow | None]]]) -> None:
        """Ask the actor of a zone. A zone that fails does not delay the others."""
        try:
            await finished(self._actors.ref(DnsZone, name).ask(mend))
        except DomainError as error:
            self._failed.setdefault(name, error)

    async def _serials(self) -> dict[str, int | None]:
        """The serials of zones, from a Knot that runs with its current settings: it is started in the first round, and
        whenever it does not answer."""
        if self._compared:
            with suppress(KnotAway):
                return await self._name_server.serials()
        await self._name_server.ensure()
        return await self._name_server.serials()

    async def _left(self) -> list[str]:
        """Zones in which no site of their owner has a name any longer."""
        rows = await self._database.fetch(
            """SELECT name FROM dns_zones WHERE NOT EXISTS (
                   SELECT 1 FROM site_domains JOIN sites ON sites.id = site_domains.site_id
                   WHERE registrable = dns_zones.name AND sites.owner_id = dns_zones.owner_id)"""
        )
        return [row["name"] for row in rows]
