"""Sites are changed, and the web server follows."""

from __future__ import annotations

from uuid import uuid4

from svc_actors.panel.sites.resuming import resume_sites
from svc_webhost.nginx import Php, StaticRoot
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


async def test_a_site_answers_with_a_page_for_paths_without_a_file(world: World) -> None:
    files, php = await world.create("a.example"), await world.create("b.example", type="php")
    paths = [f"/sites/{site['id']}" for site in (files, php)]

    set_ = [await world.ada.patch(path, {"fallback_page": "/app/index.html", "cache_assets": True}) for path in paths]
    kept = await world.ada.patch(paths[0], {"force_https": True})
    servers = [world.served(name) for name in ("a.example", "b.example")]
    reset = await world.ada.patch(paths[0], {"fallback_page": None, "cache_assets": False})
    server = world.served("a.example")

    assert [answer.json()["fallback_page"] for answer in (*set_, kept, reset)] == [*["/app/index.html"] * 3, None]
    assert [answer.json()["cache_assets"] for answer in (*set_, kept, reset)] == [True, True, True, False]
    for each in servers:
        assert each is not None
        assert isinstance(each.serves, StaticRoot | Php)
        assert (each.serves.fallback_page, each.cache_assets) == ("/app/index.html", True)
    assert server is not None
    assert isinstance(server.serves, StaticRoot)
    assert (server.serves.fallback_page, server.cache_assets) == (None, False)


async def test_settings_of_files_are_refused_where_nothing_serves_them_so(world: World) -> None:
    files = await world.create("a.example")
    proxy = await world.create("b.example", type="proxy", proxy_target="https://1.1.1.1")

    refused = [
        *[
            await world.ada.patch(f"/sites/{files['id']}", {"fallback_page": page})
            for page in ("index.html", "/index.php", "/.git/index.html", "/a/../index.html", "/index.html?x", "")
        ],
        await world.ada.patch(f"/sites/{proxy['id']}", {"fallback_page": "/index.html"}),
        await world.ada.patch(f"/sites/{proxy['id']}", {"cache_assets": True}),
    ]

    assert [answer.status_code for answer in refused] == [400] * 8


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
