"""Image files: those stored on the controller, and the sources from which nodes fetch images.

Invariants:
- a stored file is named by its image's id only and appears atomically (written under another name, then renamed), with
  the digest that was computed while it was written;
- a node always gets the digest, and checks it before it uses the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import trio

from svc_actors.controller.tasks.run import TaskRun
from svc_actors.store import Database, Queryable, Record
from svc_common.errors import conflict, not_found, not_ready, unavailable
from svc_nodeagent.protocol import (
    CachedImage,
    ControllerSource,
    ImagePull,
    ImageResult,
    ImageSpec,
    UrlSource,
)
from svc_nodeagent.protocol import ImageFormat as ImageFormat
from svc_nodeagent.protocol import ImageKind as ImageKind

PULL_TIMEOUT: Final = 1500.0
PULL_STEP: Final = "image"

OfferFile = Callable[[UUID, str], str]
"""Creates a token with which a node may read the file with a key (`Gateway.offer_file`)."""


@dataclass(frozen=True)
class StoredFile:
    digest: str
    size_bytes: int


class ImageFiles:
    """The folder of stored files. The gateway looks up keys with its `find`."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "images"

    def find(self, key: str) -> Path | None:
        try:
            path = self._folder / str(UUID(key))
        except ValueError:
            return None
        return path if path.is_file() else None

    async def write(self, image_id: UUID, chunks: AsyncIterator[bytes]) -> StoredFile:
        """Store these bytes as the image's file, with the SHA-256 of all of them. A previous file is replaced at the
        very end; an interrupted write leaves nothing behind. Raises unavailable when the disk is full."""
        folder = trio.Path(self._folder)
        await folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{image_id}.{uuid4().hex}.partial"
        digest, size = hashlib.sha256(), 0
        try:
            async with await partial.open("wb") as file:
                async for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    await file.write(chunk)
                await file.flush()
                await trio.to_thread.run_sync(os.fsync, file.fileno())
            await partial.rename(folder / str(image_id))
        except OSError as error:
            raise unavailable(
                f"The file could not be written: {error.strerror}. Nothing was changed.",
                hint="Free space under the data folder and send the file again.",
            ) from error
        finally:
            with trio.CancelScope(shield=True, relative_deadline=10.0):
                await partial.unlink(missing_ok=True)
        return StoredFile(digest.hexdigest(), size)


class ImageSources:
    """Tells nodes where to fetch images, and records which images they have cached."""

    def __init__(self, database: Database, offer_file: OfferFile) -> None:
        self._database = database
        self._offer_file = offer_file

    async def spec(self, image_id: UUID, node_id: UUID) -> ImageSpec:
        """The image's source and digest for this node to fetch and verify it. Raises not_found, not_ready (no digest
        yet)."""
        image = await self._database.fetchrow("SELECT * FROM images WHERE id = $1", image_id)
        if image is None:
            raise not_found("There is no such image.")
        return self._spec(image, node_id)

    def _spec(self, image: Record, node_id: UUID) -> ImageSpec:
        if image["digest"] is None:
            raise not_ready(
                f"The image {image['slug']} has no checksum yet, so no node could verify it.",
                hint="Refresh the images, or upload the file.",
            )
        source = (
            UrlSource(url=image["url"])
            if image["source"] == "url"
            else ControllerSource(token=self._offer_file(node_id, str(image["id"])))
        )
        return ImageSpec(
            image_id=image["id"],
            name=image["slug"],
            format=ImageFormat(image["format"]),
            source=source,
            digest_algorithm=image["digest_algorithm"],
            digest=image["digest"],
            size_bytes=image["size_bytes"],
            kind=ImageKind.DISK if image["kind"] == "empty" else ImageKind(image["kind"]),
        )

    async def of_task(
        self, run: TaskRun, image_id: UUID, *, span: tuple[int, int], step: str = PULL_STEP
    ) -> tuple[ImageSpec, bool]:
        """The image of a machine for its task's node, and whether it was pulled first: if the record says that the node
        does not have it, that is a separate step, which covers `span` of the progress."""
        node_id = run.task.node_id
        if node_id is None:
            raise conflict("The machine was placed on no node.")
        image = await self._database.fetchrow(
            """SELECT images.*, EXISTS (SELECT FROM node_images has WHERE has.node_id = $2 AND has.image_id = images.id
                                          AND has.digest = images.digest) AS cached
               FROM images WHERE images.id = $1""",
            image_id,
            node_id,
        )
        if image is None:
            raise not_found("There is no such image.")
        if not image["cached"]:
            await self.pull(run, image["id"], node_id, span=span, step=step)
        return self._spec(image, node_id), not image["cached"]

    async def pull(
        self,
        run: TaskRun,
        image_id: UUID,
        node_id: UUID,
        *,
        span: tuple[int, int] = (0, 100),
        step: str = PULL_STEP,
    ) -> ImageResult:
        """Pull the image into the node's cache and record it. The node checks the digest."""
        spec = await self.spec(image_id, node_id)
        await run.log(f"Fetching the image {spec.name}.")
        result = await run.perform(ImagePull(image=spec), step=step, timeout=PULL_TIMEOUT, node_id=node_id, span=span)
        if not isinstance(result, ImageResult):
            raise TypeError(f"image.pull was answered with {result.kind}")
        await note_cached(self._database, node_id, [result.image.model_copy(update={"digest": spec.digest})])
        return result


async def note_cached(queryable: Queryable, node_id: UUID, images: Sequence[CachedImage]) -> None:
    """Record that a node has these images, each once."""
    await queryable.execute(
        """INSERT INTO node_images (node_id, image_id, digest, size_bytes, pulled_at)
           SELECT $1, images.id, said.digest, said.size_bytes, said.pulled_at
           FROM unnest($2::uuid[], $3::text[], $4::bigint[], $5::timestamptz[])
                AS said (id, digest, size_bytes, pulled_at) JOIN images ON images.id = said.id
           ON CONFLICT (node_id, image_id)
           DO UPDATE SET digest = excluded.digest, size_bytes = excluded.size_bytes, pulled_at = excluded.pulled_at""",
        node_id,
        [image.image_id for image in images],
        [image.digest for image in images],
        [image.size_bytes for image in images],
        [image.pulled_at for image in images],
    )
