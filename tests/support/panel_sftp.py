"""An SFTP server that a test plays."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from svc_webhost.sftp import HostKey, SftpError, SftpLogin
from tests.support.changes import Changes


@dataclass
class RecordedSftp:
    """Lets those in whom it was told last. `ended` are all whose sessions it was to end although they may sign in;
    `refuses` lets it answer with an error."""

    logins: dict[str, SftpLogin] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    refuses: str | None = None
    told: Changes = field(default_factory=Changes)

    async def hold(self) -> None:
        return

    async def agree(self, logins: Collection[SftpLogin], ended: Collection[str] = ()) -> None:
        if self.refuses is not None:
            raise SftpError(self.refuses)
        self.logins = {login.name: login for login in logins}
        self.ended += ended
        self.told.tell()

    async def host_keys(self) -> list[HostKey]:
        return [HostKey("ssh-ed25519", "SHA256:of-a-test", "ssh-ed25519 AAAA")]
