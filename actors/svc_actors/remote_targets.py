"""Backup targets as both services record them: servers by SFTP and buckets of S3. Each service has its own table, and
may have further kinds.

Credentials are not part of the settings: they are stored sealed next to them. A target by SFTP has its own key pair,
whose public half the administrator installs there; the only accepted host key is the one the administrator gave.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar
from uuid import UUID

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, TypeAdapter

from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Record, Target
from svc_common.errors import not_found

_SEALED_FOR: Final = "backup target"


class TargetKind(StrEnum):
    LOCAL = "local"
    SFTP = "sftp"
    S3 = "s3"


class TargetSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: TargetKind

    @property
    def location(self) -> str:
        """The target's address without secrets, in the form common to all targets."""
        raise NotImplementedError


class SftpSettings(TargetSettings):
    """`host_key` as in known_hosts, without the host: `ssh-ed25519 AAAA...`. `public_key` is the target's own."""

    kind: Literal[TargetKind.SFTP] = TargetKind.SFTP
    host: str
    port: int
    user: str
    path: str
    host_key: str
    public_key: str

    @property
    def location(self) -> str:
        return f"sftp://{self.user}@{self.host}:{self.port}{self.path}"


class BucketSettings(TargetSettings):
    kind: Literal[TargetKind.S3] = TargetKind.S3
    endpoint: str
    bucket: str
    prefix: str
    region: str
    access_key: str

    @property
    def location(self) -> str:
        return "/".join(part for part in (self.endpoint, self.bucket, self.prefix) if part)


SettingsT = TypeVar("SettingsT", bound=TargetSettings)


@dataclass(frozen=True)
class TargetOf(Generic[SettingsT]):
    """A target with the kinds of settings that a service has."""

    table: ClassVar[str]
    parser: ClassVar[TypeAdapter[Any]]

    id: UUID
    name: str
    settings: SettingsT
    sealed_secret: bytes | None

    @classmethod
    def of(cls, row: Record) -> Self:
        return cls(row["id"], row["name"], cls.parser.validate_python(row["settings"]), row["sealed_secret"])

    @classmethod
    async def read(cls, queryable: Queryable, target_id: UUID) -> Self:
        """Raises not_found."""
        row = await queryable.fetchrow(f"SELECT * FROM {cls.table} WHERE id = $1", target_id)
        if row is None:
            raise not_found("There is no such backup target.")
        return cls.of(row)

    @property
    def target(self) -> Target:
        """The target as the audit names it."""
        return Target("backup_target", self.id, self.name)

    @property
    def shown(self) -> dict[str, Any]:
        """The fields that the models of both services have."""
        settings = self.settings
        return {
            "id": self.id,
            "name": self.name,
            "kind": settings.kind,
            "location": settings.location,
            "public_key": settings.public_key if isinstance(settings, SftpSettings) else None,
        }

    def secret(self, sealer: Sealer) -> str | None:
        return sealer.unseal(self.sealed_secret, _SEALED_FOR).decode() if self.sealed_secret is not None else None


def sealed(sealer: Sealer, secret: str | None) -> bytes | None:
    return sealer.seal(secret.encode(), _SEALED_FOR) if secret is not None else None


def new_key_pair(comment: str) -> tuple[str, str]:
    """A private key as OpenSSH stores it, and the public one as a line of authorized_keys."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()} {comment}"
