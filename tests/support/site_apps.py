"""Applications that run because a test says so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.apps import App, AppError
from svc_webhost.launcher import ServiceStatus


@dataclass
class RecordedApps:
    """`releases` run, by the number of their site; `live` are those that visitors come to. `variables` are those of
    the release that was started last. `refuses` is what an application says that does not start."""

    releases: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    live: dict[int, App] = field(default_factory=dict)
    variables: dict[int, Mapping[str, str]] = field(default_factory=dict)
    refuses: str | None = None
    went_over: trio.Event = field(default_factory=trio.Event)
    """Visitors have been led to one."""

    async def start(self, app: App, variables: Mapping[str, str]) -> None:
        if self.refuses is not None:
            raise AppError(self.refuses)
        self.releases[app.account.number].add(app.release)
        self.variables[app.account.number] = variables

    async def hold(self, app: App, variables: Mapping[str, str]) -> None:
        self.releases[app.account.number].add(app.release)
        self.variables[app.account.number] = variables
        await self.go_over(app)

    async def go_over(self, app: App) -> None:
        self.live[app.account.number] = app
        self.went_over.set()

    async def hide(self, account: SiteAccount) -> None:
        self.live.pop(account.number, None)

    async def stop(self, app: App) -> None:
        self.releases[app.account.number].discard(app.release)

    async def remove(self, account: SiteAccount) -> None:
        await self.hide(account)
        self.releases.pop(account.number, None)

    async def running(self) -> Mapping[int, frozenset[int]]:
        return {number: frozenset(releases) for number, releases in self.releases.items() if releases}

    async def problem(self, app: App) -> str | None:
        return None if app.release in self.releases[app.account.number] else "The application does not run."

    async def status(self, app: App) -> ServiceStatus:
        return ServiceStatus(running=app.release in self.releases[app.account.number])
