"""Serves the sites: web server, programs of their accounts, certificates and SFTP access follow the records."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from svc.panel.certificates.mail import telling_owners
from svc.panel.config import PanelConfig
from svc.panel.services import PanelLoops
from svc.service.panel.host import Host
from svc.service.panel.own_certificate import PanelCertificate
from svc_actors.mail import Outbox
from svc_actors.panel.apps import SiteApp
from svc_actors.panel.apps.watch import AppWatch
from svc_actors.panel.certificates.previews import LOOK_SECONDS as PREVIEW_CERTIFICATE_SECONDS
from svc_actors.panel.certificates.previews import PreviewCertificates
from svc_actors.panel.certificates.proofs import ChallengeFiles
from svc_actors.panel.certificates.reasons import Reasons
from svc_actors.panel.certificates.served import VisitorAddress
from svc_actors.panel.certificates.site_certificates import SiteCertificates
from svc_actors.panel.certificates.trouble import telling
from svc_actors.panel.dns.proving import Proving
from svc_actors.panel.host_work import HostWork
from svc_actors.panel.ports import ROUND_SECONDS as PORTS_SECONDS
from svc_actors.panel.ports import PortWatch
from svc_actors.panel.sftp import SftpAccess
from svc_actors.panel.sites.crashes import ROUND_SECONDS as CRASHES_SECONDS
from svc_actors.panel.sites.crashes import CrashWatch
from svc_actors.panel.sites.previews import ROUND_SECONDS as PREVIEWS_SECONDS
from svc_actors.panel.sites.previews import ServedPreviews
from svc_actors.panel.sites.programs import SitePrograms
from svc_actors.panel.sites.serving import all_servers
from svc_actors.panel.sites.site import Site
from svc_actors.panel.web_server import WebServer
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database, EventLog
from svc_webhost.certificate_files import CertificateFiles
from svc_webhost.sftp import SftpError
from svc_webhost.site_logs import log_service

LOGS_SECONDS: Final = 60.0
VISITORS_SECONDS: Final = 60.0


@dataclass(frozen=True)
class ServedSites:
    certificates: SiteCertificates
    serving: VisitorAddress
    programs: SitePrograms
    sftp: SftpAccess


async def serve_sites(
    config: PanelConfig,
    database: Database,
    host: Host,
    *,
    sealer: Sealer,
    events: EventLog,
    actors: ActorSystem,
    host_work: HostWork,
    loops: PanelLoops,
    proving: Proving,
    outbox: Outbox,
) -> ServedSites:
    """Register the actors of sites, and start the loops that serve them."""
    folders = config.folders
    challenges = ChallengeFiles(folders.challenges)
    serving = VisitorAddress("127.0.0.1", config.sites_https_port)
    certificates = SiteCertificates(
        database,
        sealer,
        actors,
        CertificateFiles(folders.certificates),
        challenges,
        proving,
        Reasons(host.name_addresses, proving.delegations, proving.authority, config.dns.site_addresses),
        serving,
        config.acme,
        telling(telling_owners(outbox)),
        host.open_acme,
    )
    # The web server reads these files as soon as it starts.
    await certificates.restore_files()
    of_previews = PreviewCertificates(database, actors, folders, proving, config.acme, host.open_acme)
    await of_previews.restore_files()
    web_server = WebServer(database, host.web, lambda: all_servers(database, folders))
    programs = SitePrograms(database, host.php)
    actors.register(
        Site, lambda _: Site(database, host.accounts, programs, web_server, folders, host.launcher, host_work)
    )
    actors.register(SiteApp, lambda _: SiteApp(database, sealer, host.apps, host_work))
    sftp = SftpAccess(database, events, host.sftp)
    # The port is bound before any program of a site runs: such a program could bind it instead.
    with suppress(SftpError):
        await host.sftp.hold()
    ports = {
        config.port: "pages and API of the panel",
        config.sftp.port: "SFTP",
        config.sites_http_port: "sites",
        config.sites_https_port: "sites over TLS",
    }
    loops.repeat_from_now("bound on visitors by address", VISITORS_SECONDS, host.visitors.hold)
    loops.repeat("ports of the panel", PORTS_SECONDS, PortWatch(database, ports, host.listeners).round)
    # The log service starts before the programs of sites, whose log lines wait until it runs.
    loops.repeat_from_now("logs of sites", LOGS_SECONDS, lambda: host.launcher.ensure(log_service(folders)))
    loops.repeat_from_now("programs that end by themselves", CRASHES_SECONDS, CrashWatch(database, host.launcher).round)
    loops.keep("web server", web_server.run)
    loops.repeat("preview addresses", PREVIEWS_SECONDS, ServedPreviews(database, web_server, folders).round)
    loops.repeat("certificate of previews", PREVIEW_CERTIFICATE_SECONDS, of_previews.round)
    loops.keep("programs of sites", programs.run, step=programs.round)
    apps = AppWatch(database, actors, host.apps)
    loops.keep("applications of sites", apps.run, step=apps.round)
    loops.keep("certificates of sites", certificates.run, step=certificates.round)
    own = PanelCertificate(config, database, actors, challenges, web_server.serving_began, host.open_acme)
    loops.keep("certificate of the panel", own.run)
    loops.keep("access by SFTP", sftp.run)
    return ServedSites(certificates, serving, programs, sftp)
