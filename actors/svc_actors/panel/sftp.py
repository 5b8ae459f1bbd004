"""Access accounts of sites: their records, of which this is the only writer, and the server, which lets in nobody else.

Invariant: one task at a time reads the records and updates the server, so the server's last update is from after the
change that caused it. A failed update is repeated with the next change and every half minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.accounts.allowances import SHELL_ALLOWED
from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Database, EventLog, Queryable, Record, Target, Transaction, UniqueViolationError
from svc_common.errors import conflict, forbidden, not_found, unavailable
from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import Limits
from svc_webhost.sftp import AccessKind, SftpError, SftpLogin, SftpServing

MOST_LOGINS: Final = 20
"""The most logins of a site."""
_COLUMNS: Final = """sftp_accounts.id, sftp_accounts.site_id, sftp_accounts.name, sftp_accounts.folder,
    sftp_accounts.password_hash, sftp_accounts.keys, sftp_accounts.created_at, sftp_accounts.kind, sites.number,
    sites.owner_id"""
_FROM: Final = "FROM sftp_accounts JOIN sites ON sites.id = sftp_accounts.site_id"

LOOK_SECONDS: Final = 30.0


@dataclass(frozen=True)
class SftpRow:
    id: UUID
    site_id: UUID
    name: str
    folder: str
    password_hash: str | None
    keys: list[str]
    created_at: datetime
    kind: AccessKind
    number: int
    owner_id: UUID

    @property
    def login(self) -> str:
        return login_name(self.number, self.name)

    @property
    def target(self) -> Target:
        return Target("sftp", self.id, self.login, self.owner_id)


def login_name(number: int, name: str) -> str:
    """The login's user name, with the site's number so that names of two sites never collide."""
    return f"{SiteAccount(number).name}-{name}"


async def add(
    tx: Transaction,
    site: SiteRow,
    name: str,
    kind: AccessKind,
    folder: str,
    password_hash: str | None,
    keys: Sequence[str],
) -> SftpRow:
    """The site's row is locked. Raises `conflict`, and `forbidden` for a shell if the site may not have one."""
    if kind is AccessKind.SHELL and not await tx.fetchval(f"SELECT {SHELL_ALLOWED} FROM sites WHERE id = $1", site.id):
        raise forbidden(
            f"{site.domain} is not allowed a shell; nothing was created.",
            hint="A plan that allows it, or an administrator for this site (site.update), switches it on.",
        )
    held = await tx.fetchval("SELECT count(*) FROM sftp_accounts WHERE site_id = $1", site.id)
    if held >= MOST_LOGINS:
        raise conflict(f"A site has at most {MOST_LOGINS} access accounts; nothing was created.")
    try:
        account_id: UUID = await tx.fetchval(
            """INSERT INTO sftp_accounts (site_id, name, kind, folder, password_hash, keys)
               VALUES ($1, $2, $3, $4, $5, $6) RETURNING id""",
            site.id,
            name,
            kind.value,
            folder,
            password_hash,
            list(keys),
        )
    except UniqueViolationError:
        raise conflict(f"{site.domain} has an access account {name} already; nothing was created.") from None
    return await read(tx, site.id, account_id)


async def read(queryable: Queryable, site_id: UUID, account_id: UUID) -> SftpRow:
    """Raises not_found."""
    row = await queryable.fetchrow(
        f"SELECT {_COLUMNS} {_FROM} WHERE sftp_accounts.site_id = $1 AND sftp_accounts.id = $2", site_id, account_id
    )
    if row is None:
        raise not_found("There is no such access account.")
    return _row(row)


async def read_all(queryable: Queryable, site_id: UUID) -> list[SftpRow]:
    rows = await queryable.fetch(
        f"SELECT {_COLUMNS} {_FROM} WHERE sftp_accounts.site_id = $1 ORDER BY sftp_accounts.name", site_id
    )
    return [_row(row) for row in rows]


async def open_logins(queryable: Queryable) -> list[SftpLogin]:
    """Logins of all active sites. Those of a suspended site stay recorded but do not work; nor do shells of a site that
    may no longer have one."""
    rows = await queryable.fetch(
        f"""SELECT {_COLUMNS}, sites.cpu_percent, sites.memory_mib, sites.processes, sites.staging_of {_FROM}
            WHERE sites.status = 'active' AND (sftp_accounts.kind = 'sftp' OR {SHELL_ALLOWED})
            ORDER BY sftp_accounts.id"""
    )
    return [
        SftpLogin(
            login_name(row["number"], row["name"]),
            SiteAccount(row["number"]),
            row["folder"],
            row["password_hash"],
            tuple(row["keys"]),
            AccessKind(row["kind"]),
            Limits(row["cpu_percent"], row["memory_mib"], row["processes"]),
            staged=row["staging_of"] is not None,
        )
        for row in rows
    ]


async def write_credentials(tx: Transaction, row: SftpRow, password_hash: str | None, keys: Sequence[str]) -> None:
    await tx.execute(
        "UPDATE sftp_accounts SET password_hash = $2, keys = $3 WHERE id = $1", row.id, password_hash, list(keys)
    )


async def remove(tx: Transaction, row: SftpRow) -> None:
    await tx.execute("DELETE FROM sftp_accounts WHERE id = $1", row.id)


def _row(row: Record) -> SftpRow:
    return SftpRow(**dict(row) | {"kind": AccessKind(row["kind"])})


class SftpAccess:
    def __init__(self, database: Database, events: EventLog, server: SftpServing) -> None:
        self._database = database
        self._events = events
        self.server = server
        self._one = trio.Lock()

    async def agree(self, *ended: str) -> None:
        """Make the server accept exactly the recorded logins, and end the sessions of all other logins and of the
        logins `ended`. Raises `unavailable`."""
        async with self._one:
            logins = await open_logins(self._database)
            try:
                await self.server.agree(logins, ended)
            except SftpError as error:
                raise unavailable(
                    f"The change is recorded, but the SFTP server has not applied it yet: {error}",
                    hint="It is retried every 30 s.",
                ) from error

    async def run(self) -> None:
        """Run until cancelled. Raises what `agree` raises; the caller starts it again."""
        await repeat_on_site_changes(self._events, LOOK_SECONDS, self.agree)


async def repeat_on_site_changes(events: EventLog, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` now, after each change of a site, and after as many `seconds` without one; until cancelled. Raises
    what `work` raises; the caller starts it again."""
    async with events.subscribe(None) as changes:
        while True:
            await work()
            with trio.move_on_after(seconds):
                async for event in changes:
                    if event.kind == PanelEvent.SITE:
                        break
            # Sites change in bursts, so all events that have come by now are taken at once.
            changes.ready(1000)
