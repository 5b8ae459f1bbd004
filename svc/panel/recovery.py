"""Recovery of a lost server: manifests, the key that opens them, and turning a new server into the lost one.

Administrators only; on a new server without an administrator, root of the server.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, SecretStr

from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.panel.jobs import enqueue
from svc_actors.panel.recovery.discovery import chosen, find_site_backups, open_manifest, replaced_contents
from svc_actors.panel.recovery.key import new_key
from svc_actors.panel.recovery.records import (
    SiteRecovery,
    is_unreported,
    read_key,
    read_source,
    unfinished,
    write_key,
    write_order,
)
from svc_actors.panel.recovery.remote import StoredManifest
from svc_actors.panel.recovery.sites import KIND as SITES
from svc_actors.panel.recovery.sites import report_job, sites_job
from svc_actors.panel.recovery.work import KIND as RUN
from svc_actors.panel.recovery.work import require_new, run_job
from svc_actors.panel.recovery.writing import TOO_OLD, manifest_job
from svc_actors.store import Queryable, Target, Transaction, audit
from svc_common.errors import conflict, wrong_field

operations = Operations[Panel]()

RecoveryKey = Annotated[SecretStr, Field(min_length=32, max_length=64, description="As shown when it was created.")]
ManifestId = Annotated[
    str, Field(max_length=64), Shape("[0-9a-f]{8,64}", "the id of a manifest, or its first eight digits or more")
]
_SERVER = Target("server", None, "recovery")


class RecoveryKeyState(Model):
    """`fingerprint` distinguishes keys; the key itself is shown only once, at its creation."""

    fingerprint: str
    created_at: datetime


class TargetManifest(Model):
    """`written_at` null: no manifest was written there. `error`: why the last attempt to write it failed. `overdue`: it
    is older than a day."""

    target_id: UUID
    target: str
    written_at: datetime | None
    age_seconds: int | None
    bytes: int | None
    error: str | None
    overdue: bool


class RecoveredSite(Model):
    """`backup_at`: the time of the restored backup; null if the site was never backed up, or is not restored yet."""

    site_id: UUID
    domain: str
    status: SiteRecovery
    backup_at: datetime | None
    error: str | None


class RecoveredFrom(Model):
    """The server that this one has become. `notes`: what differs from it. `job_id`: the job that restores the sites, or
    the last one that did."""

    hostname: str
    taken_at: datetime
    recovered_at: datetime
    notes: list[str]
    sites: list[RecoveredSite]
    job_id: int | None


class Recovery(Model):
    """`key` null: there is none, and no manifest is written. `recovered` null: this server was not recovered from
    another. `holds`: people and settings of this server that a recovery would replace; a server with sites cannot
    become another."""

    key: RecoveryKeyState | None
    manifests: list[TargetManifest]
    recovered: RecoveredFrom | None
    holds: list[str]


class RecoveryKeySecret(Model):
    """`recovery_key` is shown only once and kept nowhere: without it no manifest opens."""

    recovery_key: str
    fingerprint: str


class KeyRequest(Request):
    rotate: Annotated[
        bool, Field(description="Create a new key: manifests are rewritten, and those of the old key deleted.")
    ] = False


class DiscoverRequest(Request):
    target: Annotated[UUID, Field(description="Target that holds the lost server's backups.")]
    recovery_key: Annotated[RecoveryKey | None, Field(description="Needed to see the contents of the manifest.")] = None
    manifest: Annotated[ManifestId | None, Field(description="By default the newest one.")] = None


class RunRequest(Request):
    target: Annotated[UUID | None, Field(description="Required unless a recovery is in progress.")] = None
    recovery_key: RecoveryKey | None = None
    manifest: Annotated[ManifestId | None, Field(description="By default the newest one.")] = None
    replace: Annotated[
        bool, Field(description="Replace the people and settings of this server: required if there are any.")
    ] = False


class FoundManifest(Model):
    id: str
    taken_at: datetime


class FoundServer(Model):
    """`manifests`: the newest first."""

    install_id: UUID
    hostname: str
    manifests: list[FoundManifest]


class SiteFound(Model):
    """`backups`: how many the target holds, null if that is unknown; `problem`: why the site could not be restored as
    of `backup_at`, null if it could."""

    domain: str
    type: str
    owner: str
    backup_at: datetime | None
    backups: int | None
    problem: str | None


class OpenedManifest(Model):
    id: str
    hostname: str
    release: str
    taken_at: datetime
    sites: list[SiteFound]


class Discovered(Model):
    """`opened` null: no recovery key was given. `holds`: people and settings of this server that a recovery would
    replace."""

    servers: list[FoundServer]
    opened: OpenedManifest | None
    holds: list[str]


@operations.declare(
    "recovery.show",
    "Whether this server can be recovered, and the progress of a recovery",
    Route.get("/recovery"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("recover", "status"),
)
async def show(context: Context[Panel], request: Empty) -> Recovery:
    database = context.services.database
    key = await read_key(database)
    return Recovery(
        key=RecoveryKeyState(fingerprint=key.fingerprint, created_at=key.created_at) if key is not None else None,
        manifests=await _manifests(database),
        recovered=await _recovered(database),
        holds=await replaced_contents(database),
    )


@operations.declare(
    "recovery.key",
    "Create the recovery key; it is shown once, so keep it elsewhere",
    Route.post("/recovery/key", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("recover", "key"),
    secret=True,
)
async def make_key(context: Context[Panel], request: KeyRequest) -> RecoveryKeySecret:
    key = new_key()

    async def work(tx: Transaction) -> None:
        await write_key(tx, context.services.sealer, key, rotate=request.rotate)
        await audit.record(tx, context.caller, Target("recovery_key", None, key.fingerprint))

    await context.services.database.transact(work)
    return RecoveryKeySecret(recovery_key=key.recovery_key, fingerprint=key.fingerprint)


@operations.declare(
    "recovery.manifest",
    "Write the manifest to every target now",
    Route.post("/recovery/manifest"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("recover", "manifest"),
    target="server",
)
async def write_manifest(context: Context[Panel], request: Empty) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        job = await enqueue(tx, manifest_job())
        await audit.record(tx, context.caller, _SERVER)
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


@operations.declare(
    "recovery.discover",
    "Search a target for the manifests of lost servers; changes nothing",
    Route.post("/recovery/discover"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("recover", "discover"),
    positional=("target",),
    target="server",
)
async def discover(context: Context[Panel], request: DiscoverRequest) -> Discovered:
    services = context.services
    target = await TargetRow.read(services.database, request.target)
    there = await services.manifests.list_manifests(target)
    opened = None
    if request.recovery_key is not None:
        kept = chosen(there, request.manifest)
        found = await open_manifest(services.manifests, target, kept, request.recovery_key.get_secret_value())
        sites = await find_site_backups(services.manifests, target, found.manifest)
        opened = OpenedManifest(
            id=kept.snapshot,
            hostname=found.manifest.hostname,
            release=found.manifest.release,
            taken_at=found.manifest.taken_at,
            sites=[
                SiteFound(
                    domain=each.site.domain,
                    type=each.site.type,
                    owner=each.site.owner,
                    backup_at=each.site.backup_at,
                    backups=each.backups,
                    problem=each.problem,
                )
                for each in sites
            ],
        )
    await services.database.transact(lambda tx: audit.record(tx, context.caller, target.target))
    return Discovered(servers=_servers(there), opened=opened, holds=await replaced_contents(services.database))


@operations.declare(
    "recovery.run",
    "Recover the server of a manifest on this one, or retry the sites that are not restored",
    Route.post("/recovery/run"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("recover", "run"),
    target="server",
)
async def run(context: Context[Panel], request: RunRequest) -> JobModel:
    services = context.services
    if await read_source(services.database) is not None:
        return await services.database.transact(lambda tx: _go_on(tx, context))
    if request.target is None or request.recovery_key is None:
        raise wrong_field("recovery_key", "is required, and so is target: no recovery has started on this server")
    await require_new(services.database)
    if (holds := await replaced_contents(services.database)) and not request.replace:
        raise conflict(
            f"This server is not new: it has {', '.join(holds)}, which would be replaced. Nothing was changed.",
            hint="Set `replace` if they may be deleted.",
        )
    target = await TargetRow.read(services.database, request.target)
    kept = chosen(await services.manifests.list_manifests(target), request.manifest)
    secret = request.recovery_key.get_secret_value()

    async def work(tx: Transaction) -> JobModel:
        await _require_no_other(tx)
        await write_order(tx, services.sealer, target.id, kept.snapshot, secret)
        job = await enqueue(tx, run_job(kept.hostname))
        await audit.record(tx, context.caller, Target("server", kept.server, kept.hostname))
        return await job_answer(tx, job)

    return await services.database.transact(work)


async def _go_on(tx: Transaction, context: Context[Panel]) -> JobModel:
    await _require_no_other(tx)
    new = await sites_job(tx, await unfinished(tx))
    if new is None and await is_unreported(tx):
        new = report_job()
    if new is None:
        raise conflict("Every site is restored; there is nothing to retry.")
    job = await enqueue(tx, new)
    await audit.record(tx, context.caller, _SERVER)
    return await job_answer(tx, job)


async def _require_no_other(tx: Transaction) -> None:
    other = await tx.fetchval(
        "SELECT id FROM jobs WHERE kind = ANY($1) AND status IN ('queued', 'running') LIMIT 1", [RUN, SITES]
    )
    if other is not None:
        raise conflict("A recovery is already running.", hint=f"Follow its job, {other}.")


async def _manifests(queryable: Queryable) -> list[TargetManifest]:
    rows = await queryable.fetch(
        """SELECT backup_targets.id AS target_id, name AS target, written_at, bytes, error
           FROM backup_targets LEFT JOIN recovery_manifests ON target_id = backup_targets.id ORDER BY name"""
    )
    now = datetime.now(UTC)
    found = []
    for row in rows:
        age = now - row["written_at"] if row["written_at"] is not None else None
        found.append(
            TargetManifest(
                **dict(row),
                age_seconds=int(age.total_seconds()) if age is not None else None,
                overdue=age is None or age > TOO_OLD,
            )
        )
    return found


async def _recovered(queryable: Queryable) -> RecoveredFrom | None:
    source = await read_source(queryable)
    if source is None:
        return None
    rows = await queryable.fetch(
        """SELECT site_id, domain, recovery_sites.status, backup_at, error
           FROM recovery_sites JOIN sites ON sites.id = site_id ORDER BY number"""
    )
    return RecoveredFrom(
        hostname=source.hostname,
        taken_at=source.taken_at,
        recovered_at=source.recovered_at,
        notes=list(source.notes),
        sites=[RecoveredSite.model_validate(dict(row)) for row in rows],
        job_id=await queryable.fetchval("SELECT max(id) FROM jobs WHERE kind = $1", SITES),
    )


def _servers(there: list[StoredManifest]) -> list[FoundServer]:
    found: dict[UUID, FoundServer] = {}
    for kept in there:
        server = found.setdefault(
            kept.server, FoundServer(install_id=kept.server, hostname=kept.hostname, manifests=[])
        )
        server.manifests.append(FoundManifest(id=kept.snapshot, taken_at=kept.taken_at))
    return list(found.values())
