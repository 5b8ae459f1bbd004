"""A full Debian 12 with cloud-init: its own user with sudo, and a password set anew through the guest agent."""

from __future__ import annotations

import pytest
import trio

from tests.support.image_paths import IMAGES, TOOLS
from tests.support.stack import open_stack
from tests.support.terminal import serial_console

pytestmark = pytest.mark.system

PASSWORD = "Staple-battery-7-horse"
IMAGE = IMAGES / "debian-12.qcow2"


async def test_a_debian_guest_takes_its_seed_and_a_new_password() -> None:
    await trio.run_process([TOOLS / "build-debian", IMAGE])
    async with open_stack() as stack, stack.node("alpha"):
        await stack.own_network()
        image = await stack.import_image(IMAGE, slug="debian-test", name="Debian", distribution="debian", release="12")
        async with stack.client() as client:
            [project] = (await client.call("GET", "/projects"))["items"]
            created = await client.call(
                "POST",
                "/vms",
                body={
                    "name": "bookworm",
                    "image_id": image["id"],
                    "project_id": project["id"],
                    "vcpus": 1,
                    "memory_mib": 768,
                    "disk_gib": 4,
                    "access_mode": "user_sudo",
                    "password": True,
                },
            )
            vm_id = created["vm"]["id"]
            await stack.task(client, created)
            address = (await client.call("GET", f"/vms/{vm_id}"))["primary_ip"]
            async with serial_console(client, vm_id) as terminal:
                await terminal.expect("bookworm login: ", timeout=600)
                await terminal.log_in("debian", created["password"], prompt="$ ")
                assert address in await terminal.run("ip -4 addr show dev eth0")
                assert (await terminal.run("sudo -n true")).endswith("\n0")
                assert (await terminal.run("cloud-init status --wait > /dev/null", timeout=600)).endswith("\n0")

            reset = await client.call("POST", f"/vms/{vm_id}/reset-password", body={"password": PASSWORD})
            assert reset["user"] == "debian"
            assert reset["chosen"] is True
            assert PASSWORD not in str(reset)
            await stack.task(client, reset | {"id": reset["task_id"]})
            async with serial_console(client, vm_id) as terminal:
                await terminal.send("\rexit\r")
                await terminal.expect("bookworm login: ")
                await terminal.log_in("debian", PASSWORD, prompt="$ ")

            gone = {"confirm": "bookworm", "destroy_disks": True}
            await stack.task(client, await client.call("DELETE", f"/vms/{vm_id}", body=gone))
