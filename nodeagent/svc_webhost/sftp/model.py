"""The inputs and outputs of the SFTP server."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import Limits


class SftpError(Exception):
    """The SFTP server failed; the message says why."""


class AccessKind(StrEnum):
    SFTP = "sftp"
    """Access to the files of the site, or of a folder of it, and to nothing else."""
    SHELL = "shell"
    """Commands, which run like the site's own programs; includes SFTP."""


@dataclass(frozen=True)
class SftpLogin:
    """A person's login to the account of a site. `folder` is below its home, "" the home itself. `password_hash` as in
    shadow(5); without one only keys work. `limits`: for everything that runs in a shell. `staged`: the site is a
    staging copy; PHP's mail from a shell is kept in it."""

    name: str
    account: SiteAccount
    folder: str
    password_hash: str | None
    keys: tuple[str, ...]
    kind: AccessKind = AccessKind.SFTP
    limits: Limits = field(default_factory=Limits)
    staged: bool = False


@dataclass(frozen=True)
class HostKey:
    """The server's key, as clients see it. `fingerprint` as OpenSSH shows it: `SHA256:...`."""

    type: str
    fingerprint: str
    public_key: str


class SftpServing(Protocol):
    """Every method raises `SftpError`, and may be repeated."""

    async def hold(self) -> None:
        """Hold its port from now on, even without logins."""
        ...

    async def agree(self, logins: Collection[SftpLogin], ended: Collection[str] = ()) -> None:
        """Allow exactly these logins; end the sessions of others, and of the logins `ended`."""
        ...

    async def host_keys(self) -> list[HostKey]: ...
