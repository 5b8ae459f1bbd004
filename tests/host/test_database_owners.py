"""The account of a database's owner is open while something works as it, and at no other time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from svc_actors.host.databases import DatabaseError, DatabaseName
from svc_actors.host.databases.owners import Owners

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
