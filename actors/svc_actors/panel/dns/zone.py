"""The actor of one zone: decides on changes, records them, and makes Knot agree.

A change is one transaction (records, audit, event) that raises the zone's revision; then the handler orders `host_work`
to make Knot agree, which records the revision that Knot serves. A failure in between, or a later loss, shows as a
difference between the two revisions, which `agree` repairs. `agree` may be called at any time; `ZoneWatch` does so. A
change stands even if Knot does not answer: its caller learns that the change is not served yet.

Invariants:
- no message waits for Knot;
- one agreement of a zone runs at a time, and reads the records when it starts;
- what an agreement found is recorded only with the zone that it read, and never over a later revision's outcome.

Why: docs/decisions/0055-dns.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.dns.records import DATA, NewRecord, RecordRow, ZoneRow, as_record, as_zone, read_records, rendered
from svc_actors.panel.dns.restoring import change_of
from svc_actors.panel.dns.rules import check, check_removal
from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.panel.host_work import HOST_PATIENCE, HostWork, Ordered
from svc_actors.runtime import Actor
from svc_actors.store import Caller, Database, NewEvent, Transaction, audit, events, service_itself
from svc_common.errors import conflict, not_found, unavailable
from svc_webhost.knot import Authority, KnotAway, KnotError, NameServer, RecordData, RecordType, Zone, ZoneOutcome

DEFAULT_TTL: Final = 3_600
POINTED_TTL: Final = 300
"""Short, because a customer who points a name at a site here may want to point it elsewhere later."""
MANAGED_TTL: Final = 60
_NEEDED_FOR_PROOFS: Final = "Point the site's names here first (svc dns point), or use http-01."
_POINTED: Final = (RecordType.A, RecordType.AAAA, RecordType.CNAME)

AGREEMENT_SECONDS: Final = 30.0
"""The time for all requests of one agreement to Knot; each request has a deadline as well."""

ResultT = TypeVar("ResultT")

log = structlog.get_logger("svc.dns")


@dataclass(frozen=True)
class ZoneServices:
    """The parts of the panel with which the actors of zones work."""

    database: Database
    name_server: NameServer
    authority: Authority
    host_work: HostWork


@dataclass(frozen=True)
class ZoneChange(Generic[ResultT]):
    """A recorded change of a zone, for which Knot is being made to agree."""

    result: ResultT
    _recorded: ZoneRow
    _agreement: Ordered[ZoneRow | None]

    async def soon(self) -> ZoneRow:
        """As `finished`, for operations, whose callers wait: after `HOST_PATIENCE` it returns the zone as recorded,
        with the problem that it is not served yet."""
        with trio.move_on_after(HOST_PATIENCE):
            return await self.finished()
        return replace(self._recorded, problem=_too_slow(HOST_PATIENCE))

    async def finished(self) -> ZoneRow:
        """The zone once Knot has agreed, or with the reason why it has not. Raises not_found if the zone is gone."""
        zone = await self._agreement.outcome()
        if zone is None:
            raise not_found("The zone was removed meanwhile.")
        return zone


@contextmanager
def _in_time() -> Iterator[None]:
    """Bounds the time for an agreement. Knot drops changes that were not committed when the conversation ends."""
    try:
        with trio.fail_after(AGREEMENT_SECONDS):
            yield
    except trio.TooSlowError:
        raise KnotAway(_too_slow(AGREEMENT_SECONDS)) from None


def _too_slow(seconds: float) -> str:
    return f"Knot has not completed the change within {seconds:g} seconds"


class DnsZone(Actor):
    """The key is the zone's name: a registrable domain in A-labels."""

    def __init__(self, naming: ZoneServices) -> None:
        self._naming = naming
        self._database = naming.database

    async def add(
        self, caller: Caller, owner_id: UUID, name: str, ttl: int | None, data: RecordData
    ) -> ZoneChange[RecordRow]:
        """Add a record; the first one creates the zone. Raises invalid and conflict."""

        async def work(tx: Transaction) -> tuple[ZoneRow, RecordRow]:
            zone = await self._zone(tx, owner_id)
            others = await read_records(tx, self.key)
            record = NewRecord(name, ttl or _ttl_of(others, name, data.type) or DEFAULT_TTL, data)
            check(self.key, self._naming.authority.nameservers, others, record)
            added = await self._insert(tx, record)
            return await self._changed(tx, caller, zone, {"added": zone_file_line(record)}), added

        return await self._change(work)

    async def update(
        self,
        caller: Caller,
        owner_id: UUID,
        record_id: UUID,
        name: str | None,
        ttl: int | None,
        data: RecordData | None,
    ) -> ZoneChange[RecordRow]:
        """Change a record, which keeps its id; None keeps a value. Raises invalid, conflict and not_found."""

        async def work(tx: Transaction) -> tuple[ZoneRow, RecordRow]:
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
            details = {"from": zone_file_line(old), "to": zone_file_line(new)}
            return await self._changed(tx, caller, zone, details), as_record(row)

        return await self._change(work)

    async def remove(self, caller: Caller, owner_id: UUID, record_id: UUID) -> ZoneChange[None]:
        """Raises not_found and conflict."""

        async def work(tx: Transaction) -> tuple[ZoneRow, None]:
            zone, records, old = await self._record(tx, owner_id, record_id)
            check_removal([record for record in records if record.id != record_id], old)
            await tx.execute("DELETE FROM dns_records WHERE id = $1", record_id)
            return await self._changed(tx, caller, zone, {"removed": zone_file_line(old)}), None

        return await self._change(work)

    async def point(
        self, caller: Caller, owner_id: UUID, names: Sequence[str], addresses: Sequence[IPv4Address | IPv6Address]
    ) -> ZoneChange[dict[str, list[str]]]:
        """Point the names to these addresses and nowhere else. Correct records stay. Returns the previous records of
        each name, as text. Raises conflict."""

        async def work(tx: Transaction) -> tuple[ZoneRow, dict[str, list[str]]]:
            zone = await self._zone(tx, owner_id)
            replaced: dict[str, list[str]] = {}
            for name in names:
                replaced[name] = await self._point_one(tx, name, addresses)
            details = {"pointed": replaced, "to": [str(each) for each in addresses]}
            return await self._changed(tx, caller, zone, details), replaced

        return await self._change(work)

    async def require_provable(self, owner_id: UUID, names: Sequence[str]) -> None:
        """Raises conflict if the panel may not add TXT records at these names."""

        async def work(tx: Transaction) -> None:
            await self._own_zone(tx, owner_id)
            there = await read_records(tx, self.key)
            for name in names:
                check(self.key, self._naming.authority.nameservers, there, _proof(there, name, "a proof"))

        await self._database.transact(work)

    async def add_proofs(self, caller: Caller, owner_id: UUID, proofs: Mapping[str, Sequence[str]]) -> ZoneChange[None]:
        """Add TXT records of the panel's own, by name; existing ones stay. Raises conflict."""

        async def work(tx: Transaction) -> tuple[ZoneRow, None]:
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
                zone = await self._changed(tx, caller, zone, {"proofs_added": added})
            return zone, None

        return await self._change(work)

    async def publish(self, caller: Caller, owner_id: UUID, name: str, text: str) -> ZoneChange[None]:
        """Add a TXT record of the panel's own, which stays until `withdraw`. Raises conflict."""

        async def work(tx: Transaction) -> tuple[ZoneRow, None]:
            zone = await self._own_zone(tx, owner_id, "Point the site's names here first (svc dns point).")
            record = NewRecord(name, DEFAULT_TTL, DATA.validate_python({"type": "TXT", "text": text}))
            check(self.key, self._naming.authority.nameservers, await read_records(tx, self.key), record)
            await self._insert(tx, record, managed=True)
            return await self._changed(tx, caller, zone, {"published": [name]}), None

        return await self._change(work)

    async def withdraw(self, caller: Caller, name: str, texts: Sequence[str]) -> Ordered[ZoneRow | None]:
        """Remove what `publish` has added, if it is still there."""
        return await self._remove_managed(caller, {name: texts}, "withdrawn")

    async def remove_proofs(self, caller: Caller, proofs: Mapping[str, Sequence[str]]) -> Ordered[ZoneRow | None]:
        """Remove what `add_proofs` has added, if it is still there."""
        return await self._remove_managed(caller, proofs, "proofs_removed")

    async def _remove_managed(
        self, caller: Caller, texts_by_name: Mapping[str, Sequence[str]], detail: str
    ) -> Ordered[ZoneRow | None]:

        async def work(tx: Transaction) -> None:
            row = await tx.fetchrow("SELECT * FROM dns_zones WHERE name = $1 FOR NO KEY UPDATE", self.key)
            if row is None:
                return
            removed = []
            for name, texts in texts_by_name.items():
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
                await self._changed(tx, caller, as_zone(row), {detail: removed})

        await self._database.transact(work)
        return await self.agree()

    async def put_back(
        self, caller: Caller, owner_id: UUID, records: Mapping[str, Sequence[NewRecord]]
    ) -> ZoneChange[Mapping[str, str]]:
        """Restore the records of these names from a backup. Returns the names that were left as they are, with the
        reason."""

        async def work(tx: Transaction) -> tuple[ZoneRow, Mapping[str, str]]:
            zone = await self._zone(tx, owner_id)
            nameservers = self._naming.authority.nameservers
            change = change_of(self.key, nameservers, await read_records(tx, self.key), records)
            gone = [record.id for record in change.removed]
            await tx.execute("DELETE FROM dns_records WHERE id = ANY($1::uuid[])", gone)
            for record in change.added:
                await self._insert(tx, record)
            if gone or change.added:
                names = sorted({record.name for record in (*change.removed, *change.added)})
                zone = await self._changed(tx, caller, zone, {"restored": names})
            return zone, change.refused

        return await self._change(work)

    async def release(self) -> Ordered[ZoneRow | None]:
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
        return await self.agree()

    async def agree(self) -> Ordered[ZoneRow | None]:
        """Make Knot serve the zone as recorded, or stop serving it if it has no record. The work answers with the zone,
        with Knot's refusal as its problem; it fails with unavailable if there is no zone to record that with."""
        what = "The change is recorded, but the name server does not serve it yet"
        return self._naming.host_work.order(f"DnsZone:{self.key}", "agreement", self._agree_now, what=what)

    async def _change(self, work: Callable[[Transaction], Awaitable[tuple[ZoneRow, ResultT]]]) -> ZoneChange[ResultT]:
        zone, result = await self._database.transact(work)
        return ZoneChange(result, zone, await self.agree())

    async def _agree_now(self) -> ZoneRow | None:
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

    async def _agreed(self, zone: ZoneRow, agreement: ZoneOutcome) -> ZoneRow:
        async def work(tx: Transaction) -> None:
            row = await tx.fetchrow(
                """UPDATE dns_zones SET served_revision = $3, serial = $4, problem = NULL
                   WHERE name = $1 AND created_at = $2 AND served_revision <= $3 RETURNING *""",
                self.key,
                zone.created_at,
                zone.revision,
                agreement.serial,
            )
            if row is not None:
                # Closed even if this row never had a problem: the alert may be about an earlier zone of the same name.
                await close_alert(tx, alert_of(self.key))
                await _announce(tx, as_zone(row))

        if agreement.changed and zone.revision == zone.served_revision:
            log.warning("dns.zone_reconciled", zone=self.key, serial=agreement.serial)
        await self._database.transact(work)
        # The returned zone has the revision that Knot has taken. If the zone was changed meanwhile, the next agreement
        # makes Knot take that change.
        return replace(zone, served_revision=zone.revision, serial=agreement.serial, problem=None)

    async def _disagreed(self, zone: ZoneRow, error: KnotError) -> ZoneRow:
        """Record a disagreement. An alert is opened only for problems that do not pass by waiting; about a Knot that
        does not answer, the watch has an alert."""
        log.warning("dns.zone_not_served", zone=self.key, error=str(error))
        if zone.problem == str(error):
            return zone

        async def work(tx: Transaction) -> None:
            recorded = await tx.change(
                "UPDATE dns_zones SET problem = $4 WHERE name = $1 AND created_at = $2 AND served_revision <= $3",
                self.key,
                zone.created_at,
                zone.revision,
                str(error),
            )
            if recorded and not isinstance(error, KnotAway):
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

    async def _own_zone(self, tx: Transaction, owner_id: UUID, hint: str = _NEEDED_FOR_PROOFS) -> ZoneRow:
        """The zone, locked, if it exists and belongs to this owner."""
        row = await tx.fetchrow("SELECT * FROM dns_zones WHERE name = $1 FOR NO KEY UPDATE", self.key)
        if row is None or row["owner_id"] != owner_id:
            raise conflict(f"This server has no zone {self.key} of this site's owner.", hint=hint)
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

    async def _changed(self, tx: Transaction, caller: Caller, zone: ZoneRow, details: Mapping[str, Any]) -> ZoneRow:
        row = await tx.fetchone("UPDATE dns_zones SET revision = revision + 1 WHERE name = $1 RETURNING *", self.key)
        await audit.record(tx, caller, zone.target, details)
        await _announce(tx, as_zone(row))
        return as_zone(row)


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
