"""Preview addresses: the setting, the names that follow from it, what the web server is told, and who may take one."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import trio

from svc_actors.panel.sites.claims import claim
from svc_actors.panel.sites.names import site_name
from svc_actors.panel.sites.previews import LONGEST_DOMAIN, preview_name
from svc_actors.store import Database
from tests.panel.sites.world import World, world_of

DOMAIN = "previews.example.net"
SITE = UUID("0a0b0c0d-0000-4000-8000-000000000001")


async def enable(world: World, domain: str = DOMAIN) -> None:
    answer = await world.root.patch("/settings", {"preview_domain": domain})
    assert answer.status_code == 200, answer.text
    await world.panel.step("preview addresses")


async def test_every_site_has_a_preview_from_the_setting_on_and_none_without(world: World) -> None:
    before = await world.create("a.example", aliases=["www.a.example"])
    unset = world.served("a.example")

    await enable(world)
    after = await world.create("b.example")
    shown = (await world.ada.get(f"/sites/{before['id']}")).json()
    listed = {each["domain"]: each["preview_url"] for each in (await world.ada.get("/sites")).json()["items"]}
    set_ = world.served("a.example")
    await enable(world, "")

    assert (before["preview_url"], unset and unset.previews) == (None, {})
    assert listed == {"a.example": shown["preview_url"], "b.example": after["preview_url"]}
    assert re.fullmatch(rf"http://a-example-[0-9a-f]{{12}}\.{re.escape(DOMAIN)}(:\d+)?", shown["preview_url"])
    assert set_ is not None
    assert set(set_.previews.values()) == {"a.example", "www.a.example"}
    assert shown["preview_url"].removeprefix("http://").partition(":")[0] in set_.previews
    ended = world.served("a.example")
    assert (ended and ended.previews) == {}
    assert (await world.ada.get(f"/sites/{before['id']}")).json()["preview_url"] is None


async def test_names_that_are_redirected_have_no_preview_of_their_own(world: World) -> None:
    site = await world.create("a.example")
    await enable(world)
    await world.ada.post(f"/sites/{site['id']}/domains", {"name": "old.example", "redirect_to_primary": True})

    served = world.served("a.example")

    assert served is not None
    assert set(served.previews.values()) == {"a.example"}


async def test_a_suspended_site_keeps_its_preview_and_a_failed_one_has_none(world: World) -> None:
    await enable(world)
    site = await world.create("a.example")
    await world.ada.post(f"/sites/{site['id']}/suspend", {"reason": "unpaid"})
    served = world.served("a.example")
    suspended = (await world.ada.get(f"/sites/{site['id']}")).json()
    await world.panel.database.execute("UPDATE sites SET status = 'failed', reason = 'x', suspended_by = NULL")

    failed = (await world.ada.get(f"/sites/{site['id']}")).json()

    assert served is not None
    assert set(served.previews.values()) == {"a.example"}
    assert (suspended["preview_url"], failed["preview_url"]) == (site["preview_url"], None)


@pytest.mark.parametrize("name", [DOMAIN, f"shop.{DOMAIN}", f"a-b-0a1b2c3d4e5f.{DOMAIN}"])
async def test_nobody_takes_a_name_of_the_previews(world: World, name: str) -> None:
    await enable(world)
    site = await world.create("a.example")

    answers = [
        await world.ada.post("/sites", {"domain": name, "type": "static"}),
        await world.root.post("/sites", {"domain": name, "type": "static", "admin_email": "ada@example.com"}),
        await world.ada.post("/sites", {"domain": "b.example", "type": "static", "aliases": [name]}),
        await world.ada.post(f"/sites/{site['id']}/domains", {"name": name}),
    ]

    assert [each.status_code for each in answers] == [409] * 4
    assert f"{name} is a name for previews of sites" in answers[0].json()["error"]["message"]


async def test_only_administrators_have_sites_next_to_the_previews(world: World) -> None:
    await enable(world)
    site = {"domain": "shop.example.net", "type": "static"}

    of_customer = await world.ada.post("/sites", site)
    for_customer = await world.root.post("/sites", {**site, "admin_email": "ada@example.com"})
    await world.panel.person("op@example.com", "administrator")
    own = await world.root.post("/sites", {**site, "admin_email": "op@example.com"})
    given = await world.root.patch(f"/sites/{own.json()['id']}", {"owner_email": "ada@example.com"})

    assert [each.status_code for each in (of_customer, for_customer, own, given)] == [409, 409, 201, 409]
    assert "the provider's domain for previews" in of_customer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("domain", "status"),
    [
        ("Vorschau.B\u00dcCHER.example", 400),
        ("PREVIEWS.Example.net", 200),
        ("com", 400),
        ("co.uk", 400),
        ("192.0.2.1", 400),
        ("previews.local", 400),
        ("a.panel.host.example", 400),
        ("previews.host.example", 400),
        ("site.example.org", 409),
        ("example.org", 409),
        ("previews.example.org", 409),
        (f"{'a' * 60}.{'b' * 60}.{'c' * 60}.example", 400),
    ],
)
async def test_previews_are_at_no_name_where_they_could_harm(
    panel_database: Database, tmp_path: Path, domain: str, status: int
) -> None:
    async with world_of(panel_database, tmp_path, origins=("https://panel.host.example",)) as world:
        await world.create("site.example.org")

        answer = await world.root.patch("/settings", {"preview_domain": domain})

        kept = (await world.root.get("/settings")).json()["preview_domain"]
    assert answer.status_code == status, answer.text
    assert kept == ("previews.example.net" if status == 200 else "")


async def test_a_name_that_is_being_claimed_there_keeps_the_previews_away(world: World) -> None:
    site, database = await world.create("a.example"), world.panel.database
    answers: list[int] = []

    async def enabling() -> None:
        answers.append((await world.root.patch("/settings", {"preview_domain": DOMAIN})).status_code)

    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await claim(tx, UUID(site["id"]), world.ada_id, [site_name(f"shop.{DOMAIN}")])
            nursery.start_soon(enabling)
            # It waits for the end of the claim.
            while not answers and not await database.fetchval(
                """SELECT true FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
            ):
                pass

    assert answers == [409]
    assert (await world.root.get("/settings")).json()["preview_domain"] == ""


async def test_customers_change_no_setting(world: World) -> None:
    assert (await world.ada.patch("/settings", {"preview_domain": DOMAIN})).status_code == 403


@pytest.mark.parametrize(
    "name",
    [
        "shop.example.org",
        "xn--bcher-kva.example",
        "a--b.example",
        f"{'a-' * 31}b.example",
        f"{'x' * 63}.{'y' * 63}.example",
    ],
)
def test_a_preview_name_is_a_label_that_browsers_accept_and_stays_the_same(name: str) -> None:
    label, _, domain = preview_name(SITE, name, DOMAIN).partition(".")

    assert domain == DOMAIN
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9]|-(?!-)){1,61}[a-z0-9]", label)
    assert preview_name(SITE, name, DOMAIN) == f"{label}.{DOMAIN}"
    assert preview_name(uuid4(), name, DOMAIN) != f"{label}.{DOMAIN}"
    assert len(preview_name(SITE, name, "a" * LONGEST_DOMAIN)) <= 253
