"""The API's models of a machine, and the SQL that fills them: one statement for a list of any size.

`unknown` is shown while the machine's node is not online; only staff and administrators see the placement (the node).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from ipaddress import ip_network
from typing import Final
from uuid import UUID

from svc.controller.access import visible_projects
from svc.controller.tasks import TaskModel
from svc.registry.operation import Model
from svc.registry.paging import EVERYTHING, Condition, joined
from svc.registry.principal import Principal
from svc_actors.controller.machines.metrics import MetricPoint
from svc_actors.controller.machines.processors import CpuMode
from svc_actors.controller.machines.spec import account_name
from svc_actors.controller.machines.states import UNKNOWN_WHILE_AWAY, DesiredPower, RestartPolicy
from svc_actors.controller.machines.windows import ACCOUNT
from svc_actors.controller.networking.pool_arithmetic import guest_address
from svc_actors.controller.platforms import Firmware, Tpm
from svc_actors.store import Queryable, Record
from svc_common.errors import not_found


class VMStatus(StrEnum):
    CREATING = "creating"
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    REBOOTING = "rebooting"
    DELETING = "deleting"
    FAILED = "failed"
    UNKNOWN = "unknown"


class AccessMode(StrEnum):
    """The account with which the owner signs in: root with a password, root with a key, or the image's own user with
    sudo."""

    ROOT_PASSWORD = "root_password"  # noqa: S105 - a mode, not a password
    ROOT_KEY = "root_key"
    USER_SUDO = "user_sudo"


class VMAddress(Model):
    """The pool is shown to staff and administrators only."""

    ip: str
    state: str
    primary: bool
    pool_id: UUID | None


class VMCpu(Model):
    """`next_mode`: the processor that the guest gets when it is stopped and started; null if that changes nothing."""

    mode: CpuMode
    next_mode: CpuMode | None


class VMIso(Model):
    """The ISO in the CD-ROM drive. `boot`: it is booted before the disk."""

    image_id: UUID
    image_name: str
    boot: bool


class VMFacts(Model):
    cpu: VMCpu


class VM(Model):
    """A machine. `primary_ip`: the address of its guest; of an IPv6 sub-prefix, the first address. `user`: the account
    of its access mode. Windows machines and machines installed from an ISO have no access mode: `user` is then the
    Windows administrator, or the account whose password a reset changes, and `image_id` of the latter is the ISO.
    `status_reason` says why a machine failed, or what is unusual about it. `desired_power` follows the last order;
    `restart_policy` says whether it is restarted after it went off without an order. `protected`: it can be neither
    deleted nor reinstalled. `rescue_since`: since when it boots the rescue system instead of its own disk; null if it
    does not. `iso`: the ISO in its CD-ROM drive. `firmware` and `tpm`: those of the image or backup from which its disk
    was last written. `node_id` and `node_name` are for staff and administrators."""

    id: UUID
    name: str
    hostname: str
    status: VMStatus
    status_reason: str | None
    desired_power: DesiredPower
    restart_policy: RestartPolicy
    protected: bool
    rescue_since: datetime | None
    iso: VMIso | None
    labels: dict[str, str]
    project_id: UUID
    project_name: str
    node_id: UUID | None
    node_name: str | None
    plan_id: UUID | None
    plan_name: str | None
    image_id: UUID
    image_name: str
    vcpus: int
    memory_mib: int
    disk_gib: int
    firmware: Firmware
    tpm: Tpm
    access_mode: AccessMode | None
    user: str
    primary_ip: str | None
    addresses: list[VMAddress]
    facts: VMFacts
    created_at: datetime

    @classmethod
    def of(cls, row: Record, principal: Principal) -> VM:
        hidden = {} if principal.is_operator else {"pool_id": None}
        windows = row["os_family"] == "windows"
        addresses = [VMAddress(**(address | hidden)) for address in row["addresses"]]
        computed = {
            "status": row["shown_status"],
            "iso": VMIso(image_id=row["iso_image_id"], image_name=row["iso_name"], boot=row["iso_boot"])
            if row["iso_image_id"] is not None
            else None,
            "node_id": row["node_id"] if principal.is_operator else None,
            "node_name": row["node_name"] if principal.is_operator else None,
            "access_mode": None if windows or row["image_kind"] == "iso" else row["access_mode"],
            "user": ACCOUNT if windows else account_name(row["access_mode"], row["login_user"]),
            "primary_ip": next((_guest_ip(address.ip) for address in addresses if address.primary), None),
            "addresses": addresses,
            "facts": VMFacts(cpu=VMCpu(mode=row["cpu_mode"], next_mode=row["cpu_next_mode"])),
        }
        # Every other field has the name of its column in `VM_SELECT`.
        columns = {name: row[name] for name in cls.model_fields.keys() - computed.keys()}
        return cls.model_validate(columns | computed)


def _guest_ip(text: str) -> str:
    return str(guest_address(ip_network(text)))


class VMCreateResult(Model):
    """`password` is set if the service generated one, in this answer only; `password_chosen`: the caller chose it.
    `replayed`: an earlier call with this idempotency key has created the machine."""

    vm: VM
    task: TaskModel
    user: str
    password_chosen: bool
    password: str | None
    replayed: bool


class MetricSeries(Model):
    """Oldest first. Rates are per second, averaged over the resolution."""

    resolution_seconds: int
    points: list[MetricPoint]


_UNSEEN: Final = "(" + ", ".join(f"'{status.value}'" for status in sorted(UNKNOWN_WHILE_AWAY)) + ")"
_AWAY: Final = "ARRAY(SELECT id FROM nodes WHERE state <> 'online')"


def shown_status(status: str) -> str:
    """An SQL expression that turns the stored status into the displayed one. The query must join the machine's row of
    `nodes`."""
    return f"CASE WHEN nodes.state <> 'online' AND {status} IN {_UNSEEN} THEN 'unknown' ELSE {status} END"


def has_status(status: VMStatus | None) -> Condition:
    """True for machines with this displayed status; for all machines if it is None. The condition is on stored columns,
    so that an index can be used."""
    if status is None:
        return EVERYTHING
    if status is VMStatus.UNKNOWN:
        return Condition(f"vms.node_id = ANY({_AWAY}) AND vms.status IN {_UNSEEN}")
    if status.value not in UNKNOWN_WHILE_AWAY:
        return Condition("vms.status = $1", (status.value,))
    # NOT IN takes one hash lookup for each machine; <> ALL would compare the machine's node with every node that is
    # offline.
    here = "vms.node_id IS NULL OR vms.node_id NOT IN (SELECT id FROM nodes WHERE state <> 'online')"
    return Condition(f"vms.status = $1 AND ({here})", (status.value,))


GUEST_IP: Final = "CASE WHEN family(ip) = 6 AND masklen(ip) < 128 THEN host(ip + 1) ELSE host(ip) END"
"""The SQL expression of `guest_address`, of an allocation's `ip`."""

# These outer joins by a primary key cost nothing when rows are only counted: the planner removes them.
VM_SELECT: Final = f"""
SELECT vms.*, {shown_status("vms.status")} AS shown_status, projects.name AS project_name, nodes.name AS node_name,
       plans.name AS plan_name, images.name AS image_name, images.login_user, images.os_family,
       images.kind AS image_kind, (SELECT name FROM images WHERE id = vms.iso_image_id) AS iso_name,
       (SELECT coalesce(json_agg(json_build_object('ip', address_text(held.ip), 'state', held.state,
                                                   'primary', held.is_primary, 'pool_id', held.pool_id)
                                 ORDER BY held.is_primary DESC, held.ip), '[]')
        FROM allocations held WHERE held.vm_id = vms.id) AS addresses
FROM vms
LEFT JOIN projects ON projects.id = vms.project_id
LEFT JOIN images ON images.id = vms.image_id
LEFT JOIN nodes ON nodes.id = vms.node_id
LEFT JOIN plans ON plans.id = vms.plan_id"""

NOT_DELETED: Final = Condition("vms.deleted_at IS NULL")


async def visible_machine(queryable: Queryable, principal: Principal, vm_id: UUID) -> Record:
    """The row of a machine that the caller may see. Raises not_found."""
    condition = joined([NOT_DELETED, Condition("vms.id = $1", (vm_id,)), visible_projects(principal, "vms.project_id")])
    row = await queryable.fetchrow(f"{VM_SELECT} WHERE {condition.sql}", *condition.args)
    if row is None:
        raise not_found("There is no such machine.")
    return row


async def show(queryable: Queryable, principal: Principal, vm_id: UUID) -> VM:
    return VM.of(await visible_machine(queryable, principal, vm_id), principal)
