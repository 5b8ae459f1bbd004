"""Servers that backups are copied to, as both services record them: one by SFTP, or a bucket of S3.

Credentials are not part of these settings: they are stored sealed next to them. A target by SFTP has its own key pair,
whose public half the administrator installs there; the only accepted host key is the one the administrator gave.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict


class TargetKind(StrEnum):
    LOCAL = "local"
    SFTP = "sftp"
    S3 = "s3"


class TargetSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
        """The target's address without secrets, in the form common to all targets."""
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


def new_key_pair(comment: str) -> tuple[str, str]:
    """A private key as OpenSSH stores it, and the public one as a line of authorized_keys."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()} {comment}"
