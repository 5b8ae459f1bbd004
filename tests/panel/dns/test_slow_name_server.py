"""A name server that takes its time: no message waits for it, and what it was last seen to serve stays right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from svc.service.panel import compose
from svc_actors.panel.dns import zone as zones
from svc_actors.panel.dns.records import DATA, RecordRow, ZoneRow, read_zone
from svc_actors.panel.dns.zone import DnsZone, ZoneChange
from svc_actors.panel.host_work import HostWork
from svc_actors.store import Database, service_itself
from svc_webhost.knot import KnotError, Zone, ZoneOutcome
from tests.panel.dns.zones import A, World, dns_world
from tests.support.dns import RecordedNameServer
from tests.support.panel_sites import site_row


@dataclass
class SlowNameServer(RecordedNameServer):
    """Each agreement waits until it `may`: one for each time."""

    asked: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(0))
    may: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(0))

    async def agree(self, zone: Zone, last_serial: int | None = None) -> ZoneOutcome:
        self.asked.release()
        await self.may.acquire()
        return await super().agree(zone, last_serial)


@dataclass
class SlowWorld:
    dns: World
    knot: SlowNameServer

    async def add(self, name: str, *, owner: Any = None) -> ZoneChange[RecordRow]:
        """As the operation asks, without the wait for the name server."""
        with trio.fail_after(5):
            return await self.dns.panel.services.actors.ref(DnsZone, "example.test").ask(
                DnsZone.add,
                service_itself("dns.create"),
                owner or self.dns.ada_id,
                f"{name}.example.test",
                None,
                DATA.validate_python(A),
            )

    async def row(self) -> ZoneRow:
        row = await read_zone(self.dns.panel.database, "example.test")
        assert row is not None
        return row


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[SlowWorld]:
    knot = SlowNameServer()
    async with dns_world(panel_database, tmp_path, knot) as dns:
        yield SlowWorld(dns, knot)
        for _ in range(10):
            knot.may.release()


async def test_a_zone_takes_messages_while_its_name_server_does_not_answer(world: SlowWorld) -> None:
    first = await world.add("one")
    await world.knot.asked.acquire()

    others = [await world.add(name) for name in ("two", "three")]
    meanwhile = await world.row()
    world.knot.may.release()
    world.knot.may.release()
    served = [await change.finished() for change in (first, *others)]

    assert (meanwhile.served, meanwhile.problem) == (False, None)
    assert [row.served for row in served] == [True, True, True]
    # Those that came while it was busy are one agreement more, of the last revision.
    assert [row.revision for row in served] == [meanwhile.revision - 2, meanwhile.revision, meanwhile.revision]
    assert world.knot.compared == ["example.test"] * 2
    assert (await world.row()).served is True


async def test_an_agreement_that_ends_after_a_later_change_is_recorded_as_what_it_is(world: SlowWorld) -> None:
    first = await world.add("one")
    await world.knot.asked.acquire()
    second = await world.add("two")

    world.knot.may.release()
    earlier = await first.finished()
    await world.knot.asked.acquire()
    between = await world.row()
    shown = (await world.dns.ada.get(f"/sites/{world.dns.site}/dns")).json()["zone"]
    world.knot.may.release()
    later = await second.finished()

    assert earlier.served is True
    assert (between.served_revision, between.revision) == (earlier.revision, later.revision)
    assert (shown["served"], shown["problem"]) == (False, None)
    assert later.served is True


@pytest.mark.parametrize("refused", [False, True])
async def test_the_outcome_of_a_later_revision_is_not_written_over(world: SlowWorld, refused: bool) -> None:
    """As a core that is ending could, next to the one that follows it."""
    root = await world.dns.panel.administrator()
    change = await world.add("one")
    await world.knot.asked.acquire()
    await world.dns.panel.database.execute("UPDATE dns_zones SET revision = 9, served_revision = 9, serial = 90")
    if refused:
        world.knot.refused["example.test"] = KnotError("semantic check failed")

    world.knot.may.release()
    await change.finished()

    row = await world.row()
    assert (row.served_revision, row.serial, row.problem) == (9, 90, None)
    assert (await root.get("/alerts")).json()["items"] == []


async def test_the_outcome_of_a_removed_zone_is_not_that_of_the_one_in_its_place(world: SlowWorld) -> None:
    await world.add("one")
    await world.knot.asked.acquire()
    await world.dns.panel.database.execute("DELETE FROM sites WHERE id = $1", world.dns.site)
    bob = await world.dns.panel.person("bob@example.com")
    await site_row(world.dns.panel.database, bob, "example.test")
    his = await world.add("two", owner=bob)

    world.knot.may.release()
    await world.knot.asked.acquire()
    between = await world.row()
    world.knot.may.release()
    served = await his.finished()

    assert (between.owner_id, between.served_revision, between.serial) == (bob, 0, None)
    assert served.served is True
    assert world.knot.answers("one.example.test", "A") == set()
    assert world.knot.answers("two.example.test", "A") == {"192.0.2.1"}


async def test_an_agreement_that_takes_too_long_is_given_up_with_a_reason(
    world: SlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zones, "AGREEMENT_SECONDS", 0.05)

    change = await world.add("one")

    assert (await change.finished()).problem == "Knot has not completed the change within 0.05 seconds"
    assert (await world.row()).problem == "Knot has not completed the change within 0.05 seconds"


async def test_an_agreement_under_way_gets_time_to_end_when_the_service_stops(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knot, drain = SlowNameServer(), HostWork.drain

    async def answer_when_drained(self: HostWork, deadline: float) -> None:
        knot.may.release()
        await drain(self, deadline)

    monkeypatch.setattr(HostWork, "drain", answer_when_drained)
    monkeypatch.setattr(zones, "HOST_PATIENCE", 0.05)
    async with dns_world(panel_database, tmp_path, knot) as dns:
        added = await dns.add("www", **A)

    row = await read_zone(panel_database, "example.test")
    assert added.status_code == 201
    assert added.json()["zone"]["problem"] == "Knot has not completed the change within 0.05 seconds"
    assert row is not None
    assert row.served is True


async def test_an_agreement_that_a_stop_cuts_is_made_by_the_next_core(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "DRAIN_SECONDS", 0.05)
    monkeypatch.setattr(zones, "HOST_PATIENCE", 0.05)
    async with dns_world(panel_database, tmp_path, SlowNameServer()) as before:
        added = await before.add("www", **A)
    cut = await read_zone(panel_database, "example.test")

    knot = RecordedNameServer()
    async with dns_world(panel_database, tmp_path, knot) as after:
        await after.compare()

    assert added.status_code == 201
    assert cut is not None
    assert (cut.served, cut.problem) == (False, None)
    assert knot.answers("www.example.test", "A") == {"192.0.2.1"}
