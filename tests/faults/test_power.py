"""Power cuts, killed QEMUs, lost definitions and full disks: real guests come back by themselves."""

from __future__ import annotations

import pytest
import trio

from tests.faults.conftest import Extent
from tests.support import host
from tests.support.power_drills import (
    alerts,
    create,
    create_all,
    domain,
    drill,
    fill,
    kill_qemu,
    power_cut,
    seconds_until_right,
    show,
    small_file_system,
    state,
    until,
    virsh,
)
from tests.support.stack import open_stack
from tests.support.terminal import serial_console

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD = "Staple-battery-7-horse"


async def test_after_a_power_cut_what_ran_runs_and_what_was_off_is_off(extent: Extent) -> None:
    async with drill() as (stack, agent, client, image):
        machines = await create_all(stack, client, image, [f"m-{number}" for number in range(extent.guests)])
        *running, off = [vm["id"] for vm in machines]
        forced = await client.call("POST", f"/vms/{off}/force-stop", body={"confirm": machines[-1]["name"]})
        await stack.task(client, forced)

        async def all_run() -> bool:
            return all([(await show(client, vm_id))["status"] == "running" for vm_id in running]) and all(
                state(stack, vm_id) == "running" for vm_id in running
            )

        silent = {(await show(client, vm_id))["primary_ip"] for vm_id in running}

        async def all_answer() -> bool:
            for address in list(silent):
                if await trio.to_thread.run_sync(host.pings, address):
                    silent.remove(address)
            return not silent

        await power_cut(stack, agent, running)
        assert host.taps(stack.prefix) == set()

        async with seconds_until_right(f"power cut, {len(running)} guests run"):
            agent.start()
            await until(all_run, 300)
        async with seconds_until_right("their networks answer"):
            await until(all_answer, 300 if extent.guests < 10 else 400)

        assert state(stack, off) == "shut off"
        assert (await show(client, off))["status"] == "stopped"
        for vm_id in running:
            newest = (await client.call("GET", f"/vms/{vm_id}/tasks"))["items"][0]
            assert (newest["op"], newest["actor"], newest["status"]) == ("vm.start", "system", "succeeded")


async def test_a_killed_qemu_and_lost_definitions_come_back_by_themselves() -> None:
    async with drill() as (stack, agent, client, image):
        killed, undefined, off = [(await create(stack, client, image, name))["id"] for name in ("a", "b", "c")]
        await stack.task(client, await client.call("POST", f"/vms/{off}/force-stop", body={"confirm": "c"}))

        async with seconds_until_right("a QEMU was killed"):
            await kill_qemu(stack, killed)

            async def restarted() -> bool:
                return state(stack, killed) == "running" and (await show(client, killed))["status"] == "running"

            await until(restarted, 240)
        [alert] = await alerts(client, f"machine-power:{killed}")
        assert "its QEMU ended unexpectedly" in alert["message"]

        async with seconds_until_right("a running guest was undefined"):
            virsh("undefine", domain(stack, undefined))

            async def persistent() -> bool:
                return "Persistent:     yes" in virsh("dominfo", domain(stack, undefined))

            await until(persistent, 240)
        assert state(stack, undefined) == "running"
        assert (await show(client, undefined))["status"] == "running"

        async with seconds_until_right("/etc/libvirt was lost in a power cut"):
            await power_cut(stack, agent, [killed, undefined])
            for vm_id in (killed, undefined, off):
                virsh("undefine", domain(stack, vm_id))
            agent.start()

            async def defined() -> bool:
                statuses = [(await show(client, vm_id))["status"] for vm_id in (killed, undefined, off)]
                return statuses == ["running", "running", "stopped"] and state(stack, off) == "shut off"

            await until(defined, 300)

        virsh("undefine", domain(stack, off))

        async def failed() -> bool:
            return bool((await show(client, off))["status"] == "failed")

        disk = stack.folder / "alpha" / "host" / "machines" / off / "disk-0.qcow2"
        disk.unlink()
        await until(failed, 240)

        async def said() -> bool:
            return "disk-0.qcow2" in ((await show(client, off))["status_reason"] or "")

        await until(said, 240)


async def test_a_guest_that_a_full_disk_paused_goes_on_once_there_is_space() -> None:
    async with open_stack() as stack:
        folder = stack.folder / "alpha" / "host" / "machines"
        with small_file_system(folder, 256):
            async with stack.node("alpha"), stack.client() as client:
                # The disk is small, not short of space.
                await client.call("PATCH", "/settings", body={"disk_critical_free_mib": 0})
                await stack.own_network()
                image = await stack.import_demo_image()
                vm_id = (await create(stack, client, image, "writer", password=PASSWORD))["id"]
                async with serial_console(client, vm_id) as terminal:
                    await terminal.expect("login: ")
                    await terminal.log_in("root", PASSWORD)
                    filler = fill(folder, 3)
                    await terminal.send("dd if=/dev/urandom of=/root/big bs=1M count=24; sync; echo written-$?\r")

                    async def paused() -> bool:
                        return bool(await alerts(client, f"machine-paused:{vm_id}"))

                    await until(paused, 300)
                    machine = await show(client, vm_id)
                    assert machine["status"] == "running"
                    assert machine["status_reason"].startswith("The guest is paused: its disk could not be written.")
                    assert state(stack, vm_id) == "paused"

                    filler.unlink()
                    async with seconds_until_right("a full disk has space again"):

                        async def resumed() -> bool:
                            return not await paused() and (await show(client, vm_id))["status_reason"] is None

                        await until(resumed, 240)
                    await terminal.expect("written-0\r")
