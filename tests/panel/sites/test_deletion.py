"""Sites are deleted, by a job that leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from svc_actors.panel.host_work import HostWork, Ordered, Work
from svc_actors.panel.sites.serving import server_of
from svc_webhost.accounts import AccountError
from svc_webhost.nginx import SiteServer
from tests.panel.sites.world import World


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
    reached, go_on, past, waits = trio.Event(), trio.Event(), trio.Event(), trio.Event()

    async def hold(*what: Any) -> SiteServer | None:
        """As the change has read the site, and has not told the web server."""
        server = await server_of(*what)
        reached.set()
        await go_on.wait()
        return server

    async def note(step: str) -> None:
        past.set()

    order = HostWork.order

    def ordered(self: HostWork, key: str, kind: str, do: Work, *, what: str) -> Ordered[None]:
        if kind == "end":
            waits.set()
        return order(self, key, kind, do, what=what)

    monkeypatch.setattr(HostWork, "order", ordered)
    monkeypatch.setattr("svc_actors.panel.sites.site.server_of", hold)
    world.accounts.before = note
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.ada.patch, f"/sites/{made['id']}", {"force_https": True})
        await reached.wait()
        job = (await world.ada.delete(f"/sites/{made['id']}", {"confirm": "a.example"})).json()
        with trio.fail_after(60):
            while not past.is_set() and not waits.is_set():
                await trio.sleep(0.01)
        go_on.set()

    assert (await world.job_of(world.ada, job))["status"] == "succeeded"
    assert world.web.sites == {}
