"""The certificate of a site: its files, its expiry, and what visitors are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import trio

from svc_actors.panel.certificates.records import KEY_PURPOSE
from svc_actors.panel.certificates.served import VisitorAddress, shown_at
from svc_actors.panel.certificates.site_certificates import CertificateOptions, SiteCertificates
from svc_actors.panel.host_work import finished
from svc_actors.panel.repairs.parts import Finding
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.site import Site
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import CannotUnseal, Sealer
from svc_actors.store import Database, service_itself
from svc_common.errors import conflict, unavailable
from svc_webhost.certificate_files import CertificateFiles

T = TypeVar("T")

_HANDSHAKE_SECONDS: Final = 1.2


@dataclass(frozen=True)
class _Recorded:
    fingerprint: str
    chain: str
    key: bytes
    not_after: datetime
    uploaded: bool

    @property
    def expired(self) -> bool:
        return self.not_after <= datetime.now(UTC)


class SiteCertificatePart:
    """Restores the recorded certificate; if it has expired, or there is none, orders another."""

    def __init__(
        self,
        database: Database,
        actors: ActorSystem,
        sealer: Sealer,
        files: CertificateFiles,
        serving: VisitorAddress,
        certificates: SiteCertificates,
    ) -> None:
        self._database = database
        self._actors = actors
        self._sealer = sealer
        self._files = files
        self._serving = serving
        self._certificates = certificates

    async def look(self, site: SiteRow) -> list[Finding]:
        recorded = await self._recorded(site)
        if recorded is None:
            if not self._certificates.by_acme:
                return []  # No authority is configured: the site is served by HTTP alone, as intended.
            return [Finding(f"{site.domain} has no certificate yet.")]
        findings = []
        if not await self._of_files(self._files.holds, site, recorded):
            findings.append(Finding("The files of the certificate are missing, or contain something else."))
        if recorded.expired:
            mendable = not recorded.uploaded and self._certificates.by_acme
            over = f"The certificate expired on {recorded.not_after:%Y-%m-%d}."
            findings.append(Finding(over if mendable else f"{over} Upload a new one.", mendable))
        shown = None
        with trio.move_on_after(_HANDSHAKE_SECONDS):
            shown = await shown_at(self._serving, site.domain)
        if shown is None:
            findings.append(Finding(f"HTTPS requests to {site.domain} are not answered."))
        elif shown != recorded.fingerprint:
            findings.append(Finding(f"Visitors of {site.domain} get another certificate, with SHA-256 {shown}."))
        return findings

    async def mend(self, site: SiteRow) -> None:
        recorded = await self._recorded(site)
        if recorded is not None:
            await self._of_files(self._files.mend, site, recorded)
            await finished(self._actors.ref(Site, str(site.id)).ask(Site.serve_again))
        if (recorded is None or (recorded.expired and not recorded.uploaded)) and self._certificates.by_acme:
            await self._certificates.issue(service_itself("site.repair"), site, CertificateOptions())
            raise conflict(
                f"A certificate for {site.domain} was requested and is not issued yet.",
                hint="Diagnose the site again in a few minutes; `svc certificate show` shows the progress.",
            )

    async def _recorded(self, site: SiteRow) -> _Recorded | None:
        row = await self._database.fetchrow(
            "SELECT fingerprint, chain, sealed_key, not_after, source FROM site_certificates WHERE site_id = $1",
            site.id,
        )
        if row is None:
            return None
        try:
            key = self._sealer.unseal(row["sealed_key"], KEY_PURPOSE)
        except CannotUnseal as error:
            raise unavailable(f"The key of the certificate of {site.domain} cannot be read: {error}") from error
        return _Recorded(row["fingerprint"], row["chain"], key, row["not_after"], row["source"] == "uploaded")

    async def _of_files(self, work: Callable[[int, str, str, bytes], T], site: SiteRow, recorded: _Recorded) -> T:
        try:
            return await trio.to_thread.run_sync(work, site.number, recorded.fingerprint, recorded.chain, recorded.key)
        except OSError as error:
            raise unavailable(f"The files of the certificate of {site.domain} were not written: {error}") from error
