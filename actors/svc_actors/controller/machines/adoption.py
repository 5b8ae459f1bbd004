"""Adoption of machines: an operator's decision about a machine whose record differs from its host, or is missing, after
the controller was restored from a backup.

Adopting trusts the host: the record is created or changed from the agent's own record. Discarding trusts the records:
an unrecorded machine is deleted from its host, and a machine that differs is brought in line with its record. Either
way the machine is an ordinary one afterwards.

Invariants:
- an address is adopted only if no machine holds it by the records; the holder is decided about first;
- a machine whose host filters its traffic is adopted only together with its future security groups, since its host
  follows the record at the next change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID, uuid4

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.metrics import NodeQueries
from svc_actors.controller.machines.records import announce_machine, lock_machine
from svc_actors.controller.machines.spec import ROOT
from svc_actors.controller.machines.states import DesiredPower, MachineStatus, Observation, observe
from svc_actors.controller.networking.carried import adopt_network
from svc_actors.controller.networking.changes import network_applied
from svc_actors.controller.networking.security_groups import join_groups, usable_groups
from svc_actors.controller.placement.scheduler import lock_capacity
from svc_actors.controller.volumes.observing import safe_name
from svc_actors.store import Caller, ForeignKeyViolationError, Target, Transaction, UniqueViolationError, audit
from svc_common.errors import conflict, not_found, unavailable
from svc_nodeagent.protocol import (
    DomainState,
    FailureCode,
    MachineResult,
    NodeOperation,
    OperationId,
    OperationResult,
    VmDelete,
    VmDescribe,
)
from svc_nodeagent.protocol import KeptMachine as KeptMachine

_TIMEOUT, _DELETE_TIMEOUT = 15.0, 60.0


class NodeOrders(NodeQueries, Protocol):
    """The part of the gateway that adopting and discarding use."""

    async def perform(
        self, node_id: UUID, operation_id: OperationId, operation: NodeOperation, *, timeout: float
    ) -> OperationResult: ...

    async def acknowledge(self, node_id: UUID, operation_id: OperationId) -> None: ...


@dataclass(frozen=True)
class Adoption:
    """The facts that the host does not know. `name` and `image_id`: None takes the host's value."""

    project_id: UUID
    name: str | None = None
    image_id: UUID | None = None
    group_ids: Sequence[UUID] = ()


async def kept_machine(gateway: NodeQueries, node_id: UUID, vm_id: UUID) -> KeptMachine:
    """The agent's own record of a machine. Raises unavailable if the node is away or its agent is too old, not_found if
    the agent has no record."""
    try:
        result = await gateway.query(node_id, VmDescribe(vm_id=vm_id), timeout=_TIMEOUT)
    except OperationFailed as failure:
        if failure.code is FailureCode.NOT_FOUND:
            raise not_found("The node's agent has no record of this machine.") from failure
        raise unavailable(f"The node could not report it: {failure.message}", hint=failure.hint) from failure
    if not isinstance(result, MachineResult):
        raise TypeError(f"vm.describe was answered with {result.kind}")
    return result.machine


def observed_state(state: str | None) -> DomainState:
    """The state from an inventory; stopped for a machine without a domain."""
    return DomainState(state) if state else DomainState.STOPPED


async def delete_from_host(gateway: NodeOrders, node_id: UUID, vm_id: UUID, *, destroy_disks: bool) -> None:
    """Delete an unrecorded machine on its host. Raises unavailable if the host could not."""
    operation_id = OperationId(f"orphan:{vm_id}:{uuid4()}")
    operation = VmDelete(vm_id=vm_id, destroy_disks=destroy_disks)
    try:
        await gateway.perform(node_id, operation_id, operation, timeout=_DELETE_TIMEOUT)
    except OperationFailed as failure:
        raise unavailable(f"The host could not delete it: {failure.message}", hint=failure.hint) from failure
    finally:
        await gateway.acknowledge(node_id, operation_id)


async def adopt_unknown(
    tx: Transaction, caller: Caller, node_id: UUID, machine: KeptMachine, state: DomainState, adoption: Adoption
) -> None:
    """Create the record of an unrecorded machine. Raises conflict (a name or an address that is taken, a firewall
    without groups) and not_found (project, image, group)."""
    if machine.network.firewall is not None and not adoption.group_ids:
        raise conflict(
            "The machine's host filters its traffic, but no security group was given: the next change would remove "
            "the filter.",
            hint="Name its groups in group_ids; the audit log and the owner know the previous ones.",
        )
    groups = await usable_groups(tx, adoption.project_id, adoption.group_ids) if adoption.group_ids else []
    await lock_capacity(tx, node_id)
    name = adoption.name or safe_name(machine.name, f"adopted-{machine.vm_id.hex[:8]}")
    try:
        async with tx.savepoint():
            await _insert(tx, caller, node_id, machine, state, adoption, name)
    except UniqueViolationError:
        raise conflict(f"The project has a machine named {name} already.", hint="Give another name.") from None
    except ForeignKeyViolationError:
        raise not_found("There is no such project.") from None
    await adopt_network(tx, machine.vm_id, machine.network.nics)
    await network_applied(tx, machine.vm_id, machine.network.generation)
    if groups:
        await join_groups(tx, machine.vm_id, groups)
    await audit.record(
        tx,
        caller,
        Target("vm", machine.vm_id, name, adoption.project_id),
        {"node_id": str(node_id), "adopted": "unknown"},
    )
    await announce_machine(tx, machine.vm_id)


async def adopt_differing(tx: Transaction, caller: Caller, machine: KeptMachine, state: DomainState) -> None:
    """Change a machine's record to what its host has."""
    vm = await lock_machine(tx, machine.vm_id)
    if not vm.unconfirmed:
        raise conflict("The record and the host of this machine agree; there is nothing to adopt.")
    status = _status(state)
    await tx.execute(
        """UPDATE vms SET unconfirmed = false, built_at = coalesce(built_at, now()), status = $2, status_reason = NULL,
                          observed_state = $3, observed_at = now(), vcpus = $4, memory_mib = $5,
                          firmware = $6, tpm = $7,
                          running_since = CASE WHEN $2 = 'running' THEN now() END
           WHERE id = $1""",
        vm.id,
        status.value,
        state.value,
        machine.vcpus,
        machine.memory_mib,
        machine.platform.firmware.value,
        machine.platform.tpm.value,
    )
    await adopt_network(tx, vm.id, machine.network.nics)
    await network_applied(tx, vm.id, machine.network.generation)
    await audit.record(tx, caller, vm.target, {"adopted": "differing"})
    await announce_machine(tx, vm.id)


async def trust_record(tx: Transaction, caller: Caller, vm_id: UUID) -> None:
    """Bring a machine's host in line with its record: a missing machine is defined again from its disks, and
    differences are applied."""
    vm = await lock_machine(tx, vm_id)
    if not vm.unconfirmed:
        raise conflict("The record and the host of this machine agree; nothing was changed.")
    await tx.execute("UPDATE vms SET unconfirmed = false WHERE id = $1", vm.id)
    await audit.record(tx, caller, vm.target, {"record": "trusted"})
    await announce_machine(tx, vm.id)


async def _insert(
    tx: Transaction,
    caller: Caller,
    node_id: UUID,
    kept: KeptMachine,
    state: DomainState,
    adoption: Adoption,
    name: str,
) -> None:
    image_id = adoption.image_id or await tx.fetchval(
        "SELECT id FROM images WHERE digest = $1 ORDER BY created_at LIMIT 1", kept.image_digest
    )
    if image_id is None:
        raise not_found(
            "There is no image with the checksum of the machine's image.",
            hint="Name the image in image_id.",
        )
    account, status = kept.seed.account, _status(state)
    root = "root_password" if kept.seed.ssh_password_login else "root_key"
    rates = [nic.rate_mbps for nic in kept.network.nics if nic.rate_mbps is not None]
    await tx.execute(
        """INSERT INTO vms (id, name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status,
                            access_mode, ssh_keys, rate_mbps, created_by, desired_power, built_at, observed_state,
                            observed_at, running_since, firmware, tpm)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, now(), $16, now(),
                   CASE WHEN $10 = 'running' THEN now() END, $17, $18)""",
        kept.vm_id,
        name,
        safe_name(kept.seed.hostname, f"adopted-{kept.vm_id.hex[:8]}"),
        adoption.project_id,
        node_id,
        image_id,
        kept.vcpus,
        kept.memory_mib,
        kept.disks[0].size_gib,
        status.value,
        root if account.name == ROOT else "user_sudo",
        list(account.ssh_keys),
        min(rates, default=None),
        caller.actor_id,
        (DesiredPower.RUNNING if status is MachineStatus.RUNNING else DesiredPower.STOPPED).value,
        state.value,
        kept.platform.firmware.value,
        kept.platform.tpm.value,
    )


def _status(state: DomainState) -> MachineStatus:
    return MachineStatus.RUNNING if observe(state) is Observation.RUNNING else MachineStatus.STOPPED
