"""What becomes of addresses: a second one, one that is taken away, one that moves, and a machine that is removed."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import cast

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import FailureCode, Spoof, Topology
from tests.system.network.forged import MARK, Stage, udp4, udp6
from tests.system.network.lab import CARRIED
from tests.system.network.matrix import Matrix, Tcp, opener_of
from tests.system.network.places import FAMILIES, GUEST_DEVICE, GUESTS, OUTSIDE, Family, address

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SECOND = 0x14


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_a_second_address_carries_and_is_dead_at_both_ends_once_taken_away(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    guest, neighbour = GUESTS[topology]
    second = address(topology, family, SECOND)
    added = second.interface.ip
    matrix.lab.namespace(guest).ip(f"address add {second.interface} dev {GUEST_DEVICE}")
    try:
        async with matrix.established(*opener_of(neighbour, guest), family) as control:
            await matrix.apply(guest, given=(*guest.given, second))
            await matrix.passes(Tcp(443), neighbour, guest, family, added)
            await matrix.apply(guest)
            await matrix.refused(Tcp(443), neighbour, guest, control, added)
        stage = Stage(guest, neighbour, matrix.lab.tap_mac(guest))
        before = await matrix.dropped(guest, Spoof.IPV4 if family == 4 else Spoof.IPV6)
        async with matrix.established(guest, OUTSIDE, family) as control:
            with matrix.capture(OUTSIDE) as outside:
                forge = udp4 if family == 4 else udp6
                matrix.lab.inject(guest, bytes(forge(stage, str(added))))
                await control.arrives(guest, outside)
        assert [frame for frame in outside.raw if MARK in frame] == []
        assert await matrix.dropped(guest, Spoof.IPV4 if family == 4 else Spoof.IPV6) == before + 1
        assert str(second.network if family == 6 else added) not in await matrix.carried(guest)
    finally:
        matrix.lab.namespace(guest).ip(f"address del {second.interface} dev {GUEST_DEVICE}")


async def test_a_guest_uses_every_address_of_its_sub_prefix(matrix: Matrix) -> None:
    guest, neighbour = GUESTS[Topology.ROUTED]
    another = guest.given[1].network[0xBEEF]
    matrix.lab.namespace(guest).ip(f"address add {another}/64 dev {GUEST_DEVICE} nodad")
    try:
        await matrix.passes(Tcp(443), neighbour, guest, 6, another)
        await matrix.passes(Tcp(443), OUTSIDE, guest, 6, another)
    finally:
        matrix.lab.namespace(guest).ip(f"address del {another}/64 dev {GUEST_DEVICE}")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_an_address_that_moves_is_carried_for_its_new_machine_alone(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    first, then = GUESTS[topology]
    moving = address(topology, family, SECOND)
    for guest in (first, then):
        matrix.lab.namespace(guest).ip(f"address add {moving.interface} dev {GUEST_DEVICE}")
    try:
        await matrix.apply(first, given=(*first.given, moving))
        with pytest.raises(HostError) as refused:
            await matrix.apply(then, given=(*then.given, moving))
        assert refused.value.code is FailureCode.CONFLICT
        assert str(moving.interface.ip if family == 4 else moving.network) in await matrix.carried(first)
        await matrix.apply(first)
        await matrix.apply(then, given=(*then.given, moving))
        behind = GUESTS[Topology.ROUTED if topology is Topology.NAT else Topology.NAT][0]
        await matrix.passes(Tcp(443), behind, then, family, moving.interface.ip)
    finally:
        for guest in (first, then):
            matrix.lab.namespace(guest).ip(f"address del {moving.interface} dev {GUEST_DEVICE}")


async def test_a_neighbour_on_the_believed_link_is_reached_through_the_host(matrix: Matrix) -> None:
    """A routed guest has the pool's whole prefix: it asks for its neighbour by ARP, and the host answers."""
    guest, neighbour = GUESTS[Topology.ROUTED]
    assert cast(IPv4Network, guest.given[0].interface.network).supernet_of(
        cast(IPv4Network, neighbour.given[0].network)
    )
    matrix.lab.namespace(guest).ip(f"neighbour flush dev {GUEST_DEVICE}")
    await matrix.passes(Tcp(443), guest, neighbour, 4)
    held = matrix.lab.namespace(guest).output("ip", "neighbour", "show", "to", str(neighbour.addresses[4]))
    assert matrix.lab.tap_mac(guest) in held


@pytest.mark.parametrize("topology", CARRIED)
async def test_a_removed_machine_leaves_nothing_and_comes_back_whole(matrix: Matrix, topology: Topology) -> None:
    guest, neighbour = GUESTS[topology]
    removed = await matrix.agent.remove(guest.vm_id)
    try:
        assert set(removed) == {str(guest.addresses[4]), str(guest.given[1].network)}
        probe = await matrix.agent.probe()
        assert matrix.lab.tap(guest) not in [tap.device for tap in probe.taps]
        assert guest.vm_id not in [machine.vm_id for machine in probe.machines]
        ruleset = matrix.lab.host.output("nft", "list", "ruleset")
        assert matrix.lab.tap(guest) not in ruleset
        assert str(guest.addresses[4]) not in ruleset
    finally:
        await matrix.apply(guest)
        matrix.lab.attach(guest)
    for family in FAMILIES:
        await matrix.passes(Tcp(443), neighbour, guest, family)
