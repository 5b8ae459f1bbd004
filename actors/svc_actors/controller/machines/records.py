"""A machine's row as its actor reads and writes it, and the event of its change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pydantic import TypeAdapter

from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.controller.machines.states import DesiredPower, MachineStatus, RestartPolicy
from svc_actors.controller.networking.changes import HAS_APPLIED, MOST_BELIEVED, applied_columns, follow_applied
from svc_actors.store import NewEvent, Record, Target, Transaction, events
from svc_common.errors import not_found
from svc_nodeagent.protocol import CpuMode, DomainState, StateCause

STABLE_SECONDS: Final = 600.0
"""A machine that has run for this long has recovered from earlier failures."""


MACHINE_ROW: Final = f"""
SELECT vms.*, vms.desired_power AS desired, nodes.name AS node_name,
       CASE WHEN nodes.lost_at IS NULL THEN nodes.state ELSE 'lost' END AS node_state,
       coalesce(vms.running_since < now() - interval '{STABLE_SECONDS:g} seconds', false) AS recovered
FROM vms LEFT JOIN nodes ON nodes.id = vms.node_id"""


# Effects of a machine's service on it, as SQL conditions on a row of `vms`. They are read from the service's own row,
# which neither the machine's owner nor a security group can change (specification, Provisioning API, rule 2).
SOLD: Final = "EXISTS (SELECT FROM services WHERE services.vm_id = vms.id AND state <> 'terminated')"
"""The machine belongs to a service that a billing system has sold, and is deleted when the service ends."""

KEPT_OFF: Final = """EXISTS (
    SELECT FROM services WHERE services.vm_id = vms.id
                           AND (suspend_mode = 'power_off' OR state IN ('provisioning_failed', 'terminated')))"""
"""The machine must not be started by any order."""

ISOLATED: Final = """(vms.traffic_isolated OR EXISTS (
    SELECT FROM services WHERE services.vm_id = vms.id
                           AND (suspend_mode = 'network_isolate' OR state = 'terminated')))"""
"""The host blocks all of the machine's traffic: its service is suspended with network isolation, or its traffic
allowance is used up."""


@dataclass(frozen=True)
class MachineRow:
    """`node_state` and `node_name` are None for a machine without a node. `built_at`: when the host reported that it
    has built the machine. `net_wanted`: the desired generation of its network; `net_error`: why the last attempt to
    apply it failed."""

    id: UUID
    name: str
    project_id: UUID
    node_id: UUID | None
    node_state: str | None
    node_name: str | None
    vcpus: int
    memory_mib: int
    disk_gib: int
    status: MachineStatus
    status_reason: str | None
    observed_state: DomainState | None
    observed_cause: StateCause | None
    observed_at: datetime | None
    built_at: datetime | None
    plan_id: UUID | None
    net_wanted: int
    net_error: str | None
    desired: DesiredPower
    restart_policy: RestartPolicy
    restart_failures: int
    protected: bool
    rescue_since: datetime | None
    """The time since which the machine boots the rescue system instead of its own disk, by its host's last report; None
    if it does not."""
    iso_image_id: UUID | None
    """The ISO in the machine's CD-ROM drive."""
    iso_boot: bool
    cpu_mode: CpuMode
    cpu_next_mode: CpuMode | None
    """The processor in the machine's definition, if it is another than the one the guest was started with."""
    unconfirmed: bool
    """The controller was restored from a backup, and the machine's host has not confirmed its record yet."""
    recovered: bool
    """The machine has run for `STABLE_SECONDS`, so earlier failures do not count."""

    @property
    def target(self) -> Target:
        return Target("vm", self.id, self.name, self.project_id)


_ROW: Final = TypeAdapter(MachineRow)


@dataclass(frozen=True)
class MachineSettings:
    """Settings of a machine that its host does not need to know. They are set at its creation and can be changed at any
    time. Each is a column of `vms`; None leaves a column as it is. `restart_policy`: whether the machine is started
    again when it goes off without an order, from the next time on. `labels` replace all existing ones."""

    restart_policy: RestartPolicy | None = None
    labels: Mapping[str, str] | None = None
    protected: bool | None = None

    @classmethod
    def of(cls, request: object) -> MachineSettings:
        """The settings in a request, whose fields have the same names."""
        return cls(**{setting.name: getattr(request, setting.name) for setting in fields(cls)})

    def columns(self) -> dict[str, Any]:
        """The settings that are not None, by column."""
        return {name: value for name, value in vars(self).items() if value is not None}


async def lock_machine(tx: Transaction, vm_id: UUID, *, gone: bool = False) -> MachineRow:
    """The machine's row, locked until the transaction ends; with `gone` also a deleted one. Raises not_found."""
    row = await tx.fetchrow(
        f"{MACHINE_ROW} WHERE vms.id = $1 AND ($2 OR vms.deleted_at IS NULL) FOR NO KEY UPDATE OF vms", vm_id, gone
    )
    if row is None:
        raise not_found("There is no such machine.")
    return as_machine(row)


def as_machine(row: Record) -> MachineRow:
    """The machine of a row of `MACHINE_ROW`."""
    return _ROW.validate_python(dict(row))


def pending_processor_sql(off: str) -> str:
    """SQL for an update of `vms` that applies the waiting processor if `off` is true: the next start gives it to the
    guest."""
    return f"""cpu_mode = CASE WHEN {off} THEN coalesce(vms.cpu_next_mode, vms.cpu_mode) ELSE vms.cpu_mode END,
               cpu_next_mode = CASE WHEN {off} THEN NULL ELSE vms.cpu_next_mode END"""


_STATUS: Final = f"""status = $2, status_reason = $3,
    running_since = CASE WHEN $2 <> 'running' THEN NULL WHEN status <> 'running' THEN now() ELSE running_since END,
    deleted_at = CASE WHEN $2 = 'deleted' THEN now() ELSE deleted_at END,
    {pending_processor_sql("$2 = 'stopped'")}"""


async def write_status(tx: Transaction, vm_id: UUID, status: MachineStatus, reason: str | None) -> None:
    vm = await tx.fetchone(
        f"UPDATE vms SET {_STATUS} WHERE id = $1 RETURNING name, project_id, node_id", vm_id, status.value, reason
    )
    await announce_status(tx, vm_id, vm["name"], vm["project_id"], vm["node_id"], status=status, reason=reason)


async def write_outcome(
    tx: Transaction,
    vm: MachineRow,
    status: MachineStatus,
    reason: str | None,
    *,
    heard: DomainState | None,
    built: bool,
    generation: int | None,
) -> None:
    """Write everything that the end of a task says about its machine: its status, its state as `heard` from the host,
    whether the host has `built` it (then the seed of its first boot is no longer needed), and the `generation` of its
    network that the host has at least. All in one statement, since each update of indexed columns writes to all indexes
    of the row."""
    if vm.status is MachineStatus.DELETED or (generation is not None and generation > MOST_BELIEVED):
        generation = None
    moved = (status, reason) != (vm.status, vm.status_reason)
    if not (moved or built) and heard is None and generation is None:
        return
    row = await tx.fetchone(
        f"""UPDATE vms SET {_STATUS},
                           observed_state = coalesce($4, observed_state),
                           observed_cause = CASE WHEN $4 IS NULL THEN observed_cause END,
                           observed_at = CASE WHEN $4 IS NULL THEN observed_at ELSE now() END,
                           built_at = CASE WHEN $5 THEN now() ELSE built_at END,
                           sealed_seed = CASE WHEN $5 THEN NULL ELSE sealed_seed END,
                           {applied_columns("$6::bigint")}
            WHERE id = $1 RETURNING name, {HAS_APPLIED}""",
        vm.id,
        status.value,
        reason,
        heard.value if heard else None,
        built,
        generation,
    )
    if generation is not None:
        await follow_applied(tx, vm.id, row, failed=vm.net_error is not None)
    if moved:
        await announce_status(tx, vm.id, row["name"], vm.project_id, vm.node_id, status=status, reason=reason)


async def write_definition(tx: Transaction, vm_id: UUID, *, name: str, vcpus: int, memory_mib: int) -> None:
    await tx.execute(
        "UPDATE vms SET name = $2, vcpus = $3, memory_mib = $4 WHERE id = $1", vm_id, name, vcpus, memory_mib
    )


async def write_settings(tx: Transaction, vm_id: UUID, settings: MachineSettings) -> None:
    await tx.execute(
        """UPDATE vms SET restart_policy = coalesce($2, restart_policy), labels = coalesce($3, labels),
                          protected = coalesce($4, protected)
           WHERE id = $1""",
        vm_id,
        settings.restart_policy,
        settings.labels,
        settings.protected,
    )


async def write_size(
    tx: Transaction, vm_id: UUID, *, plan_id: UUID | None, vcpus: int, memory_mib: int, disk_gib: int
) -> None:
    """Write the size; a plan that no longer exists becomes NULL."""
    await tx.execute(
        """UPDATE vms SET plan_id = (SELECT id FROM plans WHERE id = $2), vcpus = $3, memory_mib = $4, disk_gib = $5
           WHERE id = $1""",
        vm_id,
        plan_id,
        vcpus,
        memory_mib,
        disk_gib,
    )


async def write_processor(tx: Transaction, vm_id: UUID, now: CpuMode, following: CpuMode | None) -> None:
    """`following`: the processor after the next start, if it differs."""
    await tx.execute(
        "UPDATE vms SET cpu_mode = $2, cpu_next_mode = $3 WHERE id = $1",
        vm_id,
        now.value,
        following.value if following is not None else None,
    )


async def announce_machine(tx: Transaction, vm_id: UUID) -> None:
    """Append the event of a machine's change, with the record at this point of the transaction."""
    vm = await tx.fetchone("SELECT id, name, project_id, node_id, status, status_reason FROM vms WHERE id = $1", vm_id)
    await announce_status(
        tx,
        vm_id,
        vm["name"],
        vm["project_id"],
        vm["node_id"],
        status=MachineStatus(vm["status"]),
        reason=vm["status_reason"],
    )


async def announce_status(
    tx: Transaction,
    vm_id: UUID,
    name: str,
    project_id: UUID,
    node_id: UUID | None,
    *,
    status: MachineStatus,
    reason: str | None,
) -> None:
    """As `announce_machine`, with the given values, which the transaction has just written."""
    await events.append(
        tx,
        NewEvent(
            kind=ControllerEvent.VM,
            subject=str(vm_id),
            project_id=project_id,
            node_id=node_id,
            payload={"id": str(vm_id), "name": name, "status": status.value, "status_reason": reason},
        ),
    )
