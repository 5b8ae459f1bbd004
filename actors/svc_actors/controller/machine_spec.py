"""What a node is told of a machine, read from the records: its sizes, its network, its first boot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from uuid import UUID

from svc_actors.controller.rows import sole
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable
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

    `generated` is a password that the service made, kept only until the task has ended, so that an answer lost in a
    crash can be given again. A chosen password is never in here, nor anywhere.
    """

    password_hash: str | None
    generated: str | None = None

    def sealed(self, sealer: Sealer) -> bytes:
        content = {"password_hash": self.password_hash, "generated": self.generated}
        return sealer.seal(json.dumps(content).encode(), _SEED_PURPOSE)

    @classmethod
    def unsealed(cls, sealer: Sealer, sealed: bytes | None) -> Seed:
        if sealed is None:
            return cls(None)
        content = json.loads(sealer.unseal(sealed, _SEED_PURPOSE))
        return cls(content["password_hash"], content["generated"])


def account_name(access_mode: str, login_user: str) -> str:
    """The account that an access mode names: root, or the image's own user."""
    return login_user if access_mode == "user_sudo" else ROOT


async def machine_spec(queryable: Queryable, sealer: Sealer, vm_id: UUID) -> MachineSpec:
    vm = sole(
        await queryable.fetchrow(
            "SELECT vms.*, images.login_user FROM vms JOIN images ON images.id = vms.image_id WHERE vms.id = $1", vm_id
        )
    )
    seed = Seed.unsealed(sealer, vm["sealed_seed"])
    account = account_name(vm["access_mode"], vm["login_user"])
    return MachineSpec(
        vm_id=vm_id,
        name=vm["name"],
        vcpus=vm["vcpus"],
        memory_mib=vm["memory_mib"],
        disks=(DiskSpec(index=0, size_gib=vm["disk_gib"]),),
        network=await network_spec(queryable, vm_id),
        seed=SeedSpec(
            instance_id=str(vm_id),
            hostname=vm["hostname"],
            account=Account(
                name=account,
                sudo=account != ROOT,
                password_hash=seed.password_hash,
                ssh_keys=tuple(vm["ssh_keys"]),
            ),
            ssh_password_login=seed.password_hash is not None,
        ),
    )


async def network_spec(queryable: Queryable, vm_id: UUID) -> NetworkSpec:
    """All that the host must agree with for this machine's network."""
    rows = await queryable.fetch(
        """SELECT nics.id AS nic_id, nics.mac, networks.mtu, vms.rate_mbps, allocations.ip, allocations.is_primary,
                  pools.cidr, pools.gateway, pools.gateway_mode, pools.guest_prefix_len, pools.topology,
                  pools.nameservers
           FROM nics
           JOIN vms ON vms.id = nics.vm_id
           JOIN networks ON networks.id = nics.network_id
           LEFT JOIN allocations ON allocations.nic_id = nics.id AND allocations.state = 'allocated'
           LEFT JOIN pools ON pools.id = allocations.pool_id
           WHERE nics.vm_id = $1
           ORDER BY nics.position, allocations.is_primary DESC, allocations.ip""",
        vm_id,
    )
    nics: dict[UUID, NicSpec] = {}
    for row in rows:
        if row["ip"] is None:
            continue
        address = GuestAddress(
            interface=ip_interface(f"{row['ip']}/{row['guest_prefix_len']}"),
            network=ip_network(row["ip"]),
            gateway=str(row["gateway"]),
            on_link=row["gateway_mode"] == "onlink",
            topology=Topology(row["topology"]),
            primary=row["is_primary"],
        )
        before = nics.get(row["nic_id"])
        nameservers = before.nameservers if before else ()
        nics[row["nic_id"]] = NicSpec(
            nic_id=row["nic_id"],
            mac=str(row["mac"]).lower(),
            addresses=(*before.addresses, address) if before else (address,),
            nameservers=tuple(dict.fromkeys((*nameservers, *(str(server) for server in row["nameservers"])))),
            mtu=row["mtu"],
            rate_mbps=row["rate_mbps"],
        )
    return NetworkSpec(nics=tuple(nics.values()))
