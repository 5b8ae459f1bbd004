"""The certificate that the panel itself shows on its port: from the operator's files, by ACME, or self-signed.

The web tier reads one folder and no other, has no rights, and picks up a replaced certificate there while connections
stay open. So the core writes the current one there, key and chain in one file that is replaced atomically. Until then
the web tier shows the certificate that the core signed itself (`self_signed`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio
from cryptography import x509

from svc.panel.config import PanelConfig
from svc_actors.alerts import Severity, set_alert
from svc_actors.certificates import AcmeSettings, CertificateWithKey, IssuedCertificate, Keeper, alert_of
from svc_actors.certificates.keeper import OpenHttp
from svc_actors.panel.certificates import CertificateError, parsed
from svc_actors.panel.certificates.proofs import ChallengeFiles
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database
from svc_common.durable import write_whole
from svc_http.certificates import expires_soon

NAME: Final = "panel"
"""The name of the panel's certificate among those from ACME."""
LOOK_SECONDS: Final = 10.0
_ALERT: Final = "certificate"

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.panel.certificate")


class PanelCertificate:
    def __init__(
        self,
        config: PanelConfig,
        database: Database,
        actors: ActorSystem,
        challenges: ChallengeFiles,
        web_serves: trio.Event,
        open_http: OpenHttp | None = None,
    ) -> None:
        self._config = config
        self._database = database
        self._actors = actors
        self._challenges = challenges
        self._web_serves = web_serves
        self._open_http = open_http
        self._shown = config.folders.shown_certificate

    async def run(self) -> None:
        """Keep the current certificate in the web tier's folder, until cancelled."""
        acme, name = self._config.acme, self._config.certified_name
        if self._config.certificate is not None:
            await self._forget_order()
            await self._follow(*self._config.certificate)
        elif acme is not None and acme.terms_agreed and name is not None:
            await self._tell(None)
            await self._keep(acme, name)
        else:
            await self._forget_order()
            await self._tell(None)
            await trio.to_thread.run_sync(partial(self._shown.unlink, missing_ok=True))
            await trio.sleep_forever()

    async def _keep(self, acme: AcmeSettings, name: str) -> None:
        async def install(issued: CertificateWithKey) -> None:
            await trio.to_thread.run_sync(self._show, issued.key + issued.chain.encode())

        # nginx's default server answers challenges for every name, including the panel's.
        keeper = Keeper(self._actors, NAME, (name,), acme, self._challenges, install, open_http=self._open_http)
        await keeper.install_current()
        # A challenge that arrives before nginx answers would fail the validation, and the next attempt is minutes
        # later.
        await self._web_serves.wait()
        await keeper.run()

    async def _follow(self, certificate: Path, key: Path) -> None:
        told: str | None = ""
        while True:
            problem = await trio.to_thread.run_sync(self._take_up, certificate, key)
            if problem != told:
                await self._tell(problem)
                told = problem
            await trio.sleep(LOOK_SECONDS)

    def _take_up(self, certificate: Path, key: Path) -> str | None:
        """Use the certificate of the operator's files. Returns what is wrong with them, if anything."""
        try:
            found = parsed(certificate.read_text(), key.read_bytes())
        except (OSError, ValueError, CertificateError) as error:
            return f"{certificate} with {key} cannot be used; the previous certificate stays in use: {error}"
        self._show(found.key + found.chain.encode())
        if not found.covers(self._config.public_host):
            return f"{certificate} is not for {self._config.public_host}, but for {', '.join(found.names[:5])}"
        if expires_soon(x509.load_pem_x509_certificate(found.chain.encode())):
            return f"{certificate} ends on {found.not_after:%Y-%m-%d %H:%M} UTC and was not renewed"
        return None

    def _show(self, content: bytes) -> None:
        """Write the file that the web tier reads. The file inherits the folder's group, so only the web tier may read
        it."""
        if self._shown.exists() and self._shown.read_bytes() == content:
            return
        self._shown.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        write_whole(self._shown, content, mode=0o640)
        log.info("certificate.shown", file=str(self._shown))

    async def _forget_order(self) -> None:
        await self._actors.ref(IssuedCertificate, NAME).ask(IssuedCertificate.forget)
        await self._database.transact(partial(set_alert, key=alert_of(NAME), message=None))

    async def _tell(self, problem: str | None) -> None:
        message = None if problem is None else f"{problem}."
        await self._database.transact(partial(set_alert, key=_ALERT, message=message, severity=Severity.CRITICAL))
