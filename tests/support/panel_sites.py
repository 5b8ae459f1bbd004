"""Sites in tests: their rows straight into the database, and accounts that a test plays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.site_rights import WrongRights


async def site_row(
    database: Database,
    owner_id: UUID,
    domain: str,
    *,
    type: str = "static",
    status: str = "active",
    registrable: str | None = None,
) -> UUID:
    """A site that nothing was made for on any server."""
    async with database.transaction() as tx:
        site_id: UUID = await tx.fetchval(
            """INSERT INTO sites (owner_id, domain, type, status, proxy_target, proxy_addresses, served)
               VALUES ($1, $2, $3, $4, CASE WHEN $3 = 'proxy' THEN 'http://192.0.2.9' END,
                       CASE WHEN $3 = 'proxy' THEN ARRAY['192.0.2.9'::inet] ELSE '{}' END, 1)
               RETURNING id""",
            owner_id,
            domain,
            type,
            status,
        )
        await tx.execute(
            "INSERT INTO site_domains (site_id, name, registrable) VALUES ($1, $2, $3)",
            site_id,
            domain,
            registrable or domain,
        )
    return site_id


async def nothing() -> None:
    """What happens before a step that nobody interferes with."""


@dataclass
class RecordedAccounts:
    """Accounts that exist because it says so, with the pages that were put into them. `before` is called before each
    step with its name: a test lets it fail, or stops there."""

    pages: dict[str, str | None] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    wrong: dict[str, list[WrongRights]] = field(default_factory=dict)
    before: Callable[[str], Awaitable[None]] = field(default=lambda step: nothing())

    async def make(self, account: SiteAccount, first_page: str | None) -> None:
        await self.before("make")
        self.pages.setdefault(account.name, first_page)

    async def wrong_rights(self, account: SiteAccount, niceness: int) -> list[WrongRights]:
        return list(self.wrong.get(account.name, ()))

    async def mend_rights(self, account: SiteAccount) -> None:
        await self.before("mend_rights")
        self.wrong[account.name] = [each for each in self.wrong.get(account.name, ()) if not each.mendable]

    async def end_processes(self, account: SiteAccount) -> None:
        await self.before("end_processes")
        self.ended.append(account.name)

    async def remove(self, account: SiteAccount) -> None:
        await self.before("remove")
        self.pages.pop(account.name, None)
