"""The services that a panel operation can use: the type of `Context.services` in every handler of the panel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID

from svc.identity.passwords import Passwords
from svc.panel.config import PanelConfig
from svc.panel.realm import REALM
from svc.registry.downloads import Downloads
from svc.registry.principal import Role
from svc.registry.realm import Realm
from svc_actors.mail import Outbox
from svc_actors.panel.backups import BackupLoop
from svc_actors.panel.certificates import SiteCertificates
from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.databases.transfers import DatabaseTransfers
from svc_actors.panel.dns.pointing import PublicNames
from svc_actors.panel.files import Uploads
from svc_actors.panel.imports.fetching import ForeignSites
from svc_actors.panel.imports.uploads import Imports
from svc_actors.panel.jobs import Jobs
from svc_actors.panel.mail.keys import DkimKeys
from svc_actors.panel.recovery.remote import Remote
from svc_actors.panel.releases.own import OwnRelease
from svc_actors.panel.repairs import Diagnosis
from svc_actors.panel.sftp import SftpAccess
from svc_actors.panel.sites.php_extensions import Extensions
from svc_actors.panel.staging.tools import Tools as StagingTools
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database, EventLog, Loops, ServiceLoop, Transaction
from svc_actors.webhooks.endpoint import Clock
from svc_actors.webhooks.receivers import Receivers
from svc_webhost.apps import AppServing
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.delegation import RememberedDelegations
from svc_webhost.knot import Authority
from svc_webhost.packages import Packages
from svc_webhost.php import PhpServing
from svc_webhost.txt_records import TxtRecords
from svc_webhost.wordpress import WordPressSites

# Background loops, by their names in alerts and in the log.
PanelLoop = (
    ServiceLoop
    | BackupLoop
    | Literal[
        "access by SFTP",
        "applications of sites",
        "bound on visitors by address",
        "certificate of previews",
        "certificate of the panel",
        "certificates of sites",
        "cron of WordPress",
        "databases to resume",
        "delivery of sites' mail",
        "disk use of sites",
        "handovers of sites",
        "health",
        "holds of sites' mail",
        "jobs",
        "keeper of programs",
        "keys of mail",
        "logs of sites",
        "mail of sites",
        "manifests of this server",
        "memory of database sessions (mariadb)",
        "memory of database sessions (postgresql)",
        "ports of the panel",
        "preview addresses",
        "programs of sites",
        "programs that end by themselves",
        "pushes to undo",
        "releases of the panel",
        "removal of abandoned uploads",
        "removal of old exports",
        "removal of old imports",
        "removal of old jobs",
        "removal of sites' messages",
        "replaced keys of mail",
        "schedules",
        "sites to resume",
        "sites without a record",
        "traffic of sites",
        "trials of releases",
        "updates of packages",
        "web server",
        "zones",
    ]
)
PanelLoops = Loops[PanelLoop]


@dataclass(frozen=True)
class Panel:
    config: PanelConfig
    database: Database
    events: EventLog
    actors: ActorSystem
    sealer: Sealer
    passwords: Passwords
    outbox: Outbox
    dkim_keys: DkimKeys
    jobs: Jobs
    files: ConfinedFiles
    uploads: Uploads
    imports: Imports
    foreign_sites: ForeignSites
    downloads: Downloads
    receivers: Receivers
    authority: Authority
    delegations: RememberedDelegations
    txt_records: TxtRecords
    public_names: PublicNames
    certificates: SiteCertificates
    wordpress: WordPressSites
    php: PhpServing
    clock: Clock
    php_extensions: Extensions
    databases: SiteDatabases
    transfers: DatabaseTransfers
    apps: AppServing
    diagnosis: Diagnosis
    sftp: SftpAccess
    staging: StagingTools
    packages: Packages
    own_release: OwnRelease | None
    manifests: Remote
    loops: PanelLoops
    realm: Realm = REALM

    @property
    def audit_folder(self) -> Path:
        return self.config.data_dir / "audit"

    async def person_added(self, tx: Transaction, user_id: UUID, email: str, role: Role) -> None:
        """A new person gets no initial records."""
