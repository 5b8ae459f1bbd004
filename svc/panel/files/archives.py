"""Archives of a site's files: packing and unpacking, as jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from svc.panel.files.files import file_target
from svc.panel.files.models import ArchiveFormat, FolderPath, SitePath, ZipEncoding
from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, locked_site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.accounts.disk_use import require_disk_room
from svc_actors.panel.files import COMPRESS, EXTRACT, site_folder
from svc_actors.panel.jobs import JobClass, NewJob, enqueue, require_turn
from svc_actors.store import Transaction, audit

operations = Operations[Panel]()


class FileExtractRequest(SiteChange):
    """`to` is the folder to unpack into, created if it does not exist. `replace`: replace existing files."""

    path: SitePath
    to: FolderPath
    replace: bool = False
    encoding: Annotated[
        ZipEncoding | None,
        Field(
            description="Of the names in a zip archive that does not say it, as Windows writes them in many languages."
        ),
    ] = None


class FileCompressRequest(SiteChange):
    paths: Annotated[list[SitePath], Field(min_length=1, max_length=200)]
    to: SitePath
    format: ArchiveFormat = ArchiveFormat.ZIP


@operations.declare(
    "file.extract",
    "Unpack an archive: a job",
    Route.post("/sites/{id}/files/extract"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path", "to"),
    target="site",
)
async def extract_archive(context: Context[Panel], request: FileExtractRequest) -> JobModel:
    parameters: dict[str, Any] = {"path": request.path, "to": request.to, "replace": request.replace}
    if request.encoding is not None:
        parameters["encoding"] = request.encoding
    title = f"Unpack {request.path}"
    return await _queue(context, request.id, EXTRACT, title, "unpack", request.path, parameters)


@operations.declare(
    "file.compress",
    "Pack files and folders into an archive: a job",
    Route.post("/sites/{id}/files/compress"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="site",
)
async def compress_files(context: Context[Panel], request: FileCompressRequest) -> JobModel:
    parameters = {"paths": list(request.paths), "to": request.to, "format": request.format.value}
    title = f"Pack {request.to}"
    return await _queue(context, request.id, COMPRESS, title, "pack", request.to, parameters)


async def _queue(
    context: Context[Panel],
    site_id: UUID,
    kind: Literal["file.extract", "file.compress"],
    title: str,
    step: str,
    path: str,
    parameters: Mapping[str, Any],
) -> JobModel:
    async def write(tx: Transaction) -> JobModel:
        site = await locked_site_of(tx, context.principal, site_id)
        site_folder(context.services.config.folders, site)
        await require_disk_room(tx, site.id, 0)
        await require_turn(tx, site.id, site.owner_id)
        job = await enqueue(
            tx,
            NewJob(
                kind=kind,
                title=f"{title} of {site.domain}"[:200],
                job_class=JobClass.SITES,
                steps=(step,),
                site_id=site.id,
                owner_id=site.owner_id,
                parameters=parameters,
            ),
        )
        await audit.record(tx, context.caller, file_target(site, path), {**parameters, "job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(write)
