"""The wildcard for the preview names of all sites, proven by DNS in a zone of this server.

Without such a zone, or without an authority, previews are served by HTTP: a certificate for each name would take most
of what an authority issues for one domain in a week.

Why: docs/decisions/0059-preview-addresses.md.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.certificates import AcmeSettings, CertificateWithKey, IssuedCertificate, Keeper
from svc_actors.certificates.keeper import OpenHttp
from svc_actors.panel.certificates.leaf import CertificateError, parsed
from svc_actors.panel.certificates.names import SiteNames
from svc_actors.panel.certificates.proofs import ZoneProofs
from svc_actors.panel.dns.proving import Proving
from svc_actors.panel.sites.previews import read_preview_domain
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_webhost.folders import HostFolders
from svc_webhost.preview_certificate import (
    preview_certificate,
    put_preview_certificate,
    remove_preview_certificate,
)

NAME: Final = "previews"
"""The name of this certificate among those from ACME."""
LOOK_SECONDS: Final = 20.0
NOT_PROVABLE_SECONDS: Final = 600.0
"""Seconds until a zone is looked at again after it was found not to be delegated to this server."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.previews")


class PreviewCertificates:
    """`settings`: the authority. `open_http` is for tests."""

    def __init__(
        self,
        database: Database,
        actors: ActorSystem,
        folders: HostFolders,
        proving: Proving,
        settings: AcmeSettings | None,
        open_http: OpenHttp | None = None,
    ) -> None:
        self._database = database
        self._actors = actors
        self._folders = folders
        self._proving = proving
        self._settings = settings if settings is not None and settings.terms_agreed else None
        self._open_http = open_http
        self._not_provable: tuple[str, float] = ("", -inf)
        """The domain that was found not provable last, and when that was found."""

    async def restore_files(self) -> None:
        """Write the files of the recorded certificate. Call it before the web server starts."""
        domain = await read_preview_domain(self._database)
        issued = await self._actors.ref(IssuedCertificate, NAME).ask(IssuedCertificate.current)
        if domain is not None and issued is not None:
            await self._install(domain, issued)

    async def round(self) -> None:
        """Get or renew the certificate if that is due, which may take minutes."""
        domain = await read_preview_domain(self._database)
        if domain is None or self._settings is None:
            await self._end()
            return
        zone = await self._database.fetchrow(
            "SELECT name, owner_id FROM dns_zones WHERE $1 = name OR $1 LIKE '%.' || name", domain
        )
        if zone is None:
            await self._end()
            return
        names = SiteNames((f"*.{domain}",), (zone["name"],))
        if not await self._ordered(names) and not await self._provable(domain, zone["owner_id"], names):
            await self._end()
            return
        proofs = ZoneProofs(self._proving, zone["owner_id"], partial(_same, names))
        keeper = Keeper(
            self._actors,
            NAME,
            names.own,
            self._settings,
            proofs,
            partial(self._install, domain),
            open_http=self._open_http,
        )
        await keeper.install_current()
        await keeper.attempt()

    async def _ordered(self, names: SiteNames) -> bool:
        return bool(
            await self._database.fetchval(
                "SELECT true FROM acme_certificates WHERE name = $1 AND names = $2", NAME, list(names.own)
            )
        )

    async def _provable(self, domain: str, owner_id: UUID, names: SiteNames) -> bool:
        """Whether to order the certificate at all. Previews work without one, so an order that the authority would
        refuse is not made, and does not count as a failure."""
        if self._not_provable[0] == domain and trio.current_time() < self._not_provable[1] + NOT_PROVABLE_SECONDS:
            return False
        try:
            await self._proving.require(owner_id, names.own, names.zones)
        except ServiceError as error:
            if error.code not in (ErrorCode.CONFLICT, ErrorCode.UNAVAILABLE):
                raise
            self._not_provable = (domain, trio.current_time())
            _log.info("previews.not_provable", domain=domain, reason=error.message)
            return False
        return True

    async def _install(self, domain: str, issued: CertificateWithKey) -> None:
        try:
            certificate = parsed(issued.chain, issued.key)
        except CertificateError as error:
            # The certificate has expired, for example. Its renewal has an alert of its own.
            _log.warning("previews.certificate_not_served", domain=domain, error=str(error))
            return
        # Until the order for this domain has ended, the recorded certificate is that of an earlier domain.
        if certificate.covers(f"x.{domain}"):
            put = partial(put_preview_certificate, self._folders, domain, certificate.fingerprint)
            await trio.to_thread.run_sync(put, certificate.chain, certificate.key)

    async def _end(self) -> None:
        if await trio.to_thread.run_sync(preview_certificate, self._folders) is not None:
            await trio.to_thread.run_sync(remove_preview_certificate, self._folders)
        if await self._database.fetchval("SELECT true FROM acme_certificates WHERE name = $1", NAME):
            await self._actors.ref(IssuedCertificate, NAME).ask(IssuedCertificate.forget)


async def _same(names: SiteNames) -> SiteNames:
    return names
