"""The actor of one zone: decides on changes, records them, and makes Knot agree.

A change is one transaction (records, audit, event) that raises the zone's revision; then Knot is made to agree, and the
revision that it serves is recorded. A failure in between, or a later loss, shows as a difference between the two
revisions, which `agree` repairs. `agree` may be called at any time; `ZoneWatch` does so. A change stands even if Knot
does not answer: its caller learns that the change is not served yet.

Why: docs/decisions/0055-dns.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.dns.records import DATA, NewRecord, RecordRow, ZoneRow, as_record, as_zone, read_records, rendered
from svc_actors.panel.dns.restoring import change_of
from svc_actors.panel.dns.rules import check, check_removal
from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.panel.host_work import HOST_PATIENCE
from svc_actors.runtime import Actor
from svc_actors.store import Caller, Database, NewEvent, Transaction, audit, events, service_itself
from svc_common.errors import conflict, not_found, unavailable
from svc_webhost.knot import Agreement, Authority, KnotAway, KnotError, NameServer, RecordData, RecordType, Zone

DEFAULT_TTL: Final = 3_600
POINTED_TTL: Final = 300
"""Short, because a customer who points a name at a site here may want to point it elsewhere later."""
MANAGED_TTL: Final = 60
_POINTED: Final = (RecordType.A, RecordType.AAAA, RecordType.CNAME)

log = structlog.get_logger("svc.dns")


@dataclass(frozen=True)
class Naming:
    """The parts of the panel with which the actors of zones work."""

    database: Database
    name_server: NameServer
    authority: Authority


@dataclass(frozen=True)
class Pointed:
    """`replaced`: the previous records of these names, as text."""

    zone: ZoneRow
    replaced: Mapping[str, Sequence[str]]


@contextmanager
def _in_time() -> Iterator[None]:
    """Bounds the time for a change. A change asks Knot several questions, each with its own deadline; together they
    must end before the handler's deadline. Knot drops changes that were not committed when the conversation ends."""
    try:
        with trio.fail_after(HOST_PATIENCE):
            yield
    except trio.TooSlowError:
        raise KnotAway(f"it has not done all of the change within {HOST_PATIENCE:g} seconds") from None


class DnsZone(Actor):
    """The key is the zone's name: a registrable domain in A-labels."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._database = naming.database

    async def add(
        self, caller: Caller, owner_id: UUID, name: str, ttl: int | None, data: RecordData
    ) -> tuple[ZoneRow, RecordRow]:
        """Add a record; the first one creates the zone. Raises invalid and conflict."""

        async def work(tx: Transaction) -> RecordRow:
            zone = await self._zone(tx, owner_id)
            others = await read_records(tx, self.key)
            record = NewRecord(name, ttl or _ttl_of(others, name, data.type) or DEFAULT_TTL, data)
            check(self.key, self._naming.authority.nameservers, others, record)
            added = await self._insert(tx, record)
            await self._changed(tx, caller, zone, {"added": zone_file_line(record)})
            return added

        added = await self._database.transact(work)
        return await self.agree_known(), added

    async def update(
        self,
        caller: Caller,
        owner_id: UUID,
        record_id: UUID,
        name: str | None,
        ttl: int | None,
        data: RecordData | None,
    ) -> tuple[ZoneRow, RecordRow]:
        """None keeps a value. The record keeps its id. Raises invalid, conflict and not_found."""

        async def work(tx: Transaction) -> RecordRow:
            zone, records, old = await self._record(tx, owner_id, record_id)
            others = [record for record in records if record.id != record_id]
            new = NewRecord(name or old.name, ttl or old.ttl, data or old.data)
            if (new.name, new.type) != (old.name, old.type):
                check_removal(others, old)
            check(self.key, self._naming.authority.nameservers, others, new)
            row = await tx.fetchone(
                "UPDATE dns_records SET name = $2, type = $3, ttl = $4, data = $5 WHERE id = $1 RETURNING *",
                record_id,
                new.name,
                new.type.value,
                new.ttl,
                new.data.model_dump(mode="json"),
            )
            await self._one_ttl(tx, new)
            await self._changed(tx, caller, zone, {"from": zone_file_line(old), "to": zone_file_line(new)})
            return as_record(row)

        updated = await self._database.transact(work)
        return await self.agree_known(), updated

    async def remove(self, caller: Caller, owner_id: UUID, record_id: UUID) -> ZoneRow:
        """Raises not_found and conflict."""

        async def work(tx: Transaction) -> None:
            zone, records, old = await self._record(tx, owner_id, record_id)
            check_removal([record for record in records if record.id != record_id], old)
            await tx.execute("DELETE FROM dns_records WHERE id = $1", record_id)
            await self._changed(tx, caller, zone, {"removed": zone_file_line(old)})

        await self._database.transact(work)
        return await self.agree_known()

    async def point(
        self, caller: Caller, owner_id: UUID, names: Sequence[str], addresses: Sequence[IPv4Address | IPv6Address]
    ) -> Pointed:
        """Point the names to these addresses and nowhere else. Correct records stay. Raises conflict."""

        async def work(tx: Transaction) -> dict[str, list[str]]:
            zone = await self._zone(tx, owner_id)
            replaced: dict[str, list[str]] = {}
            for name in names:
                replaced[name] = await self._point_one(tx, name, addresses)
            await self._changed(tx, caller, zone, {"pointed": replaced, "to": [str(each) for each in addresses]})
            return replaced

        replaced = await self._database.transact(work)
        return Pointed(await self.agree_known(), replaced)

    async def require_provable(self, owner_id: UUID, names: Sequence[str]) -> None:
        """Raises conflict if the panel may not add TXT records at these names."""

        async def work(tx: Transaction) -> None:
            await self._own_zone(tx, owner_id)
            there = await read_records(tx, self.key)
            for name in names:
                check(self.key, self._naming.authority.nameservers, there, _proof(there, name, "a proof"))

        await self._database.transact(work)

    async def add_proofs(self, caller: Caller, owner_id: UUID, proofs: Mapping[str, Sequence[str]]) -> ZoneRow:
        """Add TXT records of the panel's own, by name; existing ones stay. Raises conflict."""

        async def work(tx: Transaction) -> None:
            zone = await self._own_zone(tx, owner_id)
            added = []
            for name, texts in proofs.items():
                for text in texts:
                    there = await read_records(tx, self.key)
                    record = _proof(there, name, text)
                    if any((each.name, each.data) == (name, record.data) for each in there):
                        continue
                    check(self.key, self._naming.authority.nameservers, there, record)
                    await self._insert(tx, record, managed=True)
                    added.append(name)
            if added:
                await self._changed(tx, caller, zone, {"proofs_added": added})

        await self._database.transact(work)
        return await self.agree_known()

    async def remove_proofs(self, caller: Caller, proofs: Mapping[str, Sequence[str]]) -> None:
        """Remove what `add_proofs` has added, if it is still there."""

        async def work(tx: Transaction) -> None:
            row = await tx.fetchrow("SELECT * FROM dns_zones WHERE name = $1 FOR NO KEY UPDATE", self.key)
            if row is None:
                return
            removed = []
            for name, texts in proofs.items():
                rows = await tx.fetch(
                    """DELETE FROM dns_records
                       WHERE zone = $1 AND name = $2 AND type = 'TXT' AND managed AND data ->> 'text' = ANY($3)
                       RETURNING name""",
                    self.key,
                    name,
                    list(texts),
                )
                removed += [each["name"] for each in rows]
            if removed:
                await self._changed(tx, caller, as_zone(row), {"proofs_removed": removed})

        await self._database.transact(work)
        await self.agree()

    async def put_back(
        self, caller: Caller, owner_id: UUID, records: Mapping[str, Sequence[NewRecord]]
    ) -> tuple[ZoneRow, Mapping[str, str]]:
        """Restore the records of these names from a backup. Returns the names that were left as they are, with the
        reason."""

        async def work(tx: Transaction) -> Mapping[str, str]:
            zone = await self._zone(tx, owner_id)
            nameservers = self._naming.authority.nameservers
            change = change_of(self.key, nameservers, await read_records(tx, self.key), records)
            gone = [record.id for record in change.removed]
            await tx.execute("DELETE FROM dns_records WHERE id = ANY($1::uuid[])", gone)
            for record in change.added:
                await self._insert(tx, record)
            if gone or change.added:
                names = sorted({record.name for record in (*change.removed, *change.added)})
                await self._changed(tx, caller, zone, {"restored": names})
            return change.refused

        refused = await self._database.transact(work)
        return await self.agree_known(), refused

    async def release(self) -> None:
        """Remove the zone with all its records if its owner's sites no longer have a name in it."""

        async def work(tx: Transaction) -> None:
            row = await tx.fetchrow(
                """DELETE FROM dns_zones WHERE name = $1 AND NOT EXISTS (
                       SELECT 1 FROM site_domains JOIN sites ON sites.id = site_domains.site_id
                       WHERE registrable = dns_zones.name AND sites.owner_id = dns_zones.owner_id) RETURNING *""",
                self.key,
            )
            if row is not None:
                zone = as_zone(row)
                await audit.record(tx, service_itself("dns.release"), zone.target)
                await _announce(tx, zone)
                await close_alert(tx, alert_of(self.key))

        await self._database.transact(work)
        await self.agree()

    async def agree(self) -> ZoneRow | None:
        """Make Knot serve the zone as recorded, or stop serving it if it has no record. If Knot refuses, the reason is
        recorded with the zone; raises unavailable if there is no zone to record it with."""

        async def read(tx: Transaction) -> tuple[ZoneRow, list[RecordRow]] | None:
            row = await tx.fetchrow("SELECT * FROM dns_zones WHERE name = $1 FOR NO KEY UPDATE", self.key)
            return None if row is None else (as_zone(row), await read_records(tx, self.key))

        found = await self._database.transact(read)
        if found is None:
            try:
                with _in_time():
                    await self._naming.name_server.remove([self.key])
            except KnotError as error:
                raise unavailable(f"Knot still serves {self.key}, which is no longer a zone: {error}") from error
            return None
        zone, records = found
        wanted = Zone(self.key, self._naming.authority, rendered(records))
        try:
            with _in_time():
                agreement = await self._naming.name_server.agree(wanted, zone.serial)
        except KnotError as error:
            return await self._disagreed(zone, error)
        if zone.served and zone.serial == agreement.serial:
            return zone
        return await self._agreed(zone, agreement)

    async def agree_known(self) -> ZoneRow:
        zone = await self.agree()
        if zone is None:
            raise not_found("The zone was removed meanwhile.")
        return zone

    async def _agreed(self, zone: ZoneRow, agreement: Agreement) -> ZoneRow:
        async def work(tx: Transaction) -> ZoneRow:
            row = await tx.fetchone(
                """UPDATE dns_zones SET served_revision = $2, serial = $3, problem = NULL WHERE name = $1
                   RETURNING *""",
                self.key,
                zone.revision,
                agreement.serial,
            )
            # Closed even if this row never had a problem: the alert may be about an earlier zone of the same name.
            await close_alert(tx, alert_of(self.key))
            await _announce(tx, as_zone(row))
            return as_zone(row)

        if agreement.changed and zone.revision == zone.served_revision:
            log.warning("dns.zone_reconciled", zone=self.key, serial=agreement.serial)
        return await self._database.transact(work)

    async def _disagreed(self, zone: ZoneRow, error: KnotError) -> ZoneRow:
        """Record a disagreement. An alert is opened only for problems that do not pass by waiting; about a Knot that
        does not answer, the watch has an alert."""
        log.warning("dns.zone_not_served", zone=self.key, error=str(error))
        if zone.problem == str(error):
            return zone

        async def work(tx: Transaction) -> None:
            await tx.execute("UPDATE dns_zones SET problem = $2 WHERE name = $1", self.key, str(error))
            if not isinstance(error, KnotAway):
                message = f"The zone {self.key} is not served as its records say: {error}. This is retried."
                await raise_alert(tx, alert_of(self.key), message, resource_kind="zone", resource_id=self.key)

        await self._database.transact(work)
        return replace(zone, problem=str(error))

    async def _zone(self, tx: Transaction, owner_id: UUID) -> ZoneRow:
        """The zone, locked; created if needed. If the sites of a zone's last owner have left it, the zone is created
        anew."""
        await tx.execute(
            """DELETE FROM dns_zones WHERE name = $1 AND owner_id <> $2 AND NOT EXISTS (
                   SELECT 1 FROM site_domains JOIN sites ON sites.id = site_domains.site_id
                   WHERE registrable = dns_zones.name AND sites.owner_id = dns_zones.owner_id)""",
            self.key,
            owner_id,
        )
        await tx.execute(
            "INSERT INTO dns_zones (name, owner_id) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", self.key, owner_id
        )
        row = await tx.fetchone("SELECT * FROM dns_zones WHERE name = $1 FOR NO KEY UPDATE", self.key)
        if row["owner_id"] != owner_id:
            raise conflict(f"The zone {self.key} is in use by another customer.")
        return as_zone(row)

    async def _own_zone(self, tx: Transaction, owner_id: UUID) -> ZoneRow:
        """The zone, locked, if it exists and belongs to this owner."""
        row = await tx.fetchrow("SELECT * FROM dns_zones WHERE name = $1 FOR NO KEY UPDATE", self.key)
        if row is None or row["owner_id"] != owner_id:
            raise conflict(
                f"This server has no zone {self.key} of this site's owner.",
                hint="Point the site's names here first (svc dns point), or use http-01.",
            )
        return as_zone(row)

    async def _record(
        self, tx: Transaction, owner_id: UUID, record_id: UUID
    ) -> tuple[ZoneRow, list[RecordRow], RecordRow]:
        """The record, if its zone belongs to this owner. When a site is handed over, the zone goes with it."""
        row = await tx.fetchrow("SELECT * FROM dns_zones WHERE name = $1 FOR NO KEY UPDATE", self.key)
        records = await read_records(tx, self.key)
        found = next((record for record in records if record.id == record_id), None)
        if row is None or row["owner_id"] != owner_id or found is None:
            raise not_found("There is no such record.")
        if found.managed:
            raise conflict("This record is managed by the panel.", hint="It is removed when it is no longer needed.")
        return as_zone(row), records, found

    async def _insert(self, tx: Transaction, record: NewRecord, *, managed: bool = False) -> RecordRow:
        row = await tx.fetchone(
            """INSERT INTO dns_records (zone, name, type, ttl, data, managed) VALUES ($1, $2, $3, $4, $5, $6)
               RETURNING *""",
            self.key,
            record.name,
            record.type.value,
            record.ttl,
            record.data.model_dump(mode="json"),
            managed,
        )
        await self._one_ttl(tx, record)
        return as_record(row)

    async def _one_ttl(self, tx: Transaction, record: NewRecord) -> None:
        await tx.execute(
            "UPDATE dns_records SET ttl = $4 WHERE zone = $1 AND name = $2 AND type = $3 AND ttl <> $4",
            self.key,
            record.name,
            record.type.value,
            record.ttl,
        )

    async def _point_one(self, tx: Transaction, name: str, addresses: Sequence[IPv4Address | IPv6Address]) -> list[str]:
        records = await read_records(tx, self.key)
        wanted = [
            DATA.validate_python({"type": "A" if address.version == 4 else "AAAA", "address": str(address)})
            for address in addresses
        ]
        there = [record for record in records if record.name == name and record.type in _POINTED]
        gone = [record for record in there if record.data not in wanted]
        if gone:
            await tx.execute("DELETE FROM dns_records WHERE id = ANY($1::uuid[])", [record.id for record in gone])
        left = [record for record in records if record not in gone]
        for data in wanted:
            if any(record.data == data for record in there):
                continue
            record = NewRecord(name, _ttl_of(left, name, data.type) or POINTED_TTL, data)
            check(self.key, self._naming.authority.nameservers, left, record)
            left.append(await self._insert(tx, record))
        return [f"{record.type} {record.data.rdata().to_text()}" for record in gone]

    async def _changed(self, tx: Transaction, caller: Caller, zone: ZoneRow, details: Mapping[str, Any]) -> None:
        row = await tx.fetchone("UPDATE dns_zones SET revision = revision + 1 WHERE name = $1 RETURNING *", self.key)
        await audit.record(tx, caller, zone.target, details)
        await _announce(tx, as_zone(row))


def alert_of(zone: str) -> str:
    return f"dns-zone:{zone}"


def zone_file_line(record: NewRecord) -> str:
    """The record for the audit, as a line of a zone file."""
    return f"{record.name} {record.ttl} {record.type} {record.data.rdata().to_text()}"


async def _announce(tx: Transaction, zone: ZoneRow) -> None:
    event = NewEvent(
        kind=PanelEvent.DNS,
        subject=zone.name,
        project_id=zone.owner_id,
        payload={"zone": zone.name, "revision": zone.revision, "served": zone.served},
    )
    await events.append(tx, event)


def _proof(there: Sequence[NewRecord], name: str, text: str) -> NewRecord:
    """The proof, with the TTL of the customer's TXT records of this name if there are any, because a set of records has
    one TTL."""
    ttl = _ttl_of(there, name, RecordType.TXT) or MANAGED_TTL
    return NewRecord(name, ttl, DATA.validate_python({"type": "TXT", "text": text}))


def _ttl_of(records: Sequence[NewRecord], name: str, type_: RecordType) -> int | None:
    return next((record.ttl for record in records if (record.name, record.type) == (name, type_)), None)
