"""The table of the address states (specification, "Address allocation state") walked at random, with a crash between
any two steps, answers that are lost, late or told twice, and a model beside it that says what must be.

No address is in two hands, on the records or on the hosts; none is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from svc_actors.controller.networking.addresses import (
    PoolFull,
    allocate,
    force_free,
    free_removed,
    releasing_of,
    start_release,
)
from svc_actors.controller.networking.reservations import block, reserve, unblock, unreserve
from svc_actors.store import Database, Transaction
from svc_common.errors import ErrorCode, ServiceError
from tests.conftest import Cluster
from tests.support.addresses import Nic, held, make_nics, make_pool
from tests.support.machine_service import make_fleet
from tests.support.threaded_database import ThreadedDatabase, opened

T = TypeVar("T")
MACHINES = 2
IPV4, IPV6 = "10.1.0.0/29", "2001:db8::/63"
ADDRESSES = {
    IPV4: tuple(f"10.1.0.{last}" for last in range(2, 5)),
    IPV6: tuple(f"2001:db8{middle}::/64" for middle in ("", ":0:1")),
}


@dataclass
class Answer:
    """What a node said when it was asked to release; kept, since it may arrive late, twice or never."""

    machine: int
    removed: tuple[str, ...]
    through: int
    rank: int


@dataclass
class Holding:
    state: str
    machine: int | None = None
    rank: int = 0
    """Of a release: how many were begun before it."""
    reservation: UUID | None = None


@dataclass(frozen=True)
class Ground:
    nics: list[Nic]
    pools: dict[str, UUID]


async def make_ground(database: Database) -> Ground:
    world = await make_fleet(database)
    pools = {
        IPV4: await make_pool(database, world, IPV4, range_end=IPv4Address(ADDRESSES[IPV4][-1])),
        IPV6: await make_pool(database, world, IPV6),
    }
    return Ground(await make_nics(database, world, MACHINES), pools)


machines = st.integers(0, MACHINES - 1)
places = st.integers(0, 2)
crashes = st.booleans()


class AddressStates(RuleBasedStateMachine):
    """`held` is the record as it must be; `carried` what each machine's host routes and filters for it; `forced` what
    an administrator freed while a host may still have carried it, for which they answered."""

    bench: ThreadedDatabase
    ground: Ground
    cidr: str

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, Holding] = {}
        self.carried: dict[int, set[str]] = {machine: set() for machine in range(MACHINES)}
        self.forced: set[tuple[int, str]] = set()
        self.answers: list[Answer] = []
        self.releases = 0
        self.pool_id = self.ground.pools[self.cidr]
        self.addresses = ADDRESSES[self.cidr]

        async def empty(tx: Transaction) -> None:
            await tx.execute("DELETE FROM reservations WHERE NOT arithmetic")
            await tx.execute("DELETE FROM allocations WHERE state <> 'reserved'")
            # Where an example begins to look must not hang on the one before, or it cannot be played again.
            await tx.execute("UPDATE pools SET next_slot = first_slot")

        self.bench.transact(empty)

    def ip(self, place: int) -> str:
        return self.addresses[place % len(self.addresses)]

    def asked(self, ip: str) -> IPv4Address | IPv6Address:
        """The address as a caller writes it: of a sub-prefix, any in it."""
        return ip_network(ip)[-1]

    def refused(self, work: Callable[[Transaction], Awaitable[Any]]) -> None:
        with pytest.raises(ServiceError) as refusal:
            self.bench.transact(work)
        assert refusal.value.code is ErrorCode.CONFLICT

    @property
    def free(self) -> list[str]:
        return [ip for ip in self.addresses if ip not in self.held]

    # The records

    @rule(machine=machines, crash=crashes)
    def attach(self, machine: int, crash: bool) -> None:
        nic = self.ground.nics[machine]
        free = self.free

        async def attach(tx: Transaction) -> str:
            taken = await allocate(tx, self.pool_id, vm_id=nic.vm_id, nic_id=nic.nic_id, primary=False)
            return taken.text

        if not free:
            with pytest.raises(PoolFull):
                self.bench.transact(attach)
            return
        ip = self.bench.transact(attach, crash=crash)
        if ip is not None:
            assert ip in free
            self.held[ip] = Holding("allocated", machine)

    @rule(machine=machines, place=places, crash=crashes)
    def attach_this(self, machine: int, place: int, crash: bool) -> None:
        nic, ip = self.ground.nics[machine], self.ip(place)

        async def attach(tx: Transaction) -> bool:
            await allocate(tx, self.pool_id, vm_id=nic.vm_id, nic_id=nic.nic_id, primary=False, ip=self.asked(ip))
            return True

        if ip in self.held:
            self.refused(attach)
        elif self.bench.transact(attach, crash=crash):
            self.held[ip] = Holding("allocated", machine)

    @rule(place=places, crash=crashes)
    def detach(self, place: int, crash: bool) -> None:
        ip = self.ip(place)
        holding = self.held.get(ip)
        if holding is None or holding.machine is None:
            return
        vm_id = self.ground.nics[holding.machine].vm_id

        async def detach(tx: Transaction) -> tuple[str, ...]:
            return await start_release(tx, vm_id, self.asked(ip))

        if holding.state == "releasing":
            self.refused(detach)
        elif released := self.bench.transact(detach, crash=crash):
            assert released == (ip,)
            self._releasing(ip, holding)

    @rule(machine=machines, crash=crashes)
    def delete_machine(self, machine: int, crash: bool) -> None:
        """Its addresses, that is; the same NIC stands for a machine made anew."""
        vm_id = self.ground.nics[machine].vm_id

        async def delete(tx: Transaction) -> bool:
            await start_release(tx, vm_id)
            return True

        if self.bench.transact(delete, crash=crash):
            for ip, holding in list(self.held.items()):
                if holding.machine == machine and holding.state == "allocated":
                    self._releasing(ip, holding)

    @rule(place=places, crash=crashes)
    def force_free(self, place: int, crash: bool) -> None:
        ip = self.ip(place)
        holding = self.held.get(ip)

        async def free(tx: Transaction) -> str:
            return str((await force_free(tx, self.pool_id, self.asked(ip)))["text"])

        if holding is None or holding.state != "releasing":
            self.refused(free)
        elif self.bench.transact(free, crash=crash):
            assert holding.machine is not None
            if ip in self.carried[holding.machine]:
                self.forced.add((holding.machine, ip))
            del self.held[ip]

    @rule(place=places, crash=crashes)
    def block(self, place: int, crash: bool) -> None:
        ip = self.ip(place)

        async def work(tx: Transaction) -> str:
            return await block(tx, self.pool_id, self.asked(ip), "a note")

        if ip in self.held:
            self.refused(work)
        elif self.bench.transact(work, crash=crash):
            self.held[ip] = Holding("blocked")

    @rule(place=places, crash=crashes)
    def unblock(self, place: int, crash: bool) -> None:
        ip = self.ip(place)

        async def work(tx: Transaction) -> str:
            return await unblock(tx, self.pool_id, self.asked(ip))

        if ip not in self.held or self.held[ip].state != "blocked":
            self.refused(work)
        elif self.bench.transact(work, crash=crash):
            del self.held[ip]

    @rule(first=places, more=st.integers(0, 2), crash=crashes)
    def reserve(self, first: int, more: int, crash: bool) -> None:
        low = first % len(self.addresses)
        wanted = self.addresses[low : low + more + 1]

        async def work(tx: Transaction) -> UUID:
            last = self.asked(wanted[-1])
            row = await reserve(tx, self.pool_id, self.asked(wanted[0]), last, kind="manual", note="a note")
            return UUID(str(row["id"]))

        if any(ip in self.held for ip in wanted):
            self.refused(work)
        elif reservation := self.bench.transact(work, crash=crash):
            self.held |= {ip: Holding("reserved", reservation=reservation) for ip in wanted}

    @rule(place=places, crash=crashes)
    def unreserve(self, place: int, crash: bool) -> None:
        holding = self.held.get(self.ip(place))
        if holding is None or holding.reservation is None:
            return
        reservation = holding.reservation

        async def work(tx: Transaction) -> bool:
            await unreserve(tx, self.pool_id, reservation)
            return True

        if self.bench.transact(work, crash=crash):
            self.held = {ip: each for ip, each in self.held.items() if each.reservation != reservation}

    # The hosts

    @rule(machine=machines)
    def host_applies(self, machine: int) -> None:
        """The host is made to carry what the record says, and nothing else; it may have come before or never."""
        self._carry(
            machine,
            {ip for ip, each in self.held.items() if each.machine == machine and each.state == "allocated"},
        )

    @rule(machine=machines)
    def host_releases(self, machine: int) -> None:
        """The node is asked and does it. Its answer is under way."""
        vm_id = self.ground.nics[machine].vm_id

        async def read(database: Database) -> Any:
            return await releasing_of(database, vm_id)

        asked = self.bench.run(read)
        expected = {ip for ip, each in self.held.items() if each.machine == machine and each.state == "releasing"}
        assert set(asked.addresses if asked else ()) == expected
        if asked is not None:
            self._carry(machine, self.carried[machine] - expected)
            self.answers.append(Answer(machine, asked.addresses, asked.through, self.releases))

    @precondition(lambda self: bool(self.answers))
    @rule(which=st.integers(0, 100), crash=crashes)
    def answer_arrives(self, which: int, crash: bool) -> None:
        """Any answer that was ever given, also one that arrived before."""
        answer = self.answers[which % len(self.answers)]
        vm_id = self.ground.nics[answer.machine].vm_id

        async def free(tx: Transaction) -> list[str]:
            return await free_removed(tx, vm_id, answer.removed, through=answer.through)

        freed = self.bench.transact(free, crash=crash)
        if freed is not None:
            expected = {
                ip
                for ip in answer.removed
                if (each := self.held.get(ip)) is not None
                and (each.machine, each.state) == (answer.machine, "releasing")
                and each.rank <= answer.rank
            }
            assert set(freed) == expected
            for ip in freed:
                del self.held[ip]

    # What must always be

    @invariant()
    def the_record_is_what_was_done(self) -> None:
        async def read(database: Database) -> Any:
            return await held(database, self.pool_id)

        assert dict(self.bench.run(read)) == {ip: each.state for ip, each in self.held.items()}

    @invariant()
    def no_host_carries_what_another_machine_has(self) -> None:
        for machine, carried in self.carried.items():
            for ip in carried:
                holding = self.held.get(ip)
                mine = holding is not None and holding.machine == machine
                assert mine or (machine, ip) in self.forced, f"{ip} is carried for machine {machine}: {holding}"

    def teardown(self) -> None:
        """None is lost: whatever is free is handed out, each once, and then the pool is full."""
        nic = self.ground.nics[0]
        given: list[str] = []

        async def take_all(tx: Transaction) -> None:
            try:
                while True:
                    taken = await allocate(tx, self.pool_id, vm_id=nic.vm_id, nic_id=nic.nic_id, primary=False)
                    given.append(taken.text)
            except PoolFull:
                return

        self.bench.transact(take_all, crash=True)
        assert sorted(given) == sorted(self.free)

    def _releasing(self, ip: str, holding: Holding) -> None:
        self.releases += 1
        self.held[ip] = Holding("releasing", holding.machine, self.releases)

    def _carry(self, machine: int, ips: set[str]) -> None:
        self.carried[machine] = ips
        self.forced = {(each, ip) for each, ip in self.forced if each != machine or ip in ips}


@pytest.mark.parametrize("cidr", [IPV4, IPV6])
def test_no_address_is_in_two_hands_and_none_is_lost_whatever_happens(database_cluster: Cluster, cidr: str) -> None:
    with opened(database_cluster.fresh_database("svc_template"), make_ground) as (bench, ground):
        machine = type("AddressStatesOfOnePool", (AddressStates,), {"bench": bench, "ground": ground, "cidr": cidr})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=60,
                stateful_step_count=60,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
