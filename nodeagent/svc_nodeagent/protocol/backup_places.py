"""Where the store of a machine's backups is, if it is not on a file system mounted on the node.

The controller passes the target of an administrator to a node for a single operation; the node stores nothing of it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from svc_nodeagent.protocol.values import AnyText, Name, Secret, Wire
from svc_nodeagent.protocol.versions import Since

__all__ = ["BackupPlace", "BucketPlace", "SftpPlace"]

SessionToken = Annotated[AnyText, Field(max_length=8_192)]
"""A session token contains its policy: tokens of AWS have some 1,500 characters."""
_Path = Annotated[AnyText, Field(max_length=512)]


class SftpPlace(Wire):
    """A folder of a server by SFTP. `host_key` as in known_hosts, without the host; a server with another key is
    refused. `private_key` as OpenSSH stores it."""

    kind: Literal["sftp"] = "sftp"
    name: Name
    host: Name
    port: int = Field(ge=1, le=65535)
    user: Name
    path: _Path
    host_key: Annotated[AnyText, Field(max_length=2_000)]
    private_key: Secret = Field(repr=False)


class BucketPlace(Wire):
    """A bucket of S3. `endpoint` is an URL without a path. `session_token`: belongs to temporary keys for this
    operation, which give access to the copies of one machine."""

    kind: Literal["s3"] = "s3"
    name: Name
    endpoint: _Path
    bucket: Name
    prefix: _Path
    region: Name
    access_key: Name
    secret_key: Secret = Field(repr=False)
    session_token: Annotated[SessionToken | None, Since(5)] = Field(default=None, repr=False)


BackupPlace = Annotated[SftpPlace | BucketPlace, Field(discriminator="kind")]
