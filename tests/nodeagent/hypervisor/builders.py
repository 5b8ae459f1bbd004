"""Specifications that tests vary: a small machine on the demo image, behind nat."""

from __future__ import annotations

import hashlib
import os
from ipaddress import IPv4Address, ip_interface, ip_network
from pathlib import Path
from uuid import UUID, uuid4

import trio

from svc_nodeagent.hypervisor.files import MachineRecord
from svc_nodeagent.protocol import (
    Account,
    Action,
    ControllerSource,
    DiskSpec,
    Firewall,
    GuestAddress,
    ImageFormat,
    ImageKind,
    ImageSpec,
    MachineSpec,
    NetworkSpec,
    NicSpec,
    ProbeResult,
    SeedSpec,
    Topology,
)

# Machines of test processes that run at once stand on one host: each process has addresses of its own.
_NETWORK = f"10.{128 + os.getpid() % 64}.{os.getpid() // 64 % 256}"
GATEWAY, ADDRESS, OTHER = (f"{_NETWORK}.{number}" for number in (1, 2, 3))


def address(
    interface: str,
    *,
    network: str | None = None,
    gateway: str | None = None,
    topology: Topology = Topology.NAT,
    primary: bool = False,
) -> GuestAddress:
    """IPv4 alone on its link, or the first address of an IPv6 network that is the guest's own."""
    given = ip_interface(interface)
    return GuestAddress(
        interface=given,
        network=ip_network(network) if network else given.network if given.version == 6 else ip_network(given.ip),
        gateway=gateway or (GATEWAY if given.version == 4 else "fe80::1"),
        on_link=True,
        topology=topology,
        primary=primary,
    )


def nic(
    interface: str = ADDRESS,
    *more: GuestAddress,
    topology: Topology = Topology.NAT,
    mac: str = "52:54:00:21:30:02",
    mtu: int = 1500,
    nic_id: UUID | None = None,
    nameservers: tuple[str, ...] = ("192.0.2.53",),
    rate_mbps: int | None = None,
) -> NicSpec:
    return NicSpec(
        nic_id=nic_id or uuid4(),
        mac=mac,
        addresses=(address(interface, topology=topology, primary=True), *more),
        nameservers=nameservers,
        mtu=mtu,
        rate_mbps=rate_mbps,
    )


def network(*addresses: str, firewall: Firewall | None = None, isolated: bool = False) -> NetworkSpec:
    """One NIC for each address, with a MAC made from it."""
    return NetworkSpec(
        nics=tuple(nic(each, mac=mac_of(each)) for each in addresses or (ADDRESS,)),
        firewall=firewall,
        isolated=isolated,
    )


def mac_of(address: str) -> str:
    return "52:54:" + ":".join(f"{part:02x}" for part in IPv4Address(address).packed)


def seed(
    account: str = "alice",
    *,
    password_hash: str | None = None,
    keys: tuple[str, ...] = (),
    user_data: str | None = None,
) -> SeedSpec:
    return SeedSpec(
        instance_id=f"i-{uuid4()}",
        hostname="web-1",
        account=Account(name=account, sudo=True, password_hash=password_hash, ssh_keys=keys),
        ssh_password_login=password_hash is not None,
        user_data=user_data,
    )


def machine(
    networks: NetworkSpec | None = None, *, seeded: SeedSpec | None = None, disks: tuple[DiskSpec, ...] | None = None
) -> MachineSpec:
    return MachineSpec(
        vm_id=uuid4(),
        name="web-1",
        vcpus=1,
        memory_mib=256,
        disks=disks or (DiskSpec(index=0, size_gib=1),),
        network=networks or network(),
        seed=seeded or seed(),
    )


def record(spec: MachineSpec, base: str = "sha256-0.qcow2") -> MachineRecord:
    return MachineRecord(
        vm_id=spec.vm_id,
        name=spec.name,
        vcpus=spec.vcpus,
        memory_mib=spec.memory_mib,
        disks=spec.disks,
        base=base,
        network=spec.network,
        seed=spec.seed,
    )


def image(content: bytes | Path, *, format: ImageFormat = ImageFormat.QCOW2) -> ImageSpec:
    """An image file that the controller keeps; the token is its digest."""
    data = content.read_bytes() if isinstance(content, Path) else content
    digest = hashlib.sha256(data).hexdigest()
    return ImageSpec(image_id=uuid4(), name="demo", format=format, source=ControllerSource(token=digest), digest=digest)


def rescue_image(system: Path) -> ImageSpec:
    """A rescue system that the controller keeps; the token says where."""
    spec = image(system, format=ImageFormat.RAW)
    source = ControllerSource(token=f"file:{system}")
    return spec.model_copy(update={"kind": ImageKind.RESCUE, "name": "rescue", "source": source})


def iso_image(content: Path) -> ImageSpec:
    spec = image(content, format=ImageFormat.RAW)
    return spec.model_copy(update={"kind": ImageKind.ISO, "name": "iso"})


class FileStream(trio.abc.Stream):
    """What the controller's stream of a file looks like to the agent."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        chunk, self._data = self._data[:max_bytes], self._data[max_bytes or len(self._data) :]
        return chunk

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        raise trio.BrokenResourceError

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class RecordedMove(FileStream):
    """The other host of a move. What the host under test sends is kept in a file, and taken in; and what is in the file
    is sent to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.read_bytes() if path.exists() else b"\n")
        self._kept = None if path.exists() else path

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self._kept is not None:
            with self._kept.open("ab") as file:
                file.write(data)


async def silent(percent: int, message: str) -> None:
    """Progress nobody asked for."""
    await trio.lowlevel.checkpoint()


def carried(probe: ProbeResult) -> list[str]:
    return sorted(each for machine in probe.machines for each in machine.addresses)


def differences(probe: ProbeResult) -> list[str]:
    return [each for machine in probe.machines for each in machine.differences]


CLOSED = Firewall(default_ingress=Action.DROP, default_egress=Action.ACCEPT)
SIX = address(f"2001:db8:{os.getpid() % 65536:x}:5::1/64", topology=Topology.ROUTED)
