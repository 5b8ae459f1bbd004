"""Starting and ending the rescue of a machine: its guest goes off, the system to boot is decided (`rescued`), and it
starts.

Invariants: the decision is written, and removed, only while the guest is off; a change that fails is undone, so the
machine is either in rescue or as it was before; a repeat detects what an earlier attempt has done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.definitions import PUT_BACK_SECONDS, Definitions
from svc_nodeagent.hypervisor.files import Folders, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.rescued import Rescue, rescue_of, unpack, write_rescue
from svc_nodeagent.hypervisor.shutdown import OFF, wait_until_off
from svc_nodeagent.hypervisor.turns import Order, Turns
from svc_nodeagent.protocol import (
    DomainResult,
    DomainState,
    NetworkSpec,
    RescueOperation,
    VmRescue,
    VmRescueEnd,
)

log = structlog.get_logger()


class Rescues:
    def __init__(
        self, *, guests: Guests, folders: Folders, images: ImageCache, definitions: Definitions, turns: Turns
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._images = images
        self._definitions = definitions
        self._turns = turns

    async def perform(self, operation: RescueOperation, report: Report) -> DomainResult:
        match operation:
            case VmRescue():
                return await self.enter(operation, report)
            case VmRescueEnd():
                return await self.end(operation, report)

    async def enter(self, operation: VmRescue, report: Report) -> DomainResult:
        wanted = Rescue(
            instance_id=operation.instance_id,
            system=file_name(operation.system),
            password_hash=operation.password_hash,
            ssh_keys=operation.ssh_keys,
        )
        order = self._turns.order(operation.vm_id, "the rescue")
        await self._definitions.record(operation.vm_id)

        async def fetched(percent: int, message: str) -> None:
            await report(percent // 2, message)

        # Fetched before anything is stopped: if the node cannot get the rescue system, the guest keeps running.
        await self._images.ensure(operation.system, fetched)
        await in_thread(unpack, self._folders.images / wanted.system)
        fault_point("rescue.system")
        return await self._switch(operation, order, wanted, None, report)

    async def end(self, operation: VmRescueEnd, report: Report) -> DomainResult:
        order = self._turns.order(operation.vm_id, "the end of the rescue")
        before = await in_thread(rescue_of, self._folders, operation.vm_id)
        return await self._switch(operation, order, None, before, report)

    async def _switch(
        self, operation: RescueOperation, order: Order, wanted: Rescue | None, before: Rescue | None, report: Report
    ) -> DomainResult:
        """Shut the guest down, write or remove the decision, and start the guest. A guest that already runs according
        to the decision was started by an earlier attempt."""
        vm_id = operation.vm_id
        decided = await in_thread(rescue_of, self._folders, vm_id) == wanted
        if not (decided and await self._guests.state(vm_id) is DomainState.RUNNING):
            async with self._or_put_back(operation, order, before):
                if operation.force:
                    await self._guests.destroy(vm_id)
                await wait_until_off(self._guests, vm_id, operation.timeout_seconds, order, report)
                fault_point("rescue.off")
                async with self._turns.steps(vm_id):
                    order.check()
                    await self._start(vm_id, wanted, operation.network)
        return DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))

    async def _start(self, vm_id: UUID, wanted: Rescue | None, network: NetworkSpec) -> None:
        record = await self._definitions.with_network(vm_id, network)
        await in_thread(write_rescue, self._folders, vm_id, wanted)
        fault_point("rescue.decided")
        await self._definitions.apply_network(record)
        await self._definitions.write_seed(record)
        await self._definitions.define(record)
        fault_point("rescue.defined")
        await self._guests.start(vm_id)
        fault_point("rescue.started")

    @asynccontextmanager
    async def _or_put_back(
        self, operation: RescueOperation, order: Order, before: Rescue | None
    ) -> AsyncIterator[None]:
        try:
            yield
        except ConnectionLost:
            raise  # the same operation continues once libvirt is back
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PUT_BACK_SECONDS):
                await self._put_back(operation, order, before)
            raise

    async def _put_back(self, operation: RescueOperation, order: Order, before: Rescue | None) -> None:
        """If the guest is off, restore the decision as it was, and start the guest again, unless there is a later
        order: then that order decides about the guest."""
        vm_id = operation.vm_id
        try:
            async with self._turns.steps(vm_id):
                if not await self._definitions.exists(vm_id) or await self._guests.state(vm_id) not in OFF:
                    return
                record = await self._definitions.record(vm_id)
                await in_thread(write_rescue, self._folders, vm_id, before)
                await self._definitions.write_seed(record)
                await self._definitions.define(record)
                if order.stands and operation.runs:
                    await self._definitions.apply_network(record)
                    await self._guests.start(vm_id)
        except (HostError, OSError) as error:
            log.error("rescue.not_put_back", operation=operation.op, vm_id=str(vm_id), error=str(error))
