"""The laboratory: a host, somebody outside and guests, each a network namespace with the kernel's own stack in it.

    outside --- up0 [host: HostNetwork] tap ~~~ wire ~~~ eth0 guest
            --- br0

Guests are configured once, as a seed configures them; what the host carries for them is applied by the tests. Between
tests every guest has its addresses and no firewall.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import trio

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.protocol import Firewall, GuestAddress, NetworkSpec, NicSpec, Topology
from tests.system.network.agent import Agent, AgentServer, Start
from tests.system.network.namespaces import Namespace
from tests.system.network.places import (
    BRIDGE,
    BRIDGE_ADDRESSES,
    GUEST_DEVICE,
    GUESTS,
    OUTSIDE,
    OUTSIDE_ON_THE_BRIDGE,
    ROUTED_POOLS,
    UPLINK,
    UPLINK_ADDRESSES,
    GuestPlace,
    Place,
)
from tests.system.network.wire import Copied, Wires

ROOT = Path(__file__).resolve().parents[3]
CARRIED = (Topology.NAT, Topology.ROUTED)
"""The topologies on which the host under test is a guest's next hop, and filters by security groups."""


class Lab:
    """Everything of one test process; its parts outlive the tests that use them."""

    def __init__(self, stack: ExitStack) -> None:
        prefix = f"svcm{secrets.token_hex(3)}"
        self.naming = Naming(device_prefix="svc", table="svc")
        self.guests = [guest for topology in Topology for guest in GUESTS[topology]]
        self._namespaces: dict[str, Namespace] = {}
        for name in ("host", "outside", *(guest.name for guest in self.guests)):
            self._namespaces[name] = Namespace(f"{prefix}-{name}")
            stack.callback(self._namespaces[name].delete)
        self.host, self.outside = self._namespaces["host"], self._namespaces["outside"]
        self._generations = itertools.count(1)
        _join(self.host, self.outside)
        ends = [self._guest_end(guest, stack) for guest in self.guests]
        self.wires = Wires(_serve(self.host, "wire", stack, *ends))
        self.agents = AgentServer(_serve(self.host, "agent", stack))
        self._agents = stack.enter_context(ExitStack())
        self.renew_agent()

    def namespace(self, place: Place) -> Namespace:
        if place in (OUTSIDE, OUTSIDE_ON_THE_BRIDGE):
            return self.outside
        return self._namespaces[place.name]

    def tap(self, guest: GuestPlace) -> str:
        return self.naming.tap(guest.nic_id)

    def tap_mac(self, guest: GuestPlace) -> str:
        """What the guest holds for its gateway's MAC."""
        return str(json.loads(self.host.output("ip", "-j", "link", "show", "dev", self.tap(guest)))[0]["address"])

    def next_mac(self, guest: GuestPlace) -> str:
        """What the guest holds for its gateway's MAC: the tap's, or that of the router on the bridge."""
        if guest.topology is not Topology.BRIDGED:
            return self.tap_mac(guest)
        device = OUTSIDE_ON_THE_BRIDGE.device
        return str(json.loads(self.outside.output("ip", "-j", "link", "show", "dev", device))[0]["address"])

    def start(
        self,
        networks: dict[GuestPlace, NetworkSpec] | None = None,
        ledger: Path | None = None,
    ) -> Start:
        return Start(
            device_prefix=self.naming.device_prefix,
            table=self.naming.table,
            bridge=BRIDGE,
            networks={guest.vm_id: spec for guest, spec in (networks or {}).items()},
            ledger=ledger,
        )

    def renew_agent(self) -> None:
        """End the agent that serves all tests, and start one that finds in its records what every test begins with."""
        self._agents.close()
        self._agent = self._agents.enter_context(self.agents.started(self.start(self.as_found())))

    def as_found(self) -> dict[GuestPlace, NetworkSpec]:
        """What every test begins with: all guests with their addresses, and no firewall."""
        return {guest: self.spec(guest) for guest in self.guests}

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """The agent that serves all tests."""
        async with trio.SocketStream(trio.socket.from_stdlib_socket(self._agent.dup())) as stream:
            yield Agent(stream)

    def attach(self, guest: GuestPlace) -> None:
        """Start the guest: its NIC is joined to its tap, and carries. It knows nothing of a tap it had before."""
        self.namespace(guest).ip(f"neighbour flush dev {guest.device}")
        self.wires.attach(self.guests.index(guest), self.tap(guest))
        for gateway in (guest.gateway(4), guest.gateway(6)):
            zone = f"%{GUEST_DEVICE}" if gateway.is_link_local else ""
            self.namespace(guest).output("ping", "-n", "-c", "1", "-i", "0.2", "-w", "10", f"{gateway}{zone}")

    def inject(self, guest: GuestPlace, frame: bytes) -> None:
        """A frame as the guest's, whatever it says."""
        self.wires.inject(self.guests.index(guest), frame)

    def copied(self, guest: GuestPlace) -> Copied:
        """What passed the guest's end of its wire so far."""
        return self.wires.copied(self.guests.index(guest))

    def spec(
        self,
        guest: GuestPlace,
        *,
        firewall: Firewall | None = None,
        isolated: bool = False,
        rate_mbps: int | None = None,
        given: tuple[GuestAddress, ...] | None = None,
        nameservers: tuple[str, ...] = (),
    ) -> NetworkSpec:
        """What the records say of a guest; later ones have later generations."""
        nic = NicSpec(
            nic_id=guest.nic_id,
            mac=guest.mac,
            addresses=guest.given if given is None else given,
            nameservers=nameservers,
            rate_mbps=rate_mbps,
        )
        return NetworkSpec(nics=(nic,), firewall=firewall, isolated=isolated, generation=next(self._generations))

    def _guest_end(self, guest: GuestPlace, stack: ExitStack) -> int:
        """The guest's NIC and what cloud-init would have configured on it; gives the descriptor of its wire's end."""
        namespace = self._namespaces[guest.name]
        namespace.set({"ipv6/conf/default/accept_dad": "0", "ipv6/conf/default/accept_ra": "1"})
        descriptor = namespace.tap(GUEST_DEVICE)
        stack.callback(os.close, descriptor)
        namespace.ip(
            "link set lo up",
            f"link set {GUEST_DEVICE} address {guest.mac} up",
            *(command for given in guest.given for command in _configuration(given)),
        )
        return descriptor


@contextmanager
def laboratory() -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(stack)


def _configuration(given: GuestAddress) -> tuple[str, ...]:
    device = GUEST_DEVICE
    on_link = f"route replace {given.gateway} dev {device}"
    return (
        f"address add {given.interface} dev {device}",
        *((on_link,) if given.on_link and not given.gateway.startswith("fe80:") else ()),
        f"route replace {'::/0' if given.interface.version == 6 else '0.0.0.0/0'} via {given.gateway} dev {device}",
    )


def _join(host: Namespace, outside: Namespace) -> None:
    """Two wires between the host and the outside: one is routed, the other ends at the host's bridge."""
    nobody = {"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0"}
    host.set(nobody | {"ipv4/ip_forward": "0", "ipv6/conf/all/forwarding": "0"})
    outside.set(nobody | {"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"})
    host.ip(
        "link set lo up",
        f"link add {UPLINK} type veth peer name {OUTSIDE.device} netns {outside.name}",
        f"link add {BRIDGE} type bridge",
        f"link add up1 type veth peer name {OUTSIDE_ON_THE_BRIDGE.device} netns {outside.name}",
        f"link set up1 master {BRIDGE} up",
        f"link set {BRIDGE} up",
        f"link set {UPLINK} up",
        f"address add {BRIDGE_ADDRESSES[4]}/24 dev {BRIDGE}",
        f"address add {BRIDGE_ADDRESSES[6]}/48 dev {BRIDGE}",
        f"address add {UPLINK_ADDRESSES[4]}/24 dev {UPLINK}",
        f"address add {UPLINK_ADDRESSES[6]}/64 dev {UPLINK}",
        f"route add default via {OUTSIDE.addresses[4]}",
        f"route add ::/0 via {OUTSIDE.addresses[6]}",
    )
    outside.ip(
        "link set lo up",
        f"link set {OUTSIDE.device} up",
        f"link set {OUTSIDE_ON_THE_BRIDGE.device} up",
        f"address add {OUTSIDE.addresses[4]}/24 dev {OUTSIDE.device}",
        f"address add {OUTSIDE.addresses[6]}/64 dev {OUTSIDE.device}",
        f"address add {OUTSIDE_ON_THE_BRIDGE.addresses[4]}/24 dev {OUTSIDE_ON_THE_BRIDGE.device}",
        f"address add {OUTSIDE_ON_THE_BRIDGE.addresses[6]}/48 dev {OUTSIDE_ON_THE_BRIDGE.device}",
        *(f"route add {pool} via {UPLINK_ADDRESSES[6 if ':' in pool else 4]}" for pool in ROUTED_POOLS),
    )


def _serve(host: Namespace, module: str, stack: ExitStack, *descriptors: int) -> socket.socket:
    """Start a process of the laboratory in the host's namespace; it ends when its socket is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        arguments = [str(descriptor) for descriptor in (theirs.fileno(), *descriptors)]
        process = subprocess.Popen(
            host.inside(sys.executable, "-m", f"tests.system.network.{module}", *arguments),
            cwd=ROOT,
            pass_fds=(theirs.fileno(), *descriptors),
        )
    stack.callback(process.wait, 10)
    stack.enter_context(ours)
    stack.callback(ours.shutdown, socket.SHUT_RDWR)
    return ours
