"""Where a host differs from the records of its machines' networks: a comparison, and nothing else.

Invariant: a machine is judged only if nothing about it was under way, neither before the host was asked nor after its
answer: a change in progress is no drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any, Final
from uuid import UUID

from svc_actors.controller.networking.pool_arithmetic import IPNetwork, address_text
from svc_nodeagent.protocol import ObservedNetwork, ProbeResult

MOST_KEPT: Final = 500
"""The most differences and strays of one probe that are repaired, and stored in the node's row; the rest is left to the
next probe. Without a limit a hostile host could invent any number of them."""
_MOST_TAPS: Final = 2_000
_MOST_PROBLEM: Final = 500
"""Characters of one problem."""


@dataclass(frozen=True)
class RecordedNetwork:
    """One machine's recorded network. `settled`: its host has confirmed all of it, and no task of the machine is
    open."""

    vm_id: UUID
    name: str
    wanted: int
    applied: int
    isolated: bool
    networks: frozenset[IPNetwork]
    settled: bool


@dataclass(frozen=True)
class Difference:
    """One difference, as a sentence. `vm_id` None: it is not about a machine."""

    vm_id: UUID | None
    problem: str


@dataclass(frozen=True)
class NetworkDrift:
    """The result of a probe. `strays`: machines without a record for which the host carries addresses. Machines without
    a record and without addresses take nothing from other machines, and are left out."""

    differences: tuple[Difference, ...]
    strays: tuple[ObservedNetwork, ...]
    taps: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """The form stored in `nodes.network_probe`."""
        return {
            "differences": [
                {"vm_id": str(each.vm_id) if each.vm_id else None, "problem": each.problem} for each in self.differences
            ],
            "taps": list(self.taps),
        }


def compare(
    before: Mapping[UUID, RecordedNetwork], after: Mapping[UUID, RecordedNetwork], probe: ProbeResult
) -> NetworkDrift:
    """`before` and `after`: the records as read before the host was asked, and after it had answered."""
    # Only machines are compared whose record was settled and the same at both times: the host answered for some moment
    # in between, so its answer must then agree with the record.
    settled = {vm_id: now for vm_id, now in after.items() if now.settled and before.get(vm_id) == now}
    known = before.keys() | after.keys()
    observed = {network.vm_id: network for network in probe.machines}
    differences: list[Difference] = []
    for vm_id, recorded in settled.items():
        differences += [Difference(vm_id, problem) for problem in _of_a_machine(recorded, observed.get(vm_id))]
    strays = tuple(network for network in probe.machines if network.vm_id not in known and network.addresses)
    for stray in strays:
        carried = ", ".join(sorted(stray.addresses))
        differences.append(Difference(stray.vm_id, f"No machine of this id is recorded here; it carries {carried}."))
    for tap in probe.taps:
        if tap.vm_id is None:
            differences.append(Difference(None, f"The tap {tap.device} belongs to no machine."))
        elif tap.up and not tap.filtered and (tap.vm_id in settled or tap.vm_id not in known):
            differences.append(Difference(tap.vm_id, f"Its tap {tap.device} is up without the rules against spoofing."))
    taps = sorted(probe.taps, key=lambda tap: tap.device)[:_MOST_TAPS]
    cut = dict.fromkeys(Difference(each.vm_id, each.problem[:_MOST_PROBLEM]) for each in differences)
    kept = list(cut)[:MOST_KEPT]
    if len(cut) > MOST_KEPT:
        kept.append(Difference(None, f"{len(cut) - MOST_KEPT} more differences are not shown."))
    return NetworkDrift(tuple(kept), strays[:MOST_KEPT], tuple(tap.model_dump(mode="json") for tap in taps))


def _of_a_machine(recorded: RecordedNetwork, observed: ObservedNetwork | None) -> list[str]:
    if observed is None:
        return ["The host carries no network for it."]
    problems = []
    # A generation below the last confirmed one means that the host was rebuilt or restored from a backup. One above
    # what was ever ordered means that the controller was restored.
    if observed.generation < recorded.applied:
        problems.append(f"The host has generation {observed.generation}; {recorded.applied} was applied.")
    elif observed.generation > recorded.wanted:
        problems.append(f"The host has generation {observed.generation}, and only {recorded.wanted} is recorded.")
    if observed.isolated != recorded.isolated:
        problems.append("It is isolated on the host." if observed.isolated else "It is not isolated on the host.")
    carried = {ip_interface(address).network for address in observed.addresses}
    # An isolated machine must carry no address, so a missing one is no difference. An address that it carries is a
    # difference in any case.
    if not recorded.isolated:
        problems += [f"{address_text(each)} is not carried." for each in _sorted(recorded.networks - carried)]
    problems += [f"{address_text(each)} is carried and not recorded." for each in _sorted(carried - recorded.networks)]
    return [*problems, *observed.differences]


def _sorted(networks: frozenset[IPNetwork] | set[IPNetwork]) -> list[IPNetwork]:
    return sorted(networks, key=lambda network: (network.version, int(network.network_address)))
