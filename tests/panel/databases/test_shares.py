"""No site takes the engines from the others: its users share what it has, and what is suspended does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_actors.store import Database
from tests.panel.databases.world import World, world_of


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
    assert sum(user.connections for user in world.mariadb.accounts.values()) <= world.mariadb.connections
