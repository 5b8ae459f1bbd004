"""Creates a machine from a copy of another one: the machine is created off, its disks are written from the copy, and
then it is started.

Invariants: a guest starts only on completely written disks, so a machine that runs is complete; a failure or a
cancellation leaves nothing of the machine, as with any creation.
"""

from __future__ import annotations

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import Report
from svc_nodeagent.hypervisor.backups.copies import MachineBackups
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.machines import Machines
from svc_nodeagent.protocol import DomainResult, DomainState, VmCreate, VmCreateFromCopy

_CREATED_PERCENT = 5  # Creating the machine takes seconds; restoring its disks takes the rest of the time.


async def create_from_copy(
    operation: VmCreateFromCopy, report: Report, *, guests: Guests, machines: Machines, backups: MachineBackups
) -> DomainResult:
    machine = operation.machine
    if await guests.state(machine.vm_id) not in (DomainState.ABSENT, DomainState.STOPPED, DomainState.CRASHED):
        # The agent died after it had started the machine, and the order is repeated: a running machine must not be
        # overwritten.
        return DomainResult(vm_id=machine.vm_id, state=await guests.state(machine.vm_id))

    async def creating(percent: int, message: str) -> None:
        await report(percent * _CREATED_PERCENT // 100, message)

    async def restoring(percent: int, message: str) -> None:
        await report(_CREATED_PERCENT + percent * (100 - _CREATED_PERCENT) // 100, message)

    try:
        made = await machines.create(VmCreate(machine=machine, image=operation.image, start=False), creating)
        fault_point("copy.created")
        made = await backups.restore(operation.restoration, restoring)
        if operation.start:
            made = await machines.start(machine.vm_id, machine.network)
            fault_point("copy.started")
        return made
    except ConnectionLost:
        raise  # The same creation continues once libvirt is back.
    except BaseException:
        # Also after a cancellation: otherwise a machine would be left that is created and off.
        await machines.undo_creation(machine.vm_id)
        raise
