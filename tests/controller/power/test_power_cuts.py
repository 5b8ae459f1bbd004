"""A host loses its power: every machine that had run comes back by itself, and no other."""

from __future__ import annotations

import pytest
import trio

from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.records import MachineSettings
from svc_actors.controller.machines.states import Order, RestartPolicy
from svc_actors.controller.reconcile.power_watch import PowerWatch
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainState, VmStart
from tests.support.callers import ADMINISTRATOR
from tests.support.networking import Held
from tests.support.power import open_power


async def test_what_had_run_runs_again_and_what_was_off_stays_off(database: Database) -> None:
    async with open_power(database) as stage:
        running, stopped = await stage.machine("running"), await stage.machine("stopped")
        never_started = await stage.machine("never-started", start=False)
        await stage.order(stopped, Order.SHUTDOWN)

        await stage.power_cut()
        await stage.settled()

        assert await stage.service.status(running) == "running"
        assert stage.host.machines[running].state is DomainState.RUNNING
        assert await stage.service.status(stopped) == "stopped"
        assert await stage.service.status(never_started) == "stopped"


async def test_a_restart_by_the_service_is_a_task_of_the_machine_and_audited(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()

        await stage.power_cut()
        await stage.settled()

        [task] = await stage.tasks(vm_id)
        assert (task["op"], task["caller"]["actor"]) == ("vm.start", "system")
        [row] = await database.fetch("SELECT * FROM audit WHERE actor = 'system' AND target_id = $1", str(vm_id))
        assert (row["operation"], row["details"]["task_id"]) == ("vm.start", str(task["id"]))


async def test_the_oldest_come_first_and_only_as_many_at_once_as_the_host_bears(database: Database) -> None:
    async with open_power(database) as stage:
        machines = [await stage.machine(f"m-{number}") for number in range(12)]
        held = stage.hosts.plays["vm.start"] = Held()
        await stage.power_cut()

        await stage.look()
        await stage.look()
        await held.until_reached()

        begun = {task["resource_id"] for task in await stage.tasks()}
        assert begun == set(machines[:8]), "a host of 16 processors bears 8 starts at once"

        held.released.set()
        await stage.settled()

        assert {await stage.service.status(vm_id) for vm_id in machines} == {"running"}
        assert stage.hosts.most_at_once <= 9


async def test_nothing_starts_while_a_host_is_still_telling_what_it_has(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.power_cut()

        await stage.power.look()

        assert await stage.tasks(vm_id) == []


async def test_a_start_carries_the_network_that_the_records_have(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.power_cut()

        await stage.settled()

        [start] = [each for each in stage.host.performed if isinstance(each, VmStart)]
        [nic] = start.network.nics
        assert [str(address.network) for address in nic.addresses] == [
            f"{row['ip']}/32"
            for row in await database.fetch("SELECT host(ip) AS ip FROM allocations WHERE vm_id = $1", vm_id)
        ]


@pytest.mark.parametrize(
    ("change", "restored"),
    [
        ("UPDATE nodes SET maintenance = true", False),
        ("UPDATE nodes SET mode = 'observe'", False),
        ("UPDATE nodes SET state = 'offline'", False),
        ("UPDATE vms SET traffic_isolated = true", False),
        ("UPDATE vms SET throttle_mbps = 1", True),
    ],
)
async def test_what_may_not_be_touched_is_left_alone(database: Database, change: str, restored: bool) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.power_cut()
        await database.execute(change)

        await stage.settled()

        assert bool(await stage.tasks(vm_id)) is restored


async def test_once_maintenance_is_over_its_machines_come_back(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await database.execute("UPDATE nodes SET maintenance = true")
        await stage.power_cut()
        await stage.settled()
        assert await stage.service.status(vm_id) == "stopped"

        await database.execute("UPDATE nodes SET maintenance = false")
        await stage.settled()

        assert await stage.service.status(vm_id) == "running"


async def test_an_order_under_way_wins(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        held = stage.hosts.plays["vm.start"] = Held()
        await stage.power_cut()
        ordered = await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.START)
        await held.until_reached()

        await stage.look()

        assert await stage.tasks(vm_id) == []
        held.released.set()
        await stage.service.ended(ordered)
        assert await stage.service.status(vm_id) == "running"


async def test_a_forced_stop_supersedes_a_start_by_the_service_and_the_machine_stays_off(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        held = stage.hosts.plays["vm.start"] = Held()
        await stage.power_cut()
        await stage.look()
        await held.until_reached()

        forced = await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.FORCE_STOP)
        held.released.set()
        await stage.service.ended(forced)
        await stage.settled()

        assert len(await stage.tasks(vm_id)) == 1
        assert (await stage.vm(vm_id))["desired_power"] == "stopped"


async def test_a_machine_that_is_deleted_meanwhile_does_not_rise(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.power_cut()

        deleted = await stage.service.machine(vm_id).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)
        await stage.look()
        await stage.service.ended(deleted)
        await stage.settled()

        assert await stage.tasks(vm_id) == []
        assert await stage.service.status(vm_id) == "deleted"
        assert vm_id not in stage.host.machines


async def test_a_controller_that_dies_over_it_takes_it_up_again_and_starts_nothing_twice(database: Database) -> None:
    held = Held()
    async with open_power(database) as stage:
        machines = [await stage.machine(f"m-{number}") for number in range(3)]
        stage.hosts.plays["vm.start"] = held
        await stage.power_cut()
        await stage.look()
        await held.until_reached()
        world, hosts = stage.world, stage.hosts
    del hosts.plays["vm.start"]

    async with open_power(database, world=world, hosts=hosts) as stage:
        await stage.settled()

        assert {await stage.service.status(vm_id) for vm_id in machines} == {"running"}
        assert len(await stage.tasks()) == 3


async def test_the_watch_brings_machines_back_by_itself(database: Database) -> None:
    async with open_power(database) as stage, trio.open_nursery() as nursery:
        vm_id = await stage.machine()
        await nursery.start(PowerWatch(database, stage.service.actors, interval=0.1).run)

        await stage.power_cut()

        await stage.until_status(vm_id, "running")
        nursery.cancel_scope.cancel()


async def test_a_machine_that_shall_never_be_restarted_stays_off_and_says_so(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine(settings=MachineSettings(restart_policy=RestartPolicy.NEVER))

        await stage.power_cut()
        await stage.settled()

        vm = await stage.vm(vm_id)
        assert (vm["status"], vm["desired_power"]) == ("stopped", "stopped")
        assert vm["status_reason"] == "It was off when its host came back. Its restart policy leaves it off."
