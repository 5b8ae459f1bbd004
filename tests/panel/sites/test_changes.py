"""Sites are changed, and the web server follows."""

from __future__ import annotations

from uuid import uuid4

from svc_actors.panel.sites.resuming import resume_sites
from tests.panel.sites.world import World


async def test_a_site_is_changed(world: World) -> None:
    site = await world.create("a.example")
    path = f"/sites/{site['id']}"

    forced = await world.ada.patch(path, {"force_https": True, "site_id": str(uuid4())})
    limited = await world.root.patch(path, {"memory_mib": 256, "processes": 20})
    unlimited = await world.root.patch(path, {"memory_mib": None})
    refused = [
        await world.ada.patch(path, {"memory_mib": 512}),
        await world.ada.patch(path, {"memory_mib": None}),
        await world.ada.patch(path, {"owner_email": "bob@example.com"}),
    ]
    never = [
        await world.root.patch(path, {"type": "proxy"}),
        await world.root.patch(path, {"proxy_target": "https://1.1.1.1"}),
        await world.root.patch(path, {"status": "active"}),
    ]
    moved = await world.root.patch(path, {"owner_email": "bob@example.com"})

    server = world.served("a.example")
    assert forced.json()["force_https"] is True
    assert server is not None
    assert server.force_https
    assert limited.json()["limits"] == {"cpu_percent": None, "memory_mib": 256, "processes": 20, "disk_mib": None}
    assert unlimited.json()["limits"]["memory_mib"] is None
    assert unlimited.json()["limits"]["processes"] == 20
    assert [answer.status_code for answer in refused] == [403] * 3
    assert [answer.status_code for answer in never] == [400] * 3
    assert moved.json()["owner_email"] == "bob@example.com"
    assert (await world.ada.get(path)).status_code == 404
    assert (await world.bob.get(path)).status_code == 200


async def test_a_site_is_not_handed_over_beside_a_name_of_somebody_else(world: World) -> None:
    site = await world.create("a.example")
    await world.create("x.a.example")

    refused = await world.root.patch(f"/sites/{site['id']}", {"owner_email": "bob@example.com"})

    assert refused.status_code == 409
    assert (await world.ada.get(f"/sites/{site['id']}")).status_code == 200


async def test_a_change_that_the_web_server_refuses_is_recorded_told_and_tried_again(world: World) -> None:
    site = await world.create("a.example")
    world.web.refuses[site["number"]] = "no"

    refused = await world.ada.patch(f"/sites/{site['id']}", {"force_https": True})
    recorded = (await world.ada.get(f"/sites/{site['id']}")).json()["force_https"]
    world.web.refuses.clear()
    await resume_sites(world.panel.database, world.panel.services.actors)
    server = world.served("a.example")

    assert refused.status_code == 503
    assert "recorded" in refused.json()["error"]["message"]
    assert recorded is True
    assert server is not None
    assert server.force_https
