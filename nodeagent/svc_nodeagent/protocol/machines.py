"""A machine's fields: its image, disks, first boot, and its network (`networks`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AnyUrl, Field

from svc_nodeagent.protocol.networks import NetworkSpec
from svc_nodeagent.protocol.platforms import PLAIN, Platform
from svc_nodeagent.protocol.values import FEW, AnyText, Gibibytes, Name, Secret, Size, Wire
from svc_nodeagent.protocol.versions import Since

SshKey = Annotated[AnyText, Field(max_length=16_384)]
UserData = Annotated[AnyText, Field(min_length=1, max_length=32_768)]


class CpuMode(StrEnum):
    """The processor that a guest sees. `DEFAULT`, of machines for which none was chosen, is `HOST_MODEL` under KVM, and
    `BASELINE` if guests are emulated."""

    DEFAULT = "default"
    HOST_MODEL = "host-model"
    """The named model closest to the host's own processor."""
    HOST_PASSTHROUGH = "host-passthrough"
    """The host's own processor, with all its features."""
    MAXIMUM = "maximum"
    """Every feature that the hypervisor can offer; without KVM these are more than the host's own."""
    BASELINE = "baseline"
    """x86-64-v2, which every host has to which the machine may be moved."""


class ImageFormat(StrEnum):
    QCOW2 = "qcow2"
    RAW = "raw"


class ImageKind(StrEnum):
    """What a file is for: the initial content of a machine's disk, its CD-ROM drive, or the system that a machine in
    rescue boots from memory."""

    DISK = "disk"
    ISO = "iso"
    RESCUE = "rescue"


class UrlSource(Wire):
    kind: Literal["url"] = "url"
    url: AnyUrl


class ControllerSource(Wire):
    """The file is kept by the controller; the agent reads it from a stream opened with this token."""

    kind: Literal["controller"] = "controller"
    token: Secret = Field(repr=False)


class ImageSpec(Wire):
    """One image file. `digest`, by the publisher's algorithm, is checked over the whole file before it is used."""

    image_id: UUID
    name: Name
    format: ImageFormat
    source: Annotated[UrlSource | ControllerSource, Field(discriminator="kind")]
    digest_algorithm: Literal["sha256", "sha512"] = "sha256"
    digest: Annotated[AnyText, Field(pattern=r"^[0-9a-f]{64,128}$")]
    size_bytes: Size | None = None
    kind: Annotated[ImageKind, Since(5)] = ImageKind.DISK


class Account(Wire):
    """The account the access mode names. `password_hash` is SHA-512 crypt; None locks password login."""

    name: Name
    sudo: bool
    password_hash: Secret | None = Field(default=None, repr=False)
    ssh_keys: Annotated[tuple[SshKey, ...], Field(max_length=FEW)] = ()


class SeedSpec(Wire):
    """The settings of the first boot: the agent renders the meta-data, user-data and network-config of NoCloud from
    them. `user_data` is the owner's own, and is kept until the machine is reinstalled."""

    instance_id: Name
    hostname: Name
    account: Account
    ssh_password_login: bool
    user_data: Annotated[UserData | None, Since(4)] = Field(default=None, repr=False)


class DiskSpec(Wire):
    """Disk 0 is created from the image and grown to `size_gib`; further ones are volumes (`volumes`)."""

    index: int = Field(ge=0, le=15)
    size_gib: Gibibytes
    volume_id: Annotated[UUID | None, Since(5)] = None


class CopiedDisk(Wire):
    """One disk in a copy; size and digest are those of the content that a guest would read. `digest` is the SHA-256 of
    the whole disk or, with `block_bytes`, of its size and the digests of its blocks."""

    index: int = Field(ge=0, le=15)
    size_bytes: Size
    digest: Annotated[AnyText, Field(pattern=r"^[0-9a-f]{64}$")]
    volume_id: Annotated[UUID | None, Since(5)] = None
    block_bytes: Annotated[int, Since(5)] = Field(default=0, ge=0, le=2**30)


class MachineSpec(Wire):
    vm_id: UUID
    name: Name
    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=64, le=2**31 - 1)
    disks: Annotated[tuple[DiskSpec, ...], Field(min_length=1, max_length=16)]
    network: NetworkSpec
    seed: SeedSpec
    platform: Annotated[Platform, Since(5)] = PLAIN
