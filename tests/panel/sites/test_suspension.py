"""Sites are suspended and put back."""

from __future__ import annotations

from svc_webhost.nginx import StaticRoot, Suspended
from tests.panel.sites.world import World


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
