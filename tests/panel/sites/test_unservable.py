"""Records that the web server cannot be given: refused where they would be made, and harmless where they are."""

from __future__ import annotations

from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from svc_actors.panel.sites.records import read_site
from svc_actors.panel.sites.serving import server_of
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.panel.sites.world import world_of
from tests.support.panel import open_panel
from tests.support.panel_sites import site_row
from tests.support.served import RecordedServing

CHALLENGE = "/.well-known/acme-challenge/token"


async def unservable(database: Database, owner_id: UUID) -> UUID:
    """A site with a redirect that is longer than the web server takes, as an earlier release let it pass."""
    site_id = await site_row(database, owner_id, "bad.example")
    await database.execute(
        "INSERT INTO site_redirects (site_id, path, target, status) VALUES ($1, $2, '/', 301)", site_id, "/" + "x" * 600
    )
    return site_id


async def test_a_record_that_cannot_be_served_leaves_the_others_served(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        ada = await panel.person("ada@example.com")
    await unservable(panel_database, ada)
    good = await site_row(panel_database, ada, "good.example")
    proxy = await site_row(panel_database, ada, "proxy.example", type="proxy")
    await panel_database.execute("UPDATE sites SET proxy_target = 'http://localhost:3000' WHERE id = $1", proxy)

    async with world_of(panel_database, tmp_path, people=("eve@example.com", "bob@example.com")) as world:
        await world.create("new.example")
        served = {server.domain for server in cast(RecordedServing, world.panel.host.web).sites.values()}
        alerts = await panel_database.fetch("SELECT message, severity FROM alerts WHERE closed_at IS NULL ORDER BY key")
        changed = await world.root.patch(f"/sites/{good}", {"force_https": True})

    assert served == {"good.example", "new.example"}
    assert [row["severity"] for row in alerts] == ["critical", "critical"]
    assert "path_redirects" in alerts[0]["message"] or "source" in alerts[0]["message"]
    assert changed.status_code == 200


async def test_a_change_of_such_a_site_is_told_why_it_is_not_served_and_closes_the_alert_when_it_is(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_panel(panel_database, tmp_path) as panel:
        ada = await panel.person("ada@example.com")
    site_id = await unservable(panel_database, ada)

    async with world_of(panel_database, tmp_path, people=("eve@example.com", "bob@example.com")) as world:
        await world.create("new.example")
        site = await read_site(panel_database, site_id)
        assert site is not None
        with pytest.raises(ServiceError) as refused:
            await server_of(panel_database, site, world.panel.services.config.folders)
        told = await world.root.patch(f"/sites/{site_id}", {"force_https": True})
        [redirect] = (await world.root.get(f"/sites/{site_id}/redirects")).json()
        mended = await world.root.delete(f"/redirects/{redirect['id']}", {})
        await world.create("later.example")
        alerts = await panel_database.fetchval("SELECT count(*) FROM alerts WHERE closed_at IS NULL")

    assert refused.value.code is ErrorCode.INVALID
    assert told.status_code == 503
    assert "cannot be served" in told.json()["error"]["message"]
    assert mended.status_code == 200
    assert alerts == 0


@pytest.mark.parametrize("path", ["/" + "x" * 512, CHALLENGE, "/\u00b2"], ids=["long", "challenge", "letter"])
async def test_a_redirect_that_the_web_server_would_not_take_is_refused(
    panel_database: Database, tmp_path: Path, path: str
) -> None:
    async with world_of(panel_database, tmp_path) as world:
        site = await world.create("a.example")

        refused = await world.ada.post(f"/sites/{site['id']}/redirects", {"path": path, "target": "/new"})
        left = (await world.ada.get(f"/sites/{site['id']}/redirects")).json()

    assert refused.status_code == 400
    assert "path" in refused.json()["error"]["message"]
    assert left == []


@pytest.mark.parametrize(
    "target",
    [
        "http://16909060",
        "http://0x01020304",
        "http://1.2.0x304",
        "http://1.2.772",
        "http://localhost:3000",
        "http://a..example",
    ],
)
async def test_a_target_that_is_neither_a_name_nor_an_address_is_refused_to_all(
    panel_database: Database, tmp_path: Path, target: str
) -> None:
    async with world_of(panel_database, tmp_path) as world:
        answers = [
            await client.post("/sites", {"domain": "p.example", "type": "proxy", "proxy_target": target})
            for client in (world.ada, world.root)
        ]
        local = await world.create("l.example", world.root, type="proxy", proxy_target="http://127.0.0.1:3000")
        found = await panel_database.fetchval("SELECT count(*) FROM sites")

    assert [answer.status_code for answer in answers] == [400, 400]
    assert local["status"] == "active"
    assert found == 1
