"""Networks of machines on this host's kernel: applied, released, found again after a restart."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import nft
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.network.plan import Uplink
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode, NetworkSpec, Topology
from tests.nodeagent.hypervisor.builders import (
    ADDRESS,
    GATEWAY,
    OTHER,
    SIX,
    address,
    carried,
    differences,
    network,
    nic,
)

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


async def test_applying_again_changes_nothing(host_network: HostNetwork) -> None:
    vm_id, spec = uuid4(), network(ADDRESS, OTHER)
    await host_network.apply(vm_id, spec)
    before = await host_network.probe()
    await host_network.apply(vm_id, spec)
    assert await host_network.probe() == before
    assert carried(before) == [ADDRESS, OTHER]
    assert all(tap.up and tap.filtered and tap.vm_id == vm_id for tap in before.taps)


async def test_after_a_restart_all_stands_as_recorded_and_strays_are_gone(naming: Naming, clean_host: None) -> None:
    kept, stray, spec = uuid4(), uuid4(), network(ADDRESS)
    before = HostNetwork(naming, {})
    await before.apply(kept, spec)
    await before.apply(stray, network(OTHER))
    after = HostNetwork(naming, {kept: spec})
    await after.restore()
    probe = await after.probe()
    assert [(tap.vm_id, tap.routes, tap.up, tap.filtered) for tap in probe.taps] == [(kept, (ADDRESS,), True, True)]


async def test_after_a_reboot_of_the_host_a_restore_brings_everything_back(naming: Naming, clean_host: None) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    network_before = HostNetwork(naming, {})
    await network_before.apply(vm_id, spec)
    before = await network_before.probe()
    await network_before.clear()
    after = HostNetwork(naming, {vm_id: spec})
    await after.restore()
    assert await after.probe() == before


async def test_removal_names_what_is_gone_and_leaves_nothing(host_network: HostNetwork) -> None:
    vm_id, other = uuid4(), uuid4()
    await host_network.apply(vm_id, network(ADDRESS))
    await host_network.apply(other, network(OTHER))
    assert await host_network.remove(vm_id) == (ADDRESS,)
    assert await host_network.remove(vm_id) == ()
    probe = await host_network.probe()
    assert carried(probe) == [OTHER]
    assert {tap.vm_id for tap in probe.taps} == {other}


async def test_an_address_another_machine_holds_is_not_named_as_released(host_network: HostNetwork) -> None:
    await host_network.apply(uuid4(), network(ADDRESS))
    assert await host_network.absent((ADDRESS, OTHER), uuid4()) == (OTHER,)


async def test_an_address_that_the_host_still_routes_is_not_named_as_released(
    host_network: HostNetwork, naming: Naming
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    await run_program("ip", "route", "add", f"{OTHER}/32", "dev", naming.tap(spec.nics[0].nic_id))
    assert await host_network.absent((OTHER,), vm_id) == ()
    await host_network.apply(vm_id, spec)
    assert await host_network.absent((OTHER,), vm_id) == (OTHER,)


async def test_an_address_that_the_host_still_lets_in_is_not_named_as_released(
    host_network: HostNetwork, naming: Naming
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    tap = naming.tap(spec.nics[0].nic_id)
    await run_program("nft", "insert", "rule", "netdev", naming.table, tap, "ip", "saddr", OTHER, "accept")
    assert await host_network.absent((OTHER,), vm_id) == ()


async def test_ipv6_beside_ipv4_is_carried_and_goes_again(host_network: HostNetwork, naming: Naming) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    both = NetworkSpec(nics=(spec.nics[0].model_copy(update={"addresses": (*spec.nics[0].addresses, SIX)}),))
    await host_network.apply(vm_id, both)
    probe = await host_network.probe()
    assert (carried(probe), differences(probe)) == ([ADDRESS, str(SIX.network)], [])
    assert await host_network.absent((str(SIX.network),), vm_id) == ()
    await host_network.apply(vm_id, spec)
    probe = await host_network.probe()
    assert (carried(probe), differences(probe)) == ([ADDRESS], [])
    assert await host_network.absent((str(SIX.network),), vm_id) == (str(SIX.network),)


async def test_two_machines_that_ask_for_one_address_at_once_are_not_both_given_it(host_network: HostNetwork) -> None:
    refused = []

    async def ask() -> None:
        try:
            await host_network.apply(uuid4(), network(ADDRESS))
        except HostError as error:
            refused.append(error.code)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
    assert refused == [FailureCode.CONFLICT] * 3
    assert carried(await host_network.probe()) == [ADDRESS]


async def test_a_bridged_nic_is_plugged_in_and_given_nothing_of_the_host(naming: Naming, clean_host: None) -> None:
    bridge = f"b{naming.device_prefix}"
    await run_program("ip", "link", "add", bridge, "type", "bridge")
    try:
        host_network = HostNetwork(naming, {}, uplink=Uplink(bridge))
        vm_id, spec = uuid4(), NetworkSpec(nics=(nic(ADDRESS, topology=Topology.BRIDGED),))
        await host_network.apply(vm_id, spec)
        probe = await host_network.probe()
        (tap,) = probe.taps
        assert (differences(probe), tap.routes, tap.filtered) == ([], (), True)
        assert carried(probe) == [ADDRESS]
        await host_network.apply(vm_id, spec.model_copy(update={"isolated": True}))
        assert differences(await host_network.probe()) == []
        await run_program("ip", "link", "set", "dev", tap.device, "nomaster")
        assert differences(await host_network.probe()) != []
        await host_network.clear()
        assert naming.table not in (await run_program("nft", "list", "tables")).decode()
    finally:
        await run_program("ip", "link", "del", "dev", bridge)


async def test_the_kernel_and_nft_name_the_same_tables(host_network: HostNetwork, naming: Naming) -> None:
    names = [f"{naming.table}-{number}-{'long' * 20}" for number in range(300)]
    families = ("ip", "ip6", "inet", "arp", "bridge", "netdev")
    added = [(families[number % len(families)], name) for number, name in enumerate(names)]
    await nft.load([nft.table(family, name) for family, name in added])
    try:
        listed = json.loads(await run_program("nft", "-j", "list", "tables"))["nftables"]
        found = {(each["table"]["family"], each["table"]["name"]) for each in listed if "table" in each}
        ours = {each for each in await nft.list_tables() if each[1].startswith(naming.table)}
        assert ours == {each for each in found if each[1].startswith(naming.table)}
        assert ours >= set(added)
    finally:
        await nft.load([command for family, name in added for command in nft.no_table(family, name)])


async def test_rules_of_others_are_left_alone(host_network: HostNetwork) -> None:
    foreign = f"foreign{os.getpid()}"
    await run_program("nft", "-f", "-", stdin=f"table inet {foreign} {{ chain c {{ }}\n}}\n".encode())
    try:
        before = await run_program("nft", "-j", "list", "table", "inet", foreign)
        await host_network.apply(uuid4(), network(ADDRESS))
        await host_network.clear()
        assert await run_program("nft", "-j", "list", "table", "inet", foreign) == before
    finally:
        await run_program("nft", "delete", "table", "inet", foreign)


async def test_a_nic_with_jumbo_frames_and_a_routed_one_stand_side_by_side(
    host_network: HostNetwork, naming: Naming
) -> None:
    jumbo, routed = nic(ADDRESS, mtu=9000), nic("198.51.100.7", topology=Topology.ROUTED)
    await host_network.apply(uuid4(), NetworkSpec(nics=(jumbo, routed)))
    folder = Path("/sys/class/net")
    assert (folder / naming.tap(jumbo.nic_id) / "mtu").read_text().strip() == "9000"
    assert (folder / naming.tap(routed.nic_id) / "mtu").read_text().strip() == "1500"


@pytest.fixture
async def road(naming: Naming) -> AsyncIterator[str]:
    """An address of this host, on a device that is no tap of ours."""
    bridge, own = f"b{naming.table[-8:]}", f"{ADDRESS.rpartition('.')[0]}.201"
    await run_program("ip", "link", "add", bridge, "type", "bridge")
    try:
        await run_program("ip", "address", "add", f"{own}/29", "dev", bridge)
        yield own
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            await run_program("ip", "link", "del", bridge)


@pytest.mark.parametrize("is_controllers", [False, True], ids=["its own", "its controller's"])
async def test_no_machine_takes_an_address_by_which_the_host_is_reached(
    naming: Naming, clean_host: None, road: str, is_controllers: bool
) -> None:
    """Not as its gateway, and not as its own address."""
    taken = f"{ADDRESS.rpartition('.')[0]}.200" if is_controllers else road
    host_network = HostNetwork(naming, {}, controller=taken if is_controllers else None)
    for spec in (
        NetworkSpec(nics=(nic(ADDRESS, address(OTHER, gateway=taken)),)),
        NetworkSpec(nics=(nic(taken),)),
    ):
        with pytest.raises(HostError, match="this node"):
            await host_network.apply(uuid4(), spec)
    assert (await host_network.probe()).taps == ()


async def test_a_machine_recorded_with_the_controllers_address_is_not_restored(
    naming: Naming, clean_host: None
) -> None:
    """An agent that carried it once finds its way back to the controller when it starts again."""
    vm_id, spec = uuid4(), network(ADDRESS)
    await HostNetwork(naming, {}).apply(vm_id, spec)
    heir = HostNetwork(naming, {vm_id: spec}, controller=GATEWAY)
    with pytest.raises(HostError, match="controller"):
        await heir.restore()
    listed = json.loads(await run_program("ip", "-json", "address", "show", "to", GATEWAY) or b"[]")
    assert not any("local" in each for link in listed for each in link.get("addr_info", ()))


async def test_a_controller_that_is_a_guest_of_the_node_keeps_its_network(naming: Naming, clean_host: None) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await HostNetwork(naming, {}).apply(vm_id, spec)
    heir = HostNetwork(naming, {vm_id: spec}, controller=ADDRESS)
    await heir.restore()
    await heir.apply(vm_id, spec.model_copy(update={"generation": 2}))
    assert carried(await heir.probe()) == [ADDRESS]


async def test_a_gateway_of_the_hosts_own_that_is_recorded_goes_on_working(
    naming: Naming, clean_host: None, road: str
) -> None:
    """It was taken until now, and works where the pool serves this node alone."""
    vm_id = uuid4()
    spec = NetworkSpec(nics=(nic(OTHER, address(ADDRESS, gateway=road)),))
    heir = HostNetwork(naming, {vm_id: spec})
    await heir.restore()
    assert carried(await heir.probe()) == sorted([ADDRESS, OTHER])
