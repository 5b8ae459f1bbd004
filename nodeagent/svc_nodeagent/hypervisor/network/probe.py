"""Compares the networks of all machines on this host with the applied plans.

A comparison of a thousand machines takes seconds, so it is done in a thread, one comparison at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import trio

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import guard, nft, observe, ruleset, taps
from svc_nodeagent.hypervisor.network.plan import TapPlan, text_of
from svc_nodeagent.hypervisor.network.rates import seen_rates
from svc_nodeagent.hypervisor.network.taps import SeenTap
from svc_nodeagent.protocol import NetworkSpec, ObservedNetwork, ObservedTap, ProbeResult

_threads = trio.CapacityLimiter(1)


class Probe:
    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._reference = observe.Reference(naming)

    async def look(
        self, networks: Mapping[UUID, NetworkSpec], planned: Mapping[UUID, tuple[TapPlan, ...]], *, bridged: bool
    ) -> tuple[ProbeResult, bool]:
        """Compares the host with the desired `networks`, whose taps are in `planned`. Returns the differences, and
        whether the rules that all machines share are intact."""
        wanted = {vm_id: planned.get(vm_id, ()) for vm_id in networks}
        seen = await taps.seen_taps(self._naming)
        listed = await nft.list_all()
        rates = await seen_rates(self._naming)
        known = await trio.to_thread.run_sync(self._known, wanted, bridged, limiter=_threads)
        await self._reference.learn(known)
        self._reference.keep(known)
        return await trio.to_thread.run_sync(
            self._compared, networks, wanted, bridged, seen, listed, rates, limiter=_threads
        )

    def _known(self, wanted: Mapping[UUID, tuple[TapPlan, ...]], bridged: bool) -> list[observe.Chain]:
        chains = [each for tap_plans in wanted.values() for tap in tap_plans for each in observe.expected(tap)]
        return chains + [
            observe.chain(family, rules) for family, _, rules in observe.shared_rules(self._naming, bridged=bridged)
        ]

    def _compared(
        self,
        networks: Mapping[UUID, NetworkSpec],
        wanted: Mapping[UUID, tuple[TapPlan, ...]],
        bridged: bool,
        seen: Mapping[str, SeenTap],
        listed: bytes,
        rates: Mapping[str, int],
    ) -> tuple[ProbeResult, bool]:
        ours = [entry for entry in nft.entries(listed) if self._is_entry_of_ours(entry)]
        listing = observe.Listing.of(ours)
        is_sound = observe.shared_is_sound(listing, self._reference, self._naming, bridged=bridged)
        machines = []
        for vm_id, tap_plans in sorted(wanted.items()):
            differences = [] if is_sound else ["The nftables rules shared by all machines are not as they should be."]
            carried: list[str] = []
            for tap in tap_plans:
                there = seen.get(tap.device)
                differences += observe.tap_differences(tap, there, listing, self._reference, self._naming)
                rate = rates.get(tap.device)
                if rate != tap.nic.rate_mbps:
                    differences.append(
                        f"The rate of the tap {tap.device} is {_rate(rate)} instead of {_rate(tap.nic.rate_mbps)}."
                    )
                let_in = listing.let_in(self._naming.table, tap.device)
                routed = frozenset(tap.networks) if tap.bridge is not None else there.routes if there else frozenset()
                carried += [text_of(each) for each in routed if each in let_in or tap.isolated]
            if not tap_plans:
                differences.append("The machine's network could not be restored.")
            machines.append(
                ObservedNetwork(
                    vm_id=vm_id,
                    generation=networks[vm_id].generation,
                    addresses=tuple(sorted(carried)),
                    isolated=networks[vm_id].isolated and not differences,
                    differences=tuple(differences),
                )
            )
        result = ProbeResult(
            taps=tuple(
                ObservedTap(
                    device=device,
                    vm_id=tap.vm_id,
                    up=tap.up,
                    routes=tuple(sorted(text_of(route) for route in tap.routes)),
                    filtered=(guard.FAMILY, self._naming.table, device) in listing.hooks,
                    rate_mbps=rates.get(device),
                    dropped={
                        reason: counted.packets
                        for reason, counted in listing.counted.get(device, {}).items()
                        if counted.packets
                    },
                )
                for device, tap in sorted(seen.items())
            ),
            machines=tuple(machines),
            ruleset_digest=ruleset.digest(ours),
        )
        return result, is_sound

    def _is_entry_of_ours(self, entry: Mapping[str, object]) -> bool:
        """A listed table of ours, or something in one."""
        for body in entry.values():
            if isinstance(body, dict):
                name = body.get("table", body.get("name"))
                return ruleset.is_ours(str(body.get("family")), str(name), self._naming)
        return False


def _rate(mbps: int | None) -> str:
    return "no rate" if mbps is None else f"{mbps} Mbit/s"
