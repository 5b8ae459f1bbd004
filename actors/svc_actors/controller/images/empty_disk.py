"""The empty image, which the disk of a machine stands on that is installed from an ISO.

Its record is made by a migration and never changes; its file is written at every start where it is missing. So every
disk stands on an image, and moves, backups and volumes know no exception.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import structlog

from svc_actors.controller.images.files import ImageFiles
from svc_actors.errors import ServiceError
from svc_actors.store import Queryable

EMPTY_DISK: Final = UUID(int=1)
SIZE_BYTES: Final = 1024 * 1024
log = structlog.get_logger(__name__)


async def disk_image(queryable: Queryable, image_id: UUID) -> UUID:
    """The image that the disk of a machine stands on that was made from this one."""
    iso = await queryable.fetchval("SELECT true FROM images WHERE id = $1 AND kind = 'iso'", image_id)
    return EMPTY_DISK if iso else image_id


async def keep_empty_disk(files: ImageFiles) -> None:
    """A disk that is full keeps nothing else from working: machines are made from ISOs once there is room."""
    if files.find(str(EMPTY_DISK)) is not None:
        return
    try:
        await files.write(EMPTY_DISK, _zeros())
    except ServiceError as error:
        log.warning("image.empty_disk_not_kept", error=str(error))


async def _zeros() -> AsyncIterator[bytes]:
    yield bytes(SIZE_BYTES)
