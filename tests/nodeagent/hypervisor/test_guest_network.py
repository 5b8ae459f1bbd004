"""What a running guest is told to change, from what its agent says and what the records say."""

from __future__ import annotations

import json
from ipaddress import ip_interface, ip_network
from uuid import UUID

import pytest

from svc_nodeagent.hypervisor.guest_network import GuestNic, Interfaces, NicNotFound, changes
from svc_nodeagent.protocol import GuestAddress, NetworkSpec, NicSpec, Topology

MAC, NIC = "52:54:00:00:00:01", UUID(int=1)


def address(text: str, gateway: str = "192.0.2.1", *, on_link: bool = True, primary: bool = False) -> GuestAddress:
    interface = ip_interface(text)
    network = interface.network if interface.version == 6 else ip_network(interface.ip)
    return GuestAddress(
        interface=interface,
        network=network,
        gateway=gateway,
        on_link=on_link,
        topology=Topology.ROUTED,
        primary=primary,
    )


FIRST = address("192.0.2.5/32", primary=True)
SECOND = address("198.51.100.7/32", "198.51.100.1")
SIXTH = address("2001:db8:0:5::1/64", "fe80::1")


def spec(*addresses: GuestAddress) -> NetworkSpec:
    return NetworkSpec(nics=(NicSpec(nic_id=NIC, mac=MAC, addresses=addresses),))


def guest_nic(*addresses: str, mac: str = MAC) -> GuestNic:
    return GuestNic(name="ens3", mac=mac, addresses=frozenset(map(ip_interface, addresses)))


def words(*commands: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(command.split()) for command in commands)


def test_a_guest_that_has_everything_is_told_nothing() -> None:
    assert changes([guest_nic("192.0.2.5/32", "fe80::5054:ff:fe00:1/64")], spec(FIRST), spec(FIRST)) == ()


def test_a_second_address_is_added_and_the_way_out_stays() -> None:
    told = changes([guest_nic("192.0.2.5/32")], spec(FIRST, SECOND), spec(FIRST))
    assert told == words("-4 address replace 198.51.100.7/32 dev ens3")


def test_the_first_address_of_a_family_brings_its_way_out() -> None:
    told = changes([guest_nic("192.0.2.5/32")], spec(FIRST, SIXTH), spec(FIRST))
    assert told == words(
        "-6 address replace 2001:db8:0:5::1/64 dev ens3",
        "-6 route replace fe80::1/128 dev ens3",
        "-6 route replace default via fe80::1 dev ens3",
    )


def test_a_gateway_in_the_guests_own_network_needs_no_route_to_it() -> None:
    inside = address("203.0.113.9/24", "203.0.113.1", on_link=False, primary=True)
    assert changes([guest_nic()], spec(inside), spec(inside)) == words(
        "-4 address replace 203.0.113.9/24 dev ens3", "-4 route replace default via 203.0.113.1 dev ens3"
    )


def test_what_an_earlier_record_had_is_removed_and_what_the_owner_added_stays() -> None:
    told = changes([guest_nic("192.0.2.5/32", "198.51.100.7/32", "10.9.9.9/24")], spec(FIRST), spec(FIRST, SECOND))
    assert told == words("-4 address del 198.51.100.7/32 dev ens3")


def test_a_changed_gateway_is_followed() -> None:
    moved = address("192.0.2.5/32", "192.0.2.254", primary=True)
    assert changes([guest_nic("192.0.2.5/32")], spec(moved), spec(FIRST)) == words(
        "-4 route replace 192.0.2.254/32 dev ens3", "-4 route replace default via 192.0.2.254 dev ens3"
    )


def test_the_primary_address_comes_first_and_leads_outside() -> None:
    told = changes([guest_nic()], spec(SECOND, FIRST), spec(SECOND, FIRST))
    assert [command[3] for command in told if command[1] == "address"] == ["192.0.2.5/32", "198.51.100.7/32"]
    assert told[-1] == ("-4", "route", "replace", "default", "via", "192.0.2.1", "dev", "ens3")


def test_only_the_first_nic_leads_outside() -> None:
    second = NicSpec(nic_id=UUID(int=2), mac="52:54:00:00:00:02", addresses=(SIXTH,))
    wanted = NetworkSpec(nics=(*spec(FIRST).nics, second))
    nics = [guest_nic("192.0.2.5/32"), GuestNic(name="ens4", mac="52:54:00:00:00:02", addresses=frozenset())]
    assert changes(nics, wanted, spec(FIRST)) == words("-6 address replace 2001:db8:0:5::1/64 dev ens4")


def test_a_nic_that_the_guest_does_not_show_is_not_guessed() -> None:
    with pytest.raises(NicNotFound):
        changes([guest_nic(mac="52:54:00:00:00:09")], spec(FIRST), spec(FIRST))


def test_nics_are_read_from_the_agents_words() -> None:
    answer = [
        {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1", "prefix": 8, "ip-address-type": "ipv4"}]},
        {
            "name": "ens3",
            "hardware-address": MAC.upper(),
            "ip-addresses": [{"ip-address": "2001:db8:0:5::1", "prefix": 64, "ip-address-type": "ipv6"}],
            "statistics": {"rx-bytes": 1},
        },
        {"name": "ens4", "hardware-address": "52:54:00:00:00:02"},
    ]
    found = Interfaces.model_validate_json(json.dumps({"return": answer})).nics()
    assert found[1] == guest_nic("2001:db8:0:5::1/64")
    assert found[2].addresses == frozenset()


@pytest.mark.parametrize(
    "answer",
    [
        "{}",
        '{"return": 3}',
        '{"return": [{"name": 1}]}',
        '{"return": [{"name": "e", "ip-addresses": [{"ip-address": "$(reboot)", "prefix": 8}]}]}',
        '{"return": ' + "[" * 10_000,
    ],
)
def test_an_agent_that_says_something_else_is_refused(answer: str) -> None:
    with pytest.raises(ValueError):
        Interfaces.model_validate_json(answer).nics()
