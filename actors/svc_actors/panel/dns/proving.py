"""Proofs of dns-01 (RFC 8555, section 8.4): TXT records that the panel adds to the zones of a customer.

The customer's records of the same name stay as they are. Proofs are removed once the authority has looked, whatever it
found; proofs that a killed core has left are removed by the next one (`Proving.clear`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.panel.dns.zone import DnsZone
from svc_actors.panel.host_work import finished
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database, service_itself
from svc_common.errors import ErrorCode, ServiceError, conflict, unavailable
from svc_webhost.delegation import DelegationError, RememberedDelegations
from svc_webhost.knot import Authority
from svc_webhost.knot.names import LONGEST_NAME, is_within

PREFIX: Final = "_acme-challenge."
_CALLER: Final = service_itself("certificate.prove")

Zones = Mapping[str, Sequence[str]]
"""Full names of records, by zone."""


@dataclass(frozen=True)
class Proving:
    """Proves names in the zones of this server by DNS."""

    database: Database
    actors: ActorSystem
    authority: Authority
    delegations: RememberedDelegations

    async def require(self, owner_id: UUID, names: Sequence[str], zones: Sequence[str]) -> None:
        """Raises `conflict`, with the reason, if an authority would not find a proof for any of these names, which may
        be wildcards. Those of other zones may be provable."""
        refused: ServiceError | None = None
        for zone, records in records_of(names, zones).items():
            try:
                await self._require_delegated(zone)
                await self.actors.ref(DnsZone, zone).ask(DnsZone.require_provable, owner_id, records)
            except ServiceError as error:
                if error.code is not ErrorCode.CONFLICT:
                    raise
                refused = refused or error
            else:
                return
        if refused is not None:
            raise refused

    async def show(self, owner_id: UUID, zone: str, proofs: Mapping[str, Sequence[str]]) -> None:
        """Make our own name server answer with these texts. Raises `conflict`, and `unavailable` while the server does
        not."""
        await self._require_delegated(zone)
        change = await self.actors.ref(DnsZone, zone).ask(DnsZone.add_proofs, _CALLER, owner_id, proofs)
        row = await change.finished()
        if not row.served:
            raise unavailable(
                f"The proof in the zone {zone} is not served yet: {row.problem or 'it is being changed'}."
            )

    async def remove(self, zone: str, proofs: Mapping[str, Sequence[str]]) -> None:
        await finished(self.actors.ref(DnsZone, zone).ask(DnsZone.remove_proofs, _CALLER, proofs))

    async def clear(self) -> None:
        """Remove the proofs that an earlier core has left. Call it before any proof is shown."""
        rows = await self.database.fetch(
            """SELECT zone, name, array_agg(data ->> 'text') AS texts FROM dns_records
               WHERE managed AND type = 'TXT' AND starts_with(name, $1) GROUP BY zone, name""",
            PREFIX,
        )
        for row in rows:
            await self.remove(row["zone"], {row["name"]: row["texts"]})

    async def _require_delegated(self, zone: str) -> None:
        try:
            found = await self.delegations.now(zone)
        except DelegationError as error:
            raise unavailable(
                f"It is not known whether {zone} is delegated to this server: {error}.",
                hint="Proofs by DNS are found only in zones that this server answers for. Try again later.",
            ) from error
        expected = self.authority.nameservers
        if not found or not found <= set(expected):
            where = f"to {', '.join(sorted(found))}" if found else "to no server"
            raise conflict(
                f"A proof in the zone {zone} would not be found: it is delegated {where}.",
                hint=f"At its registrar name {' and '.join(expected)} as its name servers, or use http-01.",
            )


def records_of(names: Sequence[str], zones: Sequence[str]) -> dict[str, list[str]]:
    """The records that prove these names, by their zones. Raises `conflict` for a name that is in none of the zones."""
    found: dict[str, list[str]] = {}
    for name in names:
        bare = name.removeprefix("*.")
        zone = zone_of(bare, zones)
        record = f"{PREFIX}{bare}"
        if len(record) > LONGEST_NAME:
            raise conflict(f"{bare} is too long for a proof by DNS: the record's name would exceed DNS limits.")
        if record not in found.setdefault(zone, []):
            found[zone].append(record)
    return found


def zone_of(name: str, zones: Sequence[str]) -> str:
    zone = next((zone for zone in zones if is_within(name, zone)), None)
    if zone is None:
        raise conflict(f"{name} is in no zone of this site; those are {', '.join(zones)}.")
    return zone
