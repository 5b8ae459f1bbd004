"""Staging: a copy of a WordPress site to work on, and pushing changes back into the site."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.panel.sites.fields import Domain
from svc.panel.sites.sites import usable_name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.accounts.allowances import lock_owner, require_database_room
from svc_actors.panel.accounts.disk_use import require_disk_room
from svc_actors.panel.host_work import soon
from svc_actors.panel.jobs import require_turn
from svc_actors.panel.sites.creation import NewSite, create_site
from svc_actors.panel.sites.deletion import delete_site
from svc_actors.panel.sites.names import site_name
from svc_actors.panel.sites.php import php_of
from svc_actors.panel.sites.records import SiteRow, change_record, lock_site, read_site, write_status
from svc_actors.panel.sites.serving import STAGING_LOGIN
from svc_actors.panel.sites.site import Changed
from svc_actors.panel.sites.site import Site as SiteActor
from svc_actors.panel.sites.states import SiteOrder, SiteStatus, SiteType
from svc_actors.panel.sites.states import move as site_move
from svc_actors.panel.staging import copying, pushing, selection
from svc_actors.panel.staging.records import (
    insert_staging,
    pair_of,
    read_staging,
    remove_staging,
    staging_of,
    write_move,
    write_verifier,
)
from svc_actors.panel.staging.selection import Choice
from svc_actors.panel.staging.states import StagingOrder, StagingStatus
from svc_actors.panel.wordpress.records import WordPressOrder, read_wordpress, write_cron_scheduled, write_order
from svc_actors.store import Queryable, Transaction, audit
from svc_common.errors import conflict, invalid
from svc_webhost.crypt import hash_random_password

operations = Operations[Panel]()

USUAL_NAME: Final = "staging"
MAIL: Final = "private/mail"
"""The folder, below the copy's, that its mail is written to instead of being sent."""

Label = Annotated[
    str,
    Field(
        max_length=63, description="Label before the domain of the site (without www): the two are the copy's domain."
    ),
    Shape(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "one label of a domain name, as staging"),
]
Entry = Annotated[
    str,
    Field(max_length=300, description="As staging.preview names it: wp-content/themes"),
    Shape(r"(?:wp-content/)?[A-Za-z0-9_.@+~ -]{1,255}", "a name in the document root, or in its wp-content"),
]
Table = Annotated[
    str,
    Field(max_length=64, description="As staging.preview names it: wp_options"),
    Shape(r"[A-Za-z0-9_$-]{1,64}", "the name of a table"),
]


class Staging(Model):
    """`status` none: there is no copy, and all other fields are null. `reason`: why it has failed, or why the last push
    was undone. `login` is the user name that belongs to its password. `mail`: the folder in the copy's site with the
    mails that it would have sent."""

    site_id: UUID
    status: StagingStatus
    reason: str | None = None
    domain: str | None = None
    copy_id: UUID | None = None
    login: str | None = None
    mail: str | None = None
    job_id: int | None = None
    copied_at: datetime | None = None
    pushed_at: datetime | None = None
    created_at: datetime | None = None


class StagingCreated(JobModel):
    """The job, and the credentials with which visitors open the copy. `password` is shown only once."""

    domain: str
    login: str
    password: str


class StagingPassword(Model):
    """Shown only once."""

    login: str
    password: str


class StagingPart(Model):
    """`pushed`: a push that names no parts includes it. `allowed`: a push may name it. `drifted`: it was changed on the
    live site since the copy was made. `why`: why it is not pushed by default, or cannot be."""

    name: str
    pushed: bool
    allowed: bool
    drifted: bool
    why: str | None


class StagingPreview(Model):
    """What a push that names no parts would replace. `drift` names the parts of these that were changed on the live
    site since the copy was made: the push is refused unless `accept_drift` is set."""

    site_id: UUID
    files: list[StagingPart]
    tables: list[StagingPart]
    drift: list[str]
    kept_options: list[str]


class StagingShowRequest(SiteRequest):
    """Names the site."""


class StagingPreviewRequest(SiteRequest):
    """Names the site."""


class StagingCreateRequest(SiteChange):
    name: Label = USUAL_NAME


class StagingRefreshRequest(SiteChange):
    """The copy is replaced by the current site; changes made in it are lost."""


class StagingPasswordRequest(SiteChange):
    """Names the site."""


class StagingDeleteRequest(SiteChange):
    """Changes made in the copy are lost."""


class StagingPushRequest(SiteChange):
    """`confirm` repeats the domain of the live site. Without `files` and `tables`, what staging.preview calls `pushed`
    is pushed; with one of them, only that. `accept_drift`: changes of the live site since the copy was made are
    lost."""

    confirm: Domain
    files: Annotated[list[Entry] | None, Field(min_length=1, max_length=500)] = None
    tables: Annotated[list[Table] | None, Field(min_length=1, max_length=500)] = None
    accept_drift: bool = False


@operations.declare(
    "staging.get",
    "The staging copy of a site",
    Route.get("/sites/{id}/staging"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("site", "staging", "show"),
)
async def get_staging(context: Context[Panel], request: StagingShowRequest) -> Staging:
    database = context.services.database
    live = await site_of(database, context.principal, request.id)
    return await _shown(database, live)


@operations.declare(
    "staging.preview",
    "Preview a push of a staging copy: what it replaces, and what changed on the live site since",
    Route.get("/sites/{id}/staging/preview"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("site", "staging", "preview"),
)
async def preview(context: Context[Panel], request: StagingPreviewRequest) -> StagingPreview:
    services = context.services
    live = await site_of(services.database, context.principal, request.id)
    await staging_of(services.database, live)
    live, copy, found = await pair_of(services.database, live.id)
    if found.status is not StagingStatus.READY:
        raise conflict(f"The staging copy is {found.status.value}; its contents cannot be compared now.")
    preview = await pushing.preview_push(services.staging, live, copy, found)
    usual = Choice(None, None)
    files, tables = usual.of_files(preview.files), usual.of_tables(preview.tables)
    return StagingPreview(
        site_id=live.id,
        files=[_part(part) for part in preview.files],
        tables=[_part(part) for part in preview.tables],
        drift=selection.drift(preview.files, files) + selection.drift(preview.tables, tables),
        kept_options=selection.kept_options(files),
    )


@operations.declare(
    "staging.create",
    "Create a staging copy of a site, protected by a password that is shown once",
    Route.post("/sites/{id}/staging"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("site", "staging", "create"),
    secret=True,
    target="site",
)
async def create(context: Context[Panel], request: StagingCreateRequest) -> StagingCreated:
    password, verifier = _new_password()

    async def work(tx: Transaction) -> StagingCreated:
        live = await _live(tx, context, request.id)
        if await read_staging(tx, live.id) is not None:
            raise conflict(
                f"{live.domain} has a staging copy already; nothing was created.",
                hint="Refresh it, or delete it first.",
            )
        ordered = await read_wordpress(tx, live.id)
        if ordered is None or ordered.installed_at is None:
            raise conflict(f"{live.domain} has no WordPress that could be copied.")
        domain = usable_name(context, f"{request.name}.{live.domain.removeprefix('www.')}")
        await require_disk_room(tx, live.id, await _used(tx, live))
        await require_turn(tx, live.id, live.owner_id)
        await require_database_room(tx, await lock_owner(tx, live.owner_id))
        wanted = NewSite(
            live.owner_id, domain, [], SiteType.WORDPRESS, php=php_of(live), limits=live.limits, staging_of=live.id
        )
        copy = await create_site(tx, context.caller, wanted)
        title = f"Staging of {live.domain}"[:200]
        await write_order(tx, copy.id, WordPressOrder(title, ordered.locale, ordered.admin_email))
        # Recorded as if the schedule had been created, so that the copy gets none: only the live site runs its due
        # tasks.
        await write_cron_scheduled(tx, copy.id)
        await change_record(tx, copy, {"force_https": True})
        job = await copying.order_copy(tx, live, copying.CREATE, f"Copy {live.domain} to {copy.domain}")
        await insert_staging(tx, live, copy, verifier, job.id)
        await audit.record(tx, context.caller, live.target, {"copy": copy.domain, "job": job.id})
        answer = await job_answer(tx, job)
        return StagingCreated(**dict(answer), domain=copy.domain, login=STAGING_LOGIN, password=password)

    return await context.services.database.transact(work)


@operations.declare(
    "staging.refresh",
    "Refresh a staging copy from its site; changes made in the copy are lost",
    Route.post("/sites/{id}/staging/refresh"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("site", "staging", "refresh"),
    confirm=True,
    target="site",
)
async def refresh(context: Context[Panel], request: StagingRefreshRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        live = await _live(tx, context, request.id)
        found = await staging_of(tx, live)
        copy = await lock_site(tx, found.copy_id)
        if copy.status not in (SiteStatus.ACTIVE, SiteStatus.FAILED):
            raise conflict(f"The copy {copy.domain} is {copy.status.value}; nothing was refreshed.")
        await require_turn(tx, live.id, live.owner_id)
        job = await copying.order_copy(tx, live, copying.REFRESH, f"Copy {live.domain} to {copy.domain} again")
        await write_move(tx, live, StagingOrder.REFRESH, job_id=job.id)
        if copy.status is SiteStatus.FAILED:
            # The creation of the copy was interrupted, so it is continued.
            await write_status(tx, copy, site_move(copy.status, SiteOrder.CREATE), None)
        await audit.record(tx, context.caller, live.target, {"copy": copy.domain, "job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


@operations.declare(
    "staging.push",
    "Push a staging copy: back up the site, then replace its files and tables with those of the copy",
    Route.post("/sites/{id}/staging/push"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("site", "staging", "push"),
    target="site",
)
async def push(context: Context[Panel], request: StagingPushRequest) -> JobModel:
    chosen = Choice(request.files, request.tables)

    async def work(tx: Transaction) -> JobModel:
        live = await _live(tx, context, request.id)
        if site_name(request.confirm).name != live.domain:
            raise invalid(
                f"confirm does not repeat the domain of the site, {live.domain}; nothing was pushed.",
                hint=f"Send confirm: {live.domain}",
            )
        found = await staging_of(tx, live)
        copy = await read_site(tx, found.copy_id)
        if copy is not None and copy.status is not SiteStatus.ACTIVE:
            raise conflict(f"The copy {copy.domain} is {copy.status.value}; nothing was pushed.")
        await require_turn(tx, live.id, live.owner_id)
        job = await pushing.order_push(tx, live, chosen, accept_drift=request.accept_drift)
        await write_move(tx, live, StagingOrder.PUSH, job_id=job.id)
        await audit.record(tx, context.caller, live.target, {**job.parameters, "job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


@operations.declare(
    "staging.password",
    "Reset the password of a staging copy; the new one is shown once",
    Route.post("/sites/{id}/staging/password"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("site", "staging", "password"),
    secret=True,
    target="site",
)
async def new_password(context: Context[Panel], request: StagingPasswordRequest) -> StagingPassword:
    services = context.services
    live = await site_of(services.database, context.principal, request.id)
    found = await staging_of(services.database, live)
    password, verifier = _new_password()

    async def change(tx: Transaction, copy: SiteRow) -> Changed:
        await site_of(tx, context.principal, live.id)
        await write_verifier(tx, copy, verifier)
        return Changed(live.target)

    await soon(services.actors.ref(SiteActor, str(found.copy_id)).ask(SiteActor.change, context.caller, change))
    return StagingPassword(login=STAGING_LOGIN, password=password)


@operations.declare(
    "staging.delete",
    "Delete a staging copy, with all changes made in it",
    Route.delete("/sites/{id}/staging"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("site", "staging", "delete"),
    confirm=True,
    target="site",
)
async def delete(context: Context[Panel], request: StagingDeleteRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        live = await locked_site_of(tx, context.principal, request.id)
        found = await staging_of(tx, live)
        await remove_staging(tx, live)
        copy = await lock_site(tx, found.copy_id)
        job = await delete_site(tx, context.caller, copy, final_backup=False)
        await audit.record(tx, context.caller, live.target, {"copy": copy.domain, "job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


async def _live(tx: Transaction, context: Context[Panel], site_id: UUID) -> SiteRow:
    """The live site, locked, if it can have a copy. Raises `conflict`."""
    live = await locked_site_of(tx, context.principal, site_id)
    if live.staging_of is not None:
        raise conflict(f"{live.domain} is a staging copy itself.", hint="Name the site that it is a copy of.")
    if live.type is not SiteType.WORDPRESS:
        raise conflict(f"{live.domain} is of the type {live.type.value}; copies are made of WordPress sites.")
    if live.status is not SiteStatus.ACTIVE:
        raise conflict(f"The site {live.domain} is {live.status.value}; nothing was started.")
    return live


async def _shown(queryable: Queryable, live: SiteRow) -> Staging:
    found = await read_staging(queryable, live.id)
    if found is None:
        return Staging(site_id=live.id, status=StagingStatus.NONE)
    copy = await read_site(queryable, found.copy_id)
    return Staging(
        site_id=live.id,
        status=found.status,
        reason=found.reason,
        domain=copy.domain if copy is not None else None,
        copy_id=found.copy_id,
        login=STAGING_LOGIN,
        mail=MAIL,
        job_id=found.job_id,
        copied_at=found.copied_at,
        pushed_at=found.pushed_at,
        created_at=found.created_at,
    )


async def _used(tx: Transaction, live: SiteRow) -> int:
    """The site's disk usage in bytes, as last counted."""
    return await tx.fetchval("SELECT coalesce((SELECT bytes FROM site_disk_use WHERE site_id = $1), 0)", live.id) or 0


def _new_password() -> tuple[str, str]:
    password = secrets.token_urlsafe(18)
    return password, hash_random_password(password)


def _part(part: selection.Part) -> StagingPart:
    return StagingPart(name=part.name, pushed=part.default, allowed=part.allowed, drifted=part.drifted, why=part.why)
