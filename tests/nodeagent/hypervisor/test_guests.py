"""A running guest takes an address that its machine was given, gives up one that was taken away, and keeps to both when
it starts again: by the host, and by itself."""

from __future__ import annotations

import os
from ipaddress import IPv4Network, IPv6Interface, ip_interface
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.hypervisor import LibvirtHost
from svc_nodeagent.protocol import (
    ConsoleKind,
    GuestAddress,
    GuestTold,
    NetworkResult,
    NetworkSpec,
    NicSpec,
    NodeTraffic,
    Topology,
    TrafficReading,
    TrafficResult,
    VmCreate,
    VmDelete,
    VmNetApply,
    VmNetRelease,
    VmReboot,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, GATEWAY, OTHER, image, machine, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD = "Kelp-marble-41"
SUB_PREFIX = ip_interface(f"fd5e:{os.getpid() % 65536:x}:0:5::1/64")


def given(text: str, *, primary: bool = False) -> GuestAddress:
    return GuestAddress(
        interface=ip_interface(f"{text}/32"),
        network=IPv4Network(text),
        gateway=GATEWAY,
        on_link=True,
        topology=Topology.ROUTED,
        primary=primary,
    )


def sub_prefix() -> GuestAddress:
    assert isinstance(SUB_PREFIX, IPv6Interface)
    return GuestAddress(
        interface=SUB_PREFIX,
        network=SUB_PREFIX.network,
        gateway="fe80::1",
        on_link=True,
        topology=Topology.ROUTED,
    )


async def answers(address: str) -> None:
    """Until the guest answers a ping."""
    with trio.fail_after(300):
        while (
            await trio.run_process(["ping", "-c", "1", "-W", "1", address], check=False, capture_stdout=True)
        ).returncode != 0:
            await trio.sleep(0.1)


async def is_silent(address: str) -> bool:
    done = await trio.run_process(["ping", "-c", "2", "-W", "1", address], check=False, capture_stdout=True)
    return done.returncode != 0


async def test_a_guest_takes_what_it_is_given_at_once_and_at_every_start(host: LibvirtHost, demo_image: Path) -> None:
    nic_id, mac = uuid4(), "52:54:00:21:30:02"

    def network(generation: int, *addresses: GuestAddress) -> NetworkSpec:
        nic = NicSpec(nic_id=nic_id, mac=mac, addresses=addresses)
        return NetworkSpec(nics=(nic,), generation=generation)

    first, second, sixth = given(ADDRESS, primary=True), given(OTHER), sub_prefix()
    spec = machine(network(1, first), seeded=seed(password_hash=sha512_crypt(PASSWORD)))

    async def apply(wanted: NetworkSpec) -> GuestTold:
        result = await host.perform(VmNetApply(vm_id=spec.vm_id, network=wanted), silent)
        assert isinstance(result, NetworkResult)
        assert result.generation == wanted.generation
        return result.told

    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    assert await apply(network(2, first)) is GuestTold.AT_BOOT  # its agent does not run yet
    await answers(ADDRESS)
    with trio.fail_after(300):
        while await apply(network(2, first)) is not GuestTold.TOLD:
            await trio.sleep(0.5)

    assert await apply(network(3, first, second, sixth)) is GuestTold.TOLD
    await answers(OTHER)
    await answers(str(SUB_PREFIX.ip))  # once it has made sure that nobody else has it

    await host.perform(VmReboot(vm_id=spec.vm_id, timeout_seconds=60), silent)
    for address in (ADDRESS, OTHER, str(SUB_PREFIX.ip)):
        await answers(address)

    console = ConsoleReader(await host.open_console(spec.vm_id, ConsoleKind.SERIAL))
    await console.until("login:")
    await console.log_in("alice", PASSWORD)
    assert "via fe80::1" in await console.run("ip -6 route show default")
    with trio.fail_after(300):
        while await apply(network(4, first, sixth)) is not GuestTold.TOLD:
            await trio.sleep(0.5)
    assert OTHER not in await console.run("ip address show eth0")
    assert await is_silent(OTHER)

    # It restarts by itself: nothing of ours is started anew, and the seed it reads is the present one.
    await console.type("sudo reboot")
    await console.until("Linux version")
    await answers(ADDRESS)
    await answers(str(SUB_PREFIX.ip))
    assert await is_silent(OTHER)

    await host.perform(VmNetRelease(vm_id=spec.vm_id, addresses=(str(sixth.network),)), silent)
    assert await is_silent(str(SUB_PREFIX.ip))

    # What passed is counted through all of it, and stays when the machine has gone.
    before = await traffic(host, spec.vm_id)
    await host.perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True), silent)
    after = await traffic(host, spec.vm_id)
    assert before.resets == after.resets == 0
    assert after.received >= before.received > 0
    assert after.sent >= before.sent > 0


async def traffic(host: LibvirtHost, vm_id: UUID) -> TrafficReading:
    result = await host.perform(NodeTraffic(), silent)
    assert isinstance(result, TrafficResult)
    return next(reading for reading in reversed(result.readings) if reading.vm_id == vm_id)
