"""The account of a database's owner is open while something works as it, and at no other time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from svc_webhost.databases import DatabaseError, DatabaseName
from svc_webhost.databases.owners import _LOCK_SECONDS, Owners

SHOP, OTHER = DatabaseName("s1001_shop"), DatabaseName("s1002_shop")


@dataclass
class Engine:
    done: list[str] = field(default_factory=list)
    fails: bool = False

    async def unlock(self, name: DatabaseName, password: str) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append(f"unlock {name}")
        if self.fails:
            raise DatabaseError("away")

    async def lock(self, name: DatabaseName) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append(f"lock {name}")
        if self.fails:
            raise DatabaseError("away")

    @property
    def owners(self) -> Owners:
        return Owners(self.unlock, self.lock)


async def test_those_who_work_at_once_share_a_password_and_the_last_one_locks() -> None:
    engine = Engine()
    owners, passwords = engine.owners, []
    first, second = trio.Event(), trio.Event()

    async def work(until: trio.Event) -> None:
        async with owners.opened(SHOP) as password:
            passwords.append(password)
            await until.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, first)
        nursery.start_soon(work, second)
        await trio.testing.wait_all_tasks_blocked()
        first.set()
        await trio.testing.wait_all_tasks_blocked()
        open_still = list(engine.done)
        second.set()
    async with owners.opened(SHOP) as again:
        pass

    assert open_still == [f"unlock {SHOP}"]
    assert engine.done == [f"unlock {SHOP}", f"lock {SHOP}"] * 2
    assert len(set(passwords)) == 1
    assert again not in passwords


async def test_what_is_cancelled_leaves_no_account_open() -> None:
    engine = Engine()

    with trio.move_on_after(1):
        async with engine.owners.opened(SHOP):
            await trio.sleep_forever()

    assert engine.done == [f"unlock {SHOP}", f"lock {SHOP}"]


async def test_a_failure_is_that_of_the_work_and_not_of_the_lock() -> None:
    engine = Engine()

    async def work() -> None:
        async with engine.owners.opened(SHOP):
            engine.fails = True
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()


async def test_an_account_that_is_not_locked_is_told() -> None:
    engine = Engine()

    async def work() -> None:
        async with engine.owners.opened(SHOP):
            engine.fails = True

    with pytest.raises(DatabaseError):
        await work()


async def test_one_that_was_not_unlocked_can_be_asked_for_again() -> None:
    engine = Engine(fails=True)
    owners = engine.owners
    with pytest.raises(DatabaseError):
        async with owners.opened(SHOP):
            pass
    engine.fails = False

    async with owners.opened(SHOP), owners.opened(OTHER):
        pass

    assert engine.done[-2:] == [f"lock {OTHER}", f"lock {SHOP}"]


async def test_a_lock_that_takes_too_long_is_told_and_the_next_one_locks(autojump_clock: MockClock) -> None:
    engine = Engine()
    owners = engine.owners
    stalled = trio.Event()

    async def stall(name: DatabaseName) -> None:
        engine.done.append(f"lock {name}")
        if len(engine.done) == 2:
            stalled.set()
            await trio.sleep(60)

    owners._lock = stall
    async with trio.open_nursery() as nursery:

        async def first() -> None:
            with pytest.raises(DatabaseError, match="was not locked within 10 seconds"):
                async with owners.opened(SHOP):
                    pass

        async def second() -> None:
            await stalled.wait()
            async with owners.opened(SHOP):
                pass

        nursery.start_soon(first)
        nursery.start_soon(second)

    assert engine.done == [f"unlock {SHOP}", f"lock {SHOP}"] * 2


async def test_who_waits_too_long_to_lock_is_not_counted_for_ever(autojump_clock: MockClock) -> None:
    engine = Engine()
    owners = engine.owners

    async def hold() -> None:
        async with owners._accounts[SHOP].one:
            await trio.sleep(2 * _LOCK_SECONDS)

    async def work(nursery: trio.Nursery) -> None:
        async with owners.opened(SHOP):
            nursery.start_soon(hold)
            await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        with pytest.raises(DatabaseError):
            await work(nursery)
    async with owners.opened(SHOP):
        pass

    assert engine.done == [f"unlock {SHOP}", f"unlock {SHOP}", f"lock {SHOP}"]


async def test_an_account_whose_unlocking_is_cancelled_is_locked() -> None:
    engine = Engine()
    owners = engine.owners

    async def unlock(name: DatabaseName, password: str) -> None:
        engine.done.append(f"unlock {name}")
        await trio.sleep_forever()

    owners._unlock = unlock
    with trio.move_on_after(0.01):
        async with owners.opened(SHOP):
            pass

    assert engine.done == [f"unlock {SHOP}", f"lock {SHOP}"]
