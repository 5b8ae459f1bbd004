"""Sites by the API: created, changed, suspended, deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
import trio

from svc_actors.host.accounts import AccountError
from svc_actors.host.nginx import SiteServer, StaticRoot, Suspended
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.panel.sites.resuming import resume_sites
from svc_actors.panel.sites.serving import server_of
from svc_actors.store import Database
from tests.support.identity import Client
from tests.support.panel import PanelHarness, open_panel
from tests.support.panel_sites import RecordedAccounts
from tests.support.served import RecordedServing


@dataclass
class World:
    panel: PanelHarness
    accounts: RecordedAccounts
    web: RecordedServing
    ada: Client
    bob: Client
    root: Client
    ada_id: UUID

    async def create(self, domain: str, by: Client | None = None, **values: Any) -> dict[str, Any]:
        answer = await (by or self.ada).post("/sites", {"domain": domain, "type": "static", **values})
        assert answer.status_code == 201, answer.text
        return cast(dict[str, Any], answer.json())

    async def job_of(self, by: Client, job: dict[str, Any]) -> dict[str, Any]:
        """The job, when it has ended."""
        with trio.fail_after(60):
            while True:
                found = cast(dict[str, Any], (await by.get(f"/jobs/{job['id']}")).json())
                if found["ended_at"] is not None:
                    return found
                await trio.sleep(0.01)

    async def delete(self, site: dict[str, Any]) -> dict[str, Any]:
        """The job, when it has ended."""
        answer = await self.ada.delete(f"/sites/{site['id']}", {"confirm": site["domain"]})
        return await self.job_of(self.ada, answer.json())

    def served(self, domain: str) -> SiteServer | None:
        return next((server for server in self.web.sites.values() if server.domain == domain), None)

    async def told(self) -> list[tuple[str, str]]:
        """The webhooks' events: which, and of what."""
        rows = await self.panel.database.fetch("SELECT event, body FROM webhook_events ORDER BY at, event")
        return [(row["event"], row["body"].decode()) for row in rows]


@asynccontextmanager
async def world_of(
    database: Database,
    folder: Path,
    *,
    people: tuple[str, str] = ("ada@example.com", "bob@example.com"),
    dns: DnsSettings | None = None,
    origins: tuple[str, ...] = (),
) -> AsyncIterator[World]:
    async with open_panel(database, folder, dns=dns, origins=origins) as panel:
        ada_id, bob_id = [await panel.person(email) for email in people]
        yield World(
            panel,
            cast(RecordedAccounts, panel.host.accounts),
            cast(RecordedServing, panel.host.web),
            panel.program(await panel.token(ada_id)),
            panel.program(await panel.token(bob_id)),
            await panel.administrator(),
            ada_id,
        )


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path) as made:
        yield made


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


@pytest.mark.parametrize("type_", ["php", "wordpress", "app"])
async def test_a_type_that_is_not_served_yet_is_refused_with_what_is(world: World, type_: str) -> None:
    answer = await world.ada.post("/sites", {"domain": "a.example", "type": type_})

    assert answer.status_code == 400
    assert "static" in answer.json()["error"]["hint"]
    assert (await world.ada.get("/sites")).json()["total"] == 0


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
    assert "every half minute" in refused.json()["error"]["hint"]
    assert (waiting["status"], still["status"], made["status"]) == ("creating", "creating", "active")
    assert world.served("a.example") is not None
    assert [event for event, _ in await world.told()] == ["site.created"] * 2


async def test_a_suspended_site_shows_a_page_that_says_so(world: World) -> None:
    site = await world.create("a.example")
    path = f"/sites/{site['id']}/suspend"

    suspended = (await world.ada.post(path, {"suspended": True, "reason": "on holiday"})).json()
    served = world.served("a.example")
    again = await world.ada.post(path, {"suspended": True, "reason": "still on holiday"})
    back = (await world.ada.post(path, {"suspended": False})).json()
    back_again = await world.ada.post(path, {"suspended": False})

    assert (suspended["status"], suspended["reason"], suspended["suspended_by"]) == ("suspended", "on holiday", "owner")
    assert served is not None
    assert isinstance(served.serves, Suspended)
    assert again.json()["reason"] == "still on holiday"
    assert (back["status"], back["reason"], back["suspended_by"]) == ("active", None, None)
    assert back_again.status_code == 200
    server = world.served("a.example")
    assert server is not None
    assert isinstance(server.serves, StaticRoot)
    events = await world.told()
    assert [event for event, _ in events] == ["site.created", "site.suspended", "site.unsuspended"]
    assert "holiday" not in "".join(body for _, body in events)


async def test_what_an_administrator_suspended_its_owner_does_not_put_back(world: World) -> None:
    site = await world.create("a.example")
    path = f"/sites/{site['id']}/suspend"
    await world.root.post(path, {"suspended": True, "reason": "abuse"})

    refused = await world.ada.post(path, {"suspended": False})
    taken_over = await world.ada.post(path, {"suspended": True, "reason": "mine"})
    shown = (await world.ada.get(f"/sites/{site['id']}")).json()
    back = await world.root.post(path, {"suspended": False})

    assert refused.status_code == taken_over.status_code == 403
    assert (shown["status"], shown["reason"]) == ("suspended", "abuse")
    assert back.json()["status"] == "active"


async def test_a_suspension_has_a_reason(world: World) -> None:
    site = await world.create("a.example")

    answer = await world.ada.post(f"/sites/{site['id']}/suspend", {"suspended": True})

    assert answer.status_code == 400
    assert (await world.ada.get(f"/sites/{site['id']}")).json()["status"] == "active"


async def test_a_deletion_is_a_job_that_leaves_nothing(world: World) -> None:
    site = await world.create("a.example", aliases=["www.a.example"])
    await world.ada.post(f"/sites/{site['id']}/redirects", {"path": "/old", "target": "/new"})

    wrong = await world.ada.delete(f"/sites/{site['id']}", {"confirm": "b.example"})
    answer = await world.ada.delete(f"/sites/{site['id']}", {"confirm": "a.example"})
    job = await world.job_of(world.ada, answer.json())
    gone = await world.ada.get(f"/sites/{site['id']}")
    rows = await world.panel.database.fetchval(
        """SELECT (SELECT count(*) FROM sites) + (SELECT count(*) FROM site_domains)
                  + (SELECT count(*) FROM site_redirects)"""
    )
    anew = await world.create("a.example", world.bob)

    assert wrong.status_code == 400
    assert answer.json()["status"] == "queued"
    assert answer.json()["kind"] == "site.delete"
    assert job["status"] == "succeeded"
    assert gone.status_code == 404
    assert rows == 0
    assert world.accounts.ended == [site["account"]]
    assert set(world.accounts.pages) == {anew["account"]}
    assert list(world.web.sites) == [anew["number"]]
    assert anew["number"] > site["number"]


async def test_a_deletion_that_fails_leaves_a_site_that_can_be_deleted_again(world: World) -> None:
    site = await world.create("a.example")
    failing = True

    async def fail(step: str) -> None:
        if failing and step == "remove":
            raise AccountError("userdel: cannot lock /etc/passwd")

    world.accounts.before = fail
    first = await world.delete(site)
    left = (await world.ada.get(f"/sites/{site['id']}")).json()
    failing = False
    second = await world.delete(site)

    assert first["status"] == "failed"
    assert "cannot lock" in first["error"]["message"]
    assert left["status"] == "failed"
    assert "cannot lock" in left["reason"]
    assert second["status"] == "succeeded"
    assert (await world.ada.get(f"/sites/{site['id']}")).status_code == 404


async def test_while_a_site_is_being_deleted_nothing_else_is_done_to_it(world: World) -> None:
    site = await world.create("a.example")
    hold = trio.Event()

    async def wait(step: str) -> None:
        await hold.wait()

    world.accounts.before = wait
    job = (await world.ada.delete(f"/sites/{site['id']}", {"confirm": "a.example"})).json()
    path = f"/sites/{site['id']}"
    answers = [
        await world.ada.delete(path, {"confirm": "a.example"}),
        await world.ada.post(f"{path}/suspend", {"suspended": True, "reason": "x"}),
        await world.ada.patch(path, {"force_https": True}),
        await world.ada.post(f"{path}/domains", {"name": "b.example"}),
        await world.ada.post("/sites", {"domain": "a.example", "type": "static"}),
    ]
    hold.set()

    assert [answer.status_code for answer in answers] == [409] * 5
    assert (await world.job_of(world.ada, job))["status"] == "succeeded"


async def test_a_change_under_way_does_not_serve_a_site_again_that_is_deleted_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.create("a.example")
    reached, go_on, past = trio.Event(), trio.Event(), trio.Event()

    async def hold(*what: Any) -> SiteServer | None:
        """As the change has read the site, and has not told the web server."""
        server = await server_of(*what)
        reached.set()
        await go_on.wait()
        return server

    async def note(step: str) -> None:
        past.set()

    def waits() -> bool:
        return world.panel.services.actors.statistics().kinds["Site"].waiting > 0

    monkeypatch.setattr("svc_actors.panel.sites.site.server_of", hold)
    world.accounts.before = note
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.ada.patch, f"/sites/{made['id']}", {"force_https": True})
        await reached.wait()
        job = (await world.ada.delete(f"/sites/{made['id']}", {"confirm": "a.example"})).json()
        with trio.fail_after(60):
            while not past.is_set() and not waits():
                await trio.sleep(0.01)
        go_on.set()

    assert (await world.job_of(world.ada, job))["status"] == "succeeded"
    assert world.web.sites == {}


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


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:8000",
        "http://[::1]",
        "http://10.1.2.3",
        "http://169.254.169.254",
        "http://[::ffff:127.0.0.1]",
        "http://[fd00::1]",
        "http://100.64.0.1",
        "http://0.0.0.0",
        "http://localhost",
    ],
)
async def test_a_customer_is_no_proxy_of_what_is_not_public(world: World, target: str) -> None:
    refused = await world.ada.post("/sites", {"domain": "p.example", "type": "proxy", "proxy_target": target})
    allowed = await world.root.post("/sites", {"domain": "p.example", "type": "proxy", "proxy_target": target})

    assert refused.status_code == 400
    assert allowed.status_code in (201, 400, 503)
    assert (await world.ada.get("/sites")).json()["total"] == 0


async def test_a_proxy_is_served_from_the_addresses_that_were_looked_at(world: World) -> None:
    site = await world.create("p.example", type="proxy", proxy_target="https://1.1.1.1:8443")
    changed = await world.ada.patch(f"/sites/{site['id']}", {"proxy_target": "http://9.9.9.9"})
    inner = await world.ada.patch(f"/sites/{site['id']}", {"proxy_target": "http://127.0.0.1"})

    server = world.served("p.example")
    assert changed.status_code == 200
    assert inner.status_code == 400
    assert server is not None
    assert server.serves.model_dump(mode="json") == {
        "kind": "proxy",
        "host": "9.9.9.9",
        "port": 80,
        "addresses": ["9.9.9.9"],
        "tls": False,
    }


@pytest.mark.parametrize(
    "body",
    [
        {"type": "proxy"},
        {"type": "static", "proxy_target": "http://1.1.1.1"},
        {"type": "proxy", "proxy_target": "x"},
        {"type": "proxy", "proxy_target": "http://a:b@1.1.1.1"},
        {"type": "proxy", "proxy_target": "http://1.1.1.1/path"},
        {"type": "proxy", "proxy_target": "http://1.1.1.1:99999"},
    ],
)
async def test_a_proxy_and_nothing_else_has_a_target(world: World, body: dict[str, Any]) -> None:
    assert (await world.ada.post("/sites", {"domain": "p.example", **body})).status_code == 400
