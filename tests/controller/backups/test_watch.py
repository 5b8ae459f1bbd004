"""What the watch finds is what is due by the rule, and it does not read what is not due."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from svc_actors.controller.backups import watch
from svc_actors.controller.backups.schedule import BackupPolicy, BackupSchedule, next_due, own_seconds
from svc_actors.store import Database
from svc_actors.store.driver import Record
from tests.support.large import Size, fill, indexes_later

NOW = datetime(2030, 5, 16, 3, 30, tzinfo=UTC)
"""A Thursday, amid an hour of runs."""
POLICIES = (
    BackupPolicy(BackupSchedule.DAILY, hour=3),
    BackupPolicy(BackupSchedule.DAILY, hour=20),
    BackupPolicy(BackupSchedule.WEEKLY, hour=3, weekday=4),
    BackupPolicy(BackupSchedule.WEEKLY, hour=22, weekday=6),
)
MACHINES = 3_000
LARGE = {"vms", "tasks", "machine_backups"}


class Recorder:
    """The database, with what it was asked and what it gave."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.asked: list[tuple[str, tuple[object, ...]]] = []

    async def fetch(self, sql: str, *args: object) -> list[Record]:
        self.asked.append((sql, args))
        return await self._database.fetch(sql, *args)


class Nobody:
    """Actors that take every order and carry out none."""

    def __init__(self) -> None:
        self.ordered: list[UUID] = []

    def ref(self, _: Any, key: str) -> Nobody:
        self.ordered.append(UUID(key))
        return self

    async def ask(self, *_: object) -> None: ...


@pytest.fixture
async def scheduled(database: Database, database_url: str) -> AsyncIterator[Database]:
    """Four of five plans ask for backups, since long ago."""
    async with Database.open(database_url.replace("//svc@", "//svc_owner@"), size=1) as owner:
        async with indexes_later(owner):
            await fill(owner, Size(machines=MACHINES, nodes=100, projects=50, audited=0))
        plans = await owner.fetch("SELECT id FROM plans WHERE slug LIKE 'plan-%' ORDER BY slug")
        for plan, policy in zip(plans, POLICIES, strict=False):
            await owner.execute(
                "INSERT INTO plan_backups (plan_id, schedule, hour, weekday, keep, since)"
                " VALUES ($1, $2, $3, $4, 0, $5)",
                plan["id"],
                policy.schedule.value,
                policy.hour,
                policy.weekday,
                NOW - timedelta(days=100),
            )
        await owner.execute("UPDATE vms SET built_at = $1::timestamptz - interval '50 days'", NOW)
        await owner.execute("UPDATE nodes SET mode = 'managed'")
        yield owner


async def backed_up(owner: Database, *, hours: int) -> None:
    """Each machine was backed up at some moment of so many hours before now, the one and the other at another."""
    rows = await owner.fetch("SELECT id FROM vms ORDER BY id")
    at = [NOW - timedelta(hours=hours * place / len(rows)) - own_seconds(row["id"]) for place, row in enumerate(rows)]
    await owner.execute(
        "UPDATE vms SET backed_up = given.at FROM unnest($1::uuid[], $2::timestamptz[]) given (id, at)"
        " WHERE vms.id = given.id",
        [row["id"] for row in rows],
        at,
    )
    await owner.execute("VACUUM ANALYZE vms")


async def due_by_the_rule(owner: Database) -> dict[UUID, datetime]:
    rows = await owner.fetch(
        """SELECT vms.id, vms.backed_up, vms.built_at, plans.slug FROM vms JOIN plans ON plans.id = vms.plan_id
           WHERE plans.slug <> 'plan-5'"""
    )
    moments = {
        row["id"]: next_due(
            POLICIES[int(row["slug"][-1]) - 1],
            row["id"],
            done=row["backed_up"] + own_seconds(row["id"]),
            since=row["built_at"],
            now=NOW,
        )
        for row in rows
    }
    return {vm_id: at for vm_id, at in moments.items() if at <= NOW}


async def test_of_each_node_the_machine_that_is_longest_overdue_is_begun(
    scheduled: Database, database: Database
) -> None:
    await backed_up(scheduled, hours=15 * 24)
    due = await due_by_the_rule(scheduled)
    assert 0 < len(due) < MACHINES * 4 // 5
    rows = await scheduled.fetch(
        """SELECT vms.id, vms.node_id FROM vms JOIN nodes ON nodes.id = vms.node_id
           WHERE vms.status IN ('running', 'stopped') AND nodes.state = 'online'"""
    )
    first: dict[UUID, UUID] = {}
    for row in sorted((row for row in rows if row["id"] in due), key=lambda row: (due[row["id"]], row["id"])):
        first.setdefault(row["node_id"], row["id"])

    nobody = Nobody()
    await watch.look(database, nobody, NOW)  # type: ignore[arg-type]  # it takes orders as actors do

    assert sorted(nobody.ordered) == sorted(first.values())
    late = {vm_id for vm_id, at in due.items() if at < NOW - timedelta(hours=12)}
    told = await database.fetch("SELECT resource_id FROM alerts WHERE key LIKE 'machine-backup:%'")
    assert late
    assert {UUID(row["resource_id"]) for row in told} == late


async def test_what_is_not_due_is_not_read(scheduled: Database, database: Database) -> None:
    await backed_up(scheduled, hours=3)
    recorder = Recorder(database)

    await watch.look(recorder, Nobody(), NOW)  # type: ignore[arg-type]  # reads alone are recorded

    overdue = len(await due_by_the_rule(scheduled))
    read = 0
    for sql, args in recorder.asked:
        plan = await database.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *args)
        rows = [count async for table, count in rows_read(plan) if table == "vms"]
        # What is left to skip is of the two plans that have their hour now, and whose moment comes in it
        assert sum(rows) <= MACHINES / 5, plan
        assert not LARGE & {table async for table in sequential_scans(plan)}, plan
        read += sum(rows)
    assert 0 < overdue < read


async def rows_read(plan: Any) -> AsyncIterator[tuple[str, int]]:
    async for node in nodes_of(plan):
        if "Relation Name" in node:
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            yield node["Relation Name"], (node["Actual Rows"] + removed) * node["Actual Loops"]


async def sequential_scans(plan: Any) -> AsyncIterator[str]:
    async for node in nodes_of(plan):
        if node["Node Type"] == "Seq Scan":
            yield node["Relation Name"]


async def nodes_of(plan: Any) -> AsyncIterator[dict[str, Any]]:
    nodes = list(plan if isinstance(plan, list) else json.loads(plan))
    while nodes:
        node = nodes.pop()
        node = node.get("Plan", node)
        yield node
        nodes += node.get("Plans", ())
