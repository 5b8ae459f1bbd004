"""A thousand sites, each with a certificate: what a change takes, and that changes that come together share reloads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from svc_actors.panel.web_server import WebServer
from svc_actors.store import Database
from svc_webhost.nginx import SiteServer
from tests.support.nginx import FIRST, Sites, nginx_sites

pytestmark = [pytest.mark.system, pytest.mark.isolated]

COUNT = 1000


@pytest.fixture
def nginx() -> Iterator[Sites]:
    with nginx_sites() as sites:
        yield sites


async def test_a_hundred_changes_among_a_thousand_sites_take_few_reloads(
    nginx: Sites, panel_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = nginx.certificate("shared")
    sites = [nginx.site(number, certificate=certificate) for number in range(FIRST, FIRST + COUNT)]
    figures: list[str] = []

    async def all_sites() -> tuple[list[SiteServer], dict[int, str]]:
        return sites, {}

    async def timed(what: str, *numbers: int) -> None:
        begun, before = trio.current_time(), nginx.launcher.reloads
        async with trio.open_nursery() as nursery:
            for number in numbers:
                server = nginx.site(number, certificate=certificate, aliases=(f"{what}-{number}.example",))
                nursery.start_soon(web_server.change, {number: server})
        taken = trio.current_time() - begun
        figures.append(f"{what}: {taken:.2f} s, {nginx.launcher.reloads - before} reloads")

    web_server = WebServer(panel_database, nginx.generations, all_sites)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(web_server.run)
        await web_server.change({})
        figures.append(f"start with {COUNT} sites: {trio.current_time() - begun:.2f} s")
        for turn in range(3):
            await timed(f"one{turn}", FIRST + turn)
        reloads = nginx.launcher.reloads
        await timed("hundred", *range(FIRST + 100, FIRST + 200))
        for_a_hundred = nginx.launcher.reloads - reloads
        nursery.cancel_scope.cancel()
    begun, reloads = trio.current_time(), nginx.launcher.reloads
    served = [
        site
        if not FIRST + 100 <= site.number < FIRST + 200
        else nginx.site(site.number, certificate=certificate, aliases=(f"hundred-{site.number}.example",))
        for site in sites
    ]
    for turn in range(3):
        number = FIRST + turn
        served[turn] = nginx.site(number, certificate=certificate, aliases=(f"one{turn}-{number}.example",))
    refused = await nginx.again().start(served)
    figures.append(f"start that changes nothing: {trio.current_time() - begun:.2f} s")
    with capsys.disabled():
        print("", *figures, sep="\n  ")

    assert for_a_hundred <= 5
    assert (refused, nginx.launcher.reloads) == ({}, reloads)
    assert (await nginx.visit(f"hundred-{FIRST + 150}.example")).text == f"page of {FIRST + 150}"
    assert (await nginx.visit_tls(f"site{FIRST + 999}.example")).text == f"page of {FIRST + 999}"
