"""A controller that is lost and restored elsewhere, over real guests that run on and know nothing of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from svc.cli.client import Client
from tests.support import host, postgres_server
from tests.support.figures import report_figure
from tests.support.power_drills import create_all, domain, make_room, show, until
from tests.support.stack import BIN, Stack, open_stack

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSPHRASE = "four words of an operator"


def svc(stack: Stack, *arguments: str) -> None:
    environment = stack.cli_environment() | {"SVC_BACKUP_PASSPHRASE": PASSPHRASE}
    done = subprocess.run([str(BIN / "svc"), *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"svc {' '.join(arguments)}:\n{done.stderr}"


async def run(stack: Stack, *arguments: str) -> None:
    await trio.to_thread.run_sync(lambda: svc(stack, *arguments))


def qemu_of(stack: Stack, vm_id: str) -> int:
    """The process of a guest: another one after any restart."""
    return int(Path(f"/run/libvirt/qemu/{domain(stack, vm_id)}.pid").read_text())


async def machines(client: Client) -> dict[str, dict[str, Any]]:
    found = (await client.call("GET", "/vms", query={"page_size": 200}))["items"]
    return {vm["name"]: await show(client, vm["id"]) for vm in found}


async def answering(client: Client) -> bool:
    """Whether every guest answers on the network."""
    for vm in (await machines(client)).values():
        if not await trio.to_thread.run_sync(host.pings, vm["primary_ip"]):
            return False
    return True


async def orphans(client: Client) -> dict[str, str]:
    return {each["name"]: each["kind"] for each in await client.call("GET", "/orphans")}


async def test_guests_run_on_and_records_become_what_their_host_has(request: pytest.FixtureRequest) -> None:
    guests = 20 if request.config.getoption("--full") else 3
    async with open_stack() as stack, stack.node("alpha"), stack.client() as client:
        await stack.own_network()
        await make_room(client)
        image = await stack.import_demo_image()
        kept = stack.folder / "kept"
        kept.mkdir()
        old = await create_all(stack, client, image, [f"old-{number}" for number in range(guests)])
        await run(stack, "controller", "backup", "--data", str(stack.controller_data), "--to", str(kept))
        [new] = await create_all(stack, client, image, ["new"])
        deleted, changed, *_ = old
        answer = await client.call(
            "DELETE", f"/vms/{deleted['id']}", body={"confirm": deleted["name"], "destroy_disks": True}
        )
        await stack.task(client, answer)
        await client.call("POST", f"/vms/{changed['id']}/ips", body={})
        running = [*old[1:], new]

        async def applied() -> bool:
            addresses = (await show(client, changed["id"]))["addresses"]
            return len(addresses) == 2 and all(host.routes_to(each["ip"]) for each in addresses)

        await until(applied, 240)
        await until(lambda: answering(client), 300 if guests < 10 else 600)
        addresses = {name: sorted(a["ip"] for a in vm["addresses"]) for name, vm in (await machines(client)).items()}
        processes = {vm["id"]: qemu_of(stack, vm["id"]) for vm in running}

        began = trio.current_time()
        await stack.controller.kill()
        postgres_server.cut_power(stack.controller_data / "postgresql")
        [archive] = kept.iterdir()
        second = stack.folder / "second"
        await run(stack, "controller", "restore", str(archive), "--data", str(second))
        stack.controller.command = [
            str(second) if each == str(stack.controller_data) else each for each in stack.controller.command
        ]
        stack.controller_data = second
        await stack.start_controller()
        served = trio.current_time() - began
        async with stack.client() as client:

            async def compared() -> bool:
                return len(await orphans(client)) == 3

            await until(compared, 240)
            took = trio.current_time() - began
            found = await orphans(client)
            await run(stack, "node", "discard", deleted["name"], "--yes")
            await run(stack, "node", "adopt", changed["name"])
            await run(stack, "node", "adopt", "new", "--project", "default")

            async def agree() -> bool:
                return not await orphans(client) and {vm["status"] for vm in (await machines(client)).values()} == {
                    "running"
                }

            await until(agree, 240)
            records = await machines(client)
            await until(lambda: answering(client), 240)
        report_figure(
            f"controller lost and restored, {guests} guests: served after {served:.1f} s, compared after {took:.1f} s"
        )

        assert found == {deleted["name"]: "missing", changed["name"]: "differing", "new": "unknown"}
        assert {vm["id"] for vm in records.values()} == host.domains(stack.prefix) == {vm["id"] for vm in running}
        assert {name: sorted(a["ip"] for a in vm["addresses"]) for name, vm in records.items()} == addresses
        assert {vm["id"]: qemu_of(stack, vm["id"]) for vm in running} == processes, "a guest was restarted"
