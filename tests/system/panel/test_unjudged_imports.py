"""A real nginx is asked for what the files of an import deny, before and after each thing that is done to a site's
files or to nginx, and all the time between: it never gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import trio

from svc_actors.panel.jobs import JobRun
from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_webhost.accounts import SiteAccount
from svc_webhost.confined.protocol import FileRequest, PlaceImported
from svc_webhost.confined_client import ConfinedFiles
from tests.panel.imports.world import FolderAccounts, World, world_of
from tests.support import foreign_archives as foreign
from tests.support.denied_folders import BLOCKS, DRUPAL, WORDPRESS, secrets_in
from tests.support.foreign_archives import ADDON, MAIN, Tree
from tests.support.nginx import Sites, nginx_sites
from tests.support.panel import recorded_host

pytestmark = [pytest.mark.system, pytest.mark.isolated]

PRIVATE = [
    *((MAIN, path) for path in secrets_in(WORDPRESS)),
    *((ADDON, path) for path in secrets_in({**DRUPAL, **BLOCKS})),
]
OPEN = (MAIN, "/many/0/0.txt")


class LoggedAccounts(FolderAccounts):
    """nginx does not start without the folders of its logs."""

    async def make(self, account: SiteAccount, first_page: str | None) -> None:
        (self.sites.parent / "logs" / "sites" / account.name).mkdir(parents=True, exist_ok=True)
        await super().make(account, first_page)


@dataclass
class Visitor:
    nginx: Sites
    given: set[str] = field(default_factory=set)
    """What was given of what no visitor may get."""
    missed: set[int] = field(default_factory=set)
    """What the open page was answered with, once it was there."""
    visits: int = 0
    up: bool = False

    async def ask(self) -> None:
        for domain, path in PRIVATE:
            if await self._status(domain, path) == 200:
                self.given.add(f"{domain}{path}")
        status = await self._status(*OPEN)
        if self.up and status != 200:
            self.missed.add(status)
        self.up = self.up or status == 200
        self.visits += 1

    async def always(self) -> None:
        while True:
            await self.ask()

    async def _status(self, domain: str, path: str) -> int:
        try:
            return (await self.nginx.visit(domain, path, Connection="close")).status_code
        except httpx.TransportError:  # Nothing listens yet, or the host is not known: nothing is given.
            return 0


@contextmanager
def asked_around(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def around(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def asking(*given: Any, **options: Any) -> Any:
            await visitor.ask()
            try:
                return await work(*given, **options)
            finally:
                await visitor.ask()

        return asking

    with monkeypatch.context() as patched:
        for owner, name in (
            (ConfinedFiles, "ask"),
            (JobRun, "program"),
            (JobRun, "log"),
            (type(visitor.nginx.generations), "apply"),
        ):
            patched.setattr(owner, name, around(getattr(owner, name)))
        yield


@asynccontextmanager
async def always(visitor: Visitor) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(visitor.always)
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture
def nginx() -> Iterator[Sites]:
    with nginx_sites() as sites:
        yield sites


@pytest.fixture
async def world(panel_database: Database, nginx: Sites) -> AsyncIterator[World]:
    host = replace(recorded_host(), web=nginx.generations, accounts=LoggedAccounts(nginx.folders.sites))
    async with world_of(panel_database, nginx.folders.data, host, new=True) as made:
        yield made


def trees() -> dict[str, Tree]:
    made = foreign.model()
    made[MAIN].files |= WORDPRESS
    # A link from elsewhere into a denied folder blocks.
    del made[MAIN].links["latest"]
    made[ADDON].files |= {**DRUPAL, **BLOCKS}
    return made


async def applied_again(world: World, imported: dict[str, Any]) -> dict[str, Any]:
    await world.panel.database.execute(
        "UPDATE imports SET status = 'failed', problem = 'cut', choices = choices - 'imported'"
    )
    return await world.applied(imported)


async def test_what_the_files_deny_is_never_given_and_an_import_into_a_site_does_not_take_it_down(
    world: World, nginx: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = await world.uploaded(foreign.cpanel(trees()))
    visitor = Visitor(nginx)
    with asked_around(visitor, monkeypatch):
        async with always(visitor):
            job = await world.applied(imported)
            again = await applied_again(world, imported)

    sites = {domain: await world.site(domain) for domain in (MAIN, ADDON)}
    there = [(world.home(sites[domain]) / "public" / path[1:]).is_file() for domain, path in PRIVATE]
    statuses = {path: (await nginx.visit(domain, path)).status_code for domain, path in PRIVATE}
    assert (job["status"], again["status"]) == ("succeeded", "succeeded"), (job, again)
    assert {domain: site["status"] for domain, site in sites.items()} == {MAIN: "active", ADDON: "suspended"}
    assert all(there)
    assert set(statuses.values()) == {403, 503}
    assert (await nginx.visit(*OPEN)).text == "file 0\n"
    assert visitor.given == set()
    assert visitor.missed == set()
    assert visitor.visits > 20


async def test_an_import_that_ends_before_or_after_the_files_are_placed_gives_nothing(
    world: World, nginx: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = await world.uploaded(foreign.cpanel(trees()))
    visitor = Visitor(nginx)
    ask = ConfinedFiles.ask

    def cut(*, after: bool) -> Callable[..., Awaitable[Any]]:
        async def cutting(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
            if isinstance(request, PlaceImported) and not after:
                raise unavailable("cut")
            answer = await ask(self, folder, request, *given, **options)
            if isinstance(request, PlaceImported):
                raise unavailable("cut")
            return answer

        return cutting

    jobs = []
    async with always(visitor):
        for after in (False, True):
            with monkeypatch.context() as patched:
                patched.setattr(ConfinedFiles, "ask", cut(after=after))
                jobs.append(await world.applied(imported))
            await visitor.ask()
        last = await world.applied(imported)
    page = await nginx.visit(*OPEN)

    assert [job["status"] for job in (*jobs, last)] == ["failed", "failed", "succeeded"]
    assert page.text == "file 0\n"
    assert visitor.given == set()
