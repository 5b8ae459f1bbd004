"""Whose a zone is: who sees and changes it, and what becomes of it when a site changes hands."""

from __future__ import annotations

from uuid import uuid4

import trio

from tests.panel.dns.zones import A, World
from tests.support.panel_sites import site_row


async def test_nobody_elses_zone_is_seen_or_changed(world: World) -> None:
    record_id = await world.added("www", **A)
    bob_id = await world.panel.person("bob@example.com")
    his = await site_row(world.panel.database, bob_id, "bob.test")
    bob = world.panel.program(await world.panel.token(bob_id))

    answers = [
        await bob.get(f"/sites/{world.site}/dns"),
        await bob.post(f"/sites/{world.site}/dns/records", {"data": A}),
        await bob.post(f"/sites/{world.site}/dns/records", {"site_id": str(his), "data": A}),
        await bob.patch(f"/sites/{world.site}/dns/records/{record_id}", {"ttl": 60}),
        await bob.delete(f"/sites/{world.site}/dns/records/{record_id}"),
        await bob.post(f"/sites/{world.site}/dns/point"),
        await bob.patch(f"/sites/{his}/dns/records/{record_id}", {"ttl": 60}),
        await bob.delete(f"/sites/{his}/dns/records/{record_id}"),
    ]
    absent = await bob.delete(f"/sites/{his}/dns/records/{uuid4()}")
    into_hers = await bob.post(f"/sites/{his}/dns/records", {"zone": "example.test", "data": A})

    assert {answer.status_code for answer in [*answers, absent]} == {404}
    assert answers[-1].json() == absent.json()
    assert into_hers.status_code == 400
    assert world.knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_who_gets_a_domain_after_somebody_else_gets_none_of_their_records(world: World) -> None:
    await world.added("secret", type="TXT", text="of ada")
    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", world.site)
    bob_id = await world.panel.person("bob@example.com")
    his = await site_row(world.panel.database, bob_id, "example.test")
    bob = world.panel.program(await world.panel.token(bob_id))

    seen = (await bob.get(f"/sites/{his}/dns")).json()
    await bob.post(f"/sites/{his}/dns/records", {"name": "www", "data": A})

    assert seen["records"] == []
    assert world.knot.answers("secret.example.test", "TXT") == set()
    assert world.knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_the_zone_of_a_site_that_is_handed_over_stays_and_is_its_new_owners(world: World) -> None:
    root = await world.panel.administrator()
    bob_id = await world.panel.person("bob@example.com")
    bob = world.panel.program(await world.panel.token(bob_id))
    await world.ada.post(f"/sites/{world.site}/dns/point")
    record_id = await world.added("kept", type="TXT", text="of the site")

    handed = await root.patch(f"/sites/{world.site}", {"owner_email": "bob@example.com"})
    await world.compare()
    seen = (await bob.get(f"/sites/{world.site}/dns")).json()
    changed = await bob.patch(f"/sites/{world.site}/dns/records/{record_id}", {"ttl": 120})
    added = await bob.post(f"/sites/{world.site}/dns/records", {"name": "more", "data": A})

    assert handed.status_code == 200, handed.text
    assert {(record["name"], record["data"]["type"]) for record in seen["records"]} == {
        ("example.test", "A"),
        ("example.test", "AAAA"),
        ("kept.example.test", "TXT"),
    }
    assert (changed.status_code, added.status_code) == (200, 201)
    assert world.knot.answers("kept.example.test", "TXT") == {'"of the site"'}
    assert (await world.ada.get(f"/sites/{world.site}/dns")).status_code == 404


async def test_a_read_scope_changes_nothing_and_a_site_scope_does(world: World) -> None:
    reader = world.panel.program(await world.panel.token(world.ada_id, ("read",)))
    keeper = world.panel.program(await world.panel.token(world.ada_id, ("sites",)))

    assert (await reader.get(f"/sites/{world.site}/dns")).status_code == 200
    assert (await reader.post(f"/sites/{world.site}/dns/records", {"data": A})).status_code == 403
    assert (await reader.post(f"/sites/{world.site}/dns/point")).status_code == 403
    assert (await keeper.post(f"/sites/{world.site}/dns/records", {"data": A})).status_code == 201


async def test_changes_at_the_same_time_all_hold_and_of_equal_ones_one(world: World) -> None:
    answers: list[int] = []

    async def add(number: int) -> None:
        answers.append((await world.add(f"n{number % 10}", **A)).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(add, number)

    listed = (await world.ada.get(f"/sites/{world.site}/dns")).json()
    assert sorted(answers) == [201] * 10 + [409] * 10
    assert len(listed["records"]) == 10
    assert listed["zone"]["served"] is True
    assert all(world.knot.answers(f"n{number}.example.test", "A") for number in range(10))
