"""The work of every kind of job: the parts of the panel that do it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from svc.panel.accounts import deletion as account_deletion
from svc.panel.accounts import termination as account_termination
from svc.service.panel.host import Host
from svc.service.panel.served_sites import ServedSites
from svc.service.panel.site_data import SiteData
from svc_actors.panel import handover
from svc_actors.panel.apps import deploying
from svc_actors.panel.databases.transfers import EXPORT, IMPORT
from svc_actors.panel.files import COMPRESS, EXTRACT, FileWork
from svc_actors.panel.jobs import Jobs
from svc_actors.panel.repairs import Parts, Repair
from svc_actors.panel.repairs import work as repairs
from svc_actors.panel.sites import deletion, php_extensions
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.resuming import resume_sites
from svc_actors.panel.staging import copying, pushing
from svc_actors.panel.updates.work import INSTALL, IRREVOCABLE, LOOK, UpdateWork
from svc_actors.panel.wordpress import creation
from svc_actors.panel.wordpress.database import WordPressDatabases
from svc_actors.panel.wordpress.records import write_incomplete
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.outbound import Outbound
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders


def handle_jobs(
    jobs: Jobs,
    database: Database,
    host: Host,
    folders: HostFolders,
    sealer: Sealer,
    *,
    actors: ActorSystem,
    files: ConfinedFiles,
    served: ServedSites,
    data: SiteData,
    parts: Parts,
    outbound: Outbound,
    authorities: Path | None,
) -> None:
    """Called before the queues are served: a job of an unregistered kind would fail. `outbound` and `authorities`:
    where repositories of code may be, and the authorities for their servers' certificates."""
    wordpress_databases = WordPressDatabases(database, data.databases)
    wordpress = creation.WordPressCreation(
        database,
        host.accounts,
        host.wordpress,
        wordpress_databases.make,
        actors,
        served.certificates,
        host.clock,
    )
    jobs.handle(creation.KIND, wordpress, seconds=creation.SECONDS)

    handed_over = handover.SiteHandover(
        database, host.wordpress, wordpress_databases, data.databases, served.sftp.agree, sealer
    )
    jobs.handle(handover.KIND, handed_over, irrevocable=handover.IRREVOCABLE)

    async def remove_databases(site: SiteRow) -> None:
        await database.transact(lambda tx: write_incomplete(tx, site.id))
        await data.transfers.remove_all(site)

    removal = deletion.SiteDeletion(
        database,
        host.accounts,
        actors,
        served.programs,
        host.apps,
        served.certificates.forget,
        data.backups,
        remove_databases,
        served.sftp.agree,
    )
    jobs.handle(deletion.KIND, removal, irrevocable=deletion.IRREVOCABLE)

    remove_backups = data.backups.account_removed
    jobs.handle(account_deletion.KIND, account_deletion.AccountDeletion(database, remove_backups))
    jobs.handle(account_termination.KIND, account_termination.AccountTermination(database, actors, remove_backups))

    resume = partial(resume_sites, database, actors)
    extensions = php_extensions.ExtensionWork(database, host.php_extensions, resume)
    jobs.handle(php_extensions.KIND, extensions, irrevocable=php_extensions.IRREVOCABLE)

    jobs.handle(repairs.KIND, repairs.RepairWork(database, parts), seconds=repairs.SECONDS)

    updates = UpdateWork(database, host.packages, host.launcher, host.tasks, parts[Repair.RUNTIME].mend)
    jobs.handle(INSTALL, updates, irrevocable=IRREVOCABLE)
    jobs.handle(LOOK, updates)
    deployment = deploying.AppDeployment(database, actors, files, folders, host.launcher, outbound, sealer, authorities)
    jobs.handle(deploying.KIND, deployment, seconds=deploying.SECONDS)
    copies = copying.StagingCopy(data.staging, host.accounts, wordpress_databases.make)
    for kind in (copying.CREATE, copying.REFRESH):
        jobs.handle(kind, copies, seconds=copying.SECONDS)
    pushes = pushing.StagingPush(data.staging, data.undoing, data.backups.back_up_before, host.tasks)
    jobs.handle(pushing.PUSH, pushes, seconds=pushing.SECONDS)

    for kind in (EXTRACT, COMPRESS):
        jobs.handle(kind, FileWork(database, files, folders))
    for kind in (EXPORT, IMPORT):
        jobs.handle(kind, data.transfers)
    data.backups.install(jobs)
