"""Rows that traffic needs (a node, plans, machines), and readings as a node sends them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

import trio

from svc_actors.controller.traffic.enforcement import enforce
from svc_actors.controller.traffic.policies import PolicySet, set_policy
from svc_actors.controller.traffic.policy import GIB, Policy
from svc_actors.controller.traffic.readings import store_readings
from svc_actors.store import Database, Record
from svc_nodeagent.protocol import NodeOperation, NodeTraffic, OperationResult, TrafficReading, TrafficResult
from tests.support.callers import ADMINISTRATOR

NOVEMBER = datetime(2026, 11, 21, 12, tzinfo=UTC)


def reading(
    vm_id: UUID, sent: int, received: int = 0, *, period: str = "2026-11", samples: int = 1, resets: int = 0
) -> TrafficReading:
    at = datetime(int(period[:4]), int(period[5:]), 2, tzinfo=UTC)
    return TrafficReading(
        vm_id=vm_id,
        period=period,
        received=received,
        sent=sent,
        resets=resets,
        samples=samples,
        first_at=at,
        last_at=at,
    )


@dataclass
class TrafficHarness:
    """`now` is the wall clock of whatever is asked to look at one."""

    database: Database
    location_id: UUID
    project_id: UUID
    image_id: UUID
    node_id: UUID
    now: datetime = NOVEMBER
    ledger_id: UUID = field(default_factory=uuid4)

    async def node(self, name: str) -> UUID:
        node_id: UUID = await self.database.fetchval(
            "INSERT INTO nodes (name, location_id, state, host_uuid) VALUES ($1, $2, 'online', $3) RETURNING id",
            name,
            self.location_id,
            uuid4(),
        )
        return node_id

    async def plan(self, name: str = "small") -> UUID:
        plan_id: UUID = await self.database.fetchval(
            "INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ($1, $2, 1, 256, 1) RETURNING id",
            name,
            f"{name}-{uuid4().hex[:8]}",
        )
        return plan_id

    async def machine(
        self,
        name: str,
        plan_id: UUID | None = None,
        *,
        project_id: UUID | None = None,
        node_id: UUID | None = None,
        created_at: datetime = datetime(2025, 6, 1, tzinfo=UTC),
        vm_id: UUID | None = None,
        rate_mbps: int | None = None,
    ) -> UUID:
        vm_id = vm_id or uuid4()
        await self.database.execute(
            """INSERT INTO vms (id, name, hostname, project_id, node_id, plan_id, image_id, vcpus, memory_mib, disk_gib,
                                status, access_mode, built_at, created_at, rate_mbps)
               VALUES ($1, $2, $2, $3, $4, $5, $6, 1, 256, 1, 'running', 'user_sudo', $7, $7, $8)""",
            vm_id,
            name,
            project_id or self.project_id,
            node_id or self.node_id,
            plan_id,
            self.image_id,
            created_at,
            rate_mbps,
        )
        return vm_id

    async def hear(self, *readings: TrafficReading, node_id: UUID | None = None, ledger_id: UUID | None = None) -> None:
        async with self.database.transaction() as tx:
            await store_readings(tx, node_id or self.node_id, ledger_id or self.ledger_id, readings, now=self.now)

    async def sent(self, vm_id: UUID, gib: float) -> None:
        """The machine has sent so much in the month of the stage's clock."""
        await self.hear(reading(vm_id, int(gib * GIB), period=f"{self.now:%Y-%m}"))

    async def allow(self, plan_id: UUID, wanted: Policy) -> PolicySet:
        async with self.database.transaction() as tx:
            return await set_policy(tx, ADMINISTRATOR, plan_id, wanted, now=self.now)

    async def enforce(self) -> None:
        await enforce(self.database, self.now)

    async def vm(self, vm_id: UUID) -> Record:
        row = await self.database.fetchrow("SELECT * FROM vms WHERE id = $1", vm_id)
        assert row is not None
        return row

    async def in_force(self, vm_id: UUID) -> tuple[int | None, bool]:
        """The machine's throttle in Mbit/s, and whether its traffic is suspended."""
        row = await self.vm(vm_id)
        return row["throttle_mbps"], row["traffic_isolated"]

    async def history(self, vm_id: UUID) -> list[tuple[str, str]]:
        """The machine's decisions, oldest first: month and action."""
        rows = await self.database.fetch(
            "SELECT period, action FROM traffic_decisions WHERE vm_id = $1 ORDER BY id", vm_id
        )
        return [(row["period"], row["action"]) for row in rows]

    async def open_alerts(self) -> list[str]:
        return [row["key"] for row in await self.database.fetch("SELECT key FROM alerts WHERE closed_at IS NULL")]


async def make_stage(database: Database) -> TrafficHarness:
    """A stage of its own, also where the database has others."""
    mark = uuid4().hex[:8]
    location = await database.fetchval("INSERT INTO locations (name) VALUES ($1) RETURNING id", f"here-{mark}")
    project = await database.fetchval("INSERT INTO projects (name) VALUES ($1) RETURNING id", f"project-{mark}")
    image = await database.fetchval(
        """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, digest, custom)
           VALUES ($1, 'Demo', 'linux', 'demo', '1', 'debian', 'qcow2', 'file', $2, true) RETURNING id""",
        f"demo-{mark}",
        "a" * 64,
    )
    stage = TrafficHarness(database, location, project, image, uuid4())
    stage.node_id = await stage.node(f"alpha-{mark}")
    return stage


@dataclass
class CountingNodes:
    """A gateway whose nodes answer with the readings that the test gives them, or hang."""

    answers: dict[UUID, TrafficResult] = field(default_factory=dict)
    hanging: set[UUID] = field(default_factory=set)
    asked: list[UUID] = field(default_factory=list)

    def online(self) -> list[UUID]:
        return [*self.answers, *self.hanging]

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult:
        assert isinstance(operation, NodeTraffic)
        self.asked.append(node_id)
        if node_id in self.hanging:
            await trio.sleep_forever()
        return self.answers[node_id]
