"""A panel in one process: the real database, registry, actors and application, with a server that a test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from unittest import mock

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from svc.identity.authenticate import Authentication
from svc.panel.catalogue import panel_registry
from svc.panel.config import PanelConfig
from svc.panel.realm import REALM
from svc.panel.services import Panel, PanelLoop
from svc.service.panel.compose import open_services
from svc.service.panel.host import Host
from svc.service.panel.recovery import Recovering
from svc_actors.certificates import AcmeSettings
from svc_actors.mail import MailSettings
from svc_actors.panel import web_server
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.panel.jobs import Job, JobStatus, get_job
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from svc_common.listening import Listener, families
from svc_http.app import create_app
from svc_webhost.launcher import GroupName, Limits, Service, ServiceName, ServiceStatus
from svc_webhost.site_use import SiteUse
from svc_webhost.vitals import FileSystemUse
from tests.support.dns import RecordedAddresses, RecordedDelegations, RecordedNameServer, RecordedTexts
from tests.support.harness import CheapPasswords, Client, Harness
from tests.support.packages import RecordedPackages
from tests.support.panel_php import RecordedExtensions, RecordedPhp
from tests.support.panel_sftp import RecordedSftp
from tests.support.panel_sites import RecordedAccounts
from tests.support.recorded_databases import recorded_databases
from tests.support.recorded_tables import RecordedTables
from tests.support.restic import RecordedRestic
from tests.support.served import RecordedServing
from tests.support.site_apps import RecordedApps
from tests.support.site_tasks import RecordedTasks
from tests.support.wordpress import RecordedWordPress

ORIGIN = "https://panel.test:7443"
PORTS = (7443, 2222, 80, 443)


@dataclass
class RecordedLauncher:
    """Services that run because it says so."""

    services: dict[ServiceName, Service] = field(default_factory=dict)
    reloads: list[ServiceName] = field(default_factory=list)
    limits: dict[GroupName, Limits] = field(default_factory=dict)
    ended: dict[ServiceName, int] = field(default_factory=dict)
    """How often by themselves."""
    restarted: list[ServiceName] = field(default_factory=list)

    async def ensure(self, service: Service) -> ServiceStatus:
        self.services[service.name] = service
        return await self.status(service.name)

    async def reload(self, name: ServiceName) -> None:
        self.reloads.append(name)

    async def limit(self, group: GroupName, limits: Limits) -> None:
        self.limits[group] = limits

    async def stop_idle(self, name: ServiceName) -> None:
        return

    async def restart(self, name: ServiceName) -> None:
        self.restarted.append(name)

    async def stop(self, name: ServiceName) -> None:
        self.services.pop(name, None)

    async def processes(self) -> dict[ServiceName, int]:
        return {}

    async def status(self, name: ServiceName) -> ServiceStatus:
        return ServiceStatus(running=name in self.services, last_exit="signal 9" if name in self.ended else None)

    async def restarts(self) -> dict[ServiceName, int]:
        return self.ended

    async def within(self, group: GroupName, limits: Limits | None) -> tuple[str, ...]:
        if limits is not None:
            self.limits[group] = limits
        return ()

    async def names(self) -> frozenset[ServiceName]:
        return frozenset(self.services)


@dataclass
class RecordedVitals:
    """A server that is well, until a test says otherwise."""

    bytes: float = 10.0
    inodes: float | None = 10.0
    memory_used: float = 10.0
    loaded: float = 0.1
    kept: bool = True
    used: dict[int, SiteUse] = field(default_factory=dict)
    calling: dict[str, int] = field(default_factory=dict)

    def filled(self, folder: Path) -> FileSystemUse:
        return FileSystemUse(self.bytes, self.inodes)

    def memory(self) -> float:
        return self.memory_used

    def load(self) -> float:
        return self.loaded

    def synchronised(self) -> bool:
        return self.kept

    def sites(self) -> dict[int, SiteUse]:
        return self.used

    def connections_by_address(self, ports: Collection[int]) -> dict[str, int]:
        return self.calling


class UnboundVisitors:
    """No firewall of this machine is touched."""

    async def hold(self) -> None:
        return


DNS_SETTINGS = DnsSettings(addresses=(ip_address("203.0.113.80"),))


async def nothing_measured(folder: Path) -> int | None:
    """Of homes that nobody has made."""
    return None


def recorded_host(name_server: RecordedNameServer | None = None) -> Host:
    """A server that does whatever it is told, and remembers it."""
    databases = recorded_databases()
    return Host(
        launcher=RecordedLauncher(),
        name_server=name_server or RecordedNameServer(),
        delegations=RecordedDelegations(),
        web=RecordedServing(),
        accounts=RecordedAccounts(),
        databases=databases,
        tables=RecordedTables(databases),
        restic=RecordedRestic(),
        wordpress=RecordedWordPress(),
        php=RecordedPhp(),
        tasks=RecordedTasks(),
        php_extensions=RecordedExtensions(),
        apps=RecordedApps(),
        sftp=RecordedSftp(),
        visitors=UnboundVisitors(),
        measure=nothing_measured,
        vitals=RecordedVitals(),
        listeners=lambda: {Listener(family, port): frozenset({0}) for family in families() for port in PORTS},
        packages=RecordedPackages(),
        txt_records=RecordedTexts(),
        name_addresses=RecordedAddresses(),
    )


@dataclass
class PanelHarness(Harness[Panel]):
    host: Host

    async def step(self, loop: PanelLoop) -> None:
        """What a loop does again and again is done once."""
        await self.services.loops.step(loop)

    async def job_ended(self, job_id: int) -> Job:
        """The job, once it has ended."""
        return await self._job_once(job_id, lambda job: not job.status.open)

    async def job_begun(self, job_id: int) -> Job:
        """The job, once it is no longer queued."""
        return await self._job_once(job_id, lambda job: job.status is not JobStatus.QUEUED)

    async def jobs_ended(self) -> None:
        """Until all jobs have ended, and those that have followed from them."""
        while (job_id := await self.database.fetchval("SELECT min(id) FROM jobs WHERE ended_at IS NULL")) is not None:
            await self.job_ended(job_id)

    async def _job_once(self, job_id: int, holds: Callable[[Job], bool]) -> Job:
        with self.services.jobs.watching(job_id) as changed, trio.fail_after(60):
            while (job := await get_job(self.database, job_id)) is None or not holds(job):
                await changed()
        return job

    async def administrator(self, email: str = "root@example.com") -> Client:
        return self.program(await self.token(await self.person(email, "administrator")))

    async def customer(self, email: str = "ada@example.com", scopes: tuple[str, ...] = ("admin",)) -> Client:
        return self.program(await self.token(await self.person(email), scopes))


@asynccontextmanager
async def open_panel(
    database: Database,
    folder: Path,
    host: Host | None = None,
    *,
    work: Mapping[str, object] | None = None,
    webhooks: WebhookSettings | None = None,
    mail: MailSettings | None = None,
    dns: DnsSettings | None = None,
    acme: AcmeSettings | None = None,
    certificate: tuple[Path, Path] | None = None,
    origins: tuple[str, ...] = (),
    sealer: Sealer | None = None,
    recovering: Recovering | None = None,
    sites_http_port: int = 80,
    license_key: Ed25519PublicKey | None = None,
    update_source: str | None = None,
    loops: Collection[PanelLoop] | None = (),
) -> AsyncIterator[PanelHarness]:
    """A panel whose data folder is `folder`. `work` is that of kinds of jobs of the test's own. Of the loops those that
    are named run (None: all, as in the service). A recorded web server gets each change at once: the time that a change
    waits for others to be merged with would be most of a test's time."""
    config = PanelConfig(
        data_dir=folder,
        public_host="panel.test",
        socket=folder / "core.sock",
        mail=mail,
        webhooks=webhooks or WebhookSettings(),
        dns=dns or DNS_SETTINGS,
        acme=acme,
        certificate=certificate,
        further_origins=origins,
        sites_http_port=sites_http_port,
        license_key=license_key,
        update_source=update_source,
    )
    host = host or recorded_host()
    services_of = open_services(
        config,
        database,
        host,
        sealer=sealer or Sealer(bytes(32)),
        passwords=CheapPasswords(),
        work=work,
        recovering=recovering,
        enabled_loops=loops,
    )
    merging = 0.0 if isinstance(host.web, RecordedServing) else web_server.MERGE_SECONDS
    with mock.patch.object(web_server, "MERGE_SECONDS", merging):
        async with services_of as services:
            authentication = Authentication(database, REALM)
            app = create_app(panel_registry(), services, authenticator=authentication, origins=config.origins)
            world = PanelHarness(app, services, REALM, ORIGIN, host)
            try:
                yield world
            finally:
                await world.close()
