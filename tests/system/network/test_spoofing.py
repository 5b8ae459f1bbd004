"""A guest cannot lie about who it is: what it forges is dropped at its tap, counted, and has no effect on anybody."""

from __future__ import annotations

import json

import pytest
from scapy.layers.inet6 import ICMPv6NDOptDstLLAddr

from svc_nodeagent.protocol import Topology
from tests.system.network.forged import FORGERIES, MARK, STRANGER, Forgery, Stage, advertisement, arp, gratuitous
from tests.system.network.lab import Lab
from tests.system.network.matrix import Matrix, Tcp, tap_of
from tests.system.network.places import FAMILIES, GUESTS, Family, outside_of

pytestmark = [pytest.mark.system, pytest.mark.isolated]


def stage_of(lab: Lab, topology: Topology) -> Stage:
    liar, victim = GUESTS[topology]
    return Stage(liar, victim, lab.next_mac(liar))


@pytest.mark.parametrize(
    ("forgery", "topology"), [(forgery, topology) for forgery in FORGERIES for topology in forgery.topologies], ids=str
)
async def test_a_forged_frame_is_dropped_and_counted(matrix: Matrix, forgery: Forgery, topology: Topology) -> None:
    stage, router = stage_of(matrix.lab, topology), outside_of(topology)
    liar, victim, tap = stage.liar, stage.victim, matrix.lab.tap(stage.liar)
    frame = bytes(forgery.frame(stage))
    assert MARK in frame
    before = tap_of(await matrix.agent.probe(), tap).dropped
    async with matrix.established(liar, router, 4) as outwards, matrix.established(liar, victim, 4) as across:
        with matrix.capture(router) as outside, matrix.capture(victim) as at_victim:
            matrix.lab.inject(liar, frame)
            await outwards.arrives(liar, outside)
            await across.arrives(liar, at_victim)
    assert [seen for seen in (*outside.raw, *at_victim.raw) if MARK in seen] == []
    after = tap_of(await matrix.agent.probe(), tap).dropped
    assert {reason for reason in after if after[reason] > before.get(reason, 0)} <= forgery.reasons
    assert sum(after.values()) == sum(before.values()) + 1


@pytest.mark.parametrize("topology", tuple(Topology))
async def test_what_a_guest_says_truly_is_neither_dropped_nor_counted(matrix: Matrix, topology: Topology) -> None:
    stage, router = stage_of(matrix.lab, topology), outside_of(topology)
    guest, neighbour = stage.liar, stage.victim
    before = tap_of(await matrix.agent.probe(), matrix.lab.tap(guest)).dropped
    for place in (guest, neighbour):
        matrix.lab.namespace(place).ip(f"neighbour flush dev {place.device}")
    matrix.lab.host.ip(f"neighbour flush dev {matrix.lab.tap(guest)}")
    for family in FAMILIES:
        await matrix.passes(Tcp(443), guest, neighbour, family)
        await matrix.passes(Tcp(443), neighbour, guest, family)
        await matrix.passes(Tcp(443), guest, router, family)
    matrix.lab.inject(guest, bytes(gratuitous(stage, str(guest.addresses[4]))))
    unmarked = advertisement(stage, target=str(guest.addresses[6]))
    unmarked[ICMPv6NDOptDstLLAddr].remove_payload()
    matrix.lab.inject(guest, bytes(unmarked))
    assert tap_of(await matrix.agent.probe(), matrix.lab.tap(guest)).dropped == before


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", tuple(Topology))
async def test_a_neighbours_address_cannot_be_taken_over(matrix: Matrix, topology: Topology, family: Family) -> None:
    stage, router = stage_of(matrix.lab, topology), outside_of(topology)
    victim, liar = stage.victim, stage.liar
    address = victim.addresses[family]
    async with matrix.established(victim, router, family) as control:
        with matrix.capture(victim) as at_victim, matrix.capture(liar) as at_liar:
            for frame in (
                gratuitous(stage, str(victim.addresses[4])),
                arp(stage, says=str(victim.addresses[4]), op=2),
                advertisement(stage, target=str(victim.addresses[6])),
                advertisement(stage, target=str(victim.addresses[6]), source=str(victim.addresses[6])),
            ):
                matrix.lab.inject(liar, bytes(frame))
            await control.arrives(router, at_victim)
            await matrix.passes(Tcp(443), liar, victim, family)
            await matrix.passes(Tcp(443), victim, router, family)
    assert not any(
        address.packed in frame[26:54]
        for frame in at_liar.raw
        if frame[12:14] in (b"\x08\x00", b"\x86\xdd") and router.addresses[family].packed in frame
    )
    assert holders_of(matrix.lab, str(address)) <= {victim.mac}


@pytest.mark.parametrize("topology", tuple(Topology))
async def test_the_host_learns_no_neighbour_that_was_forged(matrix: Matrix, topology: Topology) -> None:
    stage, router = stage_of(matrix.lab, topology), outside_of(topology)
    liar, victim = stage.liar, stage.victim
    for says in (victim.addresses[4], liar.addresses[4], router.addresses[4]):
        matrix.lab.inject(liar, bytes(arp(stage, says=str(says), inner=STRANGER)))
        matrix.lab.inject(liar, bytes(arp(stage, says=str(says), inner=STRANGER, op=2)))
    for target in (victim.addresses[6], liar.addresses[6], router.addresses[6]):
        matrix.lab.inject(liar, bytes(advertisement(stage, target=str(target), mac=STRANGER)))
    await matrix.passes(Tcp(443), liar, router, 4)
    await matrix.passes(Tcp(443), liar, router, 6)
    neighbours = matrix.lab.host.output("ip", "neighbour", "show") + matrix.lab.host.output(
        "ip", "-6", "neighbour", "show"
    )
    assert STRANGER not in neighbours


def holders_of(lab: Lab, address: str) -> set[str]:
    """The MACs that the host holds for an address."""
    listed = json.loads(lab.host.output("ip", "-j", "neighbour", "show", "to", address) or "[]")
    return {entry["lladdr"] for entry in listed if "lladdr" in entry}
