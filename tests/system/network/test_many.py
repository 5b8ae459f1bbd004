"""Many machines on one host: what is applied at once ends as what is applied one after the other."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid5

import pytest

from svc_nodeagent.protocol import Direction, NetworkSpec, NicSpec, ProbeResult, Topology
from tests.system.network.lab import Lab
from tests.system.network.places import FAMILIES, address
from tests.system.network.rules import firewall, rule

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MACHINES = 20
_HERE = UUID("0f4ab1d5-2c8e-47d9-8a55-6b5a6dbb0c30")


def machine(number: int, generation: int = 1) -> tuple[UUID, NetworkSpec]:
    """Of either topology; every third has a firewall, every fourth a rate, every fifth is isolated."""
    topology = (Topology.NAT, Topology.ROUTED)[number % 2]
    nic = NicSpec(
        nic_id=uuid5(_HERE, f"NIC {number}"),
        mac=f"52:54:00:77:00:{number:02x}",
        addresses=tuple(address(topology, family, 0x40 + number, primary=True) for family in FAMILIES),
        rate_mbps=10 if number % 4 == 0 else None,
    )
    spec = NetworkSpec(
        nics=(nic,),
        firewall=firewall(rule(Direction.INGRESS, "tcp", 1000 + generation)) if number % 3 == 0 else None,
        isolated=number % 5 == 0,
        generation=generation,
    )
    return uuid5(_HERE, f"machine {number}"), spec


def rules(lab: Lab) -> list[str]:
    """Everything nft lists, whatever order it was made in."""
    entries = json.loads(lab.host.output("nft", "-j", "list", "ruleset"))["nftables"]
    return sorted(json.dumps(settled(entry), sort_keys=True) for entry in entries)


def settled(value: Any) -> Any:
    """Without numbers that the kernel gives and counts, and sets in one order."""
    if isinstance(value, dict):
        kept = {key: settled(inner) for key, inner in value.items() if key not in ("handle", "packets", "bytes")}
        return kept | ({"elem": sorted(kept["elem"], key=json.dumps)} if isinstance(kept.get("elem"), list) else {})
    return [settled(inner) for inner in value] if isinstance(value, list) else value


def state(lab: Lab, probe: ProbeResult) -> tuple[object, ...]:
    """What the host has, as it says itself, without what counts."""
    taps = [tap.model_copy(update={"dropped": {}}) for tap in probe.taps]
    routes = sorted(lab.host.output("ip", "route").splitlines() + lab.host.output("ip", "-6", "route").splitlines())
    return rules(lab), taps, sorted(probe.machines, key=lambda each: each.vm_id), routes


async def test_machines_applied_at_once_end_as_those_applied_in_turn(alone: Lab) -> None:
    machines = dict(machine(number) for number in range(MACHINES))
    changed = dict(machine(number, generation=2) for number in range(MACHINES))
    async with alone.agents.agent(alone.start(alone.as_found())) as agent:
        await agent.restore()
        for vm_id, spec in machines.items():
            await agent.apply({vm_id: spec})
        in_turn = state(alone, await agent.probe())
        for vm_id in machines:
            await agent.remove(vm_id)
        await agent.apply(machines)
        at_once = await agent.probe()
        assert [each.differences for each in at_once.machines if each.differences] == []
        assert state(alone, at_once) == in_turn
        await agent.apply(changed)
        await agent.apply({vm_id: spec.model_copy(update={"generation": 3}) for vm_id, spec in machines.items()})
        again = await agent.probe()
        assert state(alone, again)[0] == in_turn[0]
        assert [each.differences for each in again.machines if each.differences] == []


async def test_what_an_agent_made_of_many_another_finds_without_a_difference(alone: Lab) -> None:
    machines = dict(machine(number) for number in range(MACHINES))
    records = {guest.vm_id: spec for guest, spec in alone.as_found().items()} | machines
    async with alone.agents.agent(alone.start(alone.as_found())) as agent:
        await agent.restore()
        await agent.apply(machines)
        made = state(alone, await agent.probe())
    async with alone.agents.agent(alone.start().model_copy(update={"networks": records})) as heir:
        await heir.restore()
        probe = await heir.probe()
    assert [each.differences for each in probe.machines if each.differences] == []
    assert state(alone, probe)[0] == made[0]
    assert state(alone, probe)[3] == made[3]
