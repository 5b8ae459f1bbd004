"""Machines' networks through the whole stack: two guests on this host, the API, and an agent that is killed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from svc.cli.client import Client
from tests.support import host
from tests.support.stack import Stack, open_stack
from tests.support.terminal import Terminal, serial_console

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD = "Staple-battery-7-horse"
SSH = 22


async def create(stack: Stack, client: Client, image_id: str, name: str) -> str:
    [project] = (await client.call("GET", "/projects"))["items"]
    created = await client.call(
        "POST",
        "/vms",
        body={
            "name": name,
            "image_id": image_id,
            "project_id": project["id"],
            "vcpus": 1,
            "memory_mib": 256,
            "disk_gib": 1,
            "access_mode": "root_password",
            "set_password": PASSWORD,
        },
    )
    await stack.task(client, created)
    return str(created["vm"]["id"])


async def until(condition: Callable[[], Awaitable[bool]], timeout: float = 240.0) -> None:
    with trio.fail_after(timeout):
        while not await condition():
            await trio.sleep(0.2)  # the outside world is asked again; nothing is asserted by it


async def applied(client: Client, vm_id: str) -> dict[str, Any]:
    """The machine's networking once its host has all of it."""
    shown: dict[str, Any] = {}

    async def has_it() -> bool:
        shown.update(await client.call("GET", f"/vms/{vm_id}/networking"))
        return bool(shown["status"] == "applied")

    await until(has_it)
    return shown


async def answers(terminal: Terminal, address: str) -> bool:
    """Whether the SSH server of the other guest is reached from this one."""
    output = await terminal.run(f"nc -w 3 {address} {SSH} </dev/null | grep -q SSH")
    return output.endswith("\n0")


async def pings(address: str) -> bool:
    return await trio.to_thread.run_sync(host.pings, address)


async def test_networks_of_two_guests_follow_the_record() -> None:
    async with open_stack() as stack, stack.node("alpha") as agent:
        await stack.own_network()
        image = await stack.import_demo_image()
        async with stack.client() as client:
            machines: dict[str, str] = {}

            async def make(name: str) -> None:
                machines[name] = await create(stack, client, image["id"], name)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(make, "web")
                nursery.start_soon(make, "peer")
            web, peer = machines["web"], machines["peer"]
            [node] = (await client.call("GET", "/nodes"))["items"]
            address = (await client.call("GET", f"/vms/{web}"))["primary_ip"]

            async with serial_console(client, peer) as at_peer:
                await at_peer.log_in("root", PASSWORD)
                await until(lambda: answers(at_peer, address))
                await a_security_group_closes_and_opens_the_port(client, web, at_peer, address)
            second = await a_second_address_answers(client, web)
            await a_rate_is_held(stack, client, web, node["id"])
            await stack.task(client, await client.call("POST", f"/nodes/{node['id']}/inventory"))
            assert (await client.call("GET", f"/nodes/{node['id']}/network"))["agrees"] is True

            # The agent dies in the middle of taking the address away, and again before it is back.
            await agent.kill()
            agent.start(SVC_FAULT_POINT="network.withdrawn")
            await stack.node_online("alpha")
            await client.call("POST", f"/vms/{web}/ips/detach", body={"ip": second})
            assert await agent.ended(30) == -9
            assert second in [each["ip"] for each in held(await client.call("GET", f"/vms/{web}/networking"))]
            agent.start()
            await stack.node_online("alpha")

            async def freed() -> bool:
                return [each["ip"] for each in held(await client.call("GET", f"/vms/{web}/networking"))] == [address]

            await until(freed)
            assert (await applied(client, web))["error"] is None
            assert host.routes_to(second) == []
            assert second not in host.ruleset()
            assert await pings(address)
            for pool in (await client.call("GET", "/pools"))["items"]:
                assert pool["releasing_count"] == 0
            await stack.task(client, await client.call("POST", f"/nodes/{node['id']}/inventory"))
            seen = await client.call("GET", f"/nodes/{node['id']}/network")
            assert seen["agrees"] is True, seen["differences"]


async def a_security_group_closes_and_opens_the_port(
    client: Client, vm_id: str, at_peer: Terminal, address: str
) -> None:
    [project] = (await client.call("GET", "/projects"))["items"]
    group = await client.call("POST", "/security-groups", body={"name": "web", "project_id": project["id"]})
    await client.call("PUT", f"/vms/{vm_id}/security-groups", body={"group_ids": [group["id"]]})
    await applied(client, vm_id)
    assert not await answers(at_peer, address)
    rule = {"direction": "ingress", "protocol": "tcp", "port_from": SSH, "port_to": SSH}
    await client.call("POST", f"/security-groups/{group['id']}/rules", body=rule)
    await applied(client, vm_id)
    assert await answers(at_peer, address)
    await client.call("PUT", f"/vms/{vm_id}/security-groups", body={"group_ids": []})
    await applied(client, vm_id)


async def a_second_address_answers(client: Client, vm_id: str) -> str:
    attached = await client.call("POST", f"/vms/{vm_id}/ips", body={})
    second = str(attached["address"]["ip"])
    shown = await applied(client, vm_id)
    assert [each["state"] for each in held(shown)] == ["allocated", "allocated"]
    await until(lambda: pings(second))
    return second


async def a_rate_is_held(stack: Stack, client: Client, vm_id: str, node_id: str) -> None:
    await client.call("PATCH", f"/vms/{vm_id}/network", body={"rate_mbps": 20})
    assert (await applied(client, vm_id))["effective_rate_mbps"] == 20
    await stack.task(client, await client.call("POST", f"/nodes/{node_id}/inventory"))
    taps = (await client.call("GET", f"/nodes/{node_id}/network"))["taps"]
    assert {tap["vm_name"]: tap["rate_mbps"] for tap in taps} == {"web": 20, "peer": None}


def held(networking: dict[str, Any]) -> list[dict[str, Any]]:
    return [address for nic in networking["nics"] for address in nic["addresses"]]
