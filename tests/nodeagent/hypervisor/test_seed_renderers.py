"""The seed's network as cloud-init's own renderers write it for a guest: each family has a default route by its gateway
that the guest can take, so a gateway outside of the address's network is on the link."""

from __future__ import annotations

import configparser
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from pathlib import Path
from uuid import UUID

import pytest
import yaml

from svc_nodeagent.hypervisor.seeds import render as rendered_seed
from svc_nodeagent.protocol import GuestAddress, NetworkSpec, NicSpec, Topology
from tests.nodeagent.hypervisor.builders import machine, record
from tests.support.cloud_init import RELEASES, RENDERERS, render


@dataclass
class Configured:
    """A NIC of a guest as a renderer configures it. `on_link`: gateways that are declared to be on the link."""

    addresses: list[str] = field(default_factory=list)
    gateways: list[str] = field(default_factory=list)
    on_link: set[str] = field(default_factory=set)
    nameservers: list[str] = field(default_factory=list)

    def default_routes(self) -> dict[int, str]:
        """By family the gateway of its default route. Fails if the kernel would refuse it, or if there are two."""
        found: dict[int, str] = {}
        for text in self.gateways:
            gateway = ip_address(text)
            assert gateway.version not in found, f"a second default route by {text}"
            assert text in self.on_link or self._is_reached(gateway), f"the kernel refuses {text}: not on the link"
            found[gateway.version] = text
        return found

    def _is_reached(self, gateway: IPv4Address | IPv6Address) -> bool:
        by_scope = gateway.version == 6 and gateway.is_link_local
        return by_scope or any(gateway in ip_interface(address).network for address in self.addresses)


Read = Callable[[Path, str], Configured]


def netplan(root: Path, name: str) -> Configured:
    loaded = yaml.safe_load((root / "etc/netplan/50-cloud-init.yaml").read_text())
    nic = loaded["network"]["ethernets"][name]
    assert (nic["set-name"], nic.get("accept-ra")) == (name, False)
    found = Configured(addresses=nic["addresses"], nameservers=nic.get("nameservers", {}).get("addresses", []))
    found.gateways += [nic[key] for key in ("gateway4", "gateway6") if key in nic]
    for route in nic.get("routes", []):
        if route["to"] == "default" or ip_network(route["to"]).prefixlen == 0:
            found.gateways.append(route["via"])
            found.on_link |= {route["via"]} if route.get("on-link") else set()
        elif ip_address(route["via"]).is_unspecified:
            found.on_link.add(route["to"].partition("/")[0])
    return found


def networkd(root: Path, name: str) -> Configured:
    found = Configured()
    sections: list[tuple[str, dict[str, str]]] = []
    for line in (root / f"etc/systemd/network/10-cloud-init-{name}.network").read_text().splitlines():
        if line.startswith("["):
            sections.append((line, {}))
        elif line:
            key, _, value = line.partition("=")
            assert key not in sections[-1][1], f"{key} twice in {sections[-1][0]}"
            sections[-1][1][key] = value
    for title, pairs in sections:
        found.addresses += [pairs["Address"]] if title == "[Address]" else []
        found.nameservers += pairs.get("DNS", "").split()
        if title == "[Route]" and "Destination" not in pairs:
            found.gateways.append(pairs["Gateway"])
            found.on_link |= {pairs["Gateway"]} if pairs.get("GatewayOnLink") == "yes" else set()
        elif title == "[Route]" and ip_address(pairs["Gateway"]).is_unspecified:
            found.on_link.add(pairs["Destination"].partition("/")[0])
    return found


def eni(root: Path, name: str) -> Configured:
    """ifupdown and ifupdown-ng add the route of a `gateway` with the interface and `onlink`."""
    found, stanza = Configured(), ""
    for line in (root / "etc/network/interfaces").read_text().splitlines():
        key, _, value = line.strip().partition(" ")
        if key == "iface":
            stanza = value.split()[0].partition(":")[0]
        elif stanza != name:
            continue
        elif key == "address":
            found.addresses.append(value)
        elif key == "gateway":
            found.gateways.append(value)
            found.on_link.add(value)
        elif key == "dns-nameservers":
            found.nameservers = list(dict.fromkeys((*found.nameservers, *value.split())))
    return found


def sysconfig(root: Path, name: str) -> Configured:
    """NetworkManager, which reads these files, takes the gateway of a connection as on its link."""
    lines = (root / f"etc/sysconfig/network-scripts/ifcfg-{name}").read_text().splitlines()
    pairs = {key: value.strip("'\"") for key, _, value in (line.partition("=") for line in lines)}
    found = Configured(nameservers=[value for key, value in pairs.items() if key.startswith("DNS")])
    for key, value in pairs.items():
        if key.startswith("IPADDR"):
            found.addresses.append(str(ip_interface(f"{value}/{pairs['NETMASK' + key.removeprefix('IPADDR')]}")))
        elif key.startswith("IPV6ADDR"):
            found.addresses += value.split()
        elif key in ("GATEWAY", "IPV6_DEFAULTGW"):
            found.gateways.append(value)
            found.on_link.add(value)
    return found


def network_manager(root: Path, name: str) -> Configured:
    """Of a connection's `gateway`, NetworkManager itself says that it is on the link."""
    parser = configparser.ConfigParser()
    path = root / f"etc/NetworkManager/system-connections/cloud-init-{name}.nmconnection"
    parser.read_string(path.read_text())
    found = Configured()
    for section in ("ipv4", "ipv6"):
        for key, value in parser[section].items() if section in parser else ():
            if key.startswith("address"):
                found.addresses.append(value)
            elif key == "gateway":
                found.gateways.append(value)
                found.on_link.add(value)
            elif key == "dns":
                found.nameservers += [each for each in value.split(";") if each]
    return found


READERS: dict[str, Read] = {each.__name__: each for each in (netplan, networkd, eni, sysconfig, network_manager)}


def address(text: str, gateway: str, *, on_link: bool = True) -> GuestAddress:
    interface = ip_interface(text)
    network = interface.network if interface.version == 6 else ip_network(interface.ip)
    return GuestAddress(
        interface=interface, network=network, gateway=gateway, on_link=on_link, topology=Topology.ROUTED
    )


IPV4, OTHER_IPV4 = address("192.0.2.5/32", "192.0.2.1"), address("198.51.100.7/32", "198.51.100.1")
IPV6, OTHER_IPV6 = address("2001:db8:0:5::1/64", "fe80::1"), address("2001:db8:0:6::1/64", "fe80::1")

CASES: dict[str, tuple[tuple[GuestAddress, ...], dict[int, str]]] = {
    "ipv4": ((IPV4,), {4: "192.0.2.1"}),
    "ipv6": ((IPV6,), {6: "fe80::1"}),
    "both": ((IPV4, IPV6), {4: "192.0.2.1", 6: "fe80::1"}),
    "ipv6-first": ((IPV6, IPV4), {4: "192.0.2.1", 6: "fe80::1"}),
    "several-of-each": ((IPV4, OTHER_IPV4, IPV6, OTHER_IPV6), {4: "192.0.2.1", 6: "fe80::1"}),
    "ipv4-of-a-subnet": ((address("192.0.2.5/24", "192.0.2.1", on_link=False),), {4: "192.0.2.1"}),
    "ipv6-of-a-subnet": ((address("2001:db8::5/64", "2001:db8::1", on_link=False),), {6: "2001:db8::1"}),
    "global-ipv6-gateway": ((address("2001:db8::5/128", "2001:db8::1"),), {6: "2001:db8::1"}),
}


MACHINES = {name: (addresses,) for name, (addresses, _) in CASES.items()} | {
    "none": (),
    "several-nics": ((IPV4, IPV6), (address("203.0.113.9/32", "203.0.113.1"), OTHER_IPV6)),
}
"""The addresses of each machine's NICs."""


@pytest.fixture(scope="module", params=RELEASES)
def guests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the release's renderers write for each machine."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    render(request.param, {name: network_config(nics) for name, nics in MACHINES.items()}, folder)
    return folder


def network_config(nics: tuple[tuple[GuestAddress, ...], ...]) -> str:
    network = NetworkSpec(
        nics=tuple(
            NicSpec(
                nic_id=UUID(int=number),
                mac=f"52:54:00:00:00:0{number}",
                addresses=addresses,
                nameservers=("192.0.2.53",),
            )
            for number, addresses in enumerate(nics)
        )
    )
    return rendered_seed(record(machine(network)), None)["network-config"]


def configured(guests: Path, name: str, renderer: str) -> list[Configured]:
    """A machine's NICs in their order."""
    return [READERS[renderer](guests / name / renderer, f"eth{number}") for number in range(len(MACHINES[name]))]


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("case", CASES)
def test_each_family_leads_outside_by_its_gateway(guests: Path, case: str, renderer: str) -> None:
    addresses, expected = CASES[case]
    (nic,) = configured(guests, case, renderer)
    assert nic.default_routes() == expected
    assert sorted(nic.addresses) == sorted(str(each.interface) for each in addresses)


@pytest.mark.parametrize("renderer", RENDERERS)
def test_only_the_first_of_several_nics_leads_outside(guests: Path, renderer: str) -> None:
    first, second = configured(guests, "several-nics", renderer)
    assert first.default_routes() == {4: "192.0.2.1", 6: "fe80::1"}
    assert second.default_routes() == {}
    assert sorted(second.addresses) == ["2001:db8:0:6::1/64", "203.0.113.9/32"]


@pytest.mark.parametrize("renderer", RENDERERS)
def test_the_nameservers_are_those_of_the_nic(guests: Path, renderer: str) -> None:
    (nic,) = configured(guests, "both", renderer)
    assert nic.nameservers == ["192.0.2.53"]
