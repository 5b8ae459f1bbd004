"""Owners and modes of a site's folders and files."""

from __future__ import annotations

from svc_actors.panel.repairs.parts import Finding
from svc_actors.panel.sites.records import SiteRow
from svc_common.errors import conflict, unavailable
from svc_webhost.accounts import NICENESS_OF_WORK, AccountError, Accounts


class Permissions:
    def __init__(self, accounts: Accounts, niceness: int = NICENESS_OF_WORK) -> None:
        self._accounts = accounts
        self._niceness = niceness

    async def look(self, site: SiteRow) -> list[Finding]:
        try:
            found = await self._accounts.wrong_rights(site.account, self._niceness)
            return [Finding(wrong.words, wrong.mendable, wrong.count) for wrong in found]
        except AccountError as error:
            raise unavailable(f"The files of {site.domain} could not be checked: {error}") from error

    async def mend(self, site: SiteRow) -> None:
        try:
            found = await self._accounts.wrong_rights(site.account, self._niceness)
            if lost := [wrong.words for wrong in found if wrong.lost]:
                raise conflict(f"Nothing was repaired. {lost[0]}", hint="Restoring a backup creates the folder again.")
            # Create the user, the group and the folders again as when the site was created, but without the first page.
            await self._accounts.make(site.account, None)
            await self._accounts.mend_rights(site.account)
        except AccountError as error:
            raise unavailable(f"The permissions of {site.domain} were not repaired: {error}") from error
