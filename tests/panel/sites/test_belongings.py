"""What belongs to a site (domains, redirects, logs), who may touch it, and what a restart leaves."""

from __future__ import annotations

from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
import trio

from svc_actors.panel.sites.resuming import resume_sites
from svc_actors.store import Database
from tests.panel.sites.world import world_of
from tests.support.panel import open_panel
from tests.support.panel_sites import RecordedAccounts, site_row
from tests.support.served import RecordedServing

HOSTILE = ["-x", "a\r\nb", "a\0b", "'", '"', "$(id)", "..", "x" * 1_000_000, "\u202egro", "аdmin"]


async def test_names_and_redirects_are_served_as_they_are_set(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        path = f"/sites/{site['id']}"

        added = (await world.ada.post(f"{path}/domains", {"name": "b.example", "redirect_to_primary": True})).json()
        sent = world.served("a.example")
        primary = await world.ada.patch(f"/domains/{added['id']}", {"primary": True})
        refused = await world.ada.delete(f"/domains/{added['id']}", {})
        [first, second] = (await world.ada.get(f"{path}/domains")).json()
        removed = await world.ada.delete(f"/domains/{second['id']}", {})
        redirect = (await world.ada.post(f"{path}/redirects", {"path": "/old", "target": "/new"})).json()
        again = await world.ada.post(f"{path}/redirects", {"path": "/old", "target": "/other"})
        circle = await world.ada.post(f"{path}/redirects", {"path": "/x", "target": "/x"})
        server = world.served("b.example")
        gone = await world.ada.delete(f"/redirects/{redirect['id']}", {})
        after = world.served("b.example")

    assert sent is not None
    assert sent.redirects == {"b.example": "a.example"}
    assert primary.json()["primary"] is True
    assert refused.status_code == 409
    assert (first["name"], second["name"]) == ("b.example", "a.example")
    assert (removed.status_code, removed.json()) == (200, {})
    assert again.status_code == 409
    assert circle.status_code == 400
    assert server is not None
    assert [(each.source, each.target) for each in server.path_redirects] == [("/old", "/new")]
    assert gone.status_code == 200
    assert after is not None
    assert after.path_redirects == ()


async def test_what_is_somebody_elses_is_not_there(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example", aliases=["b.example"])
        path = f"/sites/{site['id']}"
        domain = (await world.ada.get(f"{path}/domains")).json()[1]["id"]
        redirect = (await world.ada.post(f"{path}/redirects", {"path": "/o", "target": "/n"})).json()["id"]
        calls = [
            ("GET", "/sites/{}", site["id"], None),
            ("PATCH", "/sites/{}", site["id"], {"force_https": True}),
            ("POST", "/sites/{}/suspend", site["id"], {"suspended": True, "reason": "x"}),
            ("DELETE", "/sites/{}", site["id"], {"confirm": "a.example"}),
            ("GET", "/sites/{}/domains", site["id"], None),
            ("POST", "/sites/{}/domains", site["id"], {"name": "c.example"}),
            ("PATCH", "/domains/{}", domain, {"primary": True}),
            ("DELETE", "/domains/{}", domain, {}),
            ("GET", "/sites/{}/redirects", site["id"], None),
            ("POST", "/sites/{}/redirects", site["id"], {"path": "/p", "target": "/q"}),
            ("DELETE", "/redirects/{}", redirect, {}),
            ("GET", "/sites/{}/logs", site["id"], None),
            ("GET", "/sites/{}/logs/sources", site["id"], None),
            ("GET", "/sites/{}/logs/read", site["id"], None),
        ]

        foreign = [await world.bob.call(method, route.format(id_), body) for method, route, id_, body in calls]
        absent = [await world.bob.call(method, route.format(uuid4()), body) for method, route, _, body in calls]

    assert [answer.status_code for answer in foreign] == [404] * len(calls)
    assert [answer.json() for answer in foreign] == [answer.json() for answer in absent]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_no_hostile_text_becomes_part_of_a_site(panel_database: Database, tmp_path: Path, text: str) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        path = f"/sites/{site['id']}"
        before = len(world.web.applied)

        answers = [
            await world.ada.post("/sites", {"domain": text, "type": "static"}),
            await world.ada.post("/sites", {"domain": "x.example", "type": text}),
            await world.ada.post("/sites", {"domain": "x.example", "type": "static", "aliases": [text]}),
            await world.root.post("/sites", {"domain": "x.example", "type": "static", "owner_email": text}),
            await world.ada.post("/sites", {"domain": "x.example", "type": "proxy", "proxy_target": text}),
            await world.ada.delete(path, {"confirm": text}),
            await world.ada.post(f"{path}/domains", {"name": text}),
            await world.ada.post(f"{path}/redirects", {"path": text, "target": "/n"}),
            await world.ada.post(f"{path}/redirects", {"path": "/o", "target": text}),
        ]

    assert {answer.status_code for answer in answers} == {400}
    assert len(world.web.applied) == before


async def test_a_core_that_starts_goes_on_with_what_was_left(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path, loops=["web server"]) as panel:
        ada = await panel.person("ada@example.com")
        site_id = await site_row(panel_database, ada, "left.example", status="creating")

        await resume_sites(panel_database, panel.services.actors)
        status = await panel_database.fetchval("SELECT status FROM sites WHERE id = $1", site_id)
        await resume_sites(panel_database, panel.services.actors)
        pages = cast(RecordedAccounts, panel.host.accounts).pages
        served = cast(RecordedServing, panel.host.web).sites

    assert status == "active"
    assert len(pages) == len(served) == 1


async def test_a_deletion_that_a_restart_interrupted_goes_on(panel_database: Database, tmp_path: Path) -> None:
    reached = trio.Event()

    async def hang(step: str) -> None:
        if step == "remove":
            reached.set()
            await trio.sleep_forever()

    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")
        world.accounts.before = hang
        await world.ada.delete(f"/sites/{site['id']}", {"confirm": "a.example"})
        with trio.fail_after(30):
            await reached.wait()
        # As a core that is killed leaves it: the job runs, and nobody works on it.
        await panel_database.execute("UPDATE jobs SET status = 'running' WHERE ended_at IS NULL")
        world.panel.services.jobs._hosted.clear()

    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        await panel.jobs_ended()
        sites = await panel.database.fetchval("SELECT count(*) FROM sites")
        statuses = [row["status"] for row in await panel.database.fetch("SELECT status FROM jobs ORDER BY id")]

    assert sites == 0
    assert statuses[0] == "failed"
