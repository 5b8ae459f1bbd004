"""Programs that end by themselves again and again: who is told, how often, and until when."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from svc_actors.panel.sites.crashes import MANY, ROUND_SECONDS, WINDOW_SECONDS, CrashWatch
from svc_actors.store import Database
from svc_webhost.launcher import ServiceName
from tests.support.panel import PanelHarness, RecordedLauncher, open_panel
from tests.support.panel_sites import site_row

NGINX = ServiceName("nginx")


class Server:
    """A server whose programs end when a test says so, and the time on it."""

    def __init__(self, database: Database) -> None:
        self.launcher = RecordedLauncher()
        self.now = 1000.0
        self._database = database
        self._watch = self._core()

    def start_core_again(self) -> None:
        self._watch = self._core()

    async def looked_at(self) -> None:
        self.now += ROUND_SECONDS
        await self._watch.round()

    async def ends(self, name: ServiceName, times: int) -> None:
        """By itself, and is started again each time."""
        self.launcher.ended[name] = self.launcher.ended.get(name, 0) + times
        await self.looked_at()

    async def runs_on(self) -> None:
        for _ in range(int(WINDOW_SECONDS / ROUND_SECONDS) + 1):
            await self.looked_at()

    def _core(self) -> CrashWatch:
        return CrashWatch(self._database, self.launcher, lambda: self.now)


async def server_with(database: Database, *names: ServiceName) -> Server:
    server = Server(database)
    server.launcher.ended |= dict.fromkeys(names, 0)
    await server.looked_at()
    return server


async def alerts(database: Database) -> list[tuple[str, bool]]:
    """Each with whether it is open, as they were opened."""
    rows = await database.fetch("SELECT key, closed_at IS NULL AS open FROM alerts ORDER BY opened_at, id")
    return [(row["key"], row["open"]) for row in rows]


async def test_what_ends_again_and_again_is_told_once_until_it_runs_on(panel_database: Database) -> None:
    server = await server_with(panel_database, NGINX)

    await server.ends(NGINX, MANY - 1)
    a_few = await alerts(panel_database)
    await server.ends(NGINX, 1)
    many = await alerts(panel_database)
    for _ in range(20):
        await server.ends(NGINX, 1)
    much_later = await alerts(panel_database)
    events = await panel_database.fetchval("SELECT count(*) FROM event_inbox WHERE kind = 'alert'")
    await server.runs_on()
    well = await alerts(panel_database)
    await server.ends(NGINX, MANY)
    again = await alerts(panel_database)

    assert a_few == []
    assert many == much_later == [("crashes:nginx", True)]
    assert events == 1
    assert well == [("crashes:nginx", False)]
    assert again == [("crashes:nginx", False), ("crashes:nginx", True)]


async def test_ends_that_lie_far_apart_are_told_to_nobody(panel_database: Database) -> None:
    server = await server_with(panel_database, NGINX)

    for _ in range(MANY + 1):
        await server.ends(NGINX, 1)
        await server.runs_on()

    assert await alerts(panel_database) == []


async def test_an_incident_outlives_the_core_and_ends_after_it(panel_database: Database) -> None:
    server = await server_with(panel_database, NGINX)
    await server.ends(NGINX, MANY)

    server.start_core_again()
    await server.looked_at()
    meanwhile = await alerts(panel_database)
    await server.runs_on()

    assert meanwhile == [("crashes:nginx", True)]
    assert await alerts(panel_database) == [("crashes:nginx", False)]


async def test_what_takes_its_place_ends_an_incident_at_once(panel_database: Database) -> None:
    server = await server_with(panel_database, NGINX)
    await server.ends(NGINX, MANY)

    del server.launcher.ended[NGINX]
    await server.looked_at()

    assert await alerts(panel_database) == [("crashes:nginx", False)]


async def test_a_shell_may_end_as_often_as_it_is_left(panel_database: Database) -> None:
    shell = ServiceName("site-1001-shell-ada")
    server = await server_with(panel_database, shell)

    await server.ends(shell, 50)

    assert await alerts(panel_database) == []


async def test_the_owner_of_the_site_reads_it_and_nobody_else_does(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        ada = await panel.person("ada@example.com")
        site = await site_row(panel_database, ada, "shop.example.com")
        number = await panel_database.fetchval("SELECT number FROM sites WHERE id = $1", site)
        app = ServiceName(f"site-{number}-app-3")
        server = await server_with(panel_database, app)

        await server.ends(app, MANY)
        [own] = await listed(panel, ada)
        others = await listed(panel, await panel.person("bob@example.com"))

    assert own["message"] == (
        "The application of shop.example.com crashes repeatedly (signal 9) and is restarted each time: see the log of "
        "the site."
    )
    assert (own["resource_kind"], own["resource_id"]) == ("site", str(site))
    assert others == []


async def listed(panel: PanelHarness, person: UUID) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await panel.program(await panel.token(person)).get("/alerts")).json()["items"]
    return found
