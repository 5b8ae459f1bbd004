"""A guest goes off without an order: its restart policy and why it went off say what follows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.changes import Changes
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.power import COOL_DOWN, MOST_FAILURES, is_restarted, power_alert, restart_pause
from svc_actors.controller.machines.records import MachineSettings
from svc_actors.controller.machines.states import Order, RestartPolicy
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainState, FailureCode, StateCause
from tests.support.callers import ADMINISTRATOR
from tests.support.networking import Held, failing
from tests.support.power import PowerHarness, open_power

ALWAYS, ON_FAILURE, NEVER = RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE, RestartPolicy.NEVER


@pytest.mark.parametrize(
    ("policy", "cause", "restarted"),
    [
        (ON_FAILURE, None, True),
        (ON_FAILURE, StateCause.FORCED, True),
        (ON_FAILURE, StateCause.GUEST, False),
        (ALWAYS, StateCause.GUEST, True),
        (NEVER, None, False),
        (NEVER, StateCause.FORCED, False),
    ],
)
def test_the_policy_decides_by_why_a_machine_went_off(
    policy: RestartPolicy, cause: StateCause | None, restarted: bool
) -> None:
    assert is_restarted(policy, cause) is restarted


def test_attempts_are_put_off_further_and_further_until_the_breaker_opens() -> None:
    pauses = [restart_pause(failures) for failures in range(1, MOST_FAILURES + 3)]

    assert pauses == [0, 10, 20, 40, 80, COOL_DOWN, COOL_DOWN]


async def test_a_guest_whose_qemu_was_killed_runs_again_and_an_operator_hears_of_it(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()

        await stage.crash(vm_id)

        vm = await stage.vm(vm_id)
        assert vm["status_reason"] == "The guest crashed: its QEMU ended unexpectedly. It is started again."
        alert = await stage.alert(power_alert(vm_id))
        assert alert is not None
        assert "Machine web on node alpha is off but should be running." in alert["message"]
        assert (alert["project_id"], alert["told"]) == (stage.world.project_id, "Machine web went off unexpectedly.")
        await stage.settled()
        vm = await stage.vm(vm_id)
        assert (vm["status"], vm["status_reason"]) == ("running", None)


async def test_a_guest_that_shut_itself_down_stays_off(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()

        await stage.guest_shuts_down(vm_id)
        await stage.settled()
        await stage.power_cut()
        await stage.settled()

        vm = await stage.vm(vm_id)
        assert (vm["status"], vm["desired_power"], vm["status_reason"]) == ("stopped", "stopped", None)
        assert await stage.tasks(vm_id) == []


async def test_a_guest_that_shall_always_run_is_started_after_it_shut_itself_down(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine(settings=MachineSettings(restart_policy=ALWAYS))

        await stage.guest_shuts_down(vm_id)
        await stage.settled()

        assert await stage.service.status(vm_id) == "running"
        assert await stage.alert(power_alert(vm_id)) is None


async def test_a_policy_that_was_changed_holds_from_the_next_time_on(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.service.machine(vm_id).ask(
            Machine.update, ADMINISTRATOR, Changes(settings=MachineSettings(restart_policy=NEVER))
        )

        await stage.crash(vm_id)
        await stage.settled()

        vm = await stage.vm(vm_id)
        assert vm["status"] == "stopped"
        assert vm["status_reason"].endswith("Its restart policy leaves it off.")
        assert await stage.alert(power_alert(vm_id)) is not None


async def test_a_guest_that_crashes_again_and_again_is_left_alone_for_an_hour(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()

        for _ in range(MOST_FAILURES):
            await stage.crash(vm_id)
            await stage.pause_passes(vm_id)
            await stage.settled()
            assert await stage.service.status(vm_id) == "running"
        await stage.crash(vm_id)
        await stage.settled()

        vm = await stage.vm(vm_id)
        assert vm["status"] == "stopped"
        assert "It failed 6 times in a row" in vm["status_reason"]
        assert (vm["restart_after"] - datetime.now(UTC)).total_seconds() == pytest.approx(COOL_DOWN, abs=60)
        alert = await stage.alert(power_alert(vm_id))
        assert alert is not None
        assert alert["severity"] == "critical"

        await stage.order(vm_id, Order.START)

        assert (await stage.vm(vm_id))["restart_failures"] == 0
        assert await stage.alert(power_alert(vm_id)) is None


async def test_the_second_attempt_waits(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.crash(vm_id)
        await stage.settled()

        await stage.crash(vm_id)
        await stage.settled()

        vm = await stage.vm(vm_id)
        assert vm["status_reason"] == "The guest crashed: its QEMU ended unexpectedly. It is started again in 10 s."
        assert len(await stage.tasks(vm_id)) == 1


async def test_a_machine_that_has_run_for_ten_minutes_has_recovered(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.crash(vm_id)
        await stage.settled()
        assert await stage.alert(power_alert(vm_id)) is not None

        await database.execute("UPDATE vms SET running_since = now() - interval '11 minutes'")
        await stage.settled()

        assert (await stage.vm(vm_id))["restart_failures"] == 0
        assert await stage.alert(power_alert(vm_id)) is None


async def test_a_start_that_fails_is_tried_again_later(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        stage.hosts.plays["vm.start"] = failing("not enough memory", FailureCode.CAPACITY)
        await stage.power_cut()

        await stage.settled()

        vm = await stage.vm(vm_id)
        assert vm["status_reason"] == "The last task failed: not enough memory. It is started again in 10 s."
        del stage.hosts.plays["vm.start"]
        await stage.pause_passes(vm_id)
        await stage.settled()
        assert await stage.service.status(vm_id) == "running"


async def test_a_guest_that_shuts_itself_down_during_another_task_stays_off(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        held = stage.hosts.plays["vm.update"] = Held()
        renamed = await stage.service.machine(vm_id).ask(Machine.update, ADMINISTRATOR, Changes(name="other"))
        await held.until_reached()
        stage.host.set_state(vm_id, DomainState.STOPPED, "the guest shut down", StateCause.GUEST)

        async def heard() -> bool:
            return bool((await stage.vm(vm_id))["observed_state"] == "stopped")

        await stage.until(heard)
        held.released.set()
        await stage.service.ended(renamed)
        await stage.settled()

        assert await stage.tasks(vm_id) == []
        assert (await stage.vm(vm_id))["desired_power"] == "stopped"


async def test_a_machine_whose_guest_ignored_the_shutdown_shall_still_run(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        stage.hosts.plays["vm.shutdown"] = failing("did not shut down", FailureCode.TIMED_OUT)

        await stage.order(vm_id, Order.SHUTDOWN)

        assert (await stage.vm(vm_id))["desired_power"] == "running"


async def test_a_start_that_was_cancelled_is_not_repeated(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.order(vm_id, Order.SHUTDOWN)

        async def cancelled(_: object) -> None:
            await trio.lowlevel.checkpoint()
            raise OperationFailed(FailureCode.CANCELLED, "given up", None)

        stage.hosts.plays["vm.start"] = cancelled
        await stage.order(vm_id, Order.START)
        await stage.settled()

        assert await stage.tasks(vm_id) == []


async def test_a_machine_started_by_hand_on_its_host_shall_run_from_then_on(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.order(vm_id, Order.SHUTDOWN)

        stage.host.set_state(vm_id, DomainState.RUNNING, "started")
        await stage.until_status(vm_id, "running")
        await stage.nodes.inspect(stage.world.node_id)

        assert (await stage.vm(vm_id))["desired_power"] == "running"


async def test_what_was_stopped_by_force_on_the_host_runs_again(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()

        await force_off(stage, vm_id)
        await stage.settled()

        assert await stage.service.status(vm_id) == "running"


async def force_off(stage: PowerHarness, vm_id: object) -> None:
    [machine] = [each for each in stage.host.machines if each == vm_id]
    stage.host.set_state(machine, DomainState.STOPPED, "stopped by force", StateCause.FORCED)
    await stage.until_status(machine, "stopped")
