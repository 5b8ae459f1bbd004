"""How a machine comes to be: placed, addressed and recorded in one transaction, with the task that will build it.

Invariants:
- room, name, addresses, card, groups and task are taken together or not at all, so a refusal leaves nothing behind;
- a creator's idempotency key is unique among the machines it still counts for: an answer lost in a crash is found again
  by `find_by_key`, and no second machine is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from svc_actors.controller.machines.machine import GENERATION, TIMEOUTS
from svc_actors.controller.machines.records import announce_machine
from svc_actors.controller.machines.spec import Seed
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.networking.addresses import IPAddress, allocate_first, new_nic
from svc_actors.controller.networking.security_groups import join_groups, usable_groups
from svc_actors.controller.placement.scheduler import Candidate, Need, place
from svc_actors.controller.tasks.runner import ResourceKind, Task, create_task
from svc_actors.errors import capacity, conflict, not_found, not_ready, wrong_field
from svc_actors.sealing import Sealer
from svc_actors.store import (
    Caller,
    Database,
    ForeignKeyViolationError,
    Queryable,
    Record,
    Transaction,
    UniqueViolationError,
    audit,
)

KEY_LIFETIME: Final = timedelta(hours=24)
_FIRST_GENERATION: Final = 1
"""Of a new machine's network: what its row begins with."""


@dataclass(frozen=True)
class IdempotencyKey:
    """`owner` is the token or the person whose key it is."""

    owner: str
    key: str


@dataclass(frozen=True)
class NewMachine:
    """What is to be made. `network_id` None means the default network. `password_hash` is SHA-512 crypt; `generated`
    the password itself where the service made it, kept sealed until the task has ended."""

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
    node_id: UUID | None = None
    location_id: UUID | None = None
    network_id: UUID | None = None
    rate_mbps: int | None = None
    group_ids: tuple[UUID, ...] = ()
    idempotency: IdempotencyKey | None = None


@dataclass(frozen=True)
class Created:
    vm_id: UUID
    task: Task
    address: IPAddress


class _AllFull(Exception):  # noqa: N818 - named for what it says
    """No pool of this candidate has an address."""


async def create_machine(database: Database, sealer: Sealer, caller: Caller, new: NewMachine) -> Created:
    """Decide and record; the caller hands the task to `TaskRunner.begin`.

    Raises not_found (project, image, plan, node), conflict (name or key taken), invalid (too small for the image),
    not_ready (the image has no digest yet), capacity (no node, no address).
    """
    vm_id = uuid4()
    try:
        async with database.transaction() as tx:
            if new.idempotency is not None:
                await _retire_key(tx, new.idempotency)
            await _usable_image(tx, new)
            groups = await usable_groups(tx, new.project_id, new.group_ids)
            network_id = new.network_id or await _default_network(tx)
            candidates = await place(
                tx,
                Need(
                    vcpus=new.vcpus,
                    memory_mib=new.memory_mib,
                    disk_gib=new.disk_gib,
                    network_id=network_id,
                    node_id=new.node_id,
                    location_id=new.location_id,
                ),
                explain=caller.role in ("administrator", "staff"),
            )
            await _insert(tx, sealer, caller, new, vm_id, candidates[0].node_id)
            nic_id = await new_nic(tx, vm_id=vm_id, network_id=network_id, position=0)
            candidate, address = await _take_address(tx, candidates, vm_id, nic_id)
            if candidate.node_id != candidates[0].node_id:
                await tx.execute("UPDATE vms SET node_id = $2 WHERE id = $1", vm_id, candidate.node_id)
            await _still_there(tx, candidate.node_id)
            await join_groups(tx, vm_id, groups)
            task = await create_task(
                tx,
                caller,
                op="vm.create",
                resource_kind=ResourceKind.VM,
                resource_id=vm_id,
                resource_name=new.name,
                node_id=candidate.node_id,
                project_id=new.project_id,
                parameters={"start": new.start, GENERATION: _FIRST_GENERATION},
                timeout=TIMEOUTS["vm.create"],
            )
            await audit.record(
                tx,
                caller,
                target_kind="vm",
                target_id=str(vm_id),
                target_name=new.name,
                project_id=new.project_id,
                details={
                    "task_id": str(task.id),
                    "image_id": str(new.image_id),
                    "vcpus": new.vcpus,
                    "memory_mib": new.memory_mib,
                    "disk_gib": new.disk_gib,
                },
            )
            await announce_machine(tx, vm_id)
    except UniqueViolationError as error:
        if error.constraint_name == "vms_idempotency":
            raise conflict("This idempotency key made another machine already.") from None
        raise conflict(f"The project has a machine named {new.name} already.") from None
    except ForeignKeyViolationError as error:
        raise not_found(f"There is no such {_FOREIGN.get(error.constraint_name or '', 'thing')}.") from None
    return Created(vm_id, task, address)


async def find_by_key(queryable: Queryable, key: IdempotencyKey) -> Record | None:
    """The machine that this key made, while the key counts: `id`, `sealed_seed`, `task_id`."""
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


async def _usable_image(tx: Transaction, new: NewMachine) -> None:
    image = await tx.fetchrow("SELECT * FROM images WHERE id = $1 AND enabled", new.image_id)
    if image is None:
        raise not_found("There is no such image.")
    if image["digest"] is None:
        raise not_ready(
            f"The image {image['slug']} has no checksum yet, so no node could verify it.",
            hint="An administrator refreshes the images, or uploads the file.",
        )
    for name, has, least in (
        ("disk_gib", new.disk_gib, image["min_disk_gib"]),
        ("memory_mib", new.memory_mib, image["min_memory_mib"]),
    ):
        if has < least:
            raise wrong_field(name, f"{image['name']} needs at least {least}")


async def _default_network(tx: Transaction) -> UUID:
    network_id: UUID | None = await tx.fetchval('SELECT id FROM networks WHERE "default"')
    if network_id is None:
        raise capacity("There is no default network.", hint="An administrator makes a network the default.")
    return network_id


async def _take_address(
    tx: Transaction, candidates: list[Candidate], vm_id: UUID, nic_id: UUID
) -> tuple[Candidate, IPAddress]:
    """The primary address, and beside it an IPv6 sub-prefix where one is free. The pools of one candidate are locked in
    order, and let go where all are full: the next one's may come before them."""
    full: set[UUID] = set()
    for candidate in candidates:
        pool_ids = [pool_id for pool_id in candidate.pool_ids if pool_id not in full]
        try:
            async with tx.savepoint():
                return candidate, await _take_at(tx, candidate, pool_ids, vm_id, nic_id)
        except _AllFull:
            full.update(pool_ids)
    raise capacity(
        "No address is free for this machine.",
        hint="Delete a machine, or ask an administrator for another pool.",
        details={"full_pools": len(full)},
    )


async def _take_at(tx: Transaction, candidate: Candidate, pool_ids: list[UUID], vm_id: UUID, nic_id: UUID) -> IPAddress:
    taken = await allocate_first(tx, pool_ids, vm_id=vm_id, nic_id=nic_id, primary=True, node_id=candidate.node_id)
    if taken is None:
        raise _AllFull
    beside = candidate.ipv6_pool_ids.get(taken.pool_id, ())
    await allocate_first(tx, beside, vm_id=vm_id, nic_id=nic_id, primary=False, node_id=candidate.node_id)
    return taken.address


async def _still_there(tx: Transaction, node_id: UUID) -> None:
    """The machine's row holds its node's by now: whoever deletes the node has done so, or will find the machine."""
    if await tx.fetchval("SELECT deleted_at IS NOT NULL FROM nodes WHERE id = $1", node_id):
        raise capacity("The node that was chosen has just been deleted; nothing was made.", hint="Order it again.")


async def _insert(tx: Transaction, sealer: Sealer, caller: Caller, new: NewMachine, vm_id: UUID, node_id: UUID) -> None:
    secret = Seed(new.password_hash, new.generated).sealed(sealer) if new.password_hash else None
    await tx.execute(
        """INSERT INTO vms (id, name, hostname, project_id, node_id, plan_id, image_id, vcpus, memory_mib, disk_gib,
                            status, access_mode, ssh_keys, sealed_seed, rate_mbps, idempotency_owner, idempotency_key,
                            created_by)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)""",
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
    )


_FOREIGN: Final = {
    "vms_project_id_fkey": "project",
    "vms_plan_id_fkey": "plan",
    "vms_image_id_fkey": "image",
    "vms_node_id_fkey": "node",
}
