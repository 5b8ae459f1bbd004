"""Uploads in parts: start one, send parts at their offsets, and finish it with the SHA-256 of the whole."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.files.models import Base64, FileUpload, Sha256, SitePath
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope

operations = Operations[Panel]()

MAX_BYTES = 64 << 30


class UploadCreateRequest(SiteChange):
    """`replace`: when the upload is finished, replace an existing file."""

    path: SitePath
    size: Annotated[int, Field(ge=0, le=MAX_BYTES, description="Size of the whole file in bytes.")]
    replace: bool = False


class UploadRequest(SiteRequest):
    upload: UUID


class UploadListRequest(SiteRequest):
    """The uploads of one site."""


class UploadChunkRequest(SiteChange):
    """Parts may arrive in any order and at the same time, overlap and repeat."""

    upload: UUID
    offset: Annotated[int, Field(ge=0, le=MAX_BYTES)]
    data_base64: Base64


class UploadFinishRequest(SiteChange):
    """May be repeated if the answer was lost."""

    upload: UUID
    sha256: Sha256


class UploadDiscardRequest(SiteChange):
    upload: UUID


class UploadDiscarded(Model):
    """The upload was discarded."""


@operations.declare(
    "file.upload",
    "Start an upload",
    Route.post("/sites/{id}/files/upload"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("upload", "begin"),
    target="site",
)
async def create_upload(context: Context[Panel], request: UploadCreateRequest) -> FileUpload:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    upload = await services.uploads.start(context.caller, site, request.path, request.size, replace=request.replace)
    return FileUpload.of(upload)


@operations.declare(
    "file.upload_list",
    "A site's uploads of the last day",
    Route.get("/sites/{id}/files/upload"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("upload", "list"),
    columns=("path", "size", "status", "id"),
)
async def list_uploads(context: Context[Panel], request: UploadListRequest) -> list[FileUpload]:
    site = await site_of(context.services.database, context.principal, request.id)
    return [FileUpload.of(upload) for upload in await context.services.uploads.of_site(site)]


@operations.declare(
    "file.upload_show",
    "The received parts of an upload",
    Route.get("/sites/{id}/files/upload/{upload}"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("upload", "show"),
)
async def show_upload(context: Context[Panel], request: UploadRequest) -> FileUpload:
    site = await site_of(context.services.database, context.principal, request.id)
    return FileUpload.of(await context.services.uploads.get(site, request.upload))


@operations.declare(
    "file.upload_chunk",
    "Send a part of an upload, at its offset",
    Route.put("/sites/{id}/files/upload/{upload}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("upload", "chunk"),
    hidden=True,
    target="site",
)
async def put_chunk(context: Context[Panel], request: UploadChunkRequest) -> FileUpload:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    return FileUpload.of(await services.uploads.write(site, request.upload, request.offset, request.data_base64))


@operations.declare(
    "file.upload_finish",
    "Finish an upload: create the file from its parts",
    Route.post("/sites/{id}/files/upload/{upload}/finish"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("upload", "finish"),
    target="site",
)
async def finish_upload(context: Context[Panel], request: UploadFinishRequest) -> FileUpload:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    return FileUpload.of(await services.uploads.finish(context.caller, site, request.upload, request.sha256))


@operations.declare(
    "file.upload_discard",
    "Cancel an upload",
    Route.delete("/sites/{id}/files/upload/{upload}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("upload", "discard"),
    target="site",
)
async def discard_upload(context: Context[Panel], request: UploadDiscardRequest) -> UploadDiscarded:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    await services.uploads.discard(context.caller, site, request.upload)
    return UploadDiscarded()
