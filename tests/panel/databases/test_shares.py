"""No site takes the engines from the others: its users share what it has, and what is suspended does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from svc_actors.panel.databases import agreeing, changes
from svc_actors.store import Database
from svc_webhost.databases import CONNECTIONS, Connections, EngineKind, Session, UserName
from tests.panel.databases.world import World, world_of
from tests.support.panel_sites import site_row


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path) as made:
        yield made


async def test_users_of_a_site_share_its_connections(world: World) -> None:
    database = (await world.create())["database"]["id"]
    for name in ("a", "b", "c"):
        await world.ada.post("/database-users", {"database_id": database, "name": name})
    shared = {name: user.connections for name, user in world.mariadb.accounts.items()}
    listed = (await world.ada.get("/database-users")).json()["items"]
    await world.ada.delete(f"/database-users/{listed[0]['id']}", {})

    assert set(shared.values()) == {10}
    assert {user.connections for user in world.mariadb.accounts.values()} == {15}


async def test_a_site_has_no_more_users_than_connections(world: World) -> None:
    database = (await world.create())["database"]["id"]
    answers = [
        await world.ada.post("/database-users", {"database_id": database, "name": f"n{number}"}) for number in range(21)
    ]

    assert [answer.status_code for answer in answers] == [201] * 20 + [409]
    assert sum(user.connections for user in world.mariadb.accounts.values()) <= CONNECTIONS[EngineKind.MARIADB].site


async def test_users_of_a_customer_share_its_connections_over_all_sites(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a customer has, the engine keeps some for the others."""
    few = dict.fromkeys(EngineKind, Connections(site=30, customer=8, server=24))
    for module in (changes, agreeing):
        monkeypatch.setattr(module, "CONNECTIONS", few)
    own, others = await world.create(), {"site_id": str(world.other_site), "name": "shop", "user": "n"}
    adas = await world.panel.database.fetchval("SELECT owner_id FROM sites WHERE id = $1", world.site)
    second = await site_row(world.panel.database, adas, "second.example.com")
    there = await world.create("more", site_id=str(second))
    await world.bob.post("/databases", others)
    answers = [
        await world.ada.post("/database-users", {"database_id": made["database"]["id"], "name": f"n{number}"})
        for number in range(5)
        for made in (own, there)
    ]
    await world.panel.services.databases.resume()
    shares = {name: user.connections for name, user in world.mariadb.accounts.items()}
    bobs = await world.panel.database.fetchval("SELECT number FROM sites WHERE id = $1", world.other_site)

    assert [answer.status_code for answer in answers] == [201] * 8 + [409] * 2
    assert shares.pop(UserName(f"s{bobs}_n")) == 8
    assert list(shares.values()) == [1] * 8


@pytest.mark.parametrize("connections", CONNECTIONS.values())
def test_two_customers_never_take_all_connections(connections: Connections) -> None:
    for of_customer in range(1, connections.customer + 1):
        each = connections.of_user(of_site=1, of_customer=of_customer)
        assert each * of_customer <= connections.customer or each == connections.site
    assert connections.customer * 2 < connections.server


async def test_each_second_sessions_that_take_too_much_are_looked_for_in_every_engine(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine that hangs, or fails, keeps no look from the other."""
    looked = trio.Event()

    async def hang(method: str) -> None:
        await trio.sleep_forever()

    async def note(method: str) -> None:
        await trio.lowlevel.checkpoint()
        looked.set()

    world.mariadb.before, world.postgresql.before = hang, note
    world.postgresql.greedy = [Session(7, "s1001_mal", 600 << 20)]

    with trio.fail_after(30):
        await looked.wait()
    await trio.lowlevel.checkpoint()

    assert world.postgresql.greedy == []
    said = capsys.readouterr().out
    assert "databases.session_ended" in said
    assert "s1001_mal" in said
