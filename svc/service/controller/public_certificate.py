"""The certificate for browsers, if an ACME authority issues it: orders, challenges, and the alert."""

from __future__ import annotations

from functools import partial

import trio

from svc.controller import certificate
from svc.controller.config import ControllerConfig
from svc_actors.acme import Http01
from svc_actors.alerts import Severity, set_alert
from svc_actors.certificates import CertificateWithKey, IssuedCertificate, IssuingServices, Keeper, alert_of
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database, keep_running
from svc_common.listening import addresses_of
from svc_http.plain import challenge_app, serve_plain

_PORT_ALERT = "certificate-port"


async def certificate_keeper(
    config: ControllerConfig, database: Database, sealer: Sealer, actors: ActorSystem
) -> Keeper[Http01] | None:
    """The keeper that obtains and renews the certificate by ACME. A certificate that was obtained earlier is given to
    the listener at once."""
    acme, alert = config.acme, alert_of(certificate.NAME)
    if acme is None or not acme.terms_agreed:
        message = None
        if acme is not None:
            message = (
                f"No certificate is requested from {acme.directory} before its terms are accepted: `svc controller "
                "check` says where they are, and `terms-agreed = true` in the table [acme] of the settings accepts "
                "them."
            )
        await database.transact(partial(set_alert, key=alert, message=message))
        await _tell(database, _PORT_ALERT, None)
        return None
    issuing = IssuingServices(database, sealer)
    actors.register(IssuedCertificate, lambda _: IssuedCertificate(issuing))

    async def install(issued: CertificateWithKey) -> None:
        await trio.to_thread.run_sync(certificate.install, config.data_dir, issued)

    keeper = Keeper(actors, certificate.NAME, acme.names, acme, Http01(), install)
    await keeper.install_current()
    return keeper


async def serve_challenges(config: ControllerConfig, database: Database, challenges: Http01) -> None:
    """Answer the authority's challenges on a port of their own, if the settings name one."""
    assert config.acme is not None
    tell = partial(_tell, database, _PORT_ALERT)
    if config.acme.port == 0:
        await tell(None)
        return
    app = challenge_app(challenges, config.public_url)
    serving = partial(serve_plain, app, addresses_of(config.bind_host, config.acme.port), tell)
    await keep_running("answers to challenges", serving)


async def tell_of_certificates(database: Database, problem: str | None) -> None:
    """Open the alert about the certificates that browsers are shown if there is a problem, or close it."""
    await _tell(database, "certificate", problem, Severity.CRITICAL)


async def _tell(database: Database, key: str, problem: str | None, severity: Severity = Severity.WARNING) -> None:
    message = None if problem is None else problem + "."
    await database.transact(partial(set_alert, key=key, message=message, severity=severity))
