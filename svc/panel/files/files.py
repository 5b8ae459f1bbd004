"""The file manager: lists a site's files and changes them, as the site's own account and below its folder.

The audit row is written after a change, since a transaction cannot roll back changes to files; for a refusal or a
failure the registry writes it. Reading the content of a file is audited as reading a secret, since it may be the
password of a database.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import Field, model_validator

from svc.panel.files.models import (
    ENTRIES,
    MAX_PAGE_BYTES,
    MAX_TEXT_BYTES,
    EncodedPath,
    Escaped,
    FileContent,
    FileEntry,
    FileList,
    FileMode,
    FileName,
    FilePage,
    FilesDeleted,
    FileVersion,
    FileWritten,
    FolderPath,
    Sha256,
    SitePath,
    Text,
    check_path,
    unescaped,
)
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.accounts.disk_use import require_disk_room
from svc_actors.panel.files import site_folder
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Target, Transaction, audit
from svc_common.errors import conflict, invalid, wrong_field
from svc_webhost.confined.protocol import (
    ChangeMode,
    Copy,
    Delete,
    FileRequest,
    ListFolder,
    MakeFolder,
    Read,
    Rename,
    Write,
)
from svc_webhost.confined_client import Answer, SiteFolder

operations = Operations[Panel]()

_COPY_SECONDS = 40.0
_DELETE_SECONDS = 40.0


class FileListRequest(SiteRequest):
    path: FolderPath = ""
    offset: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    limit: Annotated[int, Field(ge=1, le=5000)] = 1000


class FileReadRequest(SiteRequest):
    path: SitePath


class FileDownloadRequest(SiteRequest):
    """`version`: that of the previous part; the request is refused if the file has changed since."""

    path: SitePath
    offset: Annotated[int, Field(ge=0, le=1 << 50)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_BYTES)] = 512 << 10
    version: FileVersion | None = None


class FileWriteRequest(SiteChange):
    """`expected_sha256`: of the content to replace; if the file's content differs, nothing is written. `replace` false:
    nothing is written if the file exists."""

    path: SitePath
    content: Text
    expected_sha256: Sha256 | None = None
    replace: bool = True


class FolderCreateRequest(SiteChange):
    """`parents`: create missing parent folders as well."""

    path: SitePath
    parents: bool = False


class FileRenameRequest(SiteChange):
    """`name` is never percent-encoded."""

    path: EncodedPath
    name: FileName
    replace: bool = False
    escaped: Escaped = False

    @model_validator(mode="after")
    def _checked(self) -> Self:
        check_path("path", self.path, self.escaped)
        return self


class FileMoveRequest(SiteChange):
    """`to` is the new path, name included."""

    path: SitePath
    to: SitePath
    replace: bool = False


class FileCopyRequest(SiteChange):
    path: SitePath
    to: SitePath


class FileDeleteRequest(SiteChange):
    """Folders are deleted with all that is in them."""

    paths: Annotated[list[EncodedPath], Field(min_length=1, max_length=200)]
    escaped: Escaped = False

    @model_validator(mode="after")
    def _checked(self) -> Self:
        for path in self.paths:
            check_path("paths", path, self.escaped)
        return self


class FileModeRequest(SiteChange):
    path: SitePath
    mode: FileMode


@operations.declare(
    "file.list",
    "List a folder of a site",
    Route.get("/sites/{id}/files"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    positional=("id", "path"),
)
async def list_files(context: Context[Panel], request: FileListRequest) -> FileList:
    _, folder = await _of(context, request.id)
    answer = await context.services.files.ask(folder, ListFolder(request.path, request.offset, request.limit))
    return FileList(
        path=request.path,
        entries=ENTRIES.validate_json(answer.payload),
        total=answer.result["total"],
        offset=request.offset,
    )


@operations.declare(
    "file.read",
    "Read a text file for editing",
    Route.get("/sites/{id}/files/content"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    positional=("id", "path"),
    secret=True,
    target="site",
)
async def read_file(context: Context[Panel], request: FileReadRequest) -> FileContent:
    site, folder = await _of(context, request.id)
    answer = await context.services.files.ask(folder, Read(request.path, 0, MAX_TEXT_BYTES + 1))
    if answer.result["size"] > MAX_TEXT_BYTES:
        raise conflict(f"The file is larger than {MAX_TEXT_BYTES >> 10} KiB.", hint="Download it.")
    try:
        text = answer.payload.decode()
    except UnicodeDecodeError:
        raise conflict("The file is not UTF-8 text.", hint="Download it.") from None
    if "\0" in text:
        raise conflict("The file is not text.", hint="Download it.")
    await _record(context, site, request.path)
    return FileContent(
        path=request.path, content=text, size=len(answer.payload), sha256=hashlib.sha256(answer.payload).hexdigest()
    )


@operations.declare(
    "file.download",
    "A file, page by page",
    Route.get("/sites/{id}/files/download"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    positional=("id", "path"),
    secret=True,
    target="site",
)
async def download_file(context: Context[Panel], request: FileDownloadRequest) -> FilePage:
    site, folder = await _of(context, request.id)
    answer = await context.services.files.ask(folder, Read(request.path, request.offset, request.limit))
    version = answer.result["version"]
    if request.version is not None and request.version != version:
        raise conflict("The file has changed since the download started.", hint="Start again at offset 0.")
    # The first part requested writes an audit row, whichever it is: a download need not start at 0.
    download = (context.principal.user_id, site.id, request.path, version)
    if context.services.downloads.needs_audit(download, anew=request.offset == 0):
        await _record(context, site, request.path, {"size": answer.result["size"]})
    return FilePage(
        offset=request.offset,
        data_base64=base64.b64encode(answer.payload).decode(),
        size=answer.result["size"],
        sha256=hashlib.sha256(answer.payload).hexdigest(),
        version=version,
        name=request.path.rpartition("/")[2],
    )


@operations.declare(
    "file.write",
    "Write a text file",
    Route.put("/sites/{id}/files/content"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path"),
    target="site",
)
async def write_file(context: Context[Panel], request: FileWriteRequest) -> FileWritten:
    content = request.content.encode()
    if len(content) > MAX_TEXT_BYTES:
        raise wrong_field("content", f"has more than {MAX_TEXT_BYTES:,} bytes", hint="Upload the file.")
    site, answer = await _change(
        context,
        request.id,
        Write(request.path, request.replace, request.expected_sha256),
        content,
        adds=len(content),
    )
    digest = hashlib.sha256(content).hexdigest()
    await _record(context, site, request.path, {"size": len(content), "sha256": digest})
    return FileWritten(entry=FileEntry.model_validate(answer.result), sha256=digest)


@operations.declare(
    "file.mkdir",
    "Make a folder",
    Route.post("/sites/{id}/files/mkdir"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path"),
    target="site",
)
async def make_folder(context: Context[Panel], request: FolderCreateRequest) -> FileEntry:
    site, answer = await _change(context, request.id, MakeFolder(request.path, request.parents))
    await _record(context, site, request.path)
    return FileEntry.model_validate(answer.result)


@operations.declare(
    "file.rename",
    "Rename a file or folder",
    Route.post("/sites/{id}/files/rename"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path", "name"),
    target="site",
)
async def rename_file(context: Context[Panel], request: FileRenameRequest) -> FileEntry:
    above = request.path.rpartition("/")[0]
    path, folder = (unescaped(request.path), unescaped(above)) if request.escaped else (request.path, above)
    to = f"{folder}/{request.name}" if folder else request.name
    site, answer = await _change(context, request.id, Rename(path, to, request.replace))
    # As in the request: the audit's text is UTF-8.
    await _record(context, site, request.path, {"to": f"{above}/{request.name}" if above else request.name})
    return FileEntry.model_validate(answer.result)


@operations.declare(
    "file.move",
    "Move a file or folder",
    Route.post("/sites/{id}/files/move"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path", "to"),
    target="site",
)
async def move_file(context: Context[Panel], request: FileMoveRequest) -> FileEntry:
    if request.to.startswith(f"{request.path}/"):
        raise invalid("A folder cannot be moved into itself.")
    site, answer = await _change(context, request.id, Rename(request.path, request.to, request.replace))
    await _record(context, site, request.path, {"to": request.to})
    return FileEntry.model_validate(answer.result)


@operations.declare(
    "file.copy",
    "Copy a file, or a folder with all that is in it",
    Route.post("/sites/{id}/files/copy"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path", "to"),
    target="site",
)
async def copy_file(context: Context[Panel], request: FileCopyRequest) -> FileEntry:
    site, folder = await _of(context, request.id)
    most = await require_disk_room(context.services.database, site.id, 0)
    copy = Copy(request.path, request.to, most)
    answer = await context.services.files.ask(folder, copy, seconds=_COPY_SECONDS)
    await _record(context, site, request.path, {"to": request.to})
    return FileEntry.model_validate(answer.result)


@operations.declare(
    "file.delete",
    "Delete files and folders",
    Route.post("/sites/{id}/files/delete"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "paths"),
    confirm=True,
    target="site",
    frees_space=True,
)
async def delete_files(context: Context[Panel], request: FileDeleteRequest) -> FilesDeleted:
    paths = [unescaped(path) if request.escaped else path for path in request.paths]
    site, answer = await _change(context, request.id, Delete(paths), seconds=_DELETE_SECONDS)
    await _record(context, site, request.paths[0], {"paths": list(request.paths)})
    return FilesDeleted(deleted=answer.result["deleted"])


@operations.declare(
    "file.chmod",
    "Change the permissions of a file",
    Route.post("/sites/{id}/files/chmod"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path", "mode"),
    target="site",
)
async def change_mode(context: Context[Panel], request: FileModeRequest) -> FileEntry:
    site, answer = await _change(context, request.id, ChangeMode(request.path, int(request.mode, 8)))
    await _record(context, site, request.path, {"mode": request.mode})
    return FileEntry.model_validate(answer.result)


async def _of(context: Context[Panel], site_id: UUID) -> tuple[SiteRow, SiteFolder]:
    site = await site_of(context.services.database, context.principal, site_id)
    return site, site_folder(context.services.config.folders, site)


async def _change(
    context: Context[Panel],
    site_id: UUID,
    request: FileRequest,
    payload: bytes = b"",
    *,
    seconds: float = 10.0,
    adds: int | None = None,
) -> tuple[SiteRow, Answer]:
    """Have the helper make a change to the site's files. `adds`: the change increases the site's disk usage by at least
    this many bytes."""
    site, folder = await _of(context, site_id)
    if adds is not None:
        await require_disk_room(context.services.database, site.id, adds)
    return site, await context.services.files.ask(folder, request, payload, seconds=seconds)


async def _record(context: Context[Panel], site: SiteRow, path: str, details: Mapping[str, Any] | None = None) -> None:
    async def write(tx: Transaction) -> None:
        await audit.record(tx, context.caller, file_target(site, path), {"path": path, **(details or {})})

    await context.services.database.transact(write)


def file_target(site: SiteRow, path: str) -> Target:
    """The audit's target: the site, so that its owner may read the row; its name includes the path."""
    return Target("site", site.id, f"{site.domain}: {path}"[:200], site.owner_id)
