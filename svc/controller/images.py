"""Operations on images, from which machines are created. Administrators change images; everybody may read those that
are enabled."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Self
from uuid import UUID

from pydantic import AfterValidator, AnyHttpUrl, Field, model_validator
from pydantic_core import PydanticCustomError

from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.identity.fields import Name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.controller.images.files import ImageFiles, ImageFormat, ImageKind
from svc_actors.controller.images.images import (
    CustomImage,
    add_custom,
    change_image,
    order_pull,
    order_refresh,
    require_sound,
    set_file,
)
from svc_actors.controller.machines.spec import ROOT
from svc_actors.controller.platforms import Firmware, Platform, Tpm
from svc_actors.store import Record, Transaction
from svc_common.errors import conflict, invalid, not_found

operations = Operations[Controller]()

Slug = Annotated[
    str,
    Shape(
        r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?",
        "1 to 63 lowercase letters, digits, dots and hyphens, with a letter or digit at both ends",
    ),
]
Word = Annotated[
    str, Field(min_length=1, max_length=64), Shape(r"[A-Za-z0-9._-]+", "letters, digits, dots, hyphens and underscores")
]


Digest = Annotated[
    str,
    Shape(r"[0-9a-fA-F]{64}([0-9a-fA-F]{64})?", "a digest in hex: 64 digits of SHA-256, or 128 of SHA-512"),
    AfterValidator(str.lower),
]


_FIRMWARE: Final = "Firmware of its machines: bios, uefi, or uefi_secure (UEFI with Secure Boot)."


class OsFamily(StrEnum):
    LINUX = "linux"
    WINDOWS = "windows"


class ImageSource(StrEnum):
    """URL: nodes fetch it from the publisher. FILE: uploaded, and kept by the controller."""

    URL = "url"
    FILE = "file"


class Algorithm(StrEnum):
    SHA256 = "sha256"
    SHA512 = "sha512"


class Image(Model):
    """`kind`: the use of its file: a `disk` from which machines are created, an `iso` for their CD-ROM drives, or the
    `rescue` system that they boot. `url` and `checksum_url` may hold credentials, and are for administrators. `digest`
    is null until a refresh or an upload has set it; until then no machine is created from the image. `firmware` and
    `tpm`: those of machines that are created from it."""

    id: UUID
    slug: str
    name: str
    kind: ImageKind
    os_family: OsFamily
    distribution: str
    release: str
    login_user: str
    format: ImageFormat
    source: ImageSource
    url: str | None
    checksum_url: str | None
    digest_algorithm: Algorithm
    digest: str | None
    size_bytes: int | None
    min_disk_gib: int
    min_memory_mib: int
    firmware: Firmware
    tpm: Tpm
    custom: bool
    enabled: bool
    refreshed_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, row: Record, principal: Principal) -> Image:
        image = cls(**{name: row[name] for name in cls.model_fields})
        if principal.role is Role.ADMINISTRATOR:
            return image
        return image.model_copy(update={"url": None, "checksum_url": None})


class ImageCreateRequest(Request):
    """A custom image. With `source` url give `url` and its `digest`; with file, send the file afterwards. `kind` is
    `disk`, from which machines are created; `iso`, for their CD-ROM drives; or `rescue`, the output of
    tools/images/build-rescue. The format of the last two is raw, and they have no `login_user`. By default machines
    created from a disk have a BIOS and no TPM; from a Windows disk, UEFI with Secure Boot and a TPM 2.0."""

    slug: Slug
    name: Name
    kind: ImageKind = ImageKind.DISK
    os_family: OsFamily = OsFamily.LINUX
    distribution: Word
    release: Word
    login_user: (
        Annotated[
            str,
            Shape(r"[a-z_][a-z0-9_-]{0,31}", "an account name of lowercase letters, digits, hyphens and underscores"),
        ]
        | None
    ) = None
    format: ImageFormat | None = None
    source: ImageSource = ImageSource.URL
    url: AnyHttpUrl | None = None
    digest_algorithm: Algorithm = Algorithm.SHA256
    digest: Digest | None = None
    min_disk_gib: Annotated[int, Field(ge=1, le=65536)] = 1
    min_memory_mib: Annotated[int, Field(ge=64, le=4194304)] = 64
    firmware: Annotated[Firmware | None, Field(description=_FIRMWARE)] = None
    tpm: Annotated[Tpm | None, Field(description="Whether its machines have a TPM: 2.0, with a UEFI, or none.")] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.source is ImageSource.URL and (self.url is None or self.digest is None):
            raise _wrong("digest" if self.url is not None else "url", "must be given with source url: url and digest")
        if self.source is ImageSource.FILE and (self.url is not None or self.digest is not None):
            field = "digest" if self.url is None else "url"
            raise _wrong(field, "must be left out with source file: the file is sent afterwards")
        if self.kind is ImageKind.DISK and self.login_user is None:
            raise _wrong("login_user", "must be given: the account of the image's own user")
        if self.kind is not ImageKind.DISK and self.format not in (None, ImageFormat.RAW):
            raise _wrong("format", f"must be raw, or left out, with kind {self.kind.value}")
        if self.digest is not None and len(self.digest) != {"sha256": 64, "sha512": 128}[self.digest_algorithm]:
            raise _wrong("digest", f"must be a {self.digest_algorithm.value} in hex")
        return self

    @property
    def platform(self) -> Platform:
        """The platform of machines created from the image. A Windows image has Secure Boot and a TPM 2.0 by default,
        which current Windows versions need; but if its firmware is set to BIOS, it has no TPM by default."""
        windows = self.os_family is OsFamily.WINDOWS
        firmware = self.firmware or (Firmware.UEFI_SECURE if windows else Firmware.BIOS)
        wants_tpm = windows and firmware is not Firmware.BIOS
        return Platform(firmware=firmware, tpm=self.tpm or (Tpm.V2_0 if wants_tpm else Tpm.NONE))


def _wrong(field: str, problem: str) -> PydanticCustomError:
    return PydanticCustomError("contradiction", "{problem}", {"field": field, "problem": problem})


class ImageUpdateRequest(Request):
    """Fields left out stay as they are. `firmware` and `tpm` can be set for custom images, and apply to machines that
    are created from now on."""

    id: UUID
    enabled: bool | None = None
    firmware: Annotated[Firmware | None, Field(description=_FIRMWARE)] = None
    tpm: Annotated[Tpm | None, Field(description="Whether its machines have a TPM: 2.0, with a UEFI, or none.")] = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.enabled is None and self.firmware is None and self.tpm is None:
            raise _wrong("enabled", "give this, firmware or tpm")
        return self


class ImageRequest(Request):
    id: UUID


class ImagePullRequest(Request):
    id: UUID
    node_id: UUID


@operations.declare(
    "image.list",
    "List images; disabled ones for administrators only",
    Route.get("/images"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=(
        "slug",
        "name",
        "kind",
        "release",
        "firmware",
        "tpm",
        "source",
        "size=size_bytes",
        "enabled",
        "refreshed=refreshed_at",
    ),
)
async def list_images(context: Context[Controller], request: Empty) -> list[Image]:
    everything = context.principal.role is Role.ADMINISTRATOR
    rows = await context.services.database.fetch(
        """SELECT * FROM images WHERE (enabled AND kind <> 'rescue' OR $1) AND kind <> 'empty'
           ORDER BY kind, custom, distribution, release DESC, slug""",
        everything,
    )
    return [Image.of(row, context.principal) for row in rows]


@operations.declare(
    "image.create",
    "Add a custom image, by URL or for an upload",
    Route.post("/images", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("slug",),
)
async def add_image(context: Context[Controller], request: ImageCreateRequest) -> Image:
    require_sound(request.platform)
    default = ImageFormat.QCOW2 if request.kind is ImageKind.DISK else ImageFormat.RAW
    async with context.services.database.transaction() as tx:
        row = await add_custom(
            tx,
            context.caller,
            CustomImage(
                slug=request.slug,
                name=request.name,
                os_family=request.os_family.value,
                distribution=request.distribution,
                release=request.release,
                login_user=request.login_user or ROOT,
                format=(request.format or default).value,
                url=str(request.url) if request.url else None,
                digest_algorithm=request.digest_algorithm.value,
                digest=request.digest,
                min_disk_gib=request.min_disk_gib,
                min_memory_mib=request.min_memory_mib,
                kind=request.kind.value,
                platform=request.platform,
            ),
        )
    return Image.of(row, context.principal)


@operations.declare(
    "image.upload",
    "Send the file of a custom image; its SHA-256 is computed on the way",
    Route.put("/images/{id}/file"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    upload=True,
)
async def upload_image(context: Context[Controller], request: ImageRequest) -> Image:
    """Write the file below the data folder while computing its digest, and then update the record."""
    database = context.services.database
    row = await database.fetchrow("SELECT source, slug FROM images WHERE id = $1 AND kind <> 'empty'", request.id)
    if row is None:
        raise not_found("There is no such image.")
    if row["source"] != ImageSource.FILE.value:
        raise conflict(f"The image {row['slug']} has a URL; nodes fetch it themselves.")
    if context.upload is None:
        raise invalid("The body is the file itself.")
    file = await ImageFiles(context.services.config.data_dir).write(request.id, context.upload)

    async def work(tx: Transaction) -> Image:
        return Image.of(await set_file(tx, context.caller, request.id, file), context.principal)

    return await database.transact(work)


@operations.declare(
    "image.update",
    "Enable or disable an image, or set the firmware and TPM of a custom one",
    Route.patch("/images/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update_image(context: Context[Controller], request: ImageUpdateRequest) -> Image:

    async def work(tx: Transaction) -> Image:
        row = await change_image(
            tx, context.caller, request.id, enabled=request.enabled, firmware=request.firmware, tpm=request.tpm
        )
        return Image.of(row, context.principal)

    return await context.services.database.transact(work)


@operations.declare(
    "image.refresh",
    "Fetch the checksums from the publishers",
    Route.post("/images/refresh"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def refresh_images(context: Context[Controller], request: Empty) -> TaskModel:
    async with context.services.database.transaction() as tx:
        task = await order_refresh(tx, context.caller)
    context.services.tasks.start(task)
    return TaskModel.of(task, context.principal)


@operations.declare(
    "image.pull",
    "Load an image into a node's cache ahead of time",
    Route.post("/images/{id}/pull"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def pull_image(context: Context[Controller], request: ImagePullRequest) -> TaskModel:
    async with context.services.database.transaction() as tx:
        task = await order_pull(tx, context.caller, request.id, request.node_id)
    context.services.tasks.start(task)
    return TaskModel.of(task, context.principal)
