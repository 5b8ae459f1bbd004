"""Operations on images: reads digests from publishers, pulls files to nodes, adds custom images.

Invariants:
- a refresh that cannot read a publisher keeps the known digest, and reports the failure;
- a changed digest is announced; existing machines are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import httpx
import trio

from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.controller.images.catalogue import CATALOGUE, Published, ensure_catalogue
from svc_actors.controller.images.checksums import NoDigest, find_digest
from svc_actors.controller.images.files import PULL_TIMEOUT, ImageSources, StoredFile
from svc_actors.controller.platforms import platform_of
from svc_actors.controller.tasks.run import TaskFailed
from svc_actors.controller.tasks.runner import LogLevel, ResourceKind, Task, TaskRun, TaskRunner, create_task
from svc_actors.store import (
    Caller,
    Database,
    NewEvent,
    Record,
    Target,
    Transaction,
    UniqueViolationError,
    audit,
    events,
)
from svc_common.errors import ErrorCode, ServiceError, conflict, not_found, not_ready, unavailable, wrong_field
from svc_nodeagent import outbound
from svc_nodeagent.protocol import PLAIN, Firmware, OperationResult, Platform, Tpm

EVERY_IMAGE: Final = UUID(int=0)
"""The resource id of a refresh task: such a task is about all images."""

_REFRESH_TIMEOUT: Final = 300.0
_FETCH_TIMEOUT: Final = 20.0
_MAX_CHECKSUM_BYTES: Final = 4 * 1024 * 1024
_AT_ONCE: Final = 4


@dataclass(frozen=True)
class CustomImage:
    """`url` and `digest` are set if nodes fetch the file themselves, and None for an uploaded file."""

    slug: str
    name: str
    os_family: str
    distribution: str
    release: str
    login_user: str
    format: str
    url: str | None
    digest_algorithm: str
    digest: str | None
    min_disk_gib: int
    min_memory_mib: int
    platform: Platform = PLAIN
    kind: str = "disk"


async def add_custom(tx: Transaction, caller: Caller, image: CustomImage) -> Record:
    try:
        row = await tx.fetchone(
            """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, url,
                                       digest_algorithm, digest, min_disk_gib, min_memory_mib, firmware, tpm, kind,
                                       custom)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, true) RETURNING *""",
            image.slug,
            image.name,
            image.os_family,
            image.distribution,
            image.release,
            image.login_user,
            image.format,
            "url" if image.url else "file",
            image.url,
            image.digest_algorithm,
            image.digest,
            image.min_disk_gib,
            image.min_memory_mib,
            image.platform.firmware.value,
            image.platform.tpm.value,
            image.kind,
        )
    except UniqueViolationError:
        raise conflict(f"There is an image with the slug {image.slug} already.") from None
    await _changed(tx, caller, row)
    return row


async def change_image(
    tx: Transaction, caller: Caller, image_id: UUID, *, enabled: bool | None, firmware: Firmware | None, tpm: Tpm | None
) -> Record:
    """None leaves a field as it is. Existing machines keep their firmware and TPM. Raises not_found, conflict (the
    platform of a published image is its publisher's), invalid."""
    row = await tx.fetchrow("SELECT * FROM images WHERE id = $1 AND kind <> 'empty' FOR NO KEY UPDATE", image_id)
    if row is None:
        raise not_found("There is no such image.")
    if (firmware is not None or tpm is not None) and not row["custom"]:
        raise conflict(
            f"The image {row['slug']} belongs to the catalogue, which sets its firmware; nothing was changed.",
            hint="Add a custom image of the same URL and checksum.",
        )
    before = platform_of(row)
    after = Platform(firmware=firmware or before.firmware, tpm=tpm or before.tpm)
    require_sound(after)
    row = await tx.fetchone(
        "UPDATE images SET enabled = coalesce($2, enabled), firmware = $3, tpm = $4 WHERE id = $1 RETURNING *",
        image_id,
        enabled,
        after.firmware.value,
        after.tpm.value,
    )
    await _changed(tx, caller, row)
    return row


def require_sound(platform: Platform) -> None:
    """Raises invalid for a TPM with a BIOS: a BIOS measures nothing into the TPM, so a current system has nothing to
    seal its secrets to."""
    if platform.tpm is not Tpm.NONE and platform.firmware is Firmware.BIOS:
        raise wrong_field("tpm", "needs the firmware uefi or uefi_secure")


async def set_file(tx: Transaction, caller: Caller, image_id: UUID, file: StoredFile) -> Record:
    """Record the digest and size of the image's file, which is completely written."""
    row = await tx.fetchrow(
        """UPDATE images SET digest_algorithm = 'sha256', digest = $2, size_bytes = $3, refreshed_at = now()
           WHERE id = $1 AND source = 'file' AND kind <> 'empty' RETURNING *""",
        image_id,
        file.digest,
        file.size_bytes,
    )
    if row is None:
        raise not_found("There is no such image.")
    await _changed(tx, caller, row)
    return row


async def order_refresh(tx: Transaction, caller: Caller) -> Task:
    """Create the task that reads every publisher's checksums. Raises not_ready while one is under way."""
    if await tx.fetchval("SELECT 1 FROM tasks WHERE op = 'images.refresh' AND status IN ('queued', 'running')"):
        raise not_ready("The images are already being refreshed.", hint="Wait for that task.")
    task = await create_task(
        tx,
        caller,
        op="images.refresh",
        resource_kind=ResourceKind.IMAGE,
        resource_id=EVERY_IMAGE,
        resource_name="all images",
        node_id=None,
        project_id=None,
        parameters={},
        timeout=_REFRESH_TIMEOUT,
    )
    await audit.record(tx, caller, Target("image", None, "all images"))
    return task


async def order_pull(tx: Transaction, caller: Caller, image_id: UUID, node_id: UUID) -> Task:
    """Create the task that pulls an image to a node.

    Raises not_found, not_ready (no digest), conflict (the node is only observed), unavailable (it is offline).
    """
    image = await tx.fetchrow("SELECT slug, digest FROM images WHERE id = $1", image_id)
    if image is None:
        raise not_found("There is no such image.")
    node = await tx.fetchrow("SELECT name, state, mode FROM nodes WHERE id = $1 AND deleted_at IS NULL", node_id)
    if node is None:
        raise not_found("There is no such node.")
    if node["mode"] != "managed":
        raise conflict(
            f"The node {node['name']} is only observed; no image was loaded.",
            hint="Set its mode to managed first.",
        )
    if image["digest"] is None:
        raise not_ready(
            f"The image {image['slug']} has no checksum yet.", hint="Refresh the images, or upload the file."
        )
    if node["state"] != "online":
        raise unavailable(f"The node {node['name']} is {node['state']}.", hint="Try again once it is online.")
    task = await create_task(
        tx,
        caller,
        op="image.pull",
        resource_kind=ResourceKind.IMAGE,
        resource_id=image_id,
        resource_name=image["slug"],
        node_id=node_id,
        project_id=None,
        parameters={},
        timeout=PULL_TIMEOUT,
    )
    await audit.record(
        tx, caller, Target("image", image_id, image["slug"]), {"node_id": str(node_id), "task_id": str(task.id)}
    )
    return task


def _client() -> httpx.AsyncClient:
    """A client that verifies TLS certificates, because the trust in a publisher's digest rests on them."""
    return outbound.client(timeout=_FETCH_TIMEOUT, https_only=True)


class ImageWork:
    """The work of tasks about images."""

    def __init__(
        self,
        database: Database,
        sources: ImageSources,
        *,
        catalogue: tuple[Published, ...] = CATALOGUE,
        open_client: Callable[[], httpx.AsyncClient] = _client,
    ) -> None:
        self._database = database
        self._sources = sources
        self._catalogue = catalogue
        self._open_client = open_client

    def install(self, tasks: TaskRunner) -> None:
        tasks.handles("image.pull", self.pull)
        tasks.handles("images.refresh", self.refresh)

    async def pull(self, run: TaskRun) -> OperationResult:
        if run.task.node_id is None:
            raise not_found("The task names no node.")
        return await self._sources.pull(run, run.task.resource_id, run.task.node_id)

    async def refresh(self, run: TaskRun) -> None:
        """Read every publisher's digest, a few at once. Fails at the end if any could not be read."""
        await ensure_catalogue(self._database, self._catalogue)
        failed: list[str] = []
        interrupted: list[ServiceError] = []
        limiter = trio.CapacityLimiter(_AT_ONCE)
        async with self._open_client() as http:

            async def read_digest(image: Published) -> None:
                try:
                    async with limiter:
                        problem = await self._read(run, http, image)
                    if problem is not None:
                        failed.append(image.slug)
                        await run.log(f"{image.slug}: {problem}; the known digest is kept.", level=LogLevel.WARNING)
                except ServiceError as error:
                    # Collected here and raised after the nursery has ended, since the nursery would wrap it in an
                    # exception group.
                    interrupted.append(error)

            async with trio.open_nursery() as nursery:
                for image in self._catalogue:
                    nursery.start_soon(read_digest, image)
        for error in interrupted:
            raise error
        if failed:
            raise TaskFailed(
                ErrorCode.UNAVAILABLE,
                f"{len(failed)} of {len(self._catalogue)} publishers could not be read: {', '.join(sorted(failed))}.",
                hint="The known digests are kept.",
            )

    async def _read(self, run: TaskRun, http: httpx.AsyncClient, image: Published) -> str | None:
        """Read and store the image's digest. Returns why that failed; None if it did not."""
        try:
            text = await _fetch(http, image.checksum_url)
            digest = find_digest(text, image.file_name, image.algorithm, image.checksum_format)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return str(error) or type(error).__name__
        except NoDigest as error:
            return str(error)

        async def write(tx: Transaction) -> Record | None:
            before = await tx.fetchrow("SELECT * FROM images WHERE slug = $1 AND NOT custom FOR UPDATE", image.slug)
            if before is not None:
                await tx.execute(
                    "UPDATE images SET digest = $2, refreshed_at = now() WHERE id = $1", before["id"], digest
                )
                if before["digest"] != digest:
                    await announce_image(tx, before)
            return before

        before = await self._database.transact(write)
        if before is None:
            return "the image is not in the records"
        new = "" if before["digest"] == digest else ", new"
        await run.log(f"{image.slug}: {image.algorithm} {digest[:16]}…{new}")
        return None


async def announce_image(tx: Transaction, row: Record) -> None:
    await events.append(
        tx,
        NewEvent(
            kind=ControllerEvent.IMAGE,
            subject=str(row["id"]),
            payload={"id": str(row["id"]), "slug": row["slug"], "name": row["name"], "enabled": row["enabled"]},
        ),
    )


async def _changed(tx: Transaction, caller: Caller, row: Record) -> None:
    await audit.record(
        tx,
        caller,
        Target("image", row["id"], row["slug"]),
        {"enabled": row["enabled"], "digest": row["digest"], "firmware": row["firmware"], "tpm": row["tpm"]},
    )
    await announce_image(tx, row)


async def _fetch(http: httpx.AsyncClient, url: str) -> str:
    content = b""
    async with http.stream("GET", url) as response:
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > _MAX_CHECKSUM_BYTES:
                raise httpx.DecodingError("the checksum file is too large to be one")
    return content.decode("utf-8", errors="replace")
