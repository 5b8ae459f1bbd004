"""Applies the recorded networks on the host. The network of a machine is applied as a whole, and nothing is changed
that is not ours.

Steps of a change: new taps are created, down (1); addresses and routes that the machine loses are removed from its
taps, and taps that it loses are closed (2); all rules are changed in one nftables transaction (3); new addresses and
routes are added, and the taps are brought up (4); rates are set (5); taps that the machine loses are removed (6). So no
packet of a guest is accepted before the guest's rules are in place, and a rule is relaxed only once the packets that it
dropped are no longer routed. After a failure at any step, the previous network is restored by the same steps.

Invariants: a change reads and touches one machine's devices, chains and members only; changes of different machines run
in parallel; each change ends in the same state however often it is repeated, and whatever was there before. If the host
refuses the tap, bridge or rate of a machine, the machine is unsettled: its taps are closed, other machines are not
affected, and its network is retried every half minute and with its next change.

Rejected:
- restoring all machines together and ending at the first refusal. An MTU that the kernel refused for one tap then
  prevented every change of any machine of the host;
- restoring machines one by one, which is slow. Instead each step is done for all machines together, and if the host
  refuses that, for each half of them: so one refusal among a thousand machines is found in ten rounds;
- restoring everything when an unsettled machine lacks a table or a port. Such a machine always lacks some, so all
  machines were restored every two seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import guard, nft, observe, ruleset, taps
from svc_nodeagent.hypervisor.network.gate import Gate
from svc_nodeagent.hypervisor.network.plan import (
    Holders,
    TapPlan,
    Uplink,
    addresses_of,
    network_of,
    networks_of,
    plan,
)
from svc_nodeagent.hypervisor.network.probe import Probe
from svc_nodeagent.hypervisor.network.rates import forget_rate, rated_devices, seen_rate, set_rate
from svc_nodeagent.hypervisor.network.restoring import RefusedMachines, close, refusal_of
from svc_nodeagent.hypervisor.network.roads import ProtectedAddressFinder, require_unprotected_addresses
from svc_nodeagent.hypervisor.network.taps import SeenTap
from svc_nodeagent.protocol import (
    FailureCode,
    NetworkAddress,
    NetworkSpec,
    ProbeResult,
)

UNDO_SECONDS = 60.0
LOOK_SECONDS, LOOK_AGAIN_SECONDS = 2.0, 30.0
"""Seconds between two checks of our tables, which is the longest that guests are unguarded after somebody has flushed
the ruleset; and seconds until the next check if the repair failed."""
APPLY_FAULT_POINTS: Final[tuple[str, ...]] = (
    "network.recorded",
    "network.tap",
    "network.withdrawn",
    "network.rules",
    "network.routes",
    "rate.shaper",
    "rate.buckets",
    "rate.chain",
    "rate.unchained",
    "rate.unbucketed",
    "network.rate",
    "network.removed",
    "network.applied",
)
"""The moments between the steps of `vm.net.apply`, in their order: tests kill the agent at each of them. Those about a
rate are reached only when a rate is set or removed; the first and the last are before and after `HostNetwork.apply`."""
RELEASE_FAULT_POINTS: Final[tuple[str, ...]] = (*APPLY_FAULT_POINTS, "network.released")
"""The moments of `vm.net.release`, which applies the remaining network and then asks the host."""

log = structlog.get_logger(__name__)


class HostNetwork:
    """The networks of all machines of this host. `networks` is what the records said when the agent started.

    `controller`: the name or address of the controller, whose route no machine may take over.
    `before_removal` is awaited with the taps that are about to be removed, whose counters end with them."""

    def __init__(
        self,
        naming: Naming,
        networks: Mapping[UUID, NetworkSpec],
        *,
        uplink: Uplink | None = None,
        controller: str | None = None,
        before_removal: Callable[[Collection[str]], Awaitable[None]] | None = None,
    ) -> None:
        self._naming = naming
        self._uplink = uplink
        self._protected = ProtectedAddressFinder(naming, controller)
        self._before_removal = before_removal
        self._networks = dict(networks)
        self._traces: dict[UUID, tuple[TapPlan, ...]] = {}
        """All taps that a machine's changes may have left on the host: its present ones, and those that a change has
        started to create."""
        self._holders = Holders()
        self._gate = Gate()
        self._transactions = nft.Transactions()
        self._probe = Probe(naming)
        self._probing = trio.Lock()
        self._is_whole = False
        """Whether our tables exist, with the rules that all guests share."""
        self._unsettled: set[UUID] = set()
        """Machines whose network on the host may differ from `_networks`; everything that the host may have of them is
        in `_traces`."""

    def plug_into(self, uplink: Uplink | None) -> None:
        """Sets the bridge that bridged NICs are plugged into, from the next change or `restore` on."""
        if uplink != self._uplink:
            self._uplink = uplink
            self._is_whole = False

    async def restore(self) -> None:
        """After a restart of agent or host: make all networks as recorded, and remove taps without a record. Raises
        `HostError` naming the first network that the host cannot have, once everything else is in place."""
        async with self._gate.exclusive():
            refused = await self._restore()
        if refused:
            raise refused[0]

    async def keep(self) -> None:
        """Look after our tables and bridged taps until cancelled."""
        pause = LOOK_SECONDS
        settle_at = trio.current_time() + LOOK_AGAIN_SECONDS
        while True:
            await trio.sleep(pause)
            try:
                await self.mend()
                pause = LOOK_SECONDS
            except (HostError, OSError) as error:
                pause = LOOK_AGAIN_SECONDS
                log.error("network.repair_failed", error=str(error))
                continue
            if trio.current_time() >= settle_at:
                for refusal in await self.settle():
                    log.error("network.machine_not_settled", error=refusal.message)
                settle_at = trio.current_time() + LOOK_AGAIN_SECONDS

    async def mend(self) -> None:
        """Restore everything if a table of ours is gone (a firewall of the host was loaded again, with rules that start
        with `flush ruleset`), if a bridge has come back without its ports, or if an earlier restoration failed
        half-way. Raises `HostError`; networks that the host cannot have are logged."""
        # The first check runs in parallel with changes, so it may see a half-done change; only the second check, which
        # runs alone, counts.
        async with self._gate.shared():
            if not await self._lost() if self._is_whole else not self._networks:
                return
        async with self._gate.exclusive():
            lost = await self._lost()  # the first check may have seen a change half done
            if lost:
                log.warning("network.repaired", lost=lost)
                self._is_whole = False
            if not self._is_whole:
                await self._restore_and_log()

    async def apply(self, vm_id: UUID, network: NetworkSpec) -> None:
        """Give one machine this network. Raises `HostError`, and then the host is as it was."""
        await self._make_whole()
        async with self._gate.shared():
            await self._change(vm_id, network)

    async def remove(self, vm_id: UUID) -> tuple[str, ...]:
        """Remove the machine's network; returns those of its recorded addresses that the host no longer carries."""
        await self._make_whole()
        async with self._gate.shared():
            network = self._networks.get(vm_id)
            await self._change(vm_id, None)
            return await self._absent(addresses_of(network), ()) if network is not None else ()

    async def absent(self, addresses: tuple[str, ...], vm_id: UUID | None = None) -> tuple[str, ...]:
        """The addresses among `addresses` that the host neither routes nor lets through. The host itself is asked:
        whether they are routed for any machine, and whether the rules of this machine's taps let them in."""
        # A machine that is unsettled must be settled first: its taps may still have any network that they had before,
        # and the controller gives an address that is reported as absent to another machine.
        await self._make_whole()
        for refusal in await self.settle(vm_id):
            raise refusal
        async with self._gate.shared():
            return await self._absent(addresses, self._traces.get(vm_id, ()) if vm_id is not None else ())

    async def probe(self) -> ProbeResult:
        """What the host has, by asking the host, and where this differs from the orders that it got."""
        async with self._probing:
            networks = dict(self._networks)
            result, is_sound = await self._probe.look(networks, self._traces, bridged=self._uplink is not None)
            is_settled = all(tap.vm_id in networks for tap in result.taps)
            if is_sound and is_settled and not any(machine.differences for machine in result.machines):
                return result
            async with self._gate.exclusive():  # the first check may have seen a change half done
                result, is_sound = await self._probe.look(
                    self._networks, self._traces, bridged=self._uplink is not None
                )
                if not is_sound:
                    self._is_whole = False  # so that the next change restores them
            return result

    async def clear(self) -> None:
        """Remove everything of ours from the host, as a reboot would."""
        async with self._gate.exclusive():
            self._networks.clear()
            self._forget()
            rated = await rated_devices(self._naming)
            await self._remove((await taps.seen_taps(self._naming)).keys() | rated, rated)
            await nft.load(ruleset.removal(self._naming, await nft.list_tables()))

    def _tables(self) -> frozenset[tuple[str, str]]:
        """The (family, name) of the tables that must be there: the common ones, and one for each rate. The tables of
        unsettled machines are left out: the host has refused some of them, and if they counted as missing, all machines
        would be restored at each check."""
        families = (guard.FAMILY, *ruleset.families(bridged=self._uplink is not None))
        settled = [tap_plans for vm_id, tap_plans in self._traces.items() if vm_id not in self._unsettled]
        taps = [tap for tap_plans in settled for tap in tap_plans if tap.nic.rate_mbps is not None]
        return frozenset(
            [(family, self._naming.table) for family in families] + [(guard.FAMILY, tap.device) for tap in taps]
        )

    async def _lost(self) -> list[str]:
        """Our tables that are missing, and taps that are not plugged into their bridge."""
        missing = self._tables() - await nft.list_tables()
        tap_plans = [tap for vm_id, planned in self._traces.items() if vm_id not in self._unsettled for tap in planned]
        unplugged = [tap.device for tap in tap_plans if taps.is_unplugged(tap)]
        return sorted(f"table {family} {name}" for family, name in missing) + unplugged

    def _forget(self) -> None:
        self._traces.clear()
        self._holders = Holders()
        self._is_whole = False

    async def _make_whole(self) -> None:
        if not self._is_whole:
            async with self._gate.exclusive():
                if not self._is_whole:  # Another change may have done it while this one waited for the gate.
                    await self._restore_and_log()

    async def _restore_and_log(self) -> None:
        for refusal in await self._restore():
            log.error("network.machine_not_restored", error=refusal.message)

    async def _change(self, vm_id: UUID, network: NetworkSpec | None) -> None:
        """Change one machine's network, or remove it. If the change fails or is cancelled, what the machine had is
        restored."""
        before = self._traces.get(vm_id, ())
        wanted = plan(vm_id, network, self._naming, self._uplink) if network is not None else ()
        _check_bridges(wanted)
        if wanted:
            await self._spare_roads(vm_id, wanted)
        # Everything that may refuse the change comes before anything is touched. The claim also keeps two machines that
        # are changed in parallel from taking the same address.
        claimed = networks_of(network) if network is not None else ()
        self._holders.claim(vm_id, claimed)
        # Both the old and the new taps are recorded until one state is reached: so whichever step fails, its traces are
        # known and can be removed.
        self._traces[vm_id] = (*before, *wanted)
        try:
            await self._agree(self._traces[vm_id], wanted)
        except (HostError, OSError) as error:
            raise await self._put_back(vm_id, before, error) from error
        except BaseException:
            # Cancelled by the controller or by its deadline. The former network is restored all the same, and then the
            # cancellation continues.
            failure = await self._put_back(vm_id, before, None)
            if failure.code is not FailureCode.CANCELLED:
                log.error("network.rollback_failed", vm_id=str(vm_id), error=failure.message)
            raise
        if network is None:
            self._networks.pop(vm_id, None)
            self._traces.pop(vm_id, None)
        else:
            self._networks[vm_id] = network
            self._traces[vm_id] = wanted
        self._unsettled.discard(vm_id)
        # Addresses are released last: until here they may still be routed to this machine, and no other machine may
        # claim them.
        gone = {each for tap in before for each in tap.networks} - set(claimed)
        self._holders.release(vm_id, tuple(gone))

    async def _put_back(self, vm_id: UUID, before: tuple[TapPlan, ...], cause: Exception | None) -> HostError:
        """Restore the network that the machine had before a failed change; returns the error to report. `cause` is the
        failure; None means that the change was cancelled."""
        said = "The change was abandoned."
        code, hint = FailureCode.CANCELLED, None
        if isinstance(cause, HostError):
            said, code, hint = cause.message, cause.code, cause.hint
        elif cause is not None:
            said, code = f"The host failed: {cause}.", FailureCode.HOST
        # Shielded: a change that is cancelled or out of time is undone all the same, within a time limit of its own.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_SECONDS) as patience:
            try:
                await self._agree(self._traces[vm_id], before)
            except (HostError, OSError) as error:
                await self._leave_unsettled(vm_id)
                return HostError(
                    FailureCode.HOST,
                    f"{said} The machine's previous network could not be restored either: {error}",
                    "It is retried every 30 s, and when the machine's network is applied again.",
                )
        if patience.cancelled_caught:
            await self._leave_unsettled(vm_id)
            return HostError(
                FailureCode.HOST,
                f"{said} The machine's previous network was not restored within {UNDO_SECONDS:g} s.",
                "It is retried every 30 s, and when the machine's network is applied again.",
            )
        self._unsettled.discard(vm_id)
        left = {each for tap in self._traces[vm_id] for each in tap.networks} - {n for t in before for n in t.networks}
        self._holders.release(vm_id, tuple(left))
        if before:
            self._traces[vm_id] = before
        else:
            self._traces.pop(vm_id, None)
        return HostError(code, f"{said} The machine's network is as it was before.", hint)

    async def _spare_roads(self, vm_id: UUID, wanted: tuple[TapPlan, ...]) -> None:
        recorded = self._networks.get(vm_id)
        protected = await self._protected.find()
        require_unprotected_addresses(protected.all(), wanted, networks_of(recorded) if recorded is not None else ())

    async def _leave_unsettled(self, vm_id: UUID) -> None:
        """Mark a machine as unsettled: only its own part of the host's network is unknown, unless a table of ours is
        gone; then everything is restored."""
        self._unsettled.add(vm_id)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_SECONDS):
            try:
                self._is_whole = self._is_whole and not await self._lost()
                return
            except (HostError, OSError) as error:
                log.error("network.not_looked_at", error=str(error))
        self._is_whole = False

    async def settle(self, only: UUID | None = None) -> list[HostError]:
        """Give unsettled machines, or one of them, what is recorded; returns why one of them still is unsettled."""
        refused = []
        for vm_id in sorted(self._unsettled if only is None else self._unsettled & {only}):
            async with self._gate.exclusive():
                if vm_id not in self._unsettled:
                    continue  # A change has settled this machine while this task waited for the gate.
                network = self._networks.get(vm_id)
                traces = self._traces.get(vm_id, ())
                try:
                    wanted = plan(vm_id, network, self._naming, self._uplink) if network is not None else ()
                    if wanted:
                        await self._spare_roads(vm_id, wanted)
                    await self._agree(traces, wanted)
                except (HostError, OSError) as error:
                    refused.append(refusal_of(vm_id, error))
                    continue
                self._traces[vm_id] = wanted
                self._unsettled.discard(vm_id)
                log.info("network.settled", vm_id=str(vm_id))
                gone = {each for tap in traces for each in tap.networks} - {n for tap in wanted for n in tap.networks}
                self._holders.release(vm_id, tuple(gone))
        return refused

    async def _agree(self, traces: Sequence[TapPlan], wanted: Sequence[TapPlan]) -> None:
        """Change one machine's taps and rules to `wanted`. Before that, any part of `traces` may exist on the host."""
        # The order is that of the module's docstring. Each step looks at what exists instead of remembering it, so both
        # a repeat after a crash at any fault point and the way back use this same function.
        seen = await taps.seen_of(tap.device for tap in (*traces, *wanted))
        created = frozenset(tap.device for tap in wanted) - seen.keys()
        await taps.create_taps(wanted, seen, self._naming)
        fault_point("network.tap")
        await taps.change(taps.removals(wanted, seen))
        fault_point("network.withdrawn")
        await self._transactions.commit(ruleset.change(traces, wanted, self._naming, created=created))
        fault_point("network.rules")
        await self._open(wanted, seen)
        fault_point("network.routes")
        # Rates come after the rules: a rate limit applies behind the rules, where spoofed frames are dropped already.
        rated = frozenset(tap.device for tap in traces if tap.nic.rate_mbps is not None)
        for tap in wanted:
            await _agree_on_rate(tap, rated)
        fault_point("network.rate")
        await self._remove(seen.keys() - {tap.device for tap in wanted}, rated)
        fault_point("network.removed")

    async def _open(self, wanted: Sequence[TapPlan], seen: Mapping[str, SeenTap]) -> None:
        if any(tap.bridge is None for tap in wanted):
            taps.forward(ipv6=any(tap.ipv6 and tap.bridge is None for tap in wanted))
        taps.disable_host_ipv6(wanted)
        await taps.change(taps.plugs(wanted, dict(seen)))
        for tap in wanted:
            await taps.set_vlan(tap)
        await taps.change(taps.additions(wanted, dict(seen)))

    async def _remove(self, devices: Iterable[str], rated: Collection[str]) -> None:
        """Remove taps that no longer carry anything; those in `rated` may have parts of a rate."""
        devices = sorted(devices)
        there = [device for device in devices if taps.exists(device)]
        if there and self._before_removal is not None:
            await self._before_removal(there)
        for device in devices:
            await forget_rate(device, was_set=device in rated)
        await taps.remove_taps(there)

    async def _restore(self) -> list[HostError]:
        """Restore all machines, each step for all together. A machine whose network the host refuses loses what it had
        here; returns why."""
        self._forget()
        planned: dict[UUID, tuple[TapPlan, ...]] = {}
        refused: list[HostError] = []
        protected = await self._protected.find()
        for vm_id, network in sorted(self._networks.items()):
            try:
                tap_plans = plan(vm_id, network, self._naming, self._uplink)
                # A new network must not have a gateway that is an address of this host. A recorded network with such a
                # gateway has worked here until now, and a running machine is not cut off for it. So only `elsewhere` is
                # spared here.
                require_unprotected_addresses(protected.elsewhere, tap_plans, networks_of(network))
                self._holders.claim(vm_id, networks_of(network))
            except HostError as error:
                refused.append(error)
            else:
                planned[vm_id] = tap_plans
                try:
                    _check_bridges(tap_plans)
                except HostError as error:
                    refused.append(error)  # the rest of the machine's network is kept until the bridge is back
        seen = await taps.seen_taps(self._naming)
        devices = {tap.device for tap_plans in planned.values() for tap in tap_plans}
        left_out = RefusedMachines(planned, refused, self._naming)

        async def make(wanted: Sequence[TapPlan], seen: dict[str, SeenTap]) -> None:
            await taps.create_taps(wanted, seen, self._naming)
            await taps.change(taps.removals(wanted, seen))

        await left_out.each(make, {device: seen[device] for device in seen if device in devices})
        await close([device for device in seen if device not in devices])
        fault_point("restore.taps")
        # The counters of tables that are about to be replaced are carried over, except those of taps that were created
        # anew, which start at 0.
        counted = observe.Listing.of(await nft.list_table(guard.FAMILY, self._naming.table)).counted
        for device in devices - seen.keys():
            counted.pop(device, None)
        bridged = self._uplink is not None
        there = await nft.list_tables()
        # New tables replace the old ones in one transaction. But a packet in flight passes the chains of both, and each
        # chain is empty in the other's generation: in this way a forbidden packet got through. So meanwhile other
        # tables with the same filters stand in.
        wanted = left_out.others()
        if any(ruleset.is_ours(family, name, self._naming) for family, name in there):
            await nft.load(ruleset.stand_in_tables(wanted, self._naming, bridged=bridged))
            fault_point("restore.held")
        commands = ruleset.fresh(self._naming, bridged=bridged)
        if not bridged and ("bridge", self._naming.table) in there:
            commands += nft.no_table("bridge", self._naming.table)
        commands += ruleset.change((), wanted, self._naming, counted=counted)
        await nft.load(commands)
        fault_point("restore.rules")
        await nft.load(ruleset.remove_stand_in_tables(self._naming, await nft.list_tables()))
        await left_out.each(self._open, seen)
        fault_point("restore.routes")
        rated = await rated_devices(self._naming)

        async def agree_on_rates(wanted: Sequence[TapPlan], _: Mapping[str, SeenTap]) -> None:
            for tap in wanted:
                if tap.nic.rate_mbps is not None or tap.device in rated:
                    await _agree_on_rate(tap, rated)

        await left_out.each(agree_on_rates, seen)
        # Taps without a record are removed last, because they were closed above. If one cannot be removed, the rest is
        # still done.
        for device in sorted((seen.keys() | rated) - devices):
            try:
                await self._remove((device,), rated)
            except (HostError, OSError) as error:
                log.error("network.tap_not_removed", device=device, error=str(error))
        self._traces = planned | left_out.machines
        self._unsettled = set(left_out.machines)
        self._is_whole = True
        return refused

    async def _absent(self, addresses: Iterable[str], asked: Iterable[TapPlan]) -> tuple[str, ...]:
        # An address may still be in three places: in the rules of this machine's taps, in a change of any machine
        # (`_holders`), and in the kernel's routes, including routes that are not ours.
        let_in: set[NetworkAddress] = set()
        for device in dict.fromkeys(tap.device for tap in asked):
            listing = observe.Listing.of(await nft.list_chain(guard.FAMILY, self._naming.table, device))
            let_in |= listing.let_in(self._naming.table, device)
        gone = []
        for address in addresses:
            network = network_of(address)
            held = network in let_in or self._holders.holder(network) is not None
            if not held and not await taps.is_routed(network, self._naming):
                gone.append(address)
        return tuple(gone)


def _check_bridges(wanted: Iterable[TapPlan]) -> None:
    for tap in wanted:
        if tap.bridge is None:
            continue
        if not taps.is_bridge(tap.bridge):
            raise HostError(
                FailureCode.HOST,
                f"The bridge {tap.bridge} has gone from this node, so {tap.device} could not be plugged in.",
                "Bring the bridge back, and apply the machine's network again.",
            )
        if tap.nic.vlan is not None and not taps.filters_vlans(tap.bridge):
            raise HostError(
                FailureCode.HOST,
                f"The bridge {tap.bridge} of this node does not filter VLANs, so {tap.device} could not be put into "
                f"VLAN {tap.nic.vlan}.",
                "Turn its vlan_filtering on, and apply the machine's network again.",
            )


async def _agree_on_rate(tap: TapPlan, rated: Collection[str]) -> None:
    wanted = tap.nic.rate_mbps
    if wanted is None:
        await forget_rate(tap.device, was_set=tap.device in rated)
    elif await seen_rate(tap.device) != wanted:
        await set_rate(tap.device, wanted)
