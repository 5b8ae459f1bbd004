"""What a billing system orders of the panel: accounts with plans, suspended, put back and ended, each order once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc_actors.store import Database
from svc_webhost.nginx import StaticRoot, Suspended
from tests.panel.sites.world import World, world_of
from tests.support.harness import PASSWORD

ORDER = {"email": "cy@example.com", "name": "Cy", "plan": "small", "password": "Correct-Horse-43"}


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path) as made:
        await made.root.post("/plans", {"name": "small", "sites": 2, "disk_mib": 100, "memory_mib": 256})
        await made.root.post("/plans", {"name": "large", "sites": 10, "memory_mib": 512})
        yield made


async def account(world: World, **further: Any) -> dict[str, Any]:
    answer = await world.root.post("/accounts", ORDER | further)
    assert answer.status_code == 201, answer.text
    return cast(dict[str, Any], answer.json())


async def test_an_account_comes_with_its_plan_and_its_first_site(world: World) -> None:
    made = await account(world, domain="cy.example")

    assert (made["plan"], made["allowed"]["sites"], made["used"]["sites"]) == ("small", 2, 1)
    assert made["site"]["status"] == "active"
    assert made["site"]["limits"]["memory_mib"] == 256
    assert isinstance(cast(Any, world.served("cy.example")).serves, StaticRoot)
    browser = world.panel.browser()
    signed_in = await browser.post("/auth/login", {"email": "cy@example.com", "password": ORDER["password"]})
    assert signed_in.status_code == 200
    own = (await browser.get("/accounts")).json()["items"]
    assert [each["email"] for each in own] == ["cy@example.com"]


async def test_an_order_with_a_key_is_done_once(world: World) -> None:
    order = ORDER | {"domain": "cy.example", "idempotency_key": "order-7"}

    first = await world.root.post("/accounts", order)
    again = await world.root.post("/accounts", order)
    other = await world.root.post("/accounts", order | {"name": "Somebody else"})

    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json() == again.json()
    assert await world.panel.database.fetchval("SELECT count(*) FROM users WHERE email = 'cy@example.com'") == 1


async def test_an_order_whose_answer_was_lost_finds_what_it_has_made(world: World) -> None:
    order = ORDER | {"domain": "cy.example", "idempotency_key": "order-7"}
    first = await world.root.post("/accounts", order)
    # As a core that was killed before it had kept the answer leaves it.
    await world.panel.database.execute("DELETE FROM idempotency_keys")

    again = await world.root.post("/accounts", order)

    assert again.json() == first.json()


async def test_what_an_order_cannot_have_is_refused_whole(world: World) -> None:
    no_plan = await world.root.post("/accounts", ORDER | {"plan": "none such"})
    taken = await world.root.post("/accounts", ORDER | {"email": "ada@example.com"})
    not_served = await world.root.post("/accounts", ORDER | {"domain": "panel.test"})
    unsaid = await world.root.post("/accounts", ORDER | {"domain": "cy.example", "type": "app"})
    nowhere = await world.root.post("/accounts", ORDER | {"type": "php"})

    assert [answer.status_code for answer in (no_plan, taken, not_served, unsaid, nowhere)] == [404, 409, 400, 400, 400]
    assert await world.panel.database.fetchval("SELECT count(*) FROM users WHERE email = 'cy@example.com'") == 0


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"type": "php", "php_version": "7.4"}, "active"),
        ({"type": "app", "runtime": "node", "entry": "server.js"}, "active"),
        ({"type": "wordpress", "title": "Cy's blog"}, "creating"),
    ],
)
async def test_the_first_site_is_of_the_type_that_was_ordered(world: World, said: dict[str, Any], status: str) -> None:
    made = (await world.root.post("/accounts", ORDER | {"domain": "cy.example", **said})).json()

    await world.panel.jobs_ended()
    site = (await world.root.get(f"/sites/{made['site']['id']}")).json()

    assert (made["site"]["type"], made["site"]["status"]) == (said["type"], status)
    assert (site["status"], site["owner_email"]) == ("active", "cy@example.com")


async def test_a_customer_orders_nothing_and_sees_no_other_account(world: World) -> None:
    made = await account(world)
    path = f"/accounts/{made['id']}"

    orders = [
        await world.ada.post("/accounts", ORDER | {"email": "dy@example.com"}),
        await world.ada.post(f"{path}/suspend", {"reason": "spite"}),
        await world.ada.post(f"{path}/unsuspend", {}),
        await world.ada.post(f"{path}/plan", {"plan": "large"}),
        await world.ada.delete(path, {"confirm": "cy@example.com"}),
        await world.ada.post("/plans", {"name": "huge"}),
        await world.ada.get("/plans"),
    ]

    assert {answer.status_code for answer in orders} == {403}
    assert (await world.ada.get(path)).status_code == 404
    assert (await world.ada.get(f"/accounts/{world.ada_id}")).json()["email"] == "ada@example.com"


async def test_a_plan_is_kept_to_exactly_however_many_create_at_once(world: World) -> None:
    made = await account(world)
    cy = world.panel.program(await world.panel.token(made["id"]))
    answers: list[Any] = []

    async def create(number: int) -> None:
        while True:
            answer = await cy.post("/sites", {"domain": f"s{number}.example", "type": "static"})
            if answer.status_code != 503:  # On a slow machine some wait too long for a connection, and ask again.
                answers.append(answer)
                return

    async with trio.open_nursery() as nursery:
        for number in range(64):
            nursery.start_soon(create, number)

    refused = [answer.json()["error"]["message"] for answer in answers if answer.status_code == 409]
    assert {answer.status_code for answer in answers} == {201, 409}
    assert len(refused) == 62
    assert all("small allows 2 sites" in message for message in refused)
    assert await world.panel.database.fetchval("SELECT count(*) FROM sites WHERE owner_id = $1", made["id"]) == 2


async def test_a_plan_that_allows_less_than_there_is_has_to_be_accepted(world: World) -> None:
    made = await account(world, plan="large")
    cy = world.panel.program(await world.panel.token(made["id"]))
    for number in range(3):
        await world.create(f"s{number}.example", cy)
    path = f"/accounts/{made['id']}/plan"

    refused = await world.root.post(path, {"plan": "small"})
    kept = (await world.root.get(f"/accounts/{made['id']}")).json()["plan"]
    accepted = await world.root.post(path, {"plan": "small", "accept_over_use": True})
    further = await cy.post("/sites", {"domain": "s4.example", "type": "static"})
    sites = (await cy.get("/sites")).json()["items"]

    assert refused.status_code == 409
    assert "3 sites, 2 are allowed" in refused.json()["error"]["message"]
    assert kept == "large"
    assert accepted.json()["over"] == ["3 sites, 2 are allowed"]
    assert further.status_code == 409
    assert [site["limits"]["memory_mib"] for site in sites] == [256] * 3


async def test_a_limit_of_one_site_outlives_a_change_of_its_plan(world: World) -> None:
    made = await account(world, domain="cy.example")
    site = f"/sites/{made['site']['id']}"
    await world.root.patch(site, {"memory_mib": 1024})

    await world.root.post(f"/accounts/{made['id']}/plan", {"plan": "large"})
    plans = {plan["name"]: plan for plan in (await world.root.get("/plans")).json()["items"]}
    await world.root.patch(f"/plans/{plans['large']['id']}", {"processes": 50})

    limits = (await world.root.get(site)).json()["limits"]
    assert (limits["memory_mib"], limits["processes"]) == (1024, 50)
    assert plans["large"]["accounts"] == 1
    assert (await world.root.delete(f"/plans/{plans['large']['id']}")).status_code == 409
    assert (await world.root.delete(f"/plans/{plans['small']['id']}")).status_code == 200


async def test_a_suspended_account_has_nothing_that_works_until_it_is_put_back(world: World) -> None:
    site, by_itself = await world.create("a.example"), await world.create("b.example")
    await world.root.post(f"/sites/{by_itself['id']}/suspend", {"reason": "spam"})
    path = f"/accounts/{world.ada_id}"
    browser = world.panel.browser()

    first = await world.root.post(f"{path}/suspend", {"reason": "not paid"})
    again = await world.root.post(f"{path}/suspend", {"reason": "still not paid"})

    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["status"] == "suspended"
    assert isinstance(cast(Any, world.served("a.example")).serves, Suspended)
    assert (await world.ada.get("/sites")).status_code == 401
    told = await browser.post("/auth/login", {"email": "ada@example.com", "password": PASSWORD})
    assert (told.status_code, "still not paid" in told.text) == (403, True)
    for_them = {"domain": "c.example", "type": "static", "owner_email": "ada@example.com"}
    assert (await world.root.post("/sites", for_them)).status_code == 403

    back = await world.root.post(f"{path}/unsuspend", {})
    twice = await world.root.post(f"{path}/unsuspend", {})

    assert (back.json()["status"], twice.json()["status"]) == ("active", "active")
    assert isinstance(cast(Any, world.served("a.example")).serves, StaticRoot)
    assert isinstance(cast(Any, world.served("b.example")).serves, Suspended)
    assert (await world.ada.get(f"/sites/{site['id']}")).json()["status"] == "active"
    assert [event for event, body in await world.told() if site["id"] in body] == [
        "site.created",
        "site.suspended",
        "site.unsuspended",
    ]


async def test_putting_an_account_back_lifts_no_suspension_of_the_person(world: World) -> None:
    await world.root.post(f"/accounts/{world.ada_id}/suspend", {"reason": "not paid"})
    await world.root.post(f"/admin/users/{world.ada_id}/suspend", {"reason": "abuse"})

    after = await world.root.post(f"/accounts/{world.ada_id}/unsuspend", {})

    assert after.json()["suspension_reason"] == "abuse"
    assert (await world.ada.get("/sites")).status_code == 401


async def test_a_site_that_is_being_created_is_suspended_with_its_account(world: World) -> None:
    reached, go_on = trio.Event(), trio.Event()

    async def hold(step: str) -> None:
        if step == "make":
            reached.set()
            await go_on.wait()

    world.accounts.before = hold
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.ada.post, "/sites", {"domain": "a.example", "type": "static"})
        await reached.wait()
        await world.root.post(f"/accounts/{world.ada_id}/suspend", {"reason": "not paid"})
        go_on.set()

    site = (await world.root.get("/sites")).json()["items"][0]
    assert (site["status"], site["suspended_by"]) == ("suspended", "account")
    assert isinstance(cast(Any, world.served("a.example")).serves, Suspended)


async def test_an_account_that_is_being_ended_is_not_put_back(world: World) -> None:
    reached, go_on = trio.Event(), trio.Event()

    async def hold(step: str) -> None:
        if step == "remove":
            reached.set()
            await go_on.wait()

    await world.create("a.example")
    world.accounts.before = hold
    path = f"/accounts/{world.ada_id}"
    ending = (await world.root.delete(path, {"confirm": "ada@example.com"})).json()
    await reached.wait()

    refused = await world.root.post(f"{path}/unsuspend", {})
    held = (await world.root.get(path)).json()["status"]
    go_on.set()
    job = await world.job_of(world.root, ending)

    assert (refused.status_code, held) == (409, "suspended")
    assert f"The job {ending['id']} is terminating" in refused.json()["error"]["message"]
    assert job["status"] == "succeeded"


async def test_the_end_of_an_account_leaves_nothing_of_it(world: World) -> None:
    site, _ = await world.create("a.example"), await world.create("b.example")
    record = await world.ada.post(
        f"/sites/{site['id']}/dns/records", {"name": "@", "data": {"type": "TXT", "text": "kept"}}
    )
    path = f"/accounts/{world.ada_id}"

    wrong = await world.root.delete(path, {"confirm": "bob@example.com"})
    answer = await world.root.delete(path, {"confirm": "ada@example.com"})
    job = await world.job_of(world.root, answer.json())

    assert (record.status_code, wrong.status_code) == (201, 400)
    assert (answer.json()["status"], job["status"]) == ("queued", "succeeded")
    assert world.web.sites == {}
    assert world.accounts.pages == {}
    assert (await world.root.get(path)).status_code == 404
    left = await world.panel.database.fetchone("SELECT (SELECT count(*) FROM sites), (SELECT count(*) FROM dns_zones)")
    assert tuple(left) == (0, 0)
