"""The rules, by what they mean: who may speak from where, and what is never touched."""

from __future__ import annotations

import json
from ipaddress import IPv6Interface
from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.plan import TapPlan, addresses_of, plan, without
from svc_nodeagent.hypervisor.network.ruleset import digest, removal, ruleset
from svc_nodeagent.protocol import FailureCode, GuestAddress, NetworkSpec, Topology
from tests.nodeagent.hypervisor.builders import network, nic

NAMING = Naming()


def planned(**networks: NetworkSpec) -> tuple[TapPlan, ...]:
    return plan({UUID(int=index): spec for index, spec in enumerate(networks.values())}, NAMING)


def commands(taps: tuple[TapPlan, ...]) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(ruleset(taps, [tap.device for tap in taps], NAMING))["nftables"]
    return loaded


def members(taps: tuple[TapPlan, ...], name: str) -> list[Any]:
    sets = [command["add"]["set"] for command in commands(taps) if "set" in command.get("add", {})]
    return next(found.get("elem", []) for found in sets if found["name"] == name)


def test_only_tables_of_ours_are_named_and_each_is_replaced_whole() -> None:
    seen: dict[str, list[str]] = {}
    for command in commands(planned(a=network("10.213.0.2"))):
        ((verb, body),) = command.items()
        ((kind, entry),) = body.items()
        assert (entry["name"] if kind == "table" else entry["table"]) == "svc"
        if kind == "table":
            seen.setdefault(entry["family"], []).append(verb)
    assert seen == {"netdev": ["add", "delete", "add"], "inet": ["add", "delete", "add"]}


def test_a_card_may_speak_from_its_own_mac_and_addresses_only() -> None:
    taps = planned(a=network("10.213.0.2"), b=network("10.213.0.3"))
    allowed = {tuple(member["concat"]) for member in members(taps, "sources4")}
    assert allowed == {(tap.device, tap.mac, str(tap.addresses[0])) for tap in taps}


def test_whatever_is_not_allowed_from_a_guest_is_dropped() -> None:
    chains = [c["add"]["chain"] for c in commands(planned(a=network("10.213.0.2"))) if "chain" in c.get("add", {})]
    ingress = [chain for chain in chains if chain.get("hook") == "ingress"]
    assert ingress
    assert {chain["policy"] for chain in ingress} == {"drop"}


def test_a_device_without_a_record_is_guarded_and_has_no_address_to_speak_from() -> None:
    loaded = json.loads(ruleset((), ["svcdeadbeef000"], NAMING))["nftables"]
    chains = [command["add"]["chain"] for command in loaded if "chain" in command.get("add", {})]
    assert "svcdeadbeef000" in {chain.get("dev") for chain in chains}
    assert not [command for command in loaded if command.get("add", {}).get("set", {}).get("elem")]


def test_rules_do_not_grow_with_guests() -> None:
    def shared(count: int) -> int:
        taps = planned(**{str(index): network(f"10.213.1.{index}") for index in range(1, count + 1)})
        rules = [command["add"]["rule"] for command in commands(taps) if "rule" in command.get("add", {})]
        return len([rule for rule in rules if rule["chain"] not in {tap.device for tap in taps}])

    assert shared(1) == shared(200)


def test_only_guests_behind_nat_are_masqueraded() -> None:
    taps = planned(
        a=NetworkSpec(nics=(nic("10.213.0.2"),)),
        b=NetworkSpec(nics=(nic("198.51.100.7", topology=Topology.ROUTED),)),
    )
    assert members(taps, "nat4") == ["10.213.0.2"]


def test_an_address_is_never_behind_two_cards() -> None:
    with pytest.raises(HostError) as refusal:
        planned(a=network("10.213.0.2"), b=network("10.213.0.2"))
    assert refusal.value.code is FailureCode.CONFLICT


@pytest.mark.parametrize(
    "spec",
    [
        NetworkSpec(nics=(nic(topology=Topology.BRIDGED),)),
        NetworkSpec(
            nics=(
                nic().model_copy(
                    update={
                        "addresses": (
                            GuestAddress(interface=IPv6Interface("2001:db8::2/128"), gateway="fe80::1", on_link=True),
                        )
                    }
                ),
            )
        ),
    ],
)
def test_what_this_host_cannot_carry_is_refused_by_name(spec: NetworkSpec) -> None:
    with pytest.raises(HostError) as refusal:
        planned(a=spec)
    assert refusal.value.code is FailureCode.UNSUPPORTED


def test_the_host_answers_for_neighbours_only_where_the_guest_believes_to_have_some() -> None:
    alone, among = planned(a=network("10.213.0.2"), b=NetworkSpec(nics=(nic("10.213.0.130/25"),)))
    assert (alone.answers_for_neighbours, among.answers_for_neighbours) == (False, True)


def test_releasing_an_address_keeps_the_card_and_its_others() -> None:
    spec = NetworkSpec(nics=(nic("10.213.0.2"), nic("10.213.0.3")))
    kept = without(spec, frozenset({"10.213.0.2"}))
    assert addresses_of(kept) == ("10.213.0.3",)
    assert len(kept.nics) == 2


def test_counters_and_handles_do_not_change_the_digest_and_rules_do() -> None:
    def listing(handle: int, packets: int, target: str) -> bytes:
        expression = [{"counter": {"packets": packets, "bytes": 0}}, {target: None}]
        return json.dumps({"nftables": [{"rule": {"handle": handle, "expr": expression}}]}).encode()

    assert digest(listing(1, 0, "drop")) == digest(listing(9, 512, "drop"))
    assert digest(listing(1, 0, "drop")) != digest(listing(1, 0, "accept"))


def test_removal_takes_both_tables_and_nothing_else() -> None:
    loaded = json.loads(removal(NAMING))["nftables"]
    deleted = {tuple(command["delete"]["table"].values()) for command in loaded if "delete" in command}
    assert deleted == {("netdev", "svc"), ("inet", "svc")}


def test_tap_names_fit_and_are_told_apart() -> None:
    names = {NAMING.tap(uuid4()) for _ in range(100)}
    assert len(names) == 100
    assert all(NAMING.is_tap(name) and len(name) <= 15 for name in names)
    assert not NAMING.is_tap("svcbridge")
