"""The restart policy in the API: given with an order, shown, and changed by its owner."""

from __future__ import annotations

from svc_actors.store import Database
from tests.support.machines import stage


async def test_a_machine_is_restarted_on_failure_unless_its_order_says_otherwise(database: Database) -> None:
    async with stage(database) as now:
        usual, chosen = await now.created(), await now.created(name="chosen", restart_policy="always", start=False)

        assert (usual.vm.restart_policy, usual.vm.desired_power) == ("on_failure", "running")
        assert (chosen.vm.restart_policy, chosen.vm.desired_power) == ("always", "stopped")


async def test_its_owner_changes_the_policy_without_a_task_and_it_is_audited(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        changed = await now.customer("vm.update", id=vm_id, restart_policy="never")

        assert (changed.restart_policy, changed.task_id) == ("never", None)
        [entry] = [
            each for each in (await now.customer("vm.activity", id=vm_id)).items if each.operation == "vm.update"
        ]
        assert entry.details == {"restart_policy": "never"}
        again = await now.customer("vm.update", id=vm_id, restart_policy="never")
        assert (again.restart_policy, again.task_id) == ("never", None)


async def test_a_name_and_a_policy_change_together(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        changed = await now.customer("vm.update", id=vm_id, name="other", restart_policy="always")
        await now.service.ended(changed.task_id)

        shown = await now.customer("vm.show", id=vm_id)
        assert (shown.name, shown.restart_policy) == ("other", "always")
