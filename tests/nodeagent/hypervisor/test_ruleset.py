"""The rules, by what they mean: who may speak from where, what a firewall comes to, and what is never touched."""

from __future__ import annotations

import json
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_network
from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import firewall, guard, ruleset
from svc_nodeagent.hypervisor.network.observe import allowed_sources
from svc_nodeagent.hypervisor.network.plan import (
    Holders,
    TapPlan,
    Uplink,
    addresses_of,
    link_local,
    networks_of,
    plan,
    without,
)
from svc_nodeagent.protocol import (
    Action,
    Direction,
    FailureCode,
    Firewall,
    FirewallRule,
    NetworkSpec,
    Spoof,
    Topology,
    TransportProtocol,
)
from tests.nodeagent.hypervisor.builders import address, network, nic

NAMING = Naming()
MACHINE, OTHER_MACHINE = UUID(int=1), UUID(int=2)
SUB_PREFIX = "2001:db8:0:5::/64"
FIREWALL = Firewall(
    default_ingress=Action.DROP,
    default_egress=Action.ACCEPT,
    rules=(
        FirewallRule(direction=Direction.INGRESS, protocol=TransportProtocol.TCP, ports=(80, 90)),
        FirewallRule(
            direction=Direction.INGRESS,
            action=Action.DROP,
            protocol=TransportProtocol.ANY,
            family=4,
            cidr=ip_network("198.51.100.0/24"),
        ),
        FirewallRule(direction=Direction.EGRESS, action=Action.DROP, protocol=TransportProtocol.ICMP),
    ),
)


def planned(spec: NetworkSpec, vm_id: UUID = MACHINE, *, uplink: Uplink | None = None) -> tuple[TapPlan, ...]:
    return plan(vm_id, spec, NAMING, uplink)


def bodies(commands: Iterable[Any], kind: str, *, verb: str = "add") -> list[dict[str, Any]]:
    loaded = json.loads(json.dumps(list(commands)))
    return [command[verb][kind] for command in loaded if kind in command.get(verb, {})]


def verdicts(rules: Iterable[tuple[Any, ...]]) -> list[str]:
    return [next(iter(expressions[-1])) for expressions in rules]


def test_only_tables_of_ours_are_named() -> None:
    (tap,) = planned(network("10.213.0.2", firewall=FIREWALL))
    for command in json.loads(json.dumps([*ruleset.fresh(NAMING, bridged=True), *ruleset.change((), (tap,), NAMING)])):
        for body in command.values():
            for kind, entry in body.items():
                name = entry["name"] if kind == "table" else entry["table"]
                assert ruleset.is_ours(entry["family"], name, NAMING)


def test_a_change_names_one_machine_and_flushes_nothing_that_is_shared() -> None:
    (tap,) = planned(network("10.213.0.2", firewall=FIREWALL))
    commands = ruleset.change((), (tap,), NAMING)
    flushed = {(body["table"], body["name"]) for body in bodies(commands, "chain", verb="flush")}
    assert flushed == {
        (NAMING.table, tap.device),
        *((NAMING.table, firewall.chain_name(map, tap.device)) for map in (firewall.FROM_GUEST, firewall.TO_GUEST)),
    }
    assert bodies(commands, "table", verb="delete") == []


def test_a_nic_may_speak_from_its_own_addresses_only() -> None:
    (tap,) = planned(NetworkSpec(nics=(nic("10.213.0.2", address("2001:db8:0:5::1/64", topology=Topology.ROUTED)),)))
    assert allowed_sources([list(each) for each in guard.rules(tap)]) == {
        ip_network("10.213.0.2"),
        ip_network(SUB_PREFIX),
    }


@pytest.mark.parametrize("spec", [network("10.213.0.2"), NetworkSpec(nics=(nic("2001:db8:0:5::1/64"),))])
def test_whatever_is_not_allowed_from_a_guest_is_dropped(spec: NetworkSpec) -> None:
    (tap,) = planned(spec)
    (chain,) = bodies(guard.guard(tap.device, tap, NAMING), "chain")
    assert (chain["policy"], chain["hook"], chain["dev"]) == ("drop", "ingress", tap.device)
    assert verdicts(guard.rules(tap))[-1] == "drop"


@pytest.mark.parametrize("interfaces", [("10.213.0.2",), ("10.213.0.2", "2001:db8:0:5::1/64")])
def test_what_the_guard_drops_is_counted_but_for_what_guests_say_by_themselves(interfaces: tuple[str, ...]) -> None:
    first, *more = interfaces
    (tap,) = planned(NetworkSpec(nics=(nic(first, *map(address, more)),)))
    dropping = [json.dumps(rule) for rule in guard.rules(tap) if json.dumps(rule[-1]) == '{"drop": null}']
    greetings = [rule for rule in dropping if "counter" not in rule]
    assert greetings
    assert all('"icmpv6"' in rule and ('"::"' in rule or '"fe80::"' in rule) for rule in greetings)


def test_a_guest_on_a_tap_of_its_own_speaks_from_any_link_local_address_but_the_hosts() -> None:
    (tap,) = planned(NetworkSpec(nics=(nic("2001:db8:0:5::1/64"),)))
    rules = guard.rules(tap)
    random, hosts = '"prefix": {"addr": "fe80::", "len": 64}', '"right": "fe80::1"'
    assert [verdict for verdict in verdicts_of(rules, random) if verdict == "accept"]
    assert set(verdicts_of(rules, hosts)) == {"drop"}
    probe_of_any, claim_of_the_hosts = '"len": 64}}, "right": "0xfe80000000000000"', hex(int(IPv6Address("fe80::1")))
    assert "accept" in verdicts_of(rules, probe_of_any)
    assert verdicts_of(rules, claim_of_the_hosts) == ["drop"]
    texts = [json.dumps(rule) for rule in rules]
    first_accepted = next(n for n, rule in enumerate(texts) if random in rule and '"accept"' in rule)
    assert next(n for n, rule in enumerate(texts) if hosts in rule) < first_accepted


def test_few_link_local_addresses_are_let_in_at_a_time_and_each_of_them_without_limit() -> None:
    (tap,) = planned(NetworkSpec(nics=(nic("2001:db8:0:5::1/64"),)))
    texts = [json.dumps(rule) for rule in guard.rules(tap)]
    members = f'"@{guard.LINK_LOCAL_SOURCES}"'
    dropping, adding = (number for number, rule in enumerate(texts) if members in rule)
    first_accepted = next(number for number, rule in enumerate(texts) if '"fe80::"' in rule and '"accept"' in rule)
    assert dropping < adding < first_accepted
    assert f'"right": {members}}}}}, {{"limit": ' in texts[dropping]
    assert verdicts([guard.rules(tap)[dropping], guard.rules(tap)[adding]]) == ["drop", "set"]
    # "update" would renew a member with each packet: it could stay for ever
    assert '{"op": "add", ' in texts[adding]
    # the host has a permanent neighbour entry for the address derived from the MAC
    own = f'{{"op": "!=", "left": {{"payload": {{"protocol": "ip6", "field": "saddr"}}}}, "right": "{tap.link_local}"}}'
    assert all(own in texts[number] for number in (dropping, adding))
    assert [rule for rule in texts if '"limit"' in rule and '"fe80::"' in rule] == [texts[dropping]]
    (filled,) = (body for body in bodies(guard.sets("svc"), "set") if body["name"] == guard.LINK_LOCAL_SOURCES)
    assert (filled["type"], filled["timeout"]) == (["ifname", "ipv6_addr"], 60)


def test_a_bridged_guest_speaks_from_the_link_local_address_of_its_mac_alone() -> None:
    spec = NetworkSpec(nics=(nic("2001:db8:0:5::1/64", topology=Topology.BRIDGED),))
    (tap,) = planned(spec, uplink=Uplink("br0"))
    rules = guard.rules(tap)
    assert verdicts_of(rules, '"prefix": {"addr": "fe80::"') == []
    assert verdicts_of(rules, guard.LINK_LOCAL_SOURCES) == []
    assert "accept" in verdicts_of(rules, f'"right": "{tap.link_local}"')


def verdicts_of(rules: Iterable[Any], part: str) -> list[str]:
    """The verdicts of the rules whose JSON has this part."""
    return verdicts([rule for rule in rules if part in json.dumps(rule)])


def test_an_isolated_machine_drops_before_it_looks() -> None:
    (tap,) = planned(network("10.213.0.2", firewall=FIREWALL, isolated=True))
    assert [rules for _, _, rules in firewall.chains(tap)] == [[({"drop": None},)]] * 2
    assert guard.rules(tap) == [({"drop": None},)]


def test_counters_outlive_a_change_and_end_with_the_tap() -> None:
    (tap,) = planned(network("10.213.0.2"))
    assert bodies(guard.guard(tap.device, tap, NAMING), "counter", verb="delete") == []
    names = {guard.counter(reason, tap.device) for reason in Spoof}
    for commands in (guard.guard(tap.device, tap, NAMING, fresh=True), ruleset.change((tap,), (), NAMING)):
        assert {body["name"] for body in bodies(commands, "counter", verb="delete")} == names


def test_replies_pass_then_drops_count_before_accepts_then_the_default() -> None:
    rules = firewall.rules(FIREWALL, Direction.INGRESS, bridged=False)
    text = [json.dumps(rule) for rule in rules]
    replies = next(i for i, rule in enumerate(text) if "established" in rule)
    drop = next(i for i, rule in enumerate(text) if "198.51.100.0" in rule)
    accept = next(i for i, rule in enumerate(text) if '"dport"' in rule)
    assert replies < drop < accept < len(rules) - 1
    assert (verdicts(rules)[replies], verdicts(rules)[drop], verdicts(rules)[accept]) == ("return", "drop", "return")
    assert rules[-1] == ({"drop": None},)
    assert firewall.rules(FIREWALL, Direction.EGRESS, bridged=False)[-1] == ({"return": None},)


def test_the_other_side_is_the_source_of_what_comes_and_the_target_of_what_goes() -> None:
    for direction, field in ((Direction.INGRESS, "saddr"), (Direction.EGRESS, "daddr")):
        rule = FirewallRule(
            direction=direction, protocol=TransportProtocol.ANY, family=6, cidr=ip_network("2001:db8::/32")
        )
        spec = Firewall(default_ingress=Action.DROP, default_egress=Action.DROP, rules=(rule,))
        text = json.dumps(firewall.rules(spec, direction, bridged=False)[-2])
        assert f'"field": "{field}"' in text
        assert '"2001:db8::"' in text


def test_icmp_of_both_families_is_two_rules_and_of_one_is_one() -> None:
    rules = firewall.rules(FIREWALL, Direction.EGRESS, bridged=False)
    dropped = [json.dumps(rule) for rule in rules if "l4proto" in json.dumps(rule)]
    assert [("ipv6-icmp" in rule, '"icmp"' in rule) for rule in dropped] == [(False, True), (True, False)]


def test_only_guests_behind_nat_are_masqueraded() -> None:
    taps = planned(
        NetworkSpec(
            nics=(
                nic("10.213.0.2", address("2001:db8:0:5::1/64", topology=Topology.ROUTED)),
                nic("198.51.100.7", address("fd00:0:0:6::1/64"), topology=Topology.ROUTED, mac="52:54:00:21:30:03"),
            )
        )
    )
    found = ruleset.members(taps)
    assert (found[ruleset.NAT4], found[ruleset.NAT6]) == (["10.213.0.2"], [taps[1].device])


def test_dns_is_open_only_at_a_gateway_that_is_a_nameserver_of_the_nic() -> None:
    closed, opened = planned(
        NetworkSpec(nics=(nic("10.213.0.2"), nic("10.213.0.3", nameservers=(address("10.213.0.3").gateway, "9.9.9.9"))))
    )
    assert (closed.resolvers, [str(each) for each in opened.resolvers]) == ((), [address("10.213.0.3").gateway])


def test_what_a_machine_left_is_taken_out_of_every_set() -> None:
    (before,) = planned(network("10.213.0.2", firewall=FIREWALL))
    (after,) = planned(NetworkSpec(nics=(before.nic.model_copy(update={"addresses": ()}),)))
    deleted = {
        (body["name"], json.dumps(each))
        for body in bodies(ruleset.change((before,), (after,), NAMING), "element", verb="delete")
        for each in body["elem"]
    }
    assert (ruleset.NAT4, '"10.213.0.2"') in deleted
    assert {name for name, _ in deleted} == {ruleset.NAT4, firewall.FROM_GUEST, firewall.TO_GUEST}


def test_an_address_is_never_behind_two_machines() -> None:
    holders = Holders()
    holders.claim(MACHINE, (ip_network("10.213.0.2"), ip_network("2001:db8::/56")))
    for taken in ("10.213.0.2/32", "2001:db8:0:5::/64", "2001:db8::/48"):
        with pytest.raises(HostError) as refusal:
            holders.claim(OTHER_MACHINE, (ip_network("10.213.0.9"), ip_network(taken)))
        assert refusal.value.code is FailureCode.CONFLICT
        assert str(MACHINE) in refusal.value.message
    assert holders.holder(ip_network("10.213.0.9")) is None
    holders.release(MACHINE, (ip_network("10.213.0.2"),))
    holders.claim(OTHER_MACHINE, (ip_network("10.213.0.2"),))


@pytest.mark.parametrize(
    ("spec", "uplink", "code"),
    [
        (NetworkSpec(nics=(nic(topology=Topology.BRIDGED),)), None, FailureCode.UNSUPPORTED),
        (
            NetworkSpec(nics=(nic(topology=Topology.BRIDGED),), firewall=FIREWALL),
            Uplink("br0"),
            FailureCode.UNSUPPORTED,
        ),
        (
            NetworkSpec(nics=(nic(topology=Topology.BRIDGED).model_copy(update={"vlan": 7}),)),
            Uplink("br0"),
            FailureCode.UNSUPPORTED,
        ),
        (
            NetworkSpec(nics=(nic("10.213.0.2", address("10.213.0.3"), topology=Topology.BRIDGED),)),
            Uplink("br0"),
            FailureCode.CONFLICT,
        ),
        (
            NetworkSpec(nics=(nic("10.213.0.2", address("2001:db8:0:5::1/48", network=SUB_PREFIX)),)),
            None,
            FailureCode.UNSUPPORTED,
        ),
        (NetworkSpec(nics=(nic().model_copy(update={"vlan": 7}),)), None, FailureCode.INVALID),
    ],
    ids=["bridged", "bridged-firewall", "vlan", "bridged-and-nat", "ipv6-neighbours", "vlan-without-bridge"],
)
def test_what_this_host_cannot_carry_is_refused_by_name(
    spec: NetworkSpec, uplink: Uplink | None, code: FailureCode
) -> None:
    with pytest.raises(HostError) as refusal:
        planned(spec, uplink=uplink)
    assert refusal.value.code is code


def test_where_the_kernel_tracks_connections_on_a_bridge_groups_filter_there() -> None:
    (tap,) = planned(
        NetworkSpec(nics=(nic(topology=Topology.BRIDGED),), firewall=FIREWALL), uplink=Uplink("br0", filters=True)
    )
    chains = [body for body in bodies(ruleset.change((), (tap,), NAMING), "chain") if "hook" not in body]
    assert {body["family"] for body in chains if body["name"] != tap.device} == {"bridge"}
    assert verdicts(firewall.rules(FIREWALL, Direction.INGRESS, bridged=True))[0] == "return"  # ARP


def test_the_host_answers_for_neighbours_only_where_the_guest_believes_to_have_some() -> None:
    (alone,), (among,) = planned(network("10.213.0.2")), planned(NetworkSpec(nics=(nic("10.213.0.130/25"),)))
    assert (alone.believes_in_neighbours, among.believes_in_neighbours) == (False, True)


def test_releasing_an_address_keeps_the_nic_and_its_others() -> None:
    spec = NetworkSpec(
        nics=(nic("10.213.0.2", address("2001:db8:0:5::1/64")), nic("10.213.0.3")), firewall=FIREWALL, generation=7
    )
    kept = without(spec, frozenset({"10.213.0.2", SUB_PREFIX}))
    assert addresses_of(kept) == ("10.213.0.3",)
    assert (len(kept.nics), kept.firewall, kept.generation) == (2, FIREWALL, 7)


def test_addresses_are_named_as_the_protocol_writes_them() -> None:
    spec = NetworkSpec(nics=(nic("10.213.0.2/25", address("2001:db8:0:5::1/64")),))
    assert addresses_of(spec) == ("10.213.0.2", SUB_PREFIX)
    assert networks_of(spec) == (ip_network("10.213.0.2"), ip_network(SUB_PREFIX))


def test_a_nics_link_local_address_is_made_from_its_mac() -> None:
    assert link_local("52:54:00:12:34:56") == IPv6Address("fe80::5054:ff:fe12:3456")


def test_counters_and_handles_do_not_change_the_digest_and_rules_do() -> None:
    def listing(handle: int, packets: int, target: str) -> list[Any]:
        expression = [{"counter": {"packets": packets, "bytes": 0}}, {target: None}]
        return [{"rule": {"handle": handle, "expr": expression}}]

    assert ruleset.digest(listing(1, 0, "drop")) == ruleset.digest(listing(9, 512, "drop"))
    assert ruleset.digest(listing(1, 0, "drop")) != ruleset.digest(listing(1, 0, "accept"))


def test_tables_of_others_are_none_of_ours() -> None:
    assert ruleset.is_ours("netdev", "svc", NAMING)
    for family, name in (("ip", "svc"), ("inet", "svc2"), ("netdev", "svc-uplink"), ("netdev", NAMING.tap(uuid4()))):
        assert not ruleset.is_ours(family, name, NAMING)


def test_tap_names_fit_and_are_told_apart() -> None:
    names = {NAMING.tap(uuid4()) for _ in range(100)}
    assert len(names) == 100
    assert all(NAMING.is_tap(name) and len(name) <= 15 for name in names)
    # An operator may call a device of theirs so.
    assert not any(NAMING.is_tap(name) for name in ("svcbridge", "svc-uplink-br0", "svc0000000000g", "svc000000000000"))
