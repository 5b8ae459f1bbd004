"""kill -9 of the core at any moment, while sites change and visitors come (with --full, 200 times)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest
import trio

from tests.support.panel_programs import PanelPrograms, open_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SITES = 20
PERIOD = 0.05
"""Seconds between two visits of one site."""


@asynccontextmanager
async def visitors(panel: PanelPrograms, domains: Sequence[str]) -> AsyncIterator[Counter[str]]:
    """Every site is visited once a period, each time over a connection of its own; gives what came back, counted."""
    came: Counter[str] = Counter()

    async def visitor(domain: str) -> None:
        while True:
            with trio.move_on_after(PERIOD) as period:
                came[await _visit(panel.http_port, domain)] += 1
                await trio.sleep_forever()
            assert period.cancelled_caught

    async with trio.open_nursery() as nursery:
        for domain in domains:
            nursery.start_soon(visitor, domain)
        yield came
        nursery.cancel_scope.cancel()


async def _visit(port: int, domain: str) -> str:
    """The status line, or what went wrong. Shielded: a visit that was begun is seen through, however long it takes."""
    with trio.CancelScope(shield=True, relative_deadline=30):
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(f"GET / HTTP/1.1\r\nHost: {domain}\r\nConnection: close\r\n\r\n".encode())
                received = b"".join([piece async for piece in stream])
        except (OSError, trio.BrokenResourceError) as error:
            return repr(error)
        status, _, page = received.partition(b"\r\n")
        return status.decode() if domain.encode() in page else f"{status.decode()}, and not its page"
    return "no answer within 30 s"


async def change_until_killed(panel: PanelPrograms, sites: Sequence[str], number: int) -> None:
    """Add redirects to sites for as long as there is a core to ask."""
    async with panel.client() as root:
        while True:
            for place, site in enumerate(sites):
                redirect = {"path": f"/old-{number}-{place}", "target": "https://example.net/new"}
                try:
                    await root.post(f"/sites/{site}/redirects", json=redirect)
                except httpx.TransportError:
                    await trio.sleep(
                        PERIOD
                    )  # It is being started, or was killed: that happens outside of this process.


async def test_no_visitor_of_twenty_sites_notices_that_the_core_is_killed_again_and_again(
    request: pytest.FixtureRequest,
) -> None:
    kills = 200 if request.config.getoption("--full") else 8
    when = random.Random(20)
    domains = [f"site{number}.example.com" for number in range(SITES)]
    async with open_panel_programs() as panel:
        await panel.start()
        await panel.customer()
        sites = [(await panel.site(domain))["id"] for domain in domains]

        async with visitors(panel, domains) as came:
            for number in range(kills):
                async with trio.open_nursery() as changes:
                    changes.start_soon(change_until_killed, panel, sites, number)
                    # From before it listens until it has set the sites right and changes them again.
                    await trio.sleep(when.uniform(0.0, 4.0))
                    await panel.core.kill()
                    changes.cancel_scope.cancel()
                panel.core.start()
            await panel.core.kill()
            await panel.start()
            async with panel.client() as root:
                redirect = {"path": "/at-last", "target": "https://example.net/"}
                added = await root.post(f"/sites/{sites[0]}/redirects", json=redirect)
                records = [(await root.get(f"/sites/{site}")).json() for site in sites]

    assert set(came) == {"HTTP/1.1 200 OK"}
    assert came.total() > kills * SITES
    assert added.status_code < 300, added.text
    assert [site["status"] for site in records] == ["active"] * SITES
