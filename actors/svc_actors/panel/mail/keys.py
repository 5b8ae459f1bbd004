"""The keys that sign the mail of a zone (DKIM): the only writer of `dkim_keys`.

A key is made for the first mail from a zone of this server, and replaced when its owner says so. Its public half is a
TXT record of the panel's own in the zone, `<selector>._domainkey`. A selector that the zone has already is never used,
so records that an imported zone brought, for keys of other mail servers, stay and remain valid.

Invariants:
- a key signs nothing before its record is served: it is stored only then, and its record withdrawn otherwise;
- the record of a replaced key stays for `STAYS`, so that mail that is on its way is verified;
- a private key is sealed, and for its zone and selector alone.

Why: docs/decisions/0058-dkim-of-zones.md.
"""

from __future__ import annotations

from base64 import b64encode
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import structlog
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from svc_actors.panel.dns.zone import DnsZone
from svc_actors.panel.host_work import finished
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Database, Queryable, Transaction, service_itself
from svc_common.errors import ServiceError, conflict, unavailable

WANTED: Final = "dkim keys"
"""The announcement of a zone whose mail cannot be signed, as it has no key."""
BITS: Final = 2048
"""What every receiver accepts (RFC 8301); larger keys do not fit into answers of the DNS by UDP."""
STAYS: Final = timedelta(days=7)
"""Delivery is tried for three days here, and for up to five by the relays that follow."""
MOST_PUBLISHED: Final = 5
"""Keys of a zone with a record, the present one among them."""
AGAIN_AFTER: Final = 3600.0
"""Seconds until a zone whose record could not be published is tried again: its owner has to change the zone first."""
SWEEP_SECONDS: Final = 3600.0
_BELOW: Final = "._domainkey."
_MOST_REMEMBERED: Final = 10_000
_MAKING: Final = service_itself("dkim.make")
_REMOVING: Final = service_itself("dkim.remove")

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.mail")


@dataclass(frozen=True)
class DkimKey:
    """The public parts of a zone's key. `record` is the full name of the TXT record with `text`."""

    zone: str
    selector: str
    public_key: str
    created_at: datetime

    @property
    def record(self) -> str:
        return f"{self.selector}{_BELOW}{self.zone}"

    @property
    def text(self) -> str:
        return f"v=DKIM1; k=rsa; p={self.public_key}"


def purpose(zone: str, selector: str) -> str:
    return f"dkim:{selector}{_BELOW}{zone}"


async def read_key(queryable: Queryable, zone: str) -> DkimKey | None:
    row = await queryable.fetchrow("SELECT zone, selector, public_key, created_at FROM dkim_keys WHERE zone = $1", zone)
    return None if row is None else DkimKey(**dict(row))


class DkimKeys:
    """One per process."""

    def __init__(self, database: Database, actors: ActorSystem, sealer: Sealer) -> None:
        self._database = database
        self._actors = actors
        self._sealer = sealer
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._failed_at: OrderedDict[str, float] = OrderedDict()
        self._woken = trio.Event()

    async def run(self) -> None:
        """Make the keys that are wanted, until cancelled. What is announced while this does not run is announced again
        with the next mail."""
        with self._database.announcements.listener(WANTED, self._want):
            while True:
                await self._woken.wait()
                self._woken = trio.Event()
                await self.make_wanted()

    async def make_wanted(self) -> None:
        while self._wanted:
            zone, _ = self._wanted.popitem(last=False)
            if trio.current_time() - self._failed_at.get(zone, -AGAIN_AFTER) < AGAIN_AFTER:
                continue
            try:
                await self._make_first(zone)
            except ServiceError as error:
                log.warning("mail.dkim_not_published", zone=zone, error=error.message)
                self._failed_at[zone] = trio.current_time()
                self._failed_at.move_to_end(zone)
                if len(self._failed_at) > _MOST_REMEMBERED:
                    self._failed_at.popitem(last=False)

    def _want(self, zone: str) -> None:
        if len(self._wanted) < _MOST_REMEMBERED:
            self._wanted[zone] = None
        self._woken.set()

    async def _make_first(self, zone: str) -> None:
        owner: UUID | None = await self._database.fetchval(
            """SELECT owner_id FROM dns_zones WHERE name = $1
               AND NOT EXISTS (SELECT FROM dkim_keys WHERE dkim_keys.zone = dns_zones.name)""",
            zone,
        )
        if owner is not None:
            await self.make(_MAKING, owner, zone)

    async def make(self, caller: Caller, owner_id: UUID, zone: str) -> DkimKey:
        """Make a key for the zone, which replaces the present one. Raises conflict if its record is not possible in the
        zone, and `unavailable` while the name server does not serve it; the present key then stays in use."""
        key, sealed = await self._new(zone)
        change = await self._actors.ref(DnsZone, zone).ask(DnsZone.publish, caller, owner_id, key.record, key.text)
        try:
            served = await change.soon()
            if not served.served:
                raise unavailable(
                    f"The record of the new key of {zone} is not served yet, so mail is not signed with it: "
                    f"{served.problem or 'the zone is being changed'}.",
                    hint="Try again in a moment.",
                )
            await self._store(owner_id, key, sealed)
        except ServiceError:
            # Withdrawn at once: otherwise the record would count towards `MOST_PUBLISHED` until the sweep removes it.
            # This does not wait for the name server.
            await self._actors.ref(DnsZone, zone).ask(DnsZone.withdraw, _REMOVING, key.record, [key.text])
            raise
        log.info("mail.dkim_key_made", zone=zone, selector=key.selector)
        return key

    async def _store(self, owner_id: UUID, key: DkimKey, sealed: bytes) -> None:
        """Raises conflict if the zone is gone, or is another's by now."""

        async def work(tx: Transaction) -> None:
            stored = await tx.change(
                """INSERT INTO dkim_keys (zone, selector, private_key, public_key)
                   SELECT name, $2, $3, $4 FROM dns_zones WHERE name = $1 AND owner_id = $5
                   ON CONFLICT (zone) DO UPDATE SET selector = excluded.selector, private_key = excluded.private_key,
                       public_key = excluded.public_key, created_at = now()""",
                key.zone,
                key.selector,
                sealed,
                key.public_key,
                owner_id,
            )
            if not stored:
                raise conflict(f"The zone {key.zone} was removed meanwhile; no key was made.")

        await self._database.transact(work)

    async def sweep(self) -> None:
        """Remove the records of keys that were replaced `STAYS` ago, and of keys that a killed core did not store."""
        rows = await self._database.fetch(
            """SELECT dns_records.zone, name, array_agg(data ->> 'text') AS texts FROM dns_records
               LEFT JOIN dkim_keys ON dkim_keys.zone = dns_records.zone
               WHERE managed AND type = 'TXT' AND name LIKE '%.\\_domainkey.%'
                 AND name IS DISTINCT FROM selector || $1 || dns_records.zone
                 AND greatest(dns_records.created_at, dkim_keys.created_at) < now() - $2::interval
               GROUP BY dns_records.zone, name""",
            _BELOW,
            STAYS,
        )
        for row in rows:
            asked = self._actors.ref(DnsZone, row["zone"]).ask(DnsZone.withdraw, _REMOVING, row["name"], row["texts"])
            await finished(asked)

    async def _new(self, zone: str) -> tuple[DkimKey, bytes]:
        """A key with a selector that the zone does not have, and its sealed private half."""
        now = datetime.now(UTC)
        rows = await self._database.fetch(
            "SELECT name, managed FROM dns_records WHERE zone = $1 AND name LIKE '%.\\_domainkey.%'", zone
        )
        if sum(row["managed"] for row in rows) >= MOST_PUBLISHED:
            raise conflict(
                f"{zone} has {MOST_PUBLISHED} keys of the last {STAYS.days} days; no further one was made.",
                hint=f"Replaced keys stay published for {STAYS.days} days, for mail that is on its way.",
            )
        taken = {row["name"] for row in rows}
        day = f"svc{now:%Y%m%d}"
        selectors = (day, *(f"{day}-{number}" for number in range(2, len(taken) + 3)))
        selector = next(each for each in selectors if f"{each}{_BELOW}{zone}" not in taken)
        # A third of a second of computing.
        private = await trio.to_thread.run_sync(lambda: rsa.generate_private_key(65537, BITS))
        public = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        der = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        sealed = self._sealer.seal(der, purpose(zone, selector))
        return DkimKey(zone, selector, b64encode(public).decode(), now), sealed
