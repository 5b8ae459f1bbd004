"""What keeps customers from names and addresses of the provider's, from shedding a suspension, and from taking all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path

import pytest
import trio

from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.store import Database
from svc_webhost.accounts import AccountError
from tests.panel.sites.world import World, world_of
from tests.support.panel_sites import site_row

OWN = "1.1.1.1"
"""By which the world reaches this server, which does not have it itself: it is behind NAT."""


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    dns = DnsSettings(nameservers=("ns1.hosting.example", "ns2.hosting.example"), addresses=(ip_address(OWN),))
    async with world_of(panel_database, tmp_path, dns=dns, origins=("https://cp.example.net:7443",)) as made:
        yield made


@pytest.mark.parametrize("name", ["cp.example.net", "x.cp.example.net", "ns1.hosting.example", "x.ns2.hosting.example"])
async def test_names_of_the_panel_and_of_its_name_servers_are_no_sites(world: World, name: str) -> None:
    answers = [
        await world.ada.post("/sites", {"domain": name, "type": "static"}),
        await world.root.post("/sites", {"domain": name, "type": "static"}),
        await world.ada.post("/sites", {"domain": "a.example", "type": "static", "aliases": [name]}),
    ]
    site = await world.create("b.example")
    added = await world.ada.post(f"/sites/{site['id']}/domains", {"name": name})
    beside = await world.create("cp2.example.net")

    assert [answer.status_code for answer in (*answers, added)] == [400] * 4
    assert beside["status"] == "active"


async def test_a_customer_is_no_proxy_of_the_address_by_which_this_server_is_reached(world: World) -> None:
    body = {"domain": "p.example", "type": "proxy", "proxy_target": f"http://{OWN}"}
    refused = await world.ada.post("/sites", body)
    other = await world.create("p.example", type="proxy", proxy_target="http://9.9.9.9")
    changed = await world.ada.patch(f"/sites/{other['id']}", {"proxy_target": f"http://{OWN}"})
    by_administrator = await world.root.patch(f"/sites/{other['id']}", {"proxy_target": f"http://{OWN}"})

    assert refused.status_code == changed.status_code == 400
    assert OWN in refused.json()["error"]["message"]
    assert by_administrator.status_code == 200


async def test_a_customer_is_no_proxy_of_a_site_of_this_server(world: World) -> None:
    await world.create("here.example", world.bob)

    def proxy(domain: str, target: str) -> dict[str, str]:
        return {"domain": domain, "type": "proxy", "proxy_target": target}

    of_another = await world.ada.post("/sites", proxy("p.example", "http://here.example"))
    of_itself = await world.ada.post("/sites", proxy("p.example", "https://p.example"))

    assert of_another.status_code == of_itself.status_code == 400
    assert "a site of this server" in of_another.json()["error"]["message"]
    assert "a site of this server" in of_itself.json()["error"]["message"]


async def test_a_suspension_by_an_administrator_is_not_shed_by_deleting_the_site(world: World) -> None:
    site = await world.create("a.example", aliases=["b.example"])
    path = f"/sites/{site['id']}"
    await world.root.post(f"{path}/suspend", {"suspended": True, "reason": "abuse"})
    alias = (await world.ada.get(f"{path}/domains")).json()[1]

    refused = await world.ada.delete(path, {"confirm": "a.example"})
    name = await world.ada.delete(f"/domains/{alias['id']}", {})
    shown = (await world.ada.get(path)).json()
    by_administrator = await world.root.delete(path, {"confirm": "a.example"})
    job = await world.job_of(world.root, by_administrator.json())

    assert refused.status_code == name.status_code == 403
    assert "was suspended by an administrator" in refused.json()["error"]["message"]
    assert (shown["status"], shown["reason"]) == ("suspended", "abuse")
    assert job["status"] == "succeeded"


async def test_a_deletion_that_fails_does_not_free_a_site_of_its_suspension(world: World) -> None:
    site = await world.create("a.example")
    path = f"/sites/{site['id']}"
    await world.root.post(f"{path}/suspend", {"suspended": True, "reason": "abuse"})

    async def fail(step: str) -> None:
        if step == "remove":
            raise AccountError("userdel: cannot lock /etc/passwd")

    world.accounts.before = fail
    answer = await world.root.delete(path, {"confirm": "a.example"})
    job = await world.job_of(world.root, answer.json())
    left = (await world.ada.get(path)).json()
    again = await world.ada.post("/sites", {"domain": "a.example", "type": "static"})
    deleted = await world.ada.delete(path, {"confirm": "a.example"})

    assert job["status"] == "failed"
    assert (left["status"], left["suspended_by"]) == ("failed", "administrator")
    assert again.status_code == deleted.status_code == 403
    assert world.served("a.example") is None


async def test_a_customer_has_so_many_sites_and_no_more(world: World) -> None:
    for number in range(98):
        await site_row(world.panel.database, world.ada_id, f"s{number}.example")
    answers: list[int] = []

    async def create(number: int) -> None:
        answer = await world.ada.post("/sites", {"domain": f"t{number}.example", "type": "static"})
        answers.append(answer.status_code)

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(create, number)
    refused = await world.ada.post("/sites", {"domain": "more.example", "type": "static"})
    of_another = await world.create("his.example", world.bob)
    root_id = await world.panel.database.fetchval("SELECT id FROM users WHERE role = 'administrator'")
    await world.panel.database.execute("UPDATE sites SET owner_id = $1 WHERE owner_id = $2", root_id, world.ada_id)
    of_administrator = await world.create("roots.example", world.root)

    assert sorted(answers) == [201, 201, 409, 409, 409, 409]
    assert refused.status_code == 409
    assert "100 sites" in refused.json()["error"]["message"]
    assert of_another["status"] == of_administrator["status"] == "active"
