"""The database's disk is full: who changes something is told so; reading, signing in and deleting go on."""

from __future__ import annotations

from tests.support.harness import PASSWORD
from tests.support.identity import IdentityHarness


async def test_changes_are_unavailable_while_the_disk_is_full_and_reads_go_on(world: IdentityHarness) -> None:
    await world.person("root@example.org", "administrator")
    client = await world.signed_in("root@example.org")
    rows = len(await world.audit())

    world.database.disk_full = True
    refused = await client.post("/projects", {"name": "new"})
    read = await client.get("/projects")

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert refused.headers["retry-after"] == "5"
    assert refused.json()["error"]["details"]["reason"] == "disk_full"
    assert read.status_code == 200
    assert read.json()["items"] == []
    assert len(await world.audit()) == rows, "a refusal takes no space"


async def test_whoever_frees_space_can_sign_in_and_delete(world: IdentityHarness) -> None:
    await world.person("root@example.org", "administrator")
    client = await world.signed_in("root@example.org")
    made = (await client.post("/tokens", {"name": "ci", "scopes": ["read"], "days": 0})).json()

    world.database.disk_full = True
    again = await world.browser().post("/auth/login", {"email": "root@example.org", "password": PASSWORD})
    deleted = await client.call("DELETE", f"/tokens/{made['id']}")

    assert again.status_code == 200
    assert deleted.status_code == 204


async def test_changes_are_taken_again_with_space(world: IdentityHarness) -> None:
    await world.person("root@example.org", "administrator")
    client = await world.signed_in("root@example.org")
    world.database.disk_full = True
    assert (await client.post("/projects", {"name": "new"})).status_code == 503

    world.database.disk_full = False
    made = await client.post("/projects", {"name": "new"})

    assert made.status_code == 201
