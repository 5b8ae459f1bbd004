"""What somebody spoiled and what failed half-way, on this host's kernel: the next look puts it right, and until then
nothing is told that is not true.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import apply, nft, taps
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.network.rates import set_rate, shaper_of
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode, NetworkSpec
from tests.nodeagent.hypervisor.builders import (
    ADDRESS,
    CLOSED,
    OTHER,
    SIX,
    address,
    carried,
    differences,
    mac_of,
    network,
    nic,
)
from tests.nodeagent.hypervisor.guest_end import guest_end

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


SPOILED = {
    "a route is missing": ("ip", "route", "del", "{address}/32", "dev", "{tap}"),
    "a route too many": ("ip", "route", "add", "192.0.2.77/32", "dev", "{tap}"),
    "the tap is down": ("ip", "link", "set", "dev", "{tap}", "down"),
    "the tap has gone": ("ip", "link", "del", "dev", "{tap}"),
    "the gateway has gone": ("ip", "address", "flush", "dev", "{tap}"),
    "a link-local address": ("ip", "address", "add", "fe80::5054:ff:fe00:77/64", "dev", "{tap}"),
    "a link-local address alone": ("ip", "address", "add", "fe80::5054:ff:fe00:77/128", "dev", "{tap}"),
    "the mtu is another": ("ip", "link", "set", "dev", "{tap}", "mtu", "1300"),
    "nobody's tap": ("ip", "link", "set", "dev", "{tap}", "alias", "x"),
    "the rate has gone": ("tc", "qdisc", "del", "dev", "{tap}", "root"),
    "the guard has gone": ("nft", "delete", "table", "netdev", "{table}"),
    "the guard is open": ("nft", "insert", "rule", "netdev", "{table}", "{tap}", "accept"),
    "the filter is open": ("nft", "insert", "rule", "inet", "{table}", "to_guest_{tap}", "return"),
    "the filter is unasked": ("nft", "delete", "element", "inet", "{table}", "to_guest", "{{", "{tap}", "}}"),
    "not behind nat": ("nft", "delete", "element", "inet", "{table}", "nat4", "{{", "{address}", "}}"),
    "the shared rules are open": ("nft", "insert", "rule", "inet", "{table}", "forward", "accept"),
    "the shared rules have gone": ("nft", "delete", "table", "inet", "{table}"),
}


@pytest.mark.parametrize("command", SPOILED.values(), ids=SPOILED.keys())
async def test_what_somebody_spoiled_is_seen_and_the_next_apply_mends_it(
    host_network: HostNetwork, naming: Naming, command: tuple[str, ...]
) -> None:
    vm_id, spec = uuid4(), NetworkSpec(nics=(nic(ADDRESS, SIX, rate_mbps=50),), firewall=CLOSED)
    await host_network.apply(vm_id, spec)
    assert differences(await host_network.probe()) == []
    tap = naming.tap(spec.nics[0].nic_id)
    named = {"tap": tap, "address": ADDRESS, "table": naming.table}
    await run_program(*(word.format(**named) for word in command))
    assert differences(await host_network.probe()) != []
    await host_network.apply(vm_id, spec)
    assert differences(await host_network.probe()) == []


@pytest.mark.parametrize("is_restarted", [False, True], ids=["lifted", "lifted by another agent"])
async def test_a_rate_that_lost_its_shaper_is_lifted_all_the_same(
    host_network: HostNetwork, naming: Naming, is_restarted: bool
) -> None:
    vm_id, lifted = uuid4(), network(ADDRESS)
    tap = naming.tap(lifted.nics[0].nic_id)
    await host_network.apply(vm_id, NetworkSpec(nics=(lifted.nics[0].model_copy(update={"rate_mbps": 50}),)))
    await run_program("ip", "link", "del", shaper_of(tap))
    if is_restarted:
        await HostNetwork(naming, {vm_id: lifted}).restore()
    else:
        await host_network.apply(vm_id, lifted)
    assert tap not in (await run_program("nft", "list", "tables")).decode()
    with guest_end(tap, mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)


async def test_a_change_that_fails_leaves_all_as_it_was(
    host_network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm_id, fresh, spec = uuid4(), uuid4(), NetworkSpec(nics=(nic(ADDRESS, rate_mbps=50),), firewall=CLOSED)
    await host_network.apply(vm_id, spec)
    before = await host_network.probe()
    changed = NetworkSpec(
        nics=(spec.nics[0].model_copy(update={"addresses": (address(OTHER), SIX), "mtu": 1400, "rate_mbps": 5}),),
        generation=9,
    )
    for failing in ("create_taps", "change", "disable_host_ipv6", "set_vlan"):
        with monkeypatch.context() as patched:
            patched.setattr(taps, failing, once(getattr(taps, failing)))
            with pytest.raises(HostError) as failure:
                await host_network.apply(vm_id, changed)
        assert "as it was before" in failure.value.message
        assert await host_network.probe() == before
    with monkeypatch.context() as patched:
        patched.setattr(apply, "set_rate", once(set_rate))
        with pytest.raises(HostError):
            await host_network.apply(fresh, NetworkSpec(nics=(nic(OTHER, rate_mbps=7),)))
    assert await host_network.probe() == before
    assert await host_network.absent((OTHER,), fresh) == (OTHER,)


async def test_a_change_under_way_is_not_taken_for_something_that_was_removed(
    host_network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rate is recorded before it is set, so for a moment its table is missing."""
    restored: list[object] = []
    begun, looked = trio.Event(), trio.Event()

    async def slowly(device: str, mbps: int | None) -> None:
        begun.set()
        await looked.wait()
        await set_rate(device, mbps)

    async def look() -> None:
        await begun.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host_network.mend)
            with trio.move_on_after(0.5):
                await trio.sleep_forever()
            looked.set()

    await host_network.apply(uuid4(), network(OTHER))
    monkeypatch.setattr(apply, "set_rate", slowly)
    monkeypatch.setattr(host_network, "_restore", restored.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await host_network.apply(uuid4(), NetworkSpec(nics=(nic(ADDRESS, rate_mbps=50),)))
    assert restored == []


async def test_what_was_put_back_half_is_put_back_whole_at_the_next_look(
    host_network: HostNetwork, naming: Naming, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    tap = naming.tap(spec.nics[0].nic_id)
    await run_program("nft", "delete", "table", "inet", naming.table)
    await run_program("ip", "route", "del", f"{ADDRESS}/32", "dev", tap)
    with monkeypatch.context() as patched:
        patched.setattr(taps, "forward", failing)
        await host_network.mend()
        assert differences(await host_network.probe()) != []
    assert await host_network.settle() == []
    with guest_end(tap, mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
    assert differences(await host_network.probe()) == []


async def test_a_restoration_that_failed_half_way_is_tried_again_at_the_next_look(
    host_network: HostNetwork, naming: Naming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if all tables are there: those of the agent before it."""
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    tap = naming.tap(spec.nics[0].nic_id)
    await run_program("ip", "route", "del", f"{ADDRESS}/32", "dev", tap)
    heir = HostNetwork(naming, {vm_id: spec})
    with monkeypatch.context() as patched:
        patched.setattr(nft, "load", failing)
        with pytest.raises(HostError):
            await heir.restore()
    assert differences(await heir.probe()) != []

    await heir.mend()

    assert differences(await heir.probe()) == []
    with guest_end(tap, mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)


async def test_while_a_host_could_not_be_restored_nothing_is_named_as_released(
    host_network: HostNetwork, naming: Naming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that died over a change knows what it recorded, and not what the taps still let in."""
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    tap = naming.tap(spec.nics[0].nic_id)
    await run_program("ip", "route", "del", f"{ADDRESS}/32", "dev", tap)
    heir = HostNetwork(naming, {vm_id: spec.model_copy(update={"nics": (nic(OTHER, nic_id=spec.nics[0].nic_id),)})})
    with monkeypatch.context() as patched:
        patched.setattr(taps, "create_taps", once(once(once(taps.create_taps))))
        with pytest.raises(HostError):
            await heir.restore()
        with pytest.raises(HostError):
            await heir.absent((ADDRESS,), vm_id)
    assert await heir.absent((ADDRESS,), vm_id) == (ADDRESS,)


def failing(*_: Any, **__: Any) -> None:
    raise HostError(FailureCode.HOST, "The test says no.")


def once(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but the first time it fails when it has been done."""
    calls = itertools.count()

    def fail(result: Any) -> Any:
        if next(calls) == 0:
            raise HostError(FailureCode.HOST, "The test says no.")
        return result

    async def awaited(*arguments: Any, **named: Any) -> Any:
        return fail(await work(*arguments, **named))

    def called(*arguments: Any, **named: Any) -> Any:
        return fail(work(*arguments, **named))

    return awaited if inspect.iscoroutinefunction(work) else called


async def test_a_change_that_is_given_up_leaves_all_as_it_was(
    host_network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    before = await host_network.probe()
    with trio.CancelScope() as scope:
        monkeypatch.setattr(taps, "disable_host_ipv6", lambda _: scope.cancel())
        await host_network.apply(vm_id, network(OTHER))
    assert scope.cancelled_caught
    monkeypatch.undo()
    assert await host_network.probe() == before


async def test_one_machine_that_cannot_be_carried_does_not_hold_up_others(
    host_network: HostNetwork, naming: Naming
) -> None:
    """Of changes that come at once, nft is given several in one transaction."""
    addresses = [f"{ADDRESS.rpartition('.')[0]}.{number}" for number in range(10, 30)]
    specs = {uuid4(): network(each) for each in addresses}
    bad = uuid4()
    bad_spec = NetworkSpec(nics=(nic(OTHER, mac="52:54:00:21:30:09"),))
    refused = []

    async def apply_bad() -> None:
        broken = bad_spec.nics[0].model_copy(update={"mac": "no mac"})
        try:
            await host_network.apply(bad, bad_spec.model_copy(update={"nics": (broken,)}))
        except HostError as error:
            refused.append(error)

    await host_network.restore()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(apply_bad)
        for vm_id, spec in specs.items():
            nursery.start_soon(host_network.apply, vm_id, spec)
    assert len(refused) == 1
    probe = await host_network.probe()
    assert (carried(probe), differences(probe)) == (sorted(addresses), [])
    assert len(probe.taps) == len(specs)


REFUSED_STEPS = {
    "making": ("_described", "link set dev {tap} master nosuch"),
    "taking away": ("removals", "route del 192.0.2.200/32 dev {tap}"),
    "plugging in": ("plugs", "link set dev {tap} master nosuch"),
    "giving": ("additions", "route replace 192.0.2.200/32 via 192.0.2.201 dev {tap}"),
}


def refuse_a_step(monkeypatch: pytest.MonkeyPatch, step: str, tap: str) -> None:
    """Have the kernel refuse one machine's part of a step, by a command that it cannot carry out."""
    if step == "rate":

        async def set_others(device: str, mbps: int) -> None:
            if device == tap:
                raise HostError(FailureCode.HOST, "tc failed: the test says no.")
            await set_rate(device, mbps)

        monkeypatch.setattr(apply, "set_rate", set_others)
        return
    name, command = REFUSED_STEPS[step]
    commands_of = getattr(taps, name)

    def with_one_refused(planned: Any, *rest: Any) -> list[str]:
        tap_plans = [planned] if name == "_described" else planned
        refused = [command.format(tap=tap)] if any(each.device == tap for each in tap_plans) else []
        return [*refused, *commands_of(planned, *rest)]

    monkeypatch.setattr(taps, name, with_one_refused)


@pytest.mark.parametrize("step", [*REFUSED_STEPS, "rate"])
async def test_one_machine_that_cannot_be_restored_stops_no_other_and_heals(
    host_network: HostNetwork, naming: Naming, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    prefix = ADDRESS.rpartition(".")[0]
    bad, good, new = uuid4(), uuid4(), uuid4()
    specs = {bad: NetworkSpec(nics=(nic(ADDRESS, rate_mbps=50),)), good: network(OTHER)}
    for vm_id, spec in specs.items():
        await host_network.apply(vm_id, spec)
    tap = naming.tap(specs[bad].nics[0].nic_id)
    if step in ("making", "rate"):
        await run_program("ip", "link", "del", "dev", tap)
    heir = HostNetwork(naming, specs)
    with monkeypatch.context() as patched:
        refuse_a_step(patched, step, tap)
        with pytest.raises(HostError, match=str(bad)):
            await heir.restore()
        assert not taps.exists(tap) or not (await taps.seen_of([tap]))[tap].up
        await heir.apply(new, network(f"{prefix}.9"))
        await heir.apply(good, network(OTHER, f"{prefix}.8"))
        again: list[object] = []
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(heir, "_restore", again.append)
            await heir.mend()
        assert again == [], "one machine has all of them restored again and again"
        broken = [machine.vm_id for machine in (await heir.probe()).machines if machine.differences]
        assert broken == [bad]
        with pytest.raises(HostError):
            await heir.absent((f"{prefix}.7",), bad)
        assert await heir.absent((f"{prefix}.7",), good) == (f"{prefix}.7",)
    monkeypatch.setattr(apply, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(apply, "LOOK_AGAIN_SECONDS", 0.01)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(heir.keep)
            while differences(await heir.probe()):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mtus", [(1500, 1279, 1500), (1280, 576, 1279, 1280), (1200, 1500), (9000, 1000, 9000)])
async def test_an_mtu_that_is_too_small_for_ipv6_is_set_and_taken_back(
    host_network: HostNetwork, naming: Naming, mtus: tuple[int, ...]
) -> None:
    vm_id, nic_id = uuid4(), uuid4()
    for mtu in mtus:
        await host_network.apply(vm_id, NetworkSpec(nics=(nic(ADDRESS, mtu=mtu, nic_id=nic_id),)))
        assert differences(await host_network.probe()) == []
        assert (await taps.seen_of([naming.tap(nic_id)]))[naming.tap(nic_id)].mtu == mtu


async def test_a_tap_left_with_a_small_mtu_by_somebody_heals(host_network: HostNetwork, naming: Naming) -> None:
    vm_id, spec = uuid4(), NetworkSpec(nics=(nic(ADDRESS, SIX),))
    await host_network.apply(vm_id, spec)
    await run_program("ip", "link", "set", "dev", naming.tap(spec.nics[0].nic_id), "mtu", "1279")
    assert differences(await host_network.probe()) != []
    await host_network.apply(vm_id, spec)
    assert differences(await host_network.probe()) == []


async def test_ipv6_is_refused_with_an_mtu_below_its_least_and_nothing_changes(host_network: HostNetwork) -> None:
    vm_id, nic_id = uuid4(), uuid4()
    await host_network.apply(vm_id, NetworkSpec(nics=(nic(ADDRESS, SIX, nic_id=nic_id),)))
    before = await host_network.probe()
    with pytest.raises(HostError, match="1279; IPv6 needs 1280"):
        await host_network.apply(vm_id, NetworkSpec(nics=(nic(ADDRESS, SIX, mtu=1279, nic_id=nic_id),)))
    assert await host_network.probe() == before
