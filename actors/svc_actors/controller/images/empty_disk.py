"""The empty image: the backing image of the disk of a machine that is installed from an ISO.

A migration of the database creates its record, which never changes; its file is written at every start if it is
missing. So every disk has a backing image, and migrations of machines, backups and volumes need no special case.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import structlog

from svc_actors.controller.images.files import ImageFiles
from svc_actors.store import Queryable
from svc_common.errors import ServiceError

EMPTY_DISK: Final = UUID(int=1)
SIZE_BYTES: Final = 1024 * 1024
log = structlog.get_logger(__name__)


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
