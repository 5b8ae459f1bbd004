"""The specification of a machine for its node, read from the records: its sizes, its network, its first boot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_interface
from itertools import groupby
from typing import Final
from uuid import UUID

from svc_actors.controller.machines.records import ISOLATED
from svc_actors.controller.networking.pool_arithmetic import IPNetwork, guest_address
from svc_actors.controller.networking.security_groups import firewall_of
from svc_actors.controller.platforms import platform_of
from svc_actors.controller.volumes.records import attached_disks
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Record
from svc_common.errors import not_found
from svc_nodeagent.protocol import (
    Account,
    DiskSpec,
    GuestAddress,
    MachineSpec,
    NetworkSpec,
    NicSpec,
    SeedSpec,
    Topology,
)

_SEED_PURPOSE = "vms.sealed_seed"
ROOT = "root"


@dataclass(frozen=True)
class Seed:
    """The secret part of a first boot or of a password change, sealed in the machine's row while it is needed.

    `generated` is a password that the service generated. It is stored only until the task has ended, so that an answer
    that was lost in a crash can be repeated. A password chosen by the caller is never stored, here or elsewhere.
    `user_data` is the owner's own, for cloud-init.
    """

    password_hash: str | None
    generated: str | None = field(default=None, repr=False)
    user_data: str | None = field(default=None, repr=False)

    def sealed(self, sealer: Sealer) -> bytes:
        return sealer.seal(json.dumps(vars(self)).encode(), _SEED_PURPOSE)

    @classmethod
    def unsealed(cls, sealer: Sealer, sealed: bytes | None) -> Seed:
        if sealed is None:
            return cls(None)
        content = json.loads(sealer.unseal(sealed, _SEED_PURPOSE))
        return cls(content["password_hash"], content["generated"], content.get("user_data"))


def account_name(access_mode: str, login_user: str) -> str:
    """The account that an access mode names: root, or the image's own user."""
    return login_user if access_mode == "user_sudo" else ROOT


_SPEC: Final = f"""
SELECT vms.*, images.login_user, {ISOLATED} AS isolated,
       EXISTS (SELECT FROM security_group_machines WHERE vm_id = vms.id) AS in_groups,
       nics.id AS nic_id, nics.mac, networks.mtu, allocations.ip, allocations.is_primary, pools.gateway,
       pools.gateway_mode, pools.guest_prefix_len, pools.topology, pools.vlan, pools.nameservers
FROM vms
JOIN images ON images.id = vms.image_id
LEFT JOIN (
    nics
    JOIN networks ON networks.id = nics.network_id
    JOIN allocations ON allocations.nic_id = nics.id AND allocations.state = 'allocated'
    JOIN pools ON pools.id = allocations.pool_id
) ON nics.vm_id = vms.id
WHERE vms.id = $1
ORDER BY nics.position, allocations.is_primary DESC, allocations.ip"""
"""A machine's row, repeated for each address of each NIC; a single row with NULLs if it has none."""


async def machine_spec(queryable: Queryable, sealer: Sealer, vm_id: UUID) -> MachineSpec:
    rows = await _rows(queryable, vm_id)
    vm = rows[0]
    return MachineSpec(
        vm_id=vm_id,
        name=vm["name"],
        vcpus=vm["vcpus"],
        memory_mib=vm["memory_mib"],
        disks=await machine_disks(queryable, vm_id),
        network=await _network(queryable, vm_id, rows),
        seed=seed_spec(
            str(vm_id),
            vm["hostname"],
            account_name(vm["access_mode"], vm["login_user"]),
            vm["ssh_keys"],
            Seed.unsealed(sealer, vm["sealed_seed"]),
        ),
        platform=platform_of(vm),
    )


async def machine_disks(queryable: Queryable, vm_id: UUID) -> tuple[DiskSpec, ...]:
    """All recorded disks of a machine: its first one, and its volumes."""
    size_gib = await queryable.fetchval("SELECT disk_gib FROM vms WHERE id = $1", vm_id)
    return (DiskSpec(index=0, size_gib=size_gib), *await attached_disks(queryable, vm_id))


def seed_spec(instance_id: str, hostname: str, account: str, ssh_keys: Sequence[str], secret: Seed) -> SeedSpec:
    """The data of a first boot: if the guest has not booted with this `instance_id` yet, it runs its first boot
    again."""
    return SeedSpec(
        instance_id=instance_id,
        hostname=hostname,
        account=Account(
            name=account, sudo=account != ROOT, password_hash=secret.password_hash, ssh_keys=tuple(ssh_keys)
        ),
        ssh_password_login=secret.password_hash is not None,
        user_data=secret.user_data,
    )


async def network_spec(queryable: Queryable, vm_id: UUID) -> NetworkSpec:
    """The complete desired network of this machine for its host.

    The generation is read together with or before the data for which it stands. So the data may be newer than the
    generation, but never older, and a host that reports a generation has all data of that generation. Raises not_found.
    """
    return await _network(queryable, vm_id, await _rows(queryable, vm_id))


async def _rows(queryable: Queryable, vm_id: UUID) -> list[Record]:
    rows = await queryable.fetch(_SPEC, vm_id)
    if not rows:
        raise not_found("There is no such machine.")
    return rows


async def _network(queryable: Queryable, vm_id: UUID, rows: Sequence[Record]) -> NetworkSpec:
    vm, held = rows[0], [row for row in rows if row["nic_id"] is not None]
    rate = effective_rate(vm["rate_mbps"], vm["throttle_mbps"])
    return NetworkSpec(
        nics=tuple(_nic(list(of_nic), rate) for _, of_nic in groupby(held, key=lambda row: row["nic_id"])),
        firewall=await firewall_of(queryable, vm_id) if vm["in_groups"] else None,
        isolated=vm["isolated"],
        generation=vm["net_wanted"],
    )


def effective_rate(rate_mbps: int | None, throttle_mbps: int | None) -> int | None:
    """The effective cap: the lower of the operator's and the traffic sanction's; None means no cap."""
    return min((cap for cap in (rate_mbps, throttle_mbps) if cap is not None), default=None)


def held_network(ip: object) -> IPNetwork:
    """An allocation's `ip` as a network: a single address, or an IPv6 sub-prefix."""
    return ip_interface(str(ip)).network


def _nic(rows: Sequence[Record], rate_mbps: int | None) -> NicSpec:
    """One NIC, from the rows of its addresses. All rows have the same VLAN, because addresses of another VLAN cannot be
    attached to the NIC."""
    nic = rows[0]
    return NicSpec(
        nic_id=nic["nic_id"],
        mac=str(nic["mac"]).lower(),
        addresses=tuple(_address(row) for row in rows),
        nameservers=tuple(dict.fromkeys(str(server) for row in rows for server in row["nameservers"])),
        mtu=nic["mtu"],
        rate_mbps=rate_mbps,
        vlan=nic["vlan"],
    )


def _address(row: Record) -> GuestAddress:
    network = held_network(row["ip"])
    return GuestAddress(
        interface=ip_interface(f"{guest_address(network)}/{row['guest_prefix_len']}"),
        network=network,
        gateway=str(row["gateway"]),
        on_link=row["gateway_mode"] == "onlink",
        topology=Topology(row["topology"]),
        primary=row["is_primary"],
    )
