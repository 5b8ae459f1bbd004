"""What an operator's hand, or another program, does to the host beside the agent."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import Action, Topology
from tests.system.network.forged import MARK, Stage, udp4
from tests.system.network.lab import Lab
from tests.system.network.matrix import Matrix, Tcp
from tests.system.network.places import BRIDGE, GUESTS, OUTSIDE, UPLINK_ADDRESSES
from tests.system.network.rules import firewall

pytestmark = [pytest.mark.system, pytest.mark.isolated]

RATE_MBPS = 50


def load_a_firewall(lab: Lab) -> None:
    """As a distribution's own service does when it is reloaded."""
    rules = "flush ruleset\ntable inet filter {\n chain forward {\n type filter hook forward priority 0\n }\n}\n"
    subprocess.run(lab.host.inside("nft", "-f", "-"), input=rules, text=True, check=True)


def empty_our_tables(lab: Lab) -> None:
    for family in ("netdev", "inet", "bridge"):
        lab.host.output("nft", "delete", "table", family, lab.naming.table)


@pytest.mark.parametrize("spoil", [load_a_firewall, empty_our_tables])
async def test_rules_that_somebody_flushed_are_put_back_without_being_asked_for(
    matrix: Matrix, spoil: Callable[[Lab], None]
) -> None:
    guest, victim = GUESTS[Topology.NAT]
    closed, _ = GUESTS[Topology.ROUTED]
    stage = Stage(guest, victim, matrix.lab.tap_mac(guest))
    await matrix.apply(closed, firewall=firewall(ingress=Action.DROP), rate_mbps=RATE_MBPS)
    spoil(matrix.lab)
    await matrix.agent.mend()
    assert [each.differences for each in (await matrix.agent.probe()).machines if each.differences] == []
    assert await matrix.passes(Tcp(443), guest, OUTSIDE, 4) == UPLINK_ADDRESSES[4]
    async with matrix.established(guest, OUTSIDE, 4) as control, matrix.established(closed, OUTSIDE, 4) as other:
        with matrix.capture(OUTSIDE) as outside:
            matrix.lab.inject(guest, bytes(udp4(stage, stage.of(victim, 4))))
            await control.arrives(guest, outside)
        await matrix.refused(Tcp(443), OUTSIDE, closed, other)
    assert [frame for frame in outside.raw if MARK in frame] == []


async def test_tables_of_others_stay_when_ours_are_put_back(matrix: Matrix) -> None:
    load_a_firewall(matrix.lab)
    await matrix.agent.mend()
    try:
        assert "table inet filter" in matrix.lab.host.output("nft", "list", "tables")
    finally:
        matrix.lab.host.output("nft", "delete", "table", "inet", "filter")


async def test_nothing_is_done_while_nothing_is_missing(matrix: Matrix) -> None:
    guest, _ = GUESTS[Topology.ROUTED]
    before = matrix.lab.host.output("nft", "-a", "list", "table", "netdev", matrix.lab.naming.table)
    await matrix.agent.mend()
    after = matrix.lab.host.output("nft", "-a", "list", "table", "netdev", matrix.lab.naming.table)
    assert [line.split("packets")[0] for line in after.splitlines()] == [
        line.split("packets")[0] for line in before.splitlines()
    ]
    await matrix.passes(Tcp(443), guest, OUTSIDE, 4)


async def test_a_routed_tap_that_somebody_plugged_into_a_bridge_is_taken_out(matrix: Matrix) -> None:
    guest, _ = GUESTS[Topology.ROUTED]
    matrix.lab.host.ip(f"link set {matrix.lab.tap(guest)} master {BRIDGE}")
    (found,) = [each for each in (await matrix.agent.probe()).machines if each.vm_id == guest.vm_id]
    assert any("plugged into" in difference for difference in found.differences)
    await matrix.apply(guest)
    assert [each.differences for each in (await matrix.agent.probe()).machines if each.differences] == []
    await matrix.passes(Tcp(443), guest, OUTSIDE, 4)


async def test_a_bridge_that_went_away_holds_up_no_routed_guest_and_has_its_ports_when_it_is_back(
    matrix: Matrix,
) -> None:
    bridged, neighbour = GUESTS[Topology.BRIDGED]
    routed, _ = GUESTS[Topology.ROUTED]
    tap = matrix.lab.tap(bridged)
    matrix.lab.host.ip(f"link set {BRIDGE} name br-away", f"link set {tap} nomaster")
    try:
        with pytest.raises(HostError) as refused:
            await matrix.apply(bridged)
        assert f"The bridge {BRIDGE} has gone" in refused.value.message
        load_a_firewall(matrix.lab)
        await matrix.agent.mend()
        await matrix.apply(routed, firewall=firewall(ingress=Action.ACCEPT))
        await matrix.passes(Tcp(443), routed, OUTSIDE, 4)
    finally:
        matrix.lab.host.ip(f"link set br-away name {BRIDGE}")
    await matrix.agent.mend()
    assert [each.differences for each in (await matrix.agent.probe()).machines if each.differences] == []
    await matrix.passes(Tcp(443), bridged, neighbour, 4)
