"""Makes the host's network what the records say: all of a machine's, together, and nothing that is not ours.

Order when something is added: taps (down), rules, then up, addresses and routes; so no packet of a guest is seen before
its rules. Order when something is taken away: out of the rules first. One change at a time, because the tables are
replaced whole; each ends in the same state however often it is repeated, and whatever was there before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from uuid import UUID

import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import ruleset, taps
from svc_nodeagent.hypervisor.network.plan import TapPlan, addresses_of, plan
from svc_nodeagent.hypervisor.programs import run_program, try_program
from svc_nodeagent.protocol import NetworkSpec, ObservedTap, ProbeResult


class HostNetwork:
    """The networks of all machines of this host. `networks` is what the records said when the agent started."""

    def __init__(self, naming: Naming, networks: Mapping[UUID, NetworkSpec]) -> None:
        self._naming = naming
        self._networks = dict(networks)
        self._lock = trio.Lock()

    async def restore(self) -> None:
        """After a restart of agent or host: everything as recorded, and taps nobody has a record of removed."""
        async with self._lock:
            await self._agree(self._networks)

    async def apply(self, vm_id: UUID, network: NetworkSpec) -> None:
        """Make one machine's network so. Raises `HostError` with the host as it was where nothing was begun."""
        async with self._lock:
            await self._agree({**self._networks, vm_id: network}, only=vm_id)

    async def remove(self, vm_id: UUID) -> tuple[str, ...]:
        """Take the machine's network away; gives its recorded addresses that the host no longer carries."""
        async with self._lock:
            network = self._networks.get(vm_id)
            await self._agree({other: kept for other, kept in self._networks.items() if other != vm_id}, only=vm_id)
            return await self._absent(addresses_of(network)) if network is not None else ()

    async def absent(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `addresses` that the host neither routes nor lets through, by asking it."""
        async with self._lock:
            return await self._absent(addresses)

    async def probe(self) -> ProbeResult:
        """What the host has, by asking it and not the records."""
        async with self._lock:
            seen = await taps.seen_taps(self._naming)
            listing = await self._listing("netdev")
            filtered = ruleset.filtered_devices(listing)
            both = json.dumps([json.loads(listing), json.loads(await self._listing("inet"))]).encode()
        return ProbeResult(
            taps=tuple(
                ObservedTap(
                    device=tap.device,
                    vm_id=tap.vm_id,
                    up=tap.up,
                    routes=tuple(sorted(str(route) for route in tap.routes)),
                    filtered=tap.device in filtered,
                )
                for tap in sorted(seen.values(), key=lambda tap: tap.device)
            ),
            addresses=tuple(sorted(str(route) for tap in seen.values() for route in tap.routes)),
            ruleset_digest=ruleset.digest(both),
        )

    async def clear(self) -> None:
        """Remove everything of ours from the host, as a reboot would: a `restore` afterwards brings it back."""
        async with self._lock:
            self._networks.clear()
            await taps.remove_taps(await taps.seen_taps(self._naming))
            await run_program("nft", "-j", "-f", "-", stdin=ruleset.removal(self._naming))

    async def _agree(self, networks: dict[UUID, NetworkSpec], *, only: UUID | None = None) -> None:
        """Bring taps and rules to `networks`; of taps, touch those of one machine, or of all when `only` is None."""
        planned = plan(networks, self._naming)
        mine = [tap for tap in planned if only is None or tap.vm_id == only]
        seen = await taps.seen_taps(self._naming)
        for tap in mine:
            await taps.create_tap(tap, self._naming)
            fault_point("network.tap")
        if mine:
            taps.forward()
        wanted = {tap.device for tap in planned}
        surplus = [
            device
            for device, tap in seen.items()
            if device not in wanted and (only is None or tap.vm_id in (only, None))
        ]
        await self._load(planned, seen.keys() | wanted)
        fault_point("network.rules")
        for tap in mine:
            await taps.open_tap(tap, seen.get(tap.device))
            fault_point("network.routes")
        await taps.remove_taps(surplus)
        fault_point("network.removed")
        if surplus:  # a kernel may keep the chain of a device that has gone
            await self._load(planned, wanted)
        self._networks = networks

    async def _load(self, planned: tuple[TapPlan, ...], devices: AbstractSet[str]) -> None:
        """Whatever tap is there is guarded, one without a record from everything. A chain needs its device to exist; a
        machine whose tap is missing has it made when it is started."""
        guarded = sorted(device for device in devices if taps.exists(device))
        await run_program("nft", "-j", "-f", "-", stdin=ruleset.ruleset(planned, guarded, self._naming))

    async def _absent(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        seen = await taps.seen_taps(self._naming)
        carried = {str(route) for tap in seen.values() for route in tap.routes}
        carried |= {address for network in self._networks.values() for address in addresses_of(network)}
        return tuple(address for address in addresses if address not in carried)

    async def _listing(self, family: str) -> bytes:
        status, output, error = await try_program("nft", "-j", "list", "table", family, self._naming.table)
        if status == 0:
            return output
        if "No such file or directory" in error:
            return b'{"nftables": []}'
        return await run_program("nft", "-j", "list", "table", family, self._naming.table)
