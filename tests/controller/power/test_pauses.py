"""A guest whose disk could not be written is paused: people see that, and that it is over."""

from __future__ import annotations

from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.power import paused_alert
from svc_actors.controller.machines.states import Order
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainState, StateCause
from tests.support.callers import ADMINISTRATOR
from tests.support.power import PowerHarness, open_power


async def until_alert(stage: PowerHarness, key: str, *, there: bool) -> None:
    async def reached() -> bool:
        return (await stage.alert(key) is not None) is there

    await stage.until(reached)


async def test_a_paused_guest_says_why_until_it_goes_on(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()

        stage.host.set_state(vm_id, DomainState.PAUSED, "paused after a disk error", StateCause.IO_ERROR)
        await until_alert(stage, paused_alert(vm_id), there=True)

        vm = await stage.vm(vm_id)
        assert (vm["status"], vm["desired_power"]) == ("running", "running")
        assert vm["status_reason"].startswith("The guest is paused: its disk could not be written.")
        alert = await stage.alert(paused_alert(vm_id))
        assert alert is not None
        assert alert["severity"] == "critical"
        assert alert["told"] == "Machine web is paused, since its disk could not be written."

        stage.host.set_state(vm_id, DomainState.RUNNING, "resumed")
        await until_alert(stage, paused_alert(vm_id), there=False)

        assert (await stage.vm(vm_id))["status_reason"] is None


async def test_a_pause_that_only_an_inventory_tells_of_is_seen_too(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        stage.hosts.offline.add(stage.world.node_id)
        paused = {"state": DomainState.PAUSED, "cause": StateCause.IO_ERROR}
        stage.host.machines[vm_id] = stage.host.machines[vm_id].model_copy(update=paused)
        stage.hosts.offline.discard(stage.world.node_id)

        async def inspected() -> bool:
            # What was heard of its creation may be newer than the first inventory, which then says nothing of it.
            await stage.nodes.inspect(stage.world.node_id)
            return await stage.alert(paused_alert(vm_id)) is not None

        await stage.until(inspected)


async def test_the_alert_ends_with_a_forced_stop_and_with_the_machine(database: Database) -> None:
    async with open_power(database) as stage:
        stopped, deleted = await stage.machine("stopped"), await stage.machine("deleted")
        for vm_id in (stopped, deleted):
            stage.host.set_state(vm_id, DomainState.PAUSED, "paused after a disk error", StateCause.IO_ERROR)
            await until_alert(stage, paused_alert(vm_id), there=True)

        await stage.order(stopped, Order.FORCE_STOP)
        task = await stage.service.machine(deleted).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)
        await stage.service.ended(task)

        await until_alert(stage, paused_alert(stopped), there=False)
        await until_alert(stage, paused_alert(deleted), there=False)
