"""Many callers at once: as many different addresses as are free, and `capacity` for the others, every time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from uuid import UUID

import pytest
import trio

from svc_actors.controller.machines.records import lock_machine
from svc_actors.controller.networking.addresses import allocate, force_free, free_removed, releasing_of, start_release
from svc_actors.controller.networking.changes import network_changed
from svc_actors.controller.networking.pool_edits import update_pool
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.support.addresses import Nic, held, make_nics, take
from tests.support.machine_service import make_fleet

CALLERS = 64


async def at_once(calls: list[Callable[[], Awaitable[None]]]) -> None:
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(call)


async def test_64_callers_of_50_addresses_get_50_different_ones_and_14_refusals_in_every_round(
    database: Database,
) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/24", first="10.1.0.10", last="10.1.0.59")
    nics = await make_nics(database, world, CALLERS)
    for _ in range(15):
        got: list[str | None] = []

        async def call(nic: Nic, got: list[str | None] = got) -> None:
            got.append(await take(database, world.pool_id, nic))

        await at_once([lambda nic=nic: call(nic) for nic in nics])  # type: ignore[misc]
        assert got.count(None) == 14
        assert len({ip for ip in got if ip is not None}) == 50
        await database.execute("DELETE FROM allocations WHERE vm_id IS NOT NULL")


@dataclass
class Ledger:
    """What each client knows that it holds. An address leaves `held` before it is freed, and enters it after it was
    given, so one that is given while it is held is in two hands. Each call that is under way sees what was held at any
    time of it: who is refused must have seen everything, but what others are just being given."""

    size: int
    held: dict[str, Nic] = field(default_factory=dict)
    freeing: set[str] = field(default_factory=set)
    under_way: list[set[str]] = field(default_factory=list)

    async def take(self, database: Database, pool_id: UUID, nic: Nic) -> bool:
        seen = self.freeing | self.held.keys()
        self.under_way.append(seen)
        ip = await take(database, pool_id, nic, primary=False)
        self.under_way = [call for call in self.under_way if call is not seen]
        if ip is None:
            assert len(seen) + len(self.under_way) >= self.size, "refused while some were free"
            return False
        assert ip not in self.held, f"{ip} is in two hands"
        self.held[ip] = nic
        for call in self.under_way:
            call.add(ip)
        return True

    async def give_back(self, database: Database, pool_id: UUID, ip: str, *, by_force: bool) -> None:
        """Detached; then the node confirms, or an administrator frees it by force and the node confirms too late."""
        nic = self.held[ip]
        async with database.transaction() as tx:
            await start_release(tx, nic.vm_id, IPv4Address(ip))
        asked = await releasing_of(database, nic.vm_id)
        assert asked is not None
        self.freeing.add(ip)
        del self.held[ip]
        if by_force:
            async with database.transaction() as tx:
                await force_free(tx, pool_id, IPv4Address(ip))
        async with database.transaction() as tx:
            await free_removed(tx, nic.vm_id, [ip], through=asked.through)
        self.freeing.discard(ip)


async def test_64_clients_on_a_24_never_share_an_address_and_are_refused_exactly_when_it_is_full(
    database: Database, request: pytest.FixtureRequest
) -> None:
    """Detach and force-free mixed in, for 100 rounds at full length."""
    rounds = 100 if request.config.getoption("--full") else 20
    chance = random.Random(7)
    world = await make_fleet(database, cidr="10.1.0.0/24")
    nics = await make_nics(database, world, CALLERS)
    ledger = Ledger(size=253)
    refused = 0
    for _ in range(rounds):
        # All ask at once while nobody gives back: what is free is known exactly.
        free = ledger.size - len(ledger.held)
        answers: list[bool] = []

        async def ask(nic: Nic, answers: list[bool] = answers) -> None:
            answers.append(await ledger.take(database, world.pool_id, nic))

        await at_once([lambda nic=nic: ask(nic) for nic in nics])  # type: ignore[misc]
        assert answers.count(True) == min(CALLERS, free)
        refused += answers.count(False)
        # Then some give back while others ask.
        leaving = chance.sample(sorted(ledger.held), min(len(ledger.held), chance.randrange(10, 40)))
        mixed: list[Callable[[], Awaitable[object]]] = [
            lambda ip=ip: ledger.give_back(database, world.pool_id, ip, by_force=chance.random() < 0.3)  # type: ignore[misc]
            for ip in leaving
        ]
        mixed += [
            lambda nic=nic: ledger.take(database, world.pool_id, nic)  # type: ignore[misc]
            for nic in chance.sample(nics, 16)
        ]
        chance.shuffle(mixed)
        async with trio.open_nursery() as nursery:
            for each in mixed:
                nursery.start_soon(each)
        assert await held(database, world.pool_id) == sorted(
            ((ip, "allocated") for ip in ledger.held), key=lambda row: IPv4Address(row[0])
        )
    assert refused > 0


async def test_edits_of_a_pool_and_machines_that_attach_from_it_never_wait_in_a_circle(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/24")
    nics = await make_nics(database, world, 16)
    edits: list[str] = []

    async def attach(nic: Nic) -> None:
        for _ in range(10):
            async with database.transaction() as tx:
                await lock_machine(tx, nic.vm_id)
                await allocate(tx, world.pool_id, vm_id=nic.vm_id, nic_id=nic.nic_id, primary=False)
                await network_changed(tx, [nic.vm_id])

    async def edit() -> None:
        for number in range(20):
            try:
                async with database.transaction() as tx:
                    server = IPv4Address(f"192.0.2.{1 + number}")
                    await update_pool(tx, world.pool_id, {"nameservers": [server]})
                edits.append("made")
            except ServiceError as error:
                edits.append(error.code.value)

    with trio.fail_after(60):
        await at_once([*(lambda nic=nic: attach(nic) for nic in nics), edit, edit])
    assert len(await held(database, world.pool_id)) == 160
    assert "made" in edits
    assert set(edits) <= {"made", ErrorCode.NOT_READY.value}
