"""Backup targets as both services show them, and the requests that add one."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from pydantic import Field, SecretStr

from svc.registry.operation import Model, Request
from svc.registry.shapes import NAME, Shape
from svc_actors.remote_targets import BucketSettings, SftpSettings, TargetKind

_HOST: Final = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9a-f:]*:[0-9a-f:.]*"
_FOLDER: Final = r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+)+"
_PREFIX: Final = r"(?:(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+)*)?"

TargetName = Annotated[str, Field(min_length=1, max_length=64), NAME]
Folder = Annotated[
    str,
    Field(max_length=255),
    Shape(_FOLDER, "an absolute path of letters, digits, dots, dashes and underscores, without . and .. in it"),
]


class BackupTargetModel(Model):
    """`location` says where it is, without secrets. `public_key`: of a target by SFTP, for its authorized_keys."""

    id: UUID
    name: str
    kind: TargetKind
    location: str
    public_key: str | None


SshHost = Annotated[str, Field(max_length=253), Shape(_HOST, "a host name or an address")]


class SftpTargetRequest(Request):
    """`host_key` is a line of ssh-keyscan without the host; ask the server's administrator whether it is right, since
    the service connects to no server with another key. The answer has the public key for the server's authorized_keys.
    """

    name: TargetName
    host: SshHost
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    user: Annotated[str, Field(max_length=32), Shape(r"[a-z_][a-z0-9_.-]*", "the name of an account")]
    path: Folder
    host_key: Annotated[
        str,
        Field(max_length=2000),
        Shape(
            r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]+={0,2}",
            "a host key such as ssh-ed25519 AAAA...",
        ),
    ]

    def settings(self, public_key: str) -> SftpSettings:
        return SftpSettings(
            host=self.host,
            port=self.port,
            user=self.user,
            path=self.path,
            host_key=self.host_key,
            public_key=public_key,
        )


Endpoint = Annotated[
    str,
    Field(max_length=300),
    Shape(rf"https?://(?:{_HOST.partition('|')[0]}|\[[0-9a-f:.]+\])(?::[0-9]{{1,5}})?", "a URL without path"),
]


class BucketTargetRequest(Request):
    """A bucket that exists already."""

    name: TargetName
    endpoint: Endpoint
    bucket: Annotated[str, Field(max_length=63), Shape(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the name of a bucket")]
    prefix: Annotated[str, Field(max_length=200), Shape(_PREFIX, "a path without / at its ends")] = ""
    region: Annotated[str, Field(max_length=32), Shape(r"[a-z0-9-]+", "a region such as us-east-1")] = "us-east-1"
    access_key: Annotated[str, Field(max_length=128), Shape(r"[A-Za-z0-9._/+=-]+", "an access key id")]
    secret_key: Annotated[SecretStr, Field(min_length=1, max_length=256, repr=False)]

    @property
    def settings(self) -> BucketSettings:
        return BucketSettings(
            endpoint=self.endpoint,
            bucket=self.bucket,
            prefix=self.prefix,
            region=self.region,
            access_key=self.access_key,
        )
