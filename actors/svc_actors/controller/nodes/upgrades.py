"""Agent upgrades: tasks in which nodes replace their agent by the release that comes with this controller.

Invariants:

- the controller's authority signs the release, and an agent verifies it before it unpacks anything;
- of the upgrades that were ordered together, only a limited number run at once; when one has failed, those that wait
  are not started;
- an upgrade has succeeded if the agent that runs at its end reports the release; after a rollback there is an alert
  until the node has the release.

Why: docs/decisions/0022-node-enrolment-and-upgrades.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import trio

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.images.files import OfferFile
from svc_actors.controller.nodes.node import upgrade_alert
from svc_actors.controller.tasks.run import HostRefused, TaskFailed, TaskRun
from svc_actors.controller.tasks.runner import Ending, LogLevel, Task, TaskRunner, TaskStatus, end_task
from svc_actors.store import Database, Transaction
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import FailureCode, NodeUpgrade, OperationResult

OPERATION: Final = "node.upgrade"
TRIAL_SECONDS: Final = 120.0
"""How long a new agent has to connect and be accepted; before it connects, it opens libvirt and restores networks."""
_KEY_PREFIX: Final = "agent:"


@dataclass(frozen=True)
class AgentRelease:
    """The agent release that comes with this controller. `digest` is the SHA-256 of its wheel, in hex; agents report
    `name`."""

    name: str
    version: str
    digest: str
    size: int
    wheel: Path

    def find(self, key: str) -> Path | None:
        """The wheel, if `key` is the key under which nodes fetch it."""
        return self.wheel if key == self.key else None

    @property
    def key(self) -> str:
        return _KEY_PREFIX + self.digest


class _Together:
    """Upgrades that were ordered together. `failed` names the first node whose upgrade failed. It is kept in memory
    because the end of the failed task is stored only after the next upgrade gets its turn."""

    def __init__(self, at_once: int) -> None:
        self.turns = trio.CapacityLimiter(at_once)
        self.failed: str | None = None

    @property
    def over(self) -> bool:
        return not (self.turns.borrowed_tokens or self.turns.statistics().tasks_waiting)


class Upgrades:
    def __init__(self, database: Database, authority: Authority, release: AgentRelease, offer_file: OfferFile) -> None:
        self._database = database
        self._authority = authority
        self._release = release
        self._offer_file = offer_file
        self._together: dict[str, _Together] = {}

    def handle_tasks(self, tasks: TaskRunner) -> None:
        tasks.handles(OPERATION, self._work, end=self._end)

    async def _work(self, run: TaskRun) -> OperationResult | None:
        key = str(run.task.parameters["together"])
        together = self._together.setdefault(key, _Together(int(run.task.parameters["at_once"])))
        try:
            async with together.turns:
                failed = together.failed or await self._failed_of(key)
                if failed is not None:
                    raise await _not_begun(run, f"the upgrade of node {failed} failed")
                if not run.node_online:
                    raise await _not_begun(run, "the node is offline")
                try:
                    return await self._upgrade(run)
                except TaskFailed:
                    if not run.cancel_requested:
                        together.failed = run.task.resource_name
                    raise
        finally:
            if together.over and together.failed is None:
                self._together.pop(key, None)

    async def _upgrade(self, run: TaskRun) -> OperationResult:
        node_id = run.task.resource_id
        operation = NodeUpgrade(
            version=self._release.version,
            digest=self._release.digest,
            size=self._release.size,
            signature="",
            stream_token=self._offer_file(node_id, self._release.key),
            order=str(run.task.id),
            trial_seconds=TRIAL_SECONDS,
        )
        signed = operation.model_copy(update={"signature": self._authority.sign(operation.statement)})
        return await run.perform(signed, step="upgrade")

    async def _failed_of(self, together: str) -> str | None:
        name: str | None = await self._database.fetchval(
            "SELECT resource_name FROM tasks"
            " WHERE op = $1 AND status = 'failed' AND parameters->>'together' = $2 LIMIT 1",
            OPERATION,
            together,
        )
        return name

    async def _end(self, task: Task, ending: Ending) -> None:
        async def work(tx: Transaction) -> None:
            if await end_task(tx, task.id, ending) is None:
                return
            if ending.status is TaskStatus.SUCCEEDED:
                await close_alert(tx, upgrade_alert(task.resource_id))
            elif ending.status is TaskStatus.FAILED:
                await raise_alert(
                    tx,
                    upgrade_alert(task.resource_id),
                    f"The agent of node {task.resource_name} was not upgraded. {ending.message}",
                    resource_kind="node",
                    resource_id=task.resource_id,
                )

        await self._database.transact(work)


async def _not_begun(run: TaskRun, why: str) -> HostRefused:
    """The error that ends the task as cancelled, also logged."""
    await run.log(f"Not started: {why}.", level=LogLevel.WARNING)
    return HostRefused(ErrorCode.CONFLICT, f"Not started: {why}.", hint=None, failure=FailureCode.CANCELLED)


def upgrade_parameters(release: AgentRelease, together: UUID, at_once: int) -> dict[str, Any]:
    """Parameters of a task. `together` identifies the upgrades ordered together, of which at most `at_once` run at
    once."""
    return {"release": release.name, "together": str(together), "at_once": at_once}
