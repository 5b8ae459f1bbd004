"""Creation of a machine: one transaction places it, allocates its addresses, and records it with the task that builds
it.

Invariants:
- room, name, addresses, NIC, groups and task are taken together or not at all, so a refusal leaves nothing behind;
- the project's limit of machines is checked under the lock of the project's row, in the transaction of the creation;
- an idempotency key is unique among the machines it still counts for: `find_by_key` finds an answer that was lost in a
  crash, and no second machine is created.

Why: docs/decisions/0024-placement-and-creation.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

from svc_actors.controller.backups.records import SourceCopy, hold_copy
from svc_actors.controller.machines import platforms, windows
from svc_actors.controller.machines.outcomes import GENERATION
from svc_actors.controller.machines.records import MachineSettings, announce_status, write_settings
from svc_actors.controller.machines.spec import Seed
from svc_actors.controller.machines.states import DesiredPower, MachineStatus
from svc_actors.controller.machines.windows import FirstBoot
from svc_actors.controller.networking.addresses import IPAddress, allocate_first, new_mac, new_nic
from svc_actors.controller.networking.security_groups import join_groups, usable_groups
from svc_actors.controller.placement.scheduler import MachineNeeds, Placement, place
from svc_actors.controller.tasks.run import task_seconds
from svc_actors.controller.tasks.runner import ResourceKind, Task, create_task
from svc_actors.sealing import Sealer
from svc_actors.sizes import disk_text, memory_text
from svc_actors.store import (
    Caller,
    Database,
    ForeignKeyViolationError,
    Queryable,
    Record,
    Target,
    Transaction,
    UniqueViolationError,
    audit,
)
from svc_common.errors import capacity, conflict, not_found, not_ready, wrong_field
from svc_nodeagent.protocol import Platform

MOST: Final = 25
"""The default limit of machines in a project, for orders by customers. It is more than most customers need, so it
refuses hardly anybody; a node has room for many more, so one project does not fill a node."""
KEY_LIFETIME: Final = timedelta(hours=24)
_FIRST_GENERATION: Final = 1
"""The network generation of a new machine: the default of its column."""


@dataclass(frozen=True)
class IdempotencyKey:
    """`owner` is the token or the person that used the key."""

    owner: str
    key: str


@dataclass(frozen=True)
class NewMachine:
    """The machine to create. `network_id` None means the default network. `password_hash` is SHA-512 crypt; `generated`
    is the password itself, if the service generated it. `user_data` is the owner's own, for cloud-init. Both are stored
    sealed until the task has ended. `first_boot`: for Windows. `held`: the copy of another machine that its disk is
    created from. `iso_id`: the ISO in its CD-ROM drive from its first start on; if `iso_id` equals `image_id`, the disk
    is empty. `bounded`: the order is a customer's, so the project's limit of machines applies."""

    name: str
    hostname: str
    project_id: UUID
    image_id: UUID
    plan_id: UUID | None
    vcpus: int
    memory_mib: int
    disk_gib: int
    access_mode: str
    ssh_keys: tuple[str, ...]
    password_hash: str | None
    generated: str | None
    start: bool
    bounded: bool
    node_id: UUID | None = None
    location_id: UUID | None = None
    network_id: UUID | None = None
    rate_mbps: int | None = None
    group_ids: tuple[UUID, ...] = ()
    settings: MachineSettings = field(default_factory=MachineSettings)
    idempotency: IdempotencyKey | None = None
    first_boot: FirstBoot | None = None
    held: SourceCopy | None = None
    user_data: str | None = field(default=None, repr=False)
    iso_id: UUID | None = None


@dataclass(frozen=True)
class Created:
    vm_id: UUID
    task: Task
    address: IPAddress


class _PoolsFull(Exception):  # noqa: N818 - named for what it says
    """No pool of the chosen node has a free address."""

    def __init__(self, pool_ids: Iterable[UUID]) -> None:
        self.pool_ids = frozenset(pool_ids)


OnCreated = Callable[[Transaction, UUID], Awaitable[None]]
"""Called with the new machine's id, to record more in the transaction that creates the machine."""


async def create_machine(
    database: Database, sealer: Sealer, caller: Caller, new: NewMachine, on_created: OnCreated | None = None
) -> Created:
    """Decide about a new machine and record it; the caller hands the task to `TaskRunner.start`.

    Raises not_found (project, image, plan, node, copy), conflict (name or key taken), invalid (too small for the
    image), not_ready (the image has no digest yet, the copy's store is being changed), capacity (no node, no address,
    the project's limit of machines).
    """
    full: frozenset[UUID] = frozenset()
    try:
        while True:
            try:
                work = partial(_create, sealer=sealer, caller=caller, new=new, full=full, on_created=on_created)
                return await database.transact(work)
            except _PoolsFull as found:
                # Start over and leave out the full pools. Going on to the next node instead would break the lock order:
                # pools are locked in one order, and the next node's pools may come before those that are locked
                # already.
                full |= found.pool_ids
    except UniqueViolationError as error:
        if error.constraint_name == "vms_idempotency":
            raise conflict("This idempotency key has already created another machine.") from None
        raise conflict(f"The project has a machine named {new.name} already.") from None
    except ForeignKeyViolationError as error:
        raise not_found(f"There is no such {_FOREIGN.get(error.constraint_name or '', 'thing')}.") from None


async def _create(
    tx: Transaction,
    *,
    sealer: Sealer,
    caller: Caller,
    new: NewMachine,
    full: frozenset[UUID],
    on_created: OnCreated | None,
) -> Created:
    """Statements come in the order in which locks are taken. The pool comes last, because all machines of a network
    take their address from the same pool: its lock is held only for one statement and the commit."""
    if new.idempotency is not None:
        await _retire_key(tx, new.idempotency)
    if new.held is not None:
        await hold_copy(tx, new.held)
    network_id = await _usable_image_and_network(tx, new)
    platform = await (platforms.of_copy(tx, new.held.copy_id) if new.held else platforms.of_image(tx, new.image_id))
    groups = await usable_groups(tx, new.project_id, new.group_ids) if new.group_ids else []
    need = MachineNeeds(
        vcpus=new.vcpus,
        memory_mib=new.memory_mib,
        disk_gib=new.disk_gib,
        network_id=network_id,
        node_id=new.node_id,
        location_id=new.location_id,
        platform=platform,
    )
    if new.bounded:
        await _require_allowed(tx, new.project_id)
    placement = await place(tx, need, explain=caller.role in ("administrator", "staff"), full=full)
    vm_id, nic_id = await _insert(tx, sealer, caller, new, network_id, placement.node_id, platform)
    if new.first_boot is not None:
        await windows.record_first_boot(tx, vm_id, password=new.first_boot.password is not None)
    task = await _record(tx, caller, new, vm_id, placement.node_id)
    if on_created is not None:
        await on_created(tx, vm_id)
    address = await _take_address(tx, placement, full, vm_id, nic_id)
    if groups:
        await join_groups(tx, vm_id, groups)
    return Created(vm_id, task, address)


async def _require_allowed(tx: Transaction, project_id: UUID) -> None:
    """Raises capacity if the project has reached its limit of machines. Machines of services count, too, and so do
    those that are still being deleted. Raises not_found."""
    if await tx.fetchval("SELECT id FROM projects WHERE id = $1 FOR NO KEY UPDATE", project_id) is None:
        raise not_found("There is no such project.")
    set_to = await tx.fetchval("SELECT value FROM settings WHERE name = 'most_machines'")
    most = MOST if set_to is None else int(set_to)
    has = await tx.fetchval("SELECT count(*) FROM vms WHERE project_id = $1 AND deleted_at IS NULL", project_id)
    if has >= most:
        raise capacity(
            f"The project has {has} machines, and may have {most}; nothing was created.",
            hint="Delete one of them, or ask your provider for more.",
            details={"limit": most},
        )


async def forget_plan(tx: Transaction, plan_id: UUID) -> None:
    """Unset the plan of deleted machines, before the plan is removed. The caller has locked the plan's row, and no
    existing machine has the plan. This is written here because deleted machines no longer have an actor."""
    await tx.execute("UPDATE vms SET plan_id = NULL WHERE plan_id = $1 AND deleted_at IS NOT NULL", plan_id)


async def find_by_key(queryable: Queryable, key: IdempotencyKey) -> Record | None:
    """The machine that was created with this key, while the key counts: `id`, `sealed_seed`, `task_id`."""
    return await queryable.fetchrow(
        """SELECT vms.id, vms.sealed_seed, tasks.id AS task_id FROM vms
           JOIN tasks ON tasks.resource_id = vms.id AND tasks.op = 'vm.create'
           WHERE idempotency_owner = $1 AND idempotency_key = $2 AND vms.created_at > now() - $3::interval""",
        key.owner,
        key.key,
        KEY_LIFETIME,
    )


async def _retire_key(tx: Transaction, key: IdempotencyKey) -> None:
    await tx.execute(
        """UPDATE vms SET idempotency_owner = NULL, idempotency_key = NULL
           WHERE idempotency_owner = $1 AND idempotency_key = $2 AND created_at <= now() - $3::interval""",
        key.owner,
        key.key,
        KEY_LIFETIME,
    )


async def _record(tx: Transaction, caller: Caller, new: NewMachine, vm_id: UUID, node_id: UUID) -> Task:
    """Write the task that builds the machine, the audit row and the event."""
    parameters: dict[str, object] = {"start": new.start, GENERATION: _FIRST_GENERATION}
    seconds, copy = task_seconds("vm.create"), {}
    if new.held is not None:
        seconds = task_seconds("vm.create.from_copy")
        copy = {"copy_id": str(new.held.copy_id), "source_id": str(new.held.source_id)}
    task = await create_task(
        tx,
        caller,
        op="vm.create",
        resource_kind=ResourceKind.VM,
        resource_id=vm_id,
        resource_name=new.name,
        node_id=node_id,
        project_id=new.project_id,
        parameters=parameters | copy,
        timeout=seconds,
    )
    await audit.record(
        tx,
        caller,
        Target("vm", vm_id, new.name, new.project_id),
        {
            "task_id": str(task.id),
            "image_id": str(new.image_id),
            "vcpus": new.vcpus,
            "memory_mib": new.memory_mib,
            "disk_gib": new.disk_gib,
            **copy,
        },
    )
    await announce_status(tx, vm_id, new.name, new.project_id, node_id, status=MachineStatus.CREATING, reason=None)
    return task


async def _usable_image_and_network(tx: Transaction, new: NewMachine) -> UUID:
    """Check that the image can be used; returns the network, by default the default one."""
    await require_usable(tx, new.image_id, disk_gib=new.disk_gib, memory_mib=new.memory_mib)
    network_id: UUID | None = new.network_id or await tx.fetchval('SELECT id FROM networks WHERE "default"')
    if network_id is None:
        raise capacity("There is no default network.", hint="An administrator makes a network the default.")
    return network_id


async def require_usable(tx: Transaction, image_id: UUID, *, disk_gib: int, memory_mib: int) -> None:
    """Check that a machine of this size can be created from the image, or installed from it if it is an ISO. Raises
    not_found, not_ready, invalid."""
    row = await tx.fetchrow(
        "SELECT slug, digest FROM images WHERE id = $1 AND enabled AND kind IN ('disk', 'iso')", image_id
    )
    if row is None:
        raise not_found("There is no such image.")
    if row["digest"] is None:
        raise not_ready(
            f"The image {row['slug']} has no checksum yet, so no node could verify it.",
            hint="An administrator refreshes the images, or uploads the file.",
        )
    await require_large_enough(tx, image_id, disk_gib=disk_gib, memory_mib=memory_mib)


async def require_large_enough(tx: Transaction, image_id: UUID, *, disk_gib: int, memory_mib: int) -> None:
    """Raises invalid if the image needs a larger machine."""
    row = await tx.fetchone("SELECT name, min_disk_gib, min_memory_mib FROM images WHERE id = $1", image_id)
    for name, has, least, text in (
        ("disk_gib", disk_gib, row["min_disk_gib"], disk_text),
        ("memory_mib", memory_mib, row["min_memory_mib"], memory_text),
    ):
        if has < least:
            raise wrong_field(name, f"{row['name']} needs at least {text(least)}")


async def _take_address(
    tx: Transaction, placement: Placement, full: frozenset[UUID], vm_id: UUID, nic_id: UUID
) -> IPAddress:
    """Allocate the primary address, and an IPv6 sub-prefix if one is free; returns the primary address."""
    pool_ids = [pool_id for pool_id in placement.pool_ids if pool_id not in full]
    whose: Any = {"vm_id": vm_id, "nic_id": nic_id, "node_id": placement.node_id}
    taken = await allocate_first(tx, pool_ids, primary=True, **whose)
    if taken is None:
        raise _PoolsFull(pool_ids)
    await allocate_first(tx, placement.ipv6_pool_ids.get(taken.pool_id, ()), primary=False, **whose)
    return taken.address


async def _insert(
    tx: Transaction,
    sealer: Sealer,
    caller: Caller,
    new: NewMachine,
    network_id: UUID,
    node_id: UUID,
    platform: Platform,
) -> tuple[UUID, UUID]:
    """Insert the machine and its NIC; returns their ids. A trigger of the machine's row reserves its room on the node
    (`promise_room_to_new`)."""
    seed = Seed(new.password_hash, new.generated, new.user_data)
    secret = seed.sealed(sealer) if seed != Seed(None) else None
    vm_id = uuid4()
    nic_id: UUID | None = await tx.fetchval(
        """WITH vm AS (
               INSERT INTO vms (id, name, hostname, project_id, node_id, plan_id, image_id, vcpus, memory_mib, disk_gib,
                                status, access_mode, ssh_keys, sealed_seed, rate_mbps, idempotency_owner,
                                idempotency_key, created_by, desired_power, firmware, tpm, iso_image_id)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $21, $22, $23,
                       $24)
               RETURNING id
           )
           INSERT INTO nics (vm_id, network_id, position, mac) SELECT id, $19, 0, $20 FROM vm
           ON CONFLICT (mac) DO NOTHING RETURNING id""",
        vm_id,
        new.name,
        new.hostname,
        new.project_id,
        node_id,
        new.plan_id,
        new.image_id,
        new.vcpus,
        new.memory_mib,
        new.disk_gib,
        MachineStatus.CREATING.value,
        new.access_mode,
        list(new.ssh_keys),
        secret,
        new.rate_mbps,
        new.idempotency.owner if new.idempotency else None,
        new.idempotency.key if new.idempotency else None,
        caller.actor_id,
        network_id,
        new_mac(),
        (DesiredPower.RUNNING if new.start else DesiredPower.STOPPED).value,
        platform.firmware.value,
        platform.tpm.value,
        new.iso_id,
    )
    await write_settings(tx, vm_id, new.settings)
    return vm_id, nic_id or await new_nic(tx, vm_id=vm_id, network_id=network_id, position=0)


_FOREIGN: Final = {
    "vms_project_id_fkey": "project",
    "vms_plan_id_fkey": "plan",
    "vms_image_id_fkey": "image",
    "vms_node_id_fkey": "node",
}
