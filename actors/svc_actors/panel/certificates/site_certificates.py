"""Gets every site a certificate for its names, and checks that visitors are shown it.

Level-triggered: every few seconds `run` looks for sites whose certificate does not have their names, and for orders
that are due, and works on a few of them at a time. A certificate is recorded, written to a folder of its own and handed
to the web server; then it is compared with the certificate that visitors see (`served`).

Invariants: only the customer replaces an uploaded certificate; a certificate is served until a better one is there; an
order continues across restarts, and a name that cannot be proven does not keep other names from getting a certificate
(`svc_actors.certificates`).

Why: docs/decisions/0016-own-acme-client.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.acme import Challenges, ChallengeType
from svc_actors.alerts import set_alert
from svc_actors.certificates import (
    AcmeSettings,
    CertificateWithKey,
    IssuedCertificate,
    IssuingServices,
    Keeper,
    left_out,
)
from svc_actors.certificates.keeper import OpenHttp
from svc_actors.certificates.steps import Tell
from svc_actors.panel.certificates.leaf import CertificateError, ParsedCertificate, parsed
from svc_actors.panel.certificates.names import SiteNames, chosen_wildcards, wildcards_of
from svc_actors.panel.certificates.proofs import ChallengeFiles, ZoneProofs
from svc_actors.panel.certificates.reasons import Reasons
from svc_actors.panel.certificates.records import (
    KEY_PURPOSE,
    Source,
    acme_name,
    read_site_certificate,
    remove_certificate,
    site_of_name,
    write_certificate,
)
from svc_actors.panel.certificates.served import VisitorAddress, compare_served, served_alert
from svc_actors.panel.dns.proving import Proving
from svc_actors.panel.host_work import finished, soon
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.sites.site import Changed, Site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.panel.webhooks import Subject, WebhookEvent, emit
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.sealing import CannotUnseal, Sealer
from svc_actors.store import Caller, Database, Record, Transaction, service_itself
from svc_common.errors import conflict, invalid, not_found, wrong_field
from svc_webhost.certificate_files import CertificateFiles

LOOK_SECONDS: Final = 2.0
LEFT_OUT_SECONDS: Final = 600.0
"""How often names that were left out are looked up, which asks no authority."""
LOOKUPS_AT_ONCE: Final = 16
AT_ONCE: Final = 4
"""The most concurrent orders: authorities limit how many an account may have."""
AFTER_FAILURE: Final = timedelta(minutes=15)
"""How long after a failure a customer has to wait before a retry or a change of names. All sites share one account,
whose failures authorities limit by the hour."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.certificates")


@dataclass(frozen=True)
class CertificateOptions:
    """How to order a certificate. None keeps the earlier choice; without one, the order is by http-01 and without
    wildcards."""

    challenge: ChallengeType | None = None
    wildcards: Sequence[str] | None = None


class SiteCertificates:
    """`settings`: the authority; without one, or without consent to its terms, only uploaded certificates are served.
    `tell` is called for a site that gets no certificate. `open_http` is for tests."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        actors: ActorSystem,
        files: CertificateFiles,
        challenges: ChallengeFiles,
        proving: Proving,
        reasons: Reasons,
        serving: VisitorAddress,
        settings: AcmeSettings | None,
        tell: Tell,
        open_http: OpenHttp | None = None,
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._actors = actors
        self._files = files
        self._challenges = challenges
        self._proving = proving
        self._reasons = reasons
        self._serving = serving
        self._open_http = open_http
        self._settings = settings if settings is not None and settings.terms_agreed else None
        self._under_way: set[str] = set()
        self._not_taken: set[tuple[UUID, datetime]] = set()
        self._asked = trio.Event()
        self._left_out_at = -inf
        issuing = IssuingServices(database, sealer, tell)
        actors.register(IssuedCertificate, lambda _: IssuedCertificate(issuing))

    @property
    def by_acme(self) -> bool:
        return self._settings is not None

    async def run(self) -> None:
        """Run until cancelled."""
        await self._clear()
        limit = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            while True:
                self._asked = trio.Event()
                await self._look(nursery, limit)
                with trio.move_on_after(LOOK_SECONDS):
                    await self._asked.wait()

    async def round(self) -> None:
        """A single round of `run`: the orders that are due have ended when this returns."""
        await self._clear()
        async with trio.open_nursery() as nursery:
            await self._look(nursery, trio.CapacityLimiter(AT_ONCE))

    async def issue(
        self, caller: Caller, site: SiteRow, wish: CertificateOptions, not_sooner_than: timedelta | None = AFTER_FAILURE
    ) -> None:
        """Order a certificate for the site now, or retry now; once issued, it replaces an uploaded one. Raises
        `rate_limited` if the last attempt failed too recently, `invalid` for wildcards that the site cannot have, and
        `conflict` if an authority would not find the proofs in DNS."""
        if self._settings is None:
            raise conflict(
                "No certificate authority is configured.",
                hint="Upload one, or have an administrator of the server name an authority (--acme-contact).",
            )
        names = await self._names(site.id)
        before = await read_site_certificate(self._database, site.id)
        challenge = wish.challenge or before.challenge or ChallengeType.HTTP_01
        if wish.wildcards is not None:
            wildcards = chosen_wildcards(wish.wildcards, names)
        else:
            wildcards = list(before.wildcards) if challenge is ChallengeType.DNS_01 else []
        if wildcards and challenge is not ChallengeType.DNS_01:
            raise wrong_field(
                "wildcards", "authorities issue wildcards by dns-01 only", hint="Set challenge to dns-01."
            )
        certified = names.certified(wildcards)
        if challenge is ChallengeType.DNS_01:
            await self._proving.require(site.owner_id, certified, names.zones)
        await self._actors.ref(IssuedCertificate, acme_name(site.id)).ask(
            IssuedCertificate.order,
            caller,
            self._settings.directory,
            self._settings.contact,
            certified,
            challenge,
            not_sooner_than,
        )
        self._asked.set()

    async def upload(self, caller: Caller, site: SiteRow, chain: str, key: bytes, *, in_job: bool = False) -> None:
        """Serve the site with the customer's own certificate. A job waits until it is served. Raises `invalid` for a
        certificate that cannot be served."""
        try:
            certificate = parsed(chain, key)
        except CertificateError as error:
            raise invalid(str(error), hint="The current certificate stays in use.") from error
        if not certificate.covers(site.domain):
            raise invalid(
                f"The certificate is for {', '.join(certificate.names[:5])}, not for {site.domain}.",
                hint="The current certificate stays in use.",
            )
        await self._install(caller, site, Source.UPLOADED, certificate, in_job=in_job)
        await self._actors.ref(IssuedCertificate, acme_name(site.id)).ask(IssuedCertificate.forget)

    async def remove(self, caller: Caller, site: SiteRow) -> None:
        """Remove an uploaded certificate; if there is an authority, one by ACME replaces it."""

        async def change(tx: Transaction, row: SiteRow) -> Changed:
            _require_owner(row, site)
            if not await remove_certificate(tx, row.id):
                raise conflict(f"The site {row.domain} has no certificate.")
            return Changed(row.target)

        await soon(self._actors.ref(Site, str(site.id)).ask(Site.change, caller, change))
        self._asked.set()

    async def forget(self, site: SiteRow) -> None:
        """Remove the orders, keys and files of a site that is being deleted."""
        await self._actors.ref(IssuedCertificate, acme_name(site.id)).ask(IssuedCertificate.forget)

        async def work(tx: Transaction) -> None:
            await remove_certificate(tx, site.id)
            await set_alert(tx, key=served_alert(site.id), message=None)

        await self._database.transact(work)
        await trio.to_thread.run_sync(self._files.remove, site.number)

    async def restore_files(self) -> None:
        """Make the folder hold the recorded certificates, and none of deleted sites. Call it before the web server
        starts."""
        numbers = {row["number"] for row in await self._database.fetch("SELECT number FROM sites")}
        await trio.to_thread.run_sync(self._files.keep_only, numbers)
        rows = await self._database.fetch(
            """SELECT s.number, c.fingerprint, c.chain, c.sealed_key
               FROM site_certificates AS c JOIN sites AS s ON s.id = c.site_id"""
        )
        for row in rows:
            try:
                key = self._sealer.unseal(row["sealed_key"], KEY_PURPOSE)
                put = partial(self._files.put, row["number"], row["fingerprint"], row["chain"], key)
                await trio.to_thread.run_sync(put)
            except (CannotUnseal, OSError) as error:
                # This affects one site: the web server leaves the site out and raises an alert.
                log.error("certificate.not_restored", site_number=row["number"], error=str(error))

    async def _clear(self) -> None:
        """Remove the proofs that a killed core has left."""
        await trio.to_thread.run_sync(self._challenges.clear)
        await self._proving.clear()

    async def _look(self, nursery: trio.Nursery, limit: trio.CapacityLimiter) -> None:
        await self._install_issued()
        await self._want_missing()
        for name in await self._due():
            if name not in self._under_way:
                self._under_way.add(name)
                nursery.start_soon(self._attempt, name, limit)
        if trio.current_time() >= self._left_out_at + LEFT_OUT_SECONDS:
            self._left_out_at = trio.current_time()
            nursery.start_soon(self._try_left_out)
        await compare_served(self._database, self._serving)

    async def _install_issued(self) -> None:
        """Serve certificates that were issued but not handed over before the core ended."""
        rows = await self._database.fetch(
            """
            SELECT s.id, a.not_after
            FROM acme_certificates AS a
            JOIN sites AS s ON a.name = 'site:' || s.id
            LEFT JOIN site_certificates AS c ON c.site_id = s.id
            WHERE a.not_after > now() AND s.status IN ('active', 'suspended')
              AND (c.site_id IS NULL OR (c.source = 'acme' AND c.not_after < a.not_after))
            """
        )
        for row in rows:
            which = (row["id"], row["not_after"])
            if which in self._not_taken or acme_name(row["id"]) in self._under_way:
                continue
            try:
                site = await read_site(self._database, row["id"])
                issued = await self._actors.ref(IssuedCertificate, acme_name(row["id"])).ask(IssuedCertificate.current)
                if site is not None and issued is not None:
                    await self._issued(site, issued)
            except (DomainError, CertificateError) as error:
                # Tried once per start of the core: the next certificate is ordered when it is due, or on request.
                self._not_taken.add(which)
                log.warning("certificate.not_served", site=str(row["id"]), error=str(error))

    async def _want_missing(self) -> None:
        """Order certificates for sites without an order, and new ones for sites whose names have changed."""
        if self._settings is None:
            return
        rows = await self._database.fetch(
            """
            SELECT s.id, array_agg(d.name ORDER BY d.name <> s.domain, d.name) AS names,
                   array_agg(DISTINCT d.registrable) AS zones, a.names AS ordered, a.challenge, a.directory
            FROM sites AS s
            JOIN site_domains AS d ON d.site_id = s.id
            LEFT JOIN site_certificates AS c ON c.site_id = s.id AND c.source = 'uploaded'
            LEFT JOIN acme_certificates AS a ON a.name = 'site:' || s.id
            WHERE s.status IN ('active', 'suspended') AND c.site_id IS NULL
            GROUP BY s.id, a.names, a.challenge, a.directory
            HAVING a.names IS DISTINCT FROM array_agg(d.name ORDER BY d.name <> s.domain, d.name)
                OR a.directory IS DISTINCT FROM $1
            """,
            self._settings.directory,
        )
        for row in rows:
            ordered = row["ordered"] or []
            certified = SiteNames(tuple(row["names"]), tuple(row["zones"])).certified(wildcards_of(ordered))
            if (certified, self._settings.directory) == (ordered, row["directory"]):
                continue  # With its wildcards counted, the order already covers these names.
            await self._actors.ref(IssuedCertificate, acme_name(row["id"])).ask(
                IssuedCertificate.want,
                self._settings.directory,
                self._settings.contact,
                certified,
                ChallengeType(row["challenge"] or ChallengeType.HTTP_01),
                AFTER_FAILURE,
            )

    async def _try_left_out(self) -> None:
        """Look up the names that certificates do without, and order those that may be provable now."""
        rows = await self._database.fetch(
            """SELECT name, challenge, left_out FROM acme_certificates
               WHERE name LIKE 'site:%' AND left_out <> '{}' AND due_at > now()"""
        )
        limit = trio.CapacityLimiter(LOOKUPS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for row in rows:
                nursery.start_soon(self._try_one_left_out, row, limit)

    async def _try_one_left_out(self, row: Record, limit: trio.CapacityLimiter) -> None:
        site_id, challenge, now = site_of_name(row["name"]), ChallengeType(row["challenge"]), datetime.now(UTC)
        assert site_id is not None
        async with limit:
            zones = (await self._names(site_id)).zones
            names = [
                each.name
                for each in left_out.read(row["left_out"])
                if each.next_try <= now and await self._reasons.worth_another_try(challenge, zones, each)
            ]
        if names and self._settings is not None:
            try:
                await self._actors.ref(IssuedCertificate, row["name"]).ask(IssuedCertificate.try_again, names)
            except DomainError:
                return  # The site was deleted meanwhile.
            self._asked.set()

    async def _due(self) -> list[str]:
        if self._settings is None:
            return []
        rows = await self._database.fetch(
            "SELECT name FROM acme_certificates WHERE name LIKE 'site:%' AND due_at <= now() ORDER BY due_at LIMIT 100"
        )
        return [row["name"] for row in rows]

    async def _attempt(self, name: str, limit: trio.CapacityLimiter) -> None:
        """Work on one order, until its next attempt is due."""
        site_id = site_of_name(name)
        assert site_id is not None
        assert self._settings is not None
        try:
            async with limit:
                site = await read_site(self._database, site_id)
                if site is None:
                    await self._actors.ref(IssuedCertificate, name).ask(IssuedCertificate.forget)
                    return
                challenges = await self._challenges_of(site)
                zones = (await self._names(site.id)).zones
                keeper = Keeper(
                    self._actors,
                    name,
                    (),
                    self._settings,
                    challenges,
                    install=partial(self._issued, site),
                    explain=partial(self._reasons.explain, site.domain, zones),
                    open_http=self._open_http,
                )
                await keeper.attempt()
        except (DomainError, CertificateError) as error:
            # Either the certificate is recorded, but the web server refused it: it is handed over again with the site
            # (`resume_sites`). Or the site was deleted meanwhile.
            log.warning("certificate.not_served", site=str(site_id), error=str(error))
        finally:
            self._under_way.discard(name)

    async def _challenges_of(self, site: SiteRow) -> Challenges:
        """Where the proofs of the site's order are shown."""
        before = await read_site_certificate(self._database, site.id)
        if before.challenge is not ChallengeType.DNS_01:
            return self._challenges
        return ZoneProofs(self._proving, site.owner_id, partial(self._names, site.id))

    async def _issued(self, site: SiteRow, issued: CertificateWithKey) -> None:
        certificate = parsed(issued.chain, issued.key)
        await self._install(service_itself("certificate.install"), site, Source.ACME, certificate)

    async def _install(
        self, caller: Caller, site: SiteRow, source: Source, certificate: ParsedCertificate, *, in_job: bool = False
    ) -> None:
        """Write the files first, since the record names them; then the record, which makes the web server load the
        files."""
        put = partial(self._files.put, site.number, certificate.fingerprint, certificate.chain, certificate.key)
        await trio.to_thread.run_sync(put)

        async def change(tx: Transaction, row: SiteRow) -> Changed:
            if source is Source.UPLOADED:
                _require_owner(row, site)
            told = {
                "source": source.value,
                "issuer": certificate.issuer,
                "not_after": certificate.not_after.isoformat(),
            }
            if await write_certificate(tx, self._sealer, row.id, source, certificate):
                subject = Subject("site", str(row.id), row.domain)
                await emit(tx, WebhookEvent.SSL_ISSUED, subject=subject, data=told)
            return Changed(row.target, told | {"names": list(certificate.names)})

        changing = self._actors.ref(Site, str(site.id)).ask(Site.change, caller, change)
        try:
            await (finished(changing) if in_job else soon(changing))
        except DomainError:
            there = await read_site(self._database, site.id)
            if there is None or there.status is SiteStatus.DELETING:
                await trio.to_thread.run_sync(self._files.remove, site.number)
            raise
        # The previous certificate's files are removed only now: that certificate is served until the web server has
        # taken the new one, however many new ones it has refused.
        await trio.to_thread.run_sync(self._files.forget_old, site.number, certificate.fingerprint)
        self._asked.set()

    async def _names(self, site_id: UUID) -> SiteNames:
        rows = await self._database.fetch(
            """SELECT d.name, d.registrable FROM site_domains AS d JOIN sites AS s ON s.id = d.site_id
               WHERE s.id = $1 ORDER BY d.name <> s.domain, d.name""",
            site_id,
        )
        return SiteNames(tuple(row["name"] for row in rows), tuple(sorted({row["registrable"] for row in rows})))


def _require_owner(locked: SiteRow, site: SiteRow) -> None:
    """Raises not_found if the site was handed over since `site` was read: the caller's right was checked for its
    previous owner."""
    if locked.owner_id != site.owner_id:
        raise not_found("There is no such site.")
