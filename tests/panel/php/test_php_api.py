"""Sites with PHP as their owners see them: created, set, restarted, suspended and deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc_actors.panel.sites import programs
from svc_actors.panel.sites.resuming import resume_sites
from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import Limits
from svc_webhost.nginx import Php, Suspended
from svc_webhost.php import Pool, socket_of
from svc_webhost.site_runtime import site_group
from tests.panel.sites.world import World, world_of
from tests.support.panel import RecordedLauncher
from tests.support.panel_php import RecordedPhp


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left running for those who came late."""
    monkeypatch.setattr(programs, "GRACE_SECONDS", 0.0)


async def look(world: World) -> None:
    """The panel compares the records with what runs, and what it stops has ended."""
    await world.panel.step("programs of sites")


def php_of(world: World) -> RecordedPhp:
    return cast(RecordedPhp, world.panel.host.php)


def served_socket(world: World, domain: str) -> str:
    server = world.served(domain)
    assert server is not None
    assert isinstance(server.serves, Php)
    return server.serves.socket


def socket(world: World, pool: Pool) -> str:
    return str(socket_of(pool, world.panel.services.config.folders))


async def php_site(world: World, domain: str = "shop.example.net", **values: Any) -> dict[str, Any]:
    return await world.create(domain, **({"type": "php"} | values))


async def test_a_site_with_php_has_the_newest_version_and_is_served_by_what_answers(world: World) -> None:
    site = await php_site(world)

    [pool] = php_of(world).of(site["number"])

    assert site["status"] == "active"
    assert site["php"] == {"version": "8.2"}
    assert pool.version == "8.2"
    assert served_socket(world, "shop.example.net") == socket(world, pool)


async def test_a_version_that_the_server_does_not_have_is_refused_with_those_that_it_has(world: World) -> None:
    site = await php_site(world, php_version="7.4")
    refused = await world.ada.post("/sites", {"domain": "b.example.net", "type": "php", "php_version": "8.4"})
    changed = await world.ada.patch(f"/sites/{site['id']}/php", {"version": "8.4"})
    none = await world.ada.post("/sites", {"domain": "c.example.net", "type": "static", "php_version": "8.2"})

    assert site["php"] == {"version": "7.4"}
    for answer in (refused, changed):
        assert answer.status_code == 400
        assert answer.json()["error"]["hint"] == "It has 8.2, 7.4."
    assert none.status_code == 400


async def test_versions_and_extensions_are_listed(world: World) -> None:
    site = await php_site(world)

    versions = (await world.ada.get("/php/versions")).json()
    extensions = (await world.ada.get(f"/sites/{site['id']}/php/extensions")).json()

    assert versions == [{"version": "8.2", "newest": True}, {"version": "7.4", "newest": False}]
    assert extensions == [{"name": "curl", "enabled": False}, {"name": "opcache", "enabled": True}]


async def test_settings_are_changed_one_by_one_and_the_web_server_goes_over_to_what_has_them(world: World) -> None:
    site = await php_site(world)
    [before] = php_of(world).of(site["number"])

    await world.ada.patch(f"/sites/{site['id']}/php", {"memory_limit_mib": 96})
    changed = await world.ada.patch(f"/sites/{site['id']}/php", {"version": "7.4", "display_errors": True})
    shown = (await world.ada.get(f"/sites/{site['id']}/php")).json()
    now = php_of(world).started[-1]

    assert changed.status_code == 200
    assert shown["version"] == "7.4"
    assert shown["settings"]["memory_limit_mib"] == 96
    assert shown["settings"]["display_errors"] is True
    assert shown["settings"]["max_input_vars"] == 5000
    assert now.settings.memory_limit_mib == 96
    assert served_socket(world, "shop.example.net") == socket(world, now) != socket(world, before)


async def test_what_served_before_runs_on_for_those_whose_upload_it_began_with(world: World) -> None:
    site = await php_site(world)
    [before] = php_of(world).of(site["number"])

    await world.ada.post(f"/sites/{site['id']}/php/restart")
    for _ in range(3):
        await look(world)

    assert php_of(world).of(site["number"]) == [before, replace(before, restarts=1)]


@pytest.mark.usefixtures("no_grace")
async def test_it_is_stopped_when_that_time_is_over(world: World) -> None:
    site = await php_site(world)
    [before] = php_of(world).of(site["number"])

    await world.ada.post(f"/sites/{site['id']}/php/restart")
    await look(world)

    assert php_of(world).of(site["number"]) == [replace(before, restarts=1)]
    assert php_of(world).stopped == [before.service_name]


@pytest.mark.usefixtures("no_grace")
async def test_it_is_looked_at_as_soon_as_the_web_server_has_gone_over(
    panel_database: Database, tmp_path: Path
) -> None:
    async with world_of(panel_database, tmp_path, loops=["programs of sites"]) as world:
        site = await php_site(world)
        [before] = php_of(world).of(site["number"])
        stopping = trio.Event()

        async def note() -> None:
            stopping.set()

        php_of(world).before_stop = note
        await world.ada.post(f"/sites/{site['id']}/php/restart")

        with trio.fail_after(programs.ROUND_SECONDS / 2):
            await stopping.wait()

    assert php_of(world).stopped == [before.service_name]


@pytest.mark.usefixtures("no_grace")
async def test_php_that_does_not_answer_leaves_what_served_before_untouched(world: World) -> None:
    site = await php_site(world)
    [before] = php_of(world).of(site["number"])
    php_of(world).refuses["7.4"] = "Unable to load a library"

    refused = await world.ada.patch(f"/sites/{site['id']}/php", {"version": "7.4"})
    await look(world)
    still = php_of(world).of(site["number"])
    socket_then = served_socket(world, "shop.example.net")
    php_of(world).refuses.clear()
    await resume_sites(world.panel.database, world.panel.services.actors)
    now = replace(before, version="7.4")
    await look(world)

    assert php_of(world).of(site["number"]) == [now]
    assert refused.status_code == 503
    assert "Unable to load a library" in refused.json()["error"]["message"]
    assert still == [before]
    assert socket_then == socket(world, before)
    assert served_socket(world, "shop.example.net") == socket(world, now)


async def test_limits_of_a_site_reach_what_runs_without_another_start(world: World) -> None:
    launcher = cast(RecordedLauncher, world.panel.host.launcher)
    site = await php_site(world, by=world.root, owner_email="ada@example.com", memory_mib=256, processes=30)

    await world.root.patch(f"/sites/{site['id']}", {"cpu_percent": 50, "processes": None})
    refused = await world.ada.post("/sites", {"domain": "b.example.net", "type": "php", "memory_mib": 4096})

    assert site["limits"] == {"cpu_percent": None, "memory_mib": 256, "processes": 30, "disk_mib": None}
    assert [pool.limits for pool in php_of(world).started] == [Limits(None, 256, 30), Limits(50, 256, None)]
    assert len({pool.service_name for pool in php_of(world).started}) == 1
    assert launcher.limits[site_group(SiteAccount(site["number"]))] == Limits(50, 256, None)
    assert refused.status_code == 403


@pytest.mark.usefixtures("no_grace")
async def test_a_suspended_site_has_no_php_and_gets_it_back_before_visitors_come(world: World) -> None:
    site = await php_site(world)
    [pool] = php_of(world).of(site["number"])

    await world.ada.post(f"/sites/{site['id']}/suspend", {"suspended": True, "reason": "unpaid"})
    suspended = world.served("shop.example.net")
    await look(world)
    stopped = php_of(world).of(site["number"])
    await world.ada.post(f"/sites/{site['id']}/suspend", {"suspended": False})
    back = php_of(world).of(site["number"])

    assert suspended is not None
    assert isinstance(suspended.serves, Suspended)
    assert stopped == []
    assert back == [pool]
    assert served_socket(world, "shop.example.net") == socket(world, pool)


async def test_nothing_of_php_is_left_of_a_deleted_site(world: World) -> None:
    site = await php_site(world)

    job = await world.delete(site)

    assert job["status"] == "succeeded"
    assert php_of(world).of(site["number"]) == []


@pytest.mark.usefixtures("no_grace")
async def test_what_a_power_cut_ended_is_started_again_and_strays_are_stopped(world: World) -> None:
    site = await php_site(world)
    [pool] = php_of(world).of(site["number"])
    nobodys = Pool(SiteAccount(9999), "8.2")

    php_of(world).pools = {nobodys.service_name: nobodys}
    await look(world)

    assert php_of(world).of(site["number"]) == [pool]
    assert php_of(world).of(9999) == []
    assert php_of(world).stopped == [nobodys.service_name]


@pytest.mark.usefixtures("no_grace")
async def test_php_that_runs_keeps_what_it_would_be_started_with_again(world: World) -> None:
    site = await php_site(world)
    [pool] = php_of(world).of(site["number"])

    await look(world)

    assert pool in php_of(world).held


@pytest.mark.usefixtures("no_grace")
async def test_php_that_cannot_be_started_again_is_an_alert_until_it_is(world: World) -> None:
    site = await php_site(world)
    php_of(world).refuses["8.2"] = "out of memory"
    php_of(world).pools.clear()

    async def alerts() -> list[str]:
        rows = await world.panel.database.fetch(
            "SELECT message FROM alerts WHERE closed_at IS NULL AND key LIKE 'php:%'"
        )
        return [row["message"] for row in rows]

    await look(world)
    raised = await alerts()
    php_of(world).refuses.clear()
    await look(world)

    assert raised == [f"PHP of site {site['number']} does not run: out of memory"]
    assert await alerts() == []
    assert len(php_of(world).of(site["number"])) == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/php", None),
        ("PATCH", "/php", {"workers": 2}),
        ("POST", "/php/restart", {}),
        ("GET", "/php/extensions", None),
    ],
)
async def test_a_foreign_site_and_one_without_php_have_none(
    world: World, method: str, path: str, body: dict[str, Any] | None
) -> None:
    hers = await php_site(world)
    static = await world.create("static.example.net")

    foreign = await world.bob.call(method, f"/sites/{hers['id']}{path}", body)
    without = await world.ada.call(method, f"/sites/{static['id']}{path}", body)

    assert foreign.status_code == without.status_code == 404


async def test_what_php_says_is_a_log_of_the_site(world: World) -> None:
    site = await php_site(world)
    folder = world.panel.services.config.folders.site_logs / site["account"]
    folder.mkdir(parents=True)
    (folder / "php.log").write_text("PHP Warning: one\nPHP Notice: two\n")

    sources = (await world.ada.get(f"/sites/{site['id']}/logs/sources")).json()
    lines = (await world.ada.get(f"/sites/{site['id']}/logs?source=php&q=Warning")).json()["lines"]

    assert {"access", "error", "php"} <= {source["source"] for source in sources}
    assert lines == ["PHP Warning: one"]


async def test_masters_are_looked_at_for_ten_minutes_without_a_request(world: World) -> None:
    await php_site(world)

    await look(world)

    assert php_of(world).rested == [600.0]


async def test_what_was_started_for_a_site_that_is_gone_leaves_nothing(world: World) -> None:
    site = await php_site(world)
    [pool] = php_of(world).of(site["number"])
    await world.delete(site)
    php_of(world).removed.clear()

    # By who had read the record before it was removed.
    await php_of(world).start(pool)
    await look(world)

    assert php_of(world).of(site["number"]) == []
    assert php_of(world).removed == [pool.account]


@pytest.mark.usefixtures("no_grace")
async def test_a_site_that_is_put_back_while_its_php_is_being_stopped_has_it_again(world: World) -> None:
    site = await php_site(world)
    stopping, let_go = trio.Event(), trio.Event()

    async def hang() -> None:
        stopping.set()
        await let_go.wait()

    php_of(world).before_stop = hang
    php_of(world).done.clear()
    await world.ada.post(f"/sites/{site['id']}/suspend", {"suspended": True, "reason": "holidays"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, world)
        await stopping.wait()
        nursery.start_soon(world.ada.post, f"/sites/{site['id']}/suspend", {"suspended": False})
        with trio.fail_after(60):
            while (await world.ada.get(f"/sites/{site['id']}")).json()["status"] != "active":
                await trio.sleep(0.01)
        let_go.set()

    # Not before it has ended, which would take what was started as well.
    assert php_of(world).done[:3] == ["stop", "stopped", "start"]
    assert len(php_of(world).of(site["number"])) == 1
