"""N4 and N5: what one vm.net.apply costs a kernel as its host fills, and a change for all of a thousand machines.

Run as `python -m tools.benchmarks.host_network`, as root. Each host is a network namespace with a process of its own
and real taps, rules and routes: every machine has an IPv4 address behind nat, an IPv6 network and a firewall of five
rules. An apply replaces one machine's firewall. Turns of the hosts alternate, and the median counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address, IPv6Network, ip_interface, ip_network
from statistics import median
from time import perf_counter
from typing import IO
from uuid import UUID

import trio

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.protocol import (
    Action,
    Direction,
    Firewall,
    FirewallRule,
    GuestAddress,
    NetworkSpec,
    NicSpec,
    Topology,
    TransportProtocol,
)
from tools.benchmarks import Ratio

SIZES = (10, 100, 1000)
SINGLES = 15
CROWDS = 1
SIDE_BY_SIDE = 16
"""As many changes of networks as a node is asked for at once."""

_INNER, _OUTER = int(IPv4Address("10.64.0.2")), int(IPv6Network("2001:db8::/32").network_address)


def _spec(number: int, generation: int) -> NetworkSpec:
    inner, outer = IPv4Address(_INNER + number), IPv6Network((_OUTER + (number << 64), 64))
    addresses = (
        GuestAddress(
            interface=ip_interface(inner),
            network=ip_network(inner),
            gateway="10.64.0.1",
            on_link=True,
            topology=Topology.NAT,
            primary=True,
        ),
        GuestAddress(
            interface=ip_interface(f"{outer.network_address + 1}/64"),
            network=outer,
            gateway="fe80::1",
            on_link=True,
            topology=Topology.ROUTED,
        ),
    )
    rules = tuple(
        FirewallRule(direction=Direction.INGRESS, protocol=TransportProtocol.TCP, ports=(port, port))
        for port in (22, 80, 443, 8080, 9000 + generation % 1000)
    )
    nic = NicSpec(
        nic_id=UUID(int=number << 84),
        mac=f"52:54:00:00:{number // 256:02x}:{number % 256:02x}",
        addresses=addresses,
    )
    firewall = Firewall(default_ingress=Action.DROP, default_egress=Action.ACCEPT, rules=rules)
    return NetworkSpec(nics=(nic,), firewall=firewall, generation=generation)


async def _serve(size: int) -> None:
    """One host: a line in, the seconds it took out. `one N` changes machine N, `all` changes every machine."""
    machines = [UUID(int=number + 1) for number in range(size)]
    network = HostNetwork(Naming(), {vm_id: _spec(number, 1) for number, vm_id in enumerate(machines)})
    began = perf_counter()
    await network.restore()
    print(perf_counter() - began, flush=True)
    limiter = trio.CapacityLimiter(SIDE_BY_SIDE)

    async def change(number: int, generation: int) -> None:
        async with limiter:
            await network.apply(machines[number], _spec(number, generation))

    for generation, line in enumerate(sys.stdin, start=2):
        word, _, number = line.strip().partition(" ")
        began = perf_counter()
        if word == "one":
            await change(int(number), generation)
        elif word == "all":
            async with trio.open_nursery() as nursery:
                for each in range(size):
                    nursery.start_soon(change, each, generation)
        else:
            differences = [text for machine in (await network.probe()).machines for text in machine.differences]
            if differences:
                raise RuntimeError(f"the host disagrees: {differences[0]}")
        print(perf_counter() - began, flush=True)


class _Host:
    def __init__(self, told: IO[str], answers: IO[str]) -> None:
        self._told = told
        self._answers = answers
        self.restored = float(answers.readline())

    def took(self, order: str) -> float:
        print(order, file=self._told, flush=True)
        return float(self._answers.readline())


@contextmanager
def _host(size: int) -> Iterator[_Host]:
    """In a namespace that goes with its process."""
    inside = 'mount -t sysfs sysfs /sys && ip link set lo up && exec "$@"'
    command = [sys.executable, "-m", "tools.benchmarks.host_network", str(size)]
    process = subprocess.Popen(
        ["unshare", "--net", "--mount", "sh", "-c", inside, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield _Host(process.stdin, process.stdout)
    finally:
        process.kill()
        process.wait()


def _figures() -> dict[str, dict[int, float]]:
    with ExitStack() as stack:
        hosts = {size: stack.enter_context(_host(size)) for size in SIZES}
        singles: dict[int, list[float]] = {size: [] for size in SIZES}
        for turn in range(SINGLES):
            for size, host in hosts.items():
                singles[size].append(host.took(f"one {turn % size}"))
        crowds = {size: [host.took("all") for _ in range(CROWDS)] for size, host in hosts.items()}
        return {
            "one apply": {size: median(taken) for size, taken in singles.items()},
            "all, a machine": {size: median(taken) / size for size, taken in crowds.items()},
            "first probe": {size: host.took("probe") for size, host in hosts.items()},
            "probe": {size: host.took("probe") for size, host in hosts.items()},
            "restore": {size: host.restored for size, host in hosts.items()},
        }


def measure() -> list[Ratio]:
    figures = _figures()
    one, all = figures["one apply"], figures["all, a machine"]
    return [
        Ratio("N4 one vm.net.apply : 1,000 machines : 10", one[1000] * 1000, one[10] * 1000, "ms", 1.5, False),
        Ratio(
            "N5 a machine's part of a change for 1,000 : one alone", all[1000] * 1000, one[1000] * 1000, "ms", 1, False
        ),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(_serve, int(sys.argv[1]))
    else:
        print(json.dumps(_figures(), indent=2))
