"""The columns that people look at first, list by list; they fit a terminal of a hundred columns.

Names stand where commands take names; ids are shown where there is nothing else to say (`--columns id,...` has them
everywhere).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Column(NamedTuple):
    """`path` reaches into a row by dots; a `whole` column is not folded."""

    title: str
    path: str
    whole: bool = False


def _columns(*given: str) -> tuple[Column, ...]:
    """Columns by their paths, or `title=path`. Ids are kept whole, since they are copied."""
    parts = [text.partition("=") for text in given]
    return tuple(Column(title, path or title, whole=(path or title) == "id") for title, _, path in parts)


_TASKS = _columns("id", "op", "status", "resource=resource_name", "progress", "created=created_at")

COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "vm.list": _columns(
        "name",
        "status",
        "project=project_name",
        "node=node_name",
        "ip=primary_ip",
        "vcpus",
        "memory=memory_mib",
        "disk=disk_gib",
        "image=image_name",
        "created=created_at",
    ),
    "node.list": _columns(
        "name",
        "state",
        "mode",
        "location=location.name",
        "machines=allocated.machines",
        "cpus=capacity.cpus",
        "load=capacity.load_1m",
        "memory=capacity.memory_mib",
        "free=capacity.memory_free_mib",
        "disk free=capacity.disk_free_gib",
        "seen=seen_at",
    ),
    "node.bootstraps": _columns("name", "mode", "created=created_at", "expires=expires_at", "id"),
    "node.domains": _columns("name", "state", "managed", "vcpus", "memory=memory_mib", "seen=seen_at"),
    "node.images": _columns("slug", "name", "size=size_bytes", "pulled=pulled_at"),
    "task.list": _TASKS,
    "vm.tasks": _TASKS,
    "node.tasks": _TASKS,
    "task.log": _columns("position", "at", "level", "progress", "message"),
    "image.list": _columns("slug", "name", "release", "source", "size=size_bytes", "enabled", "refreshed=refreshed_at"),
    "plan.list": _columns(
        "slug",
        "name",
        "vcpus",
        "memory=memory_mib",
        "disk=disk_gib",
        "ipv4=ipv4_count",
        "traffic=traffic_gib",
        "enabled",
    ),
    "project.list": _columns("name", "id", "created=created_at"),
    "project.members": _columns("name", "email", "role", "id"),
    "location.list": _columns("name", "id", "created=created_at"),
    "network.list": _columns("name", "default", "mtu", "pools", "id", "created=created_at"),
    "pool.list": _columns(
        "name",
        "network=network_name",
        "cidr",
        "topology",
        "vlan",
        "used=pressure",
        "free=free_count",
        "allocated=allocated_count",
        "releasing=releasing_count",
        "reserved=reserved_count",
        "enabled",
    ),
    "pool.allocations": _columns("ip", "state", "vm=vm_name", "note", "changed=changed_at"),
    "pool.reservations": _columns("ip", "until=range_end", "kind", "note", "by the pool=arithmetic", "id"),
    "security_group.list": _columns(
        "name",
        "project=project_name",
        "machines=machine_count",
        "ingress=default_ingress",
        "egress=default_egress",
        "description",
    ),
    "traffic.list": _columns(
        "vm=vm_name",
        "plan",
        "received=received_bytes",
        "sent=sent_bytes",
        "counted=counted_bytes",
        "allowance=allowance_bytes",
        "percent",
        "state",
        "resets",
    ),
    "vm.bandwidth": _columns(
        "period", "received=received_bytes", "sent=sent_bytes", "samples", "resets", "first=first_at"
    ),
    "user.list": _columns("name", "email", "role", "id"),
    "person.list": _columns("name", "email", "role", "status", "company", "id"),
    "token.list": _columns("name", "scopes", "ends in=last_four", "used=last_used_at", "expires=expires_at", "id"),
    "ssh_key.list": _columns("name", "fingerprint", "created=created_at", "id"),
    "alert.list": _columns("severity", "message", "raised=opened_at", "id"),
    "activity.list": _columns("at", "actor", "operation", "target=target_name", "outcome"),
    "vm.activity": _columns("at", "actor", "operation", "outcome"),
}
"""By the name of the operation that lists; a column that the rows do not have is left out."""

GROUPS_OF_A_MACHINE = _columns("name", "id")
