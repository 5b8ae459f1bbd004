"""What operators are shown of actors and loops that fail: open while it lasts, closed by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from svc.service import alerts
from svc.service.alerts import ActorAlerts, LoopAlerts
from svc_actors.runtime import Actor, ActorCrashed, ActorSystem, Crash
from svc_actors.store import Database, Record, Transaction, keep_repeating, keep_running
from svc_common.errors import unavailable


class Kettle(Actor):
    async def boil(self, *, dry: bool = False) -> None:
        if dry:
            raise ValueError("no water")


@asynccontextmanager
async def kettles(database: Database) -> AsyncIterator[ActorSystem]:
    actor_alerts = ActorAlerts(database)
    async with trio.open_nursery() as nursery, ActorSystem.open(on_crash=actor_alerts.notice) as system:
        system.register(Kettle, lambda key: Kettle())
        nursery.start_soon(keep_running, "alerts", actor_alerts.run)
        yield system
        nursery.cancel_scope.cancel()


async def until_open(database: Database, keys: list[str]) -> None:
    with trio.fail_after(60):
        while await open_alerts(database) != keys:
            await trio.sleep(0.002)


async def open_alerts(database: Database) -> list[str]:
    rows = await database.fetch("SELECT key FROM alerts WHERE closed_at IS NULL ORDER BY key")
    return [row["key"] for row in rows]


async def message_of(database: Database, key: str) -> object:
    return await database.fetchval("SELECT message FROM alerts WHERE key = $1 AND closed_at IS NULL", key)


async def fail(system: ActorSystem, key: str = "a") -> None:
    with pytest.raises(ActorCrashed):
        await system.ref(Kettle, key).ask(Kettle.boil, dry=True)


async def test_the_alert_of_an_actor_closes_once_it_has_not_crashed_for_a_while(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kettles(database) as system:
        await fail(system)
        await until_open(database, ["actor:Kettle:a"])

        monkeypatch.setattr(alerts, "QUIET_SECONDS", 0.0)
        await fail(system)

        await until_open(database, [])
    assert await database.fetchval("SELECT message FROM alerts") == ("Kettle:a crashed in boil; the log has the cause.")


async def test_a_defect_that_many_actors_meet_opens_one_alert_more_for_all_that_are_too_many(
    database: Database,
) -> None:
    alone = [f"actor:Kettle:{number:03}" for number in range(alerts.MOST_OF_A_TYPE)]
    async with kettles(database) as system:
        for number in range(102):
            await fail(system, f"{number:03}")

        await until_open(database, ["actor:Kettle", *alone])
        with trio.fail_after(60):
            while await message_of(database, "actor:Kettle") != (
                "More than 100 Kettle actors crashed; the log has the causes."
            ):
                await trio.sleep(0.002)


async def test_a_process_begins_without_the_actor_alerts_of_the_one_before(database: Database) -> None:
    await database.execute(
        """INSERT INTO alerts (key, severity, message)
           VALUES ('actor:Kettle:b', 'warning', ''), ('node-offline:x', 'warning', '')"""
    )

    async with kettles(database):
        await until_open(database, ["node-offline:x"])


async def test_an_alert_is_written_once_the_database_is_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact, refused = Database.transact, list[str]()

    async def away_at_first(self: Database, fn: Callable[[Transaction], Awaitable[None]]) -> None:
        if len(refused) < 3:
            refused.append("refused")
            raise unavailable("The database is away.")
        await transact(self, fn)

    monkeypatch.setattr(Database, "transact", away_at_first)

    async with kettles(database) as system:
        await fail(system)

        await until_open(database, ["actor:Kettle:a"])


@dataclass
class AwayAtFirst:
    """A database that is `back` at this time, and notes when each alert is opened and closed."""

    back: float
    opened: list[float] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)

    async def transact(self, fn: Callable[[AwayAtFirst], Awaitable[None]]) -> None:
        if trio.current_time() < self.back:
            raise unavailable("The database is away.")
        await fn(self)

    async def fetchrow(self, sql: str, *_: object) -> None:
        (self.opened if sql.startswith("INSERT") else self.closed).append(trio.current_time())

    async def fetch(self, _: str, *__: object) -> list[Record]:
        return []


async def test_an_alert_that_is_written_late_is_open_for_its_full_time(autojump_clock: MockClock) -> None:
    database = AwayAtFirst(back=trio.current_time() + 2 * alerts.QUIET_SECONDS)
    actor_alerts = ActorAlerts(cast(Database, database))
    actor_alerts.notice(Crash("Kettle:a", "boil", ValueError("no water")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_running, "alerts", actor_alerts.run)
        await trio.sleep_until(database.back + 2 * alerts.QUIET_SECONDS)
        nursery.cancel_scope.cancel()

    assert len(database.opened) == len(database.closed) == 1
    assert database.closed[0] - database.opened[0] == pytest.approx(alerts.QUIET_SECONDS)


async def test_the_alert_of_a_loop_closes_when_the_loop_works_again(database: Database) -> None:
    loop_alerts, works = LoopAlerts(database), trio.Event()

    async def work() -> None:
        if not works.is_set():
            raise ValueError("no water")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_running, "alerts", loop_alerts.run)
        nursery.start_soon(keep_repeating, "kettle", 0.001, work, loop_alerts.notice)
        await until_open(database, ["loop:kettle"])

        works.set()

        await until_open(database, [])
        nursery.cancel_scope.cancel()
    assert "kettle keeps failing" in await database.fetchval("SELECT message FROM alerts")
