"""The work of rescue tasks on the node. `rescue` records the effect of their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines.spec import Seed, network_spec
from svc_actors.controller.machines.states import Order
from svc_actors.controller.tasks.runner import TaskRun, Work
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import conflict
from svc_nodeagent.protocol import OperationResult, VmRescue, VmRescueEnd

_STEP: Final = "host"


class RescueWork:
    def __init__(self, database: Database, sealer: Sealer, images: ImageSources) -> None:
        self._database = database
        self._sealer = sealer
        self._images = images

    @property
    def works(self) -> Mapping[str, Work]:
        return {Order.RESCUE.op: self.start, Order.RESCUE_END.op: self.end}

    async def start(self, run: TaskRun) -> OperationResult:
        """The task's id identifies the rescue, so a repeated attempt is the same rescue."""
        vm_id, parameters = run.task.resource_id, run.task.parameters
        system, fetched = await self._images.of_task(run, UUID(parameters["image_id"]), span=(0, 50))
        sealed = await self._database.fetchval("SELECT sealed_seed FROM vms WHERE id = $1", vm_id)
        secret = Seed.unsealed(self._sealer, sealed)
        if secret.password_hash is None:
            raise conflict("The rescue password has expired; nothing was changed.", hint="Try again.")
        operation = VmRescue(
            vm_id=vm_id,
            instance_id=str(run.task.id),
            system=system,
            password_hash=secret.password_hash,
            ssh_keys=tuple(parameters["ssh_keys"]),
            network=await network_spec(self._database, vm_id),
            runs=parameters["runs"],
            force=parameters["force"],
        )
        return await run.perform(operation, step=_STEP, span=(50, 100) if fetched else (0, 100))

    async def end(self, run: TaskRun) -> OperationResult:
        vm_id, parameters = run.task.resource_id, run.task.parameters
        operation = VmRescueEnd(
            vm_id=vm_id,
            network=await network_spec(self._database, vm_id),
            runs=parameters["runs"],
            force=parameters["force"],
        )
        return await run.perform(operation, step=_STEP)
