"""What the SFTP server is told, and what it answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.launcher import Limits


class SftpError(Exception):
    """The server does not do as it was told; the message says why."""


class AccessKind(StrEnum):
    SFTP = "sftp"
    """The files of the site, or of a folder of it, and nothing else."""
    SHELL = "shell"
    """Commands as the site's own programs run, with SFTP among them."""


@dataclass(frozen=True)
class SftpLogin:
    """Somebody who may sign in as the account of a site. `folder` is beneath its home, "" the home itself.
    `password_hash` as in shadow(5); without one only keys open it. `limits`: of all that runs for a shell.
    `staged`: the site is a copy of one; what PHP would mail from a shell is kept in it."""

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
    """By which a client knows this server. `fingerprint` as OpenSSH shows it: `SHA256:...`."""

    type: str
    fingerprint: str
    public_key: str


class SftpServing(Protocol):
    """Every method raises `SftpError`, and may be repeated."""

    async def hold(self) -> None:
        """Its port is held from now on, whoever may sign in."""
        ...

    async def agree(self, logins: Collection[SftpLogin], ended: Collection[str] = ()) -> None:
        """These may sign in and nobody else; sessions of others, and of the logins `ended`, are over."""
        ...

    async def host_keys(self) -> list[HostKey]: ...
