"""That the name server follows the records: while it is away, after it lost a zone, after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.store import Database
from svc_common.errors import ServiceError
from svc_webhost.knot import KnotAway, KnotError, Zone, ZoneOutcome
from tests.panel.dns.zones import A, World, dns_world
from tests.support.dns import RecordedNameServer
from tests.support.panel import open_panel, recorded_host
from tests.support.panel_sites import site_row

AWAY = KnotAway("Knot does not answer")


async def test_a_change_stands_while_knot_is_away_and_is_served_when_it_is_back(world: World) -> None:
    world.knot.failure = AWAY

    created = await world.add("www", **A)
    shown = (await world.ada.get(f"/sites/{world.site}/dns")).json()["zone"]
    world.knot.failure = None
    await world.compare()
    after = (await world.ada.get(f"/sites/{world.site}/dns")).json()["zone"]

    assert created.status_code == 201
    assert created.json()["zone"]["served"] is False
    assert shown["problem"] == str(AWAY)
    assert after["served"] is True
    assert after["problem"] is None
    assert world.knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_a_knot_that_is_slow_is_told_of_as_one_that_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as a defect of the panel, which would refuse the next changes of the zone."""
    monkeypatch.setattr("svc_actors.panel.dns.zone.HOST_PATIENCE", 0.05)
    answers, agree = trio.Event(), world.knot.agree

    async def slowly(zone: Zone, last_serial: int | None = None) -> ZoneOutcome:
        await answers.wait()
        return await agree(zone, last_serial)

    monkeypatch.setattr(world.knot, "agree", slowly)

    created = [await world.add(f"www{number}", **A) for number in range(8)]
    answers.set()
    await world.compare()
    shown = (await world.ada.get(f"/sites/{world.site}/dns")).json()["zone"]

    assert {answer.status_code for answer in created} == {201}
    assert "has not completed the change within" in created[0].json()["zone"]["problem"]
    assert (shown["served"], shown["problem"]) == (True, None)


async def test_what_knot_refuses_is_an_alert_until_it_is_taken(world: World) -> None:
    root = await world.panel.administrator()
    world.knot.refused["example.test"] = KnotError("semantic check failed")

    refused = await world.add("www", **A)
    alerts = (await root.get("/alerts")).json()["items"]
    world.knot.refused.clear()
    await world.compare()
    closed = (await root.get("/alerts")).json()["items"]

    assert refused.json()["zone"]["problem"] == "semantic check failed"
    assert ["semantic check failed" in alert["message"] for alert in alerts] == [True]
    assert closed == []


async def test_the_alert_of_a_zone_is_closed_by_the_one_that_is_made_anew_in_its_place(world: World) -> None:
    root = await world.panel.administrator()
    bob_id = await world.panel.person("bob@example.com")
    bob = world.panel.program(await world.panel.token(bob_id))
    world.knot.refused["example.test"] = KnotError("semantic check failed")
    await world.add("www", **A)
    before = (await root.get("/alerts")).json()["items"]
    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", world.site)
    his = await site_row(world.panel.database, bob_id, "example.test")

    world.knot.refused.clear()
    await bob.post(f"/sites/{his}/dns/records", {"name": "www", "data": A})

    assert len(before) == 1
    assert (await root.get("/alerts")).json()["items"] == []


async def test_a_zone_that_cannot_be_removed_keeps_no_other_one_from_being_mended(world: World) -> None:
    gone = await site_row(world.panel.database, world.ada_id, "a.test")
    await world.ada.post(f"/sites/{gone}/dns/records", {"name": "www", "data": A})
    await world.added("www", **A)
    world.knot.refused["a.test"] = KnotError("the control socket is busy")
    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", gone)

    served = []
    for _ in range(2):  # Removed from the records by the first round, it is a stranger's to the second.
        world.knot.purge("example.test")
        with pytest.raises(ServiceError, match="the control socket is busy"):
            await world.compare()
        served.append(world.knot.answers("www.example.test", "A"))
    world.knot.refused.clear()
    await world.compare()

    assert served == [{"192.0.2.1"}] * 2
    assert "a.test" not in world.knot.zones


async def test_a_zone_that_knot_lost_or_never_should_have_had_is_mended(world: World) -> None:
    await world.added("www", **A)
    await world.knot.add(["stray.test"])
    world.knot.purge("example.test")

    await world.compare()

    assert "stray.test" not in world.knot.zones
    assert world.knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_a_core_that_died_between_record_and_knot_makes_them_agree_when_it_starts(
    panel_database: Database, tmp_path: Path
) -> None:
    knot = RecordedNameServer(failure=AWAY)
    async with dns_world(panel_database, tmp_path, knot) as before:
        await before.added("www", **A)
    knot.failure = None

    async with dns_world(panel_database, tmp_path, knot) as after:
        await after.compare()

    assert knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_new_name_servers_reach_all_zones_at_the_next_start(panel_database: Database, tmp_path: Path) -> None:
    knot = RecordedNameServer()
    async with dns_world(panel_database, tmp_path, knot) as before:
        await before.added("www", **A)

    settings = DnsSettings(("ns9.panel.test",))
    async with open_panel(panel_database, tmp_path, recorded_host(knot), dns=settings) as panel:
        await panel.step("zones")

    assert knot.answers("example.test", "NS") == {"ns9.panel.test."}


async def test_a_zone_goes_with_the_last_site_in_it(world: World) -> None:
    shop = await site_row(world.panel.database, world.ada_id, "shop.example.test", registrable="example.test")
    await world.added("www", **A)
    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", world.site)
    await world.compare()
    kept = (await world.ada.get(f"/sites/{shop}/dns")).json()

    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", shop)
    await world.compare()

    assert "example.test" not in world.knot.zones
    assert kept["zone"]["name"] == "example.test"
    assert [record["name"] for record in kept["records"]] == ["www.example.test"]
    assert await world.panel.database.fetchval("SELECT count(*) FROM dns_records") == 0
    assert (await world.panel.audit())[-1]["operation"] == "dns.release"
