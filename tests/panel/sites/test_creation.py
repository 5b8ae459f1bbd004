"""Sites are created: by whom, under which names, and what becomes of a creation that fails."""

from __future__ import annotations

from pathlib import Path

import trio

from svc.panel.sites.creation import _www_of
from svc_actors.panel.sites.names import site_name
from svc_actors.panel.sites.resuming import resume_sites
from svc_actors.store import Database
from svc_webhost.accounts import AccountError
from svc_webhost.nginx import StaticRoot
from tests.panel.sites.world import World, world_of
from tests.support.harness import Client


async def test_a_site_is_served_when_the_answer_comes(world: World) -> None:
    site = await world.create("Bücher.Example", aliases=["www.bücher.example"])

    assert site["domain"] == "xn--bcher-kva.example"
    assert site["aliases"] == ["www.xn--bcher-kva.example"]
    assert site["status"] == "active"
    assert site["owner_email"] == "ada@example.com"
    served = world.served("xn--bcher-kva.example")
    assert served is not None
    assert served.aliases == ("www.xn--bcher-kva.example",)
    assert isinstance(served.serves, StaticRoot)
    assert served.serves.root.endswith(f"/sites/{site['account']}/public")
    assert "xn--bcher-kva.example" in (world.accounts.pages[site["account"]] or "")
    [row] = await world.panel.audit()
    assert (row["operation"], row["outcome"], row["target_name"]) == ("site.create", "ok", "xn--bcher-kva.example")
    assert [event for event, _ in await world.told()] == ["site.created"]


async def test_a_site_gets_www_of_its_domain_if_that_is_asked_for(world: World) -> None:
    plain = await world.create("plain.example")
    with_www = await world.create("a.example", www=True, aliases=["other.example"])
    named = await world.create("named.example", www=True, aliases=["www.named.example"])
    below = await world.create("shop.plain.example", www=True)
    await world.create("www.taken.example")
    taken = await world.create("taken.example", www=True)

    assert plain["aliases"] == []
    assert with_www["aliases"] == ["other.example", "www.a.example"]
    assert named["aliases"] == ["www.named.example"]
    assert below["aliases"] == taken["aliases"] == []
    served = world.served("a.example")
    assert served is not None
    assert served.aliases == ("other.example", "www.a.example")


async def test_www_is_neither_the_panels_own_name_nor_what_the_site_is_a_proxy_of(
    panel_database: Database, tmp_path: Path
) -> None:
    async with world_of(panel_database, tmp_path, origins=("https://www.hosting.example",)) as world:
        own = await world.create("hosting.example", world.root, www=True)
        circle = _www_of(world.panel.services.config, site_name("a.example"), "https://www.a.example:8443")

    assert own["aliases"] == []
    assert circle is None


async def test_a_creation_with_www_that_fails_goes_on_by_the_same_call(world: World) -> None:
    failing = True

    async def fail(step: str) -> None:
        if failing:
            raise AccountError("useradd: no space left")

    world.accounts.before = fail
    order = {"domain": "a.example", "type": "static", "www": True}
    refused = await world.ada.post("/sites", order)
    failing = False
    again = await world.ada.post("/sites", order)

    assert refused.status_code == 503
    assert (again.status_code, again.json()["aliases"]) == (201, ["www.a.example"])


async def test_an_administrator_creates_for_a_customer(world: World) -> None:
    hers = await world.create("hers.example", world.root, owner_email="ada@example.com")
    also = await world.create("also.example", world.root, admin_email="ada@example.com")
    own = await world.create("own.example", world.root)
    nobody = await world.root.post("/sites", {"domain": "x.example", "type": "static", "owner_email": "no@example.com"})
    by_customer = await world.ada.post(
        "/sites", {"domain": "y.example", "type": "static", "owner_email": "bob@example.com"}
    )

    assert hers["owner_email"] == also["owner_email"] == "ada@example.com"
    assert own["owner_email"] == "root@example.com"
    assert nobody.status_code == 404
    assert by_customer.status_code == 403
    assert {site["domain"] for site in (await world.ada.get("/sites")).json()["items"]} == {
        "hers.example",
        "also.example",
    }


async def test_of_many_who_create_one_domain_at_once_one_succeeds(world: World) -> None:
    answers: list[int] = []

    async def create(client: Client) -> None:
        answers.append((await client.post("/sites", {"domain": "once.example", "type": "static"})).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(create, world.ada)
            nursery.start_soon(create, world.bob)

    assert sorted(answers) == [201] + [409] * 9
    assert len(world.accounts.pages) == len(world.web.sites) == 1


async def test_of_two_customers_who_create_above_and_below_each_other_at_once_one_succeeds(world: World) -> None:
    answers: list[int] = []

    async def create(client: Client, domain: str) -> None:
        answers.append((await client.post("/sites", {"domain": domain, "type": "static"})).status_code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create, world.ada, "shared.example")
        nursery.start_soon(create, world.bob, "login.shared.example")

    assert sorted(answers) == [201, 409]


async def test_all_names_of_a_domain_are_one_customers(world: World) -> None:
    await world.create("shop.ada.example", aliases=["ada-too.example"])

    async def status(client: Client, domain: str) -> int:
        return (await client.post("/sites", {"domain": domain, "type": "static"})).status_code

    assert await status(world.bob, "ada.example") == 409
    assert await status(world.bob, "x.shop.ada.example") == 409
    assert await status(world.bob, "www.ada-too.example") == 409
    assert await status(world.bob, "sibling.ada.example") == 409
    assert await status(world.bob, "bad-ada-too.example") == 201
    assert await status(world.ada, "x.shop.ada.example") == 201


async def test_the_panels_own_names_are_not_customers(world: World) -> None:
    async def status(client: Client, domain: str) -> int:
        return (await client.post("/sites", {"domain": domain, "type": "static"})).status_code

    assert await status(world.root, "panel.test") == 400
    assert await status(world.root, "x.panel.test") == 400
    assert await status(world.ada, "x.panel.test") == 400
    assert await status(world.ada, "other.test") == 201


async def test_a_creation_that_fails_says_so_and_goes_on_by_the_same_call(world: World) -> None:
    failing = True

    async def fail(step: str) -> None:
        if failing:
            raise AccountError("useradd: no space left")

    world.accounts.before = fail
    refused = await world.ada.post("/sites", {"domain": "a.example", "type": "static"})
    [failed] = (await world.ada.get("/sites")).json()["items"]
    other = await world.ada.post("/sites", {"domain": "a.example", "type": "static", "aliases": ["b.example"]})
    failing = False
    again = await world.create("a.example")

    assert refused.status_code == 503
    assert "useradd: no space left" in refused.json()["error"]["message"]
    assert failed["status"] == "failed"
    assert "no space left" in failed["reason"]
    assert other.status_code == 409
    assert again["status"] == "active"
    assert again["reason"] is None
    assert (again["id"], again["number"]) == (failed["id"], failed["number"])
    assert [event for event, _ in await world.told()] == ["site.created"]


async def test_a_site_that_the_web_server_refuses_has_failed_and_is_not_served(world: World) -> None:
    world.web.refuses[1001] = "directive is not allowed"

    refused = await world.ada.post("/sites", {"domain": "a.example", "type": "static"})

    assert refused.status_code == 503
    assert "directive is not allowed" in refused.json()["error"]["message"]
    assert (await world.ada.get("/sites")).json()["items"][0]["status"] == "failed"
    assert world.web.sites == {}


async def test_a_site_is_created_on_once_the_web_server_can_be_changed_again(world: World) -> None:
    await world.create("first.test")
    world.web.down = "The web server's configuration cannot be written: No space left on device."

    refused = await world.ada.post("/sites", {"domain": "a.example", "type": "static"})
    [waiting] = (await world.ada.get("/sites?q=a.example")).json()["items"]
    await resume_sites(world.panel.database, world.panel.services.actors)
    [still] = (await world.ada.get("/sites?q=a.example")).json()["items"]
    world.web.down = None
    await resume_sites(world.panel.database, world.panel.services.actors)
    [made] = (await world.ada.get("/sites?q=a.example")).json()["items"]

    assert refused.status_code == 503
    assert "No space left" in refused.json()["error"]["message"]
    assert "every 30 s" in refused.json()["error"]["hint"]
    assert (waiting["status"], still["status"], made["status"]) == ("creating", "creating", "active")
    assert world.served("a.example") is not None
    assert [event for event, _ in await world.told()] == ["site.created"] * 2
