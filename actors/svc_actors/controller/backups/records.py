"""Records of backups: plans' policies, complete copies, and the alert about a machine whose backup is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.alerts import CustomerNotice, Severity, close_alert, raise_alert
from svc_actors.controller.backups import targets
from svc_actors.controller.backups.schedule import BackupPolicy, BackupSchedule, own_seconds
from svc_actors.controller.machines.records import MachineRow
from svc_actors.controller.tasks.records import Ending, Task, TaskStatus
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Queryable, Record, Target, Transaction, audit
from svc_common.errors import conflict, not_found, not_ready
from svc_nodeagent.protocol import BackupResult, CheckStatus, CopiedDisk

COPIES: Final = "machine_backups WHERE removed_at IS NULL"
OFF: Final = BackupPolicy()
_FORGOTTEN_AT_ONCE: Final = 50
_CUT_SHORT_AT_ONCE: Final = 10
_MOST_FORGOTTEN: Final = 1_000


def store_password(sealer: Sealer, vm_id: UUID) -> str:
    """The password of the machine's repository at its target. It is derived from the key that secrets are sealed with,
    so only holders of that key can read the repository."""
    return sealer.mark(vm_id.bytes, "backups of a machine").hex()


def as_policy(row: Record | None) -> BackupPolicy:
    """The policy of a row with the columns of plan_backups; no schedule if they are NULL."""
    if row is None or row["schedule"] is None:
        return OFF
    return BackupPolicy(BackupSchedule(row["schedule"]), row["hour"], row["weekday"], row["keep"])


async def policy_of_plan(queryable: Queryable, plan_id: UUID | None) -> BackupPolicy:
    return as_policy(await queryable.fetchrow("SELECT * FROM plan_backups WHERE plan_id = $1", plan_id))


@dataclass(frozen=True)
class PolicySet:
    """`deletes`: how many copies the plan's machines have beyond the new policy."""

    before: BackupPolicy
    machines: int
    deletes: int


async def set_policy(
    tx: Transaction, caller: Caller, plan_id: UUID, policy: BackupPolicy, *, now: datetime
) -> PolicySet:
    """Set the plan's policy; removes no copy itself. Raises not_found."""
    plan = await tx.fetchrow("SELECT id, slug FROM plans WHERE id = $1 FOR NO KEY UPDATE", plan_id)
    if plan is None:
        raise not_found("There is no such plan.")
    before = await policy_of_plan(tx, plan_id)
    rows = await tx.fetch(
        """SELECT (SELECT count(*) FROM machine_backups copies WHERE copies.vm_id = vms.id AND removed_at IS NULL) AS n
           FROM vms WHERE plan_id = $1 AND deleted_at IS NULL""",
        plan_id,
    )
    if policy.schedule is BackupSchedule.OFF:
        await tx.execute("DELETE FROM plan_backups WHERE plan_id = $1", plan_id)
    else:
        moved = (before.schedule, before.hour, before.weekday) != (policy.schedule, policy.hour, policy.weekday)
        await tx.execute(
            """INSERT INTO plan_backups (plan_id, schedule, hour, weekday, keep, since) VALUES ($1, $2, $3, $4, $5, $6)
               ON CONFLICT (plan_id) DO UPDATE SET schedule = excluded.schedule, hour = excluded.hour,
                   weekday = excluded.weekday, keep = excluded.keep,
                   since = CASE WHEN $7 THEN excluded.since ELSE plan_backups.since END""",
            plan_id,
            policy.schedule.value,
            policy.hour,
            policy.weekday,
            policy.keep,
            now,
            moved,
        )
    await audit.record(
        tx, caller, Target("plan", plan_id, plan["slug"]), {"before": _plain(before), "after": _plain(policy)}
    )
    # A policy without a schedule makes no copies, so none is ever superseded and removed.
    asked = policy.schedule is not BackupSchedule.OFF
    deletes = sum(policy.superseded(row["n"]) for row in rows) if asked else 0
    return PolicySet(before, len(rows), deletes)


@dataclass(frozen=True)
class BackupLocation:
    """Where copies of a machine lie: at a target that every node reaches, or at storage mounted on the node."""

    node_id: UUID | None
    target_id: UUID | None

    def has(self, copy: Record) -> bool:
        if self.target_id is not None:
            return bool(copy["target_id"] == self.target_id)
        return copy["target_id"] is None and copy["node_id"] == self.node_id


_THERE: Final = "(CASE WHEN $3::uuid IS NULL THEN target_id IS NULL AND node_id = $2 ELSE target_id = $3 END)"
"""SQL for `BackupLocation.has`, with the node as $2 and the target as $3."""


FORGET: Final = "forget"
"""A backup task's parameter: the copies to remove once it is complete (`superseded_copies`)."""


def place_of_task(task: Task) -> BackupLocation:
    """The place of the copies with which a task works."""
    told = task.parameters.get("target_id")
    return BackupLocation(task.node_id, UUID(told) if told is not None else None)


async def superseded_copies(queryable: Queryable, vm_id: UUID, at: BackupLocation) -> tuple[UUID, ...]:
    """The copies to remove at this place once another copy is complete: those that the new copy supersedes, the oldest
    first, and the remains of attempts that failed or were cancelled since the last complete copy."""
    superseded = await _superseded(queryable, vm_id, more=1)
    cut_short = await queryable.fetch(
        f"""SELECT id FROM (
               SELECT *, (parameters->>'target_id')::uuid AS target_id FROM tasks
               WHERE resource_kind = 'vm' AND resource_id = $1 AND op = 'vm.backup'
                 AND status IN ('failed', 'cancelled')
            ) attempts
            WHERE {_THERE} AND created_at > coalesce(
                (SELECT max(begun_at) FROM machine_backups WHERE vm_id = $1 AND {_THERE}), '-infinity')
            ORDER BY created_at DESC LIMIT $4""",
        vm_id,
        at.node_id,
        at.target_id,
        _CUT_SHORT_AT_ONCE,
    )
    forgotten = [copy["id"] for copy in superseded if at.has(copy)] + [row["id"] for row in cut_short]
    return tuple(forgotten[:_MOST_FORGOTTEN])


async def _superseded(queryable: Queryable, vm_id: UUID, *, more: int) -> list[Record]:
    """The copies that the policy no longer keeps once there are `more` further copies, each with its node and target;
    the oldest first."""
    plan_id = await queryable.fetchval("SELECT plan_id FROM vms WHERE id = $1", vm_id)
    policy = await policy_of_plan(queryable, plan_id)
    rows = await queryable.fetch(
        f"SELECT id, node_id, target_id FROM {COPIES} AND vm_id = $1 ORDER BY completed_at, id", vm_id
    )
    return list(rows[: policy.superseded(len(rows) + more)])


async def copied_disks(queryable: Queryable, vm_id: UUID, copy_id: UUID) -> tuple[CopiedDisk, ...]:
    """The disks in a copy, as the backup recorded them. Raises not_found."""
    disks = await queryable.fetchval(f"SELECT disks FROM {COPIES} AND vm_id = $1 AND id = $2", vm_id, copy_id)
    if disks is None:
        raise not_found("The machine has no such backup.")
    return tuple(CopiedDisk.model_validate(disk) for disk in disks)


async def copied_state(queryable: Queryable, copy_id: UUID) -> str | None:
    """As `BackupResult.state`; None if the agent that made the copy did not report it."""
    state: str | None = await queryable.fetchval("SELECT state FROM machine_backups WHERE id = $1", copy_id)
    return state


def of_system(disks: tuple[CopiedDisk, ...]) -> tuple[CopiedDisk, ...]:
    """The machine's own disks, without volumes: another machine is created from these."""
    return tuple(disk for disk in disks if disk.volume_id is None)


@dataclass(frozen=True)
class SourceCopy:
    """A copy from which another machine is created, and the machine that was copied."""

    source_id: UUID
    copy_id: UUID


async def hold_copy(tx: Transaction, held: SourceCopy) -> None:
    """Reserve the copy. The caller's transaction creates the task that creates a machine from the copy, with both ids
    in its parameters: until that task has ended, nothing is written to or removed from the repository of the copy.
    Raises not_found, not_ready."""
    await tx.execute("SELECT FROM vms WHERE id = $1 FOR NO KEY UPDATE", held.source_id)
    await copied_disks(tx, held.source_id, held.copy_id)
    if await tx.fetchval(
        """SELECT EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = $1
               AND status IN ('queued', 'running')
               AND op IN ('vm.backup', 'vm.backups.forget', 'vm.backups.remove'))""",
        held.source_id,
    ):
        raise not_ready(
            "The backups of this machine are in use, by a backup or by the removal of old ones.",
            hint="Wait for that task.",
        )


async def is_held(queryable: Queryable, vm_id: UUID) -> bool:
    """Whether a machine is being created from a copy of this one."""
    held: bool = await queryable.fetchval(
        """SELECT EXISTS (SELECT FROM tasks WHERE status IN ('queued', 'running') AND op = 'vm.create'
               AND parameters->>'source_id' = $1)""",
        str(vm_id),
    )
    return held


async def require_not_held(queryable: Queryable, vm_id: UUID) -> None:
    if await is_held(queryable, vm_id):
        raise not_ready(
            "A machine is being created from a backup of this one; its backups cannot be changed meanwhile.",
            hint="Wait for that task.",
        )


async def place_of_copy(queryable: Queryable, copy_id: UUID) -> BackupLocation:
    """The node that made the copy, and the target at which the copy lies."""
    row = await queryable.fetchone("SELECT node_id, target_id FROM machine_backups WHERE id = $1", copy_id)
    return BackupLocation(row["node_id"], row["target_id"])


async def require_backups(queryable: Queryable, node_id: UUID | None) -> None:
    """Raises conflict if the node's preflight reports that it cannot back up machines."""
    checks = await queryable.fetchval("SELECT preflight FROM nodes WHERE id = $1", node_id)
    for check in checks or ():
        if check["name"] == "backups" and check["status"] != CheckStatus.PASSED:
            raise conflict(
                f"The machine's node cannot back it up. {check['message']}",
                hint="Fix that and run the node's preflight again (`svc node preflight`).",
            )


async def note_store(tx: Transaction, vm_id: UUID, at: BackupLocation) -> None:
    """Record, when the node is asked for a copy, that data of the machine may lie at this place from now on."""
    await tx.execute(
        "INSERT INTO machine_backup_stores (vm_id, node_id, target_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        vm_id,
        at.node_id,
        at.target_id,
    )


async def backup_ended(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    """Record a complete copy, and the older ones that the node has removed after completing it. If the backup failed,
    raise the alert of a missing backup."""
    at = place_of_task(task)
    match ending.result:
        case BackupResult() as result:
            await tx.execute(
                """INSERT INTO machine_backups (id, vm_id, node_id, begun_at, completed_at, disks, stored_bytes, frozen,
                                                target_id, state, firmware, tpm)
                   SELECT $1, id, $3, $4, now(), $5, $6, $7, $8, $9, firmware, tpm FROM vms WHERE id = $2
                   ON CONFLICT (id) DO NOTHING""",
                result.copy_id,
                vm.id,
                task.node_id,
                task.created_at,
                [disk.model_dump(mode="json", exclude_none=True) for disk in result.disks],
                result.stored_bytes,
                result.frozen,
                at.target_id,
                result.state,
            )
            await tx.execute(
                "UPDATE vms SET backed_up = greatest(backed_up, $2) WHERE id = $1",
                vm.id,
                task.created_at - own_seconds(vm.id),
            )
            await tx.execute(
                f"UPDATE machine_backups SET removed_at = now() WHERE vm_id = $1 AND {_THERE} AND id = ANY($4)",
                vm.id,
                at.node_id,
                at.target_id,
                list(result.forgotten),
            )
            elsewhere = [copy["id"] for copy in await _superseded(tx, vm.id, more=0) if not at.has(copy)]
            await tx.execute(
                "UPDATE machine_backups SET superseded_at = coalesce(superseded_at, now()) WHERE id = ANY($1)",
                elsewhere,
            )
            await close_alert(tx, backup_alert(vm.id))
            await _tell_lost(tx, vm, lost=result.lost)
            if at.target_id is not None:
                await targets.tell_works(tx, at.target_id)
        case _ if ending.status is TaskStatus.FAILED:
            await tell_missing(tx, vm.id, vm.name, vm.project_id, f"The last attempt failed: {ending.message}")


async def superseded_at(queryable: Queryable, vm_id: UUID, at: BackupLocation) -> tuple[UUID, ...]:
    """Superseded copies to remove at a place to which the machine is no longer copied: the machine has moved from a
    node with another target, or its node has changed the target."""
    rows = await queryable.fetch(
        f"""SELECT id FROM {COPIES} AND vm_id = $1 AND {_THERE} AND superseded_at IS NOT NULL
            ORDER BY id LIMIT $4""",
        vm_id,
        at.node_id,
        at.target_id,
        _FORGOTTEN_AT_ONCE,
    )
    return tuple(row["id"] for row in rows)


async def forget_copies(tx: Transaction, vm_id: UUID, copies: Sequence[UUID]) -> None:
    await tx.execute("UPDATE machine_backups SET removed_at = now() WHERE id = ANY($1) AND vm_id = $2", copies, vm_id)
    await close_alert(tx, removal_alert(vm_id))


async def superseded_removal_ended(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    if ending.succeeded:
        await forget_copies(tx, vm.id, [UUID(copy_id) for copy_id in task.parameters["copies"]])
    elif ending.status is TaskStatus.FAILED:
        await raise_alert(
            tx,
            removal_alert(vm.id),
            f"Old backups of machine {vm.name} could not be removed at the node that it was on before, which is tried"
            f" again every hour: {ending.message}",
            severity=Severity.WARNING,
            resource_kind="vm",
            resource_id=vm.id,
        )


async def _tell_lost(tx: Transaction, vm: MachineRow, *, lost: bool) -> None:
    """Open or close the alert about lost data. It closes once the copies that need the lost data are superseded: a
    check of the target then finds no loss."""
    if not lost:
        await close_alert(tx, loss_alert(vm.id))
        return
    await raise_alert(
        tx,
        loss_alert(vm.id),
        f"The target has lost data that earlier backups of machine {vm.name} need. The newest backup is complete;"
        " restoring an earlier one is refused if it needs the lost data. Check the target.",
        severity=Severity.CRITICAL,
        resource_kind="vm",
        resource_id=vm.id,
        notice=CustomerNotice(
            vm.project_id, f"Earlier backups of machine {vm.name} may be incomplete; the provider was notified."
        ),
    )


async def tell_missing(tx: Transaction, vm_id: UUID, name: str, project_id: UUID, why: str) -> None:
    await raise_alert(
        tx,
        backup_alert(vm_id),
        f"The backup of machine {name} is missing. {why}",
        severity=Severity.WARNING,
        resource_kind="vm",
        resource_id=vm_id,
        notice=CustomerNotice(project_id, f"The backup of machine {name} failed; the provider was notified."),
    )


def backup_alert(vm_id: UUID) -> str:
    return f"machine-backup:{vm_id}"


def loss_alert(vm_id: UUID) -> str:
    return f"machine-backup-data:{vm_id}"


def removal_alert(vm_id: UUID) -> str:
    return f"machine-backups-removal:{vm_id}"


def _plain(policy: BackupPolicy) -> dict[str, object]:
    return {
        "backup_schedule": policy.schedule.value,
        "backup_hour": policy.hour,
        "backup_weekday": policy.weekday,
        "backup_keep": policy.keep,
    }
