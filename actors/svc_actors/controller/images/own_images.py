"""Images that the controller keeps itself, at every start: the empty disk, and the rescue system that comes with it.

The empty disk is the backing image of the disk of a machine that is installed from an ISO. A migration of the
database creates its record, which never changes; its file is written if it is missing. So every disk has a backing
image, and migrations of machines, backups and volumes need no special case.

The rescue system is stored as an image: nodes fetch it like any image's file. So an upgrade of the controller installs
its rescue system. If an administrator has disabled the rescue system, it stays disabled. A rescue system that they add
themselves is an image of the same kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.images.files import ImageFiles
from svc_actors.controller.images.images import CustomImage, add_custom, set_file
from svc_actors.store import Caller, Database, Queryable, Record, Transaction, service_itself
from svc_common.errors import ServiceError

EMPTY_DISK: Final = UUID(int=1)
SIZE_BYTES: Final = 1024 * 1024
log = structlog.get_logger(__name__)

SLUG: Final = "rescue"
_CHUNK_BYTES: Final = 1024 * 1024


async def disk_image(queryable: Queryable, image_id: UUID) -> UUID:
    """The backing image of the disk of a machine that is created from this image."""
    iso = await queryable.fetchval("SELECT true FROM images WHERE id = $1 AND kind = 'iso'", image_id)
    return EMPTY_DISK if iso else image_id


async def keep_empty_disk(files: ImageFiles) -> None:
    """Write the file if it is missing. A full disk does not stop the start: machines are created from ISOs once there
    is room."""
    if files.find(str(EMPTY_DISK)) is not None:
        return
    try:
        await files.write(EMPTY_DISK, _zeros())
    except ServiceError as error:
        log.warning("image.empty_disk_not_kept", error=str(error))


async def _zeros() -> AsyncIterator[bytes]:
    yield bytes(SIZE_BYTES)


async def keep_rescue_system(database: Database, files: ImageFiles, source: Path) -> None:
    """Store the file `source`, if it exists, as the image. A failure to read the file stops nothing else: machines use
    the previous rescue system, or have none."""
    try:
        digest = await trio.to_thread.run_sync(_digest_of, source)
        image = await database.transact(_ensured)
        if image["kind"] != "rescue" or (image["digest"] == digest and files.find(str(image["id"])) is not None):
            return
        stored = await files.write(image["id"], _chunks(source))

        async def work(tx: Transaction) -> None:
            await set_file(tx, _caller(), image["id"], stored)

        await database.transact(work)
        log.info("image.rescue_system_kept", digest=stored.digest, size_bytes=stored.size_bytes)
    except FileNotFoundError:
        log.info("image.no_rescue_system", path=str(source))
    except (OSError, ServiceError) as error:
        log.warning("image.rescue_system_not_kept", path=str(source), error=str(error))


async def _ensured(tx: Transaction) -> Record:
    row = await tx.fetchrow("SELECT * FROM images WHERE slug = $1", SLUG)
    if row is not None:
        return row
    image = CustomImage(
        slug=SLUG,
        name="Rescue system",
        os_family="linux",
        distribution="debian",
        release="12",
        login_user="root",
        format="raw",
        url=None,
        digest_algorithm="sha256",
        digest=None,
        min_disk_gib=1,
        min_memory_mib=192,
        kind="rescue",
    )
    return await add_custom(tx, _caller(), image)


def _caller() -> Caller:
    return service_itself("image.create")


def _digest_of(source: Path) -> str:
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _chunks(source: Path) -> AsyncIterator[bytes]:
    async with await trio.open_file(source, "rb") as file:
        while chunk := await file.read(_CHUNK_BYTES):
            yield chunk
