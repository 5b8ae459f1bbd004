"""Polls nodes for their traffic counters, stores the readings, and enforces plans' allowances.

Invariants:
- every online node is polled about once a minute, spread over the minute; a node that hangs has one open query and
  delays no other;
- a failed round (the database is away) changes nothing and the next one makes up for it: readings only grow, and
  decisions are based on stored figures;
- the controller's clock decides which month it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

import structlog
import trio

from svc_actors.controller.gateway.gateway import NodeUnavailable, OperationFailed
from svc_actors.controller.traffic.enforcement import enforce
from svc_actors.controller.traffic.periods import Clock, utc_now
from svc_actors.controller.traffic.readings import store_readings
from svc_actors.store import Database, LoopAlert, keep_repeating
from svc_common.errors import ServiceError
from svc_nodeagent.protocol import NodeOperation, NodeTraffic, OperationResult, TrafficResult

_MOST_REFUSALS_KEPT: Final = 10_000
log = structlog.get_logger(__name__)


class CountingGateway(Protocol):
    """The part of the gateway that the watch uses."""

    def online(self) -> list[UUID]: ...

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult: ...


@dataclass(frozen=True)
class TrafficIntervals:
    """Times in seconds. `ask`: between two queries of one node; `at_once`: how many nodes are queried at once."""

    ask: float = 60.0
    look: float = 5.0
    enforce: float = 30.0
    patience: float = 20.0
    at_once: int = 64


class TrafficWatch:
    """One per process; `run` runs in the composer's nursery. `unauthorised_report` is called once for each machine
    whose traffic a node reported although the machine was not on it."""

    def __init__(
        self,
        database: Database,
        gateway: CountingGateway,
        *,
        unauthorised_report: Callable[[UUID, str], None],
        clock: Clock = utc_now,
        intervals: TrafficIntervals | None = None,
        alert: LoopAlert | None = None,
    ) -> None:
        self._alert = alert
        self._database = database
        self._gateway = gateway
        self._unauthorised_report = unauthorised_report
        self._clock = clock
        self._intervals = intervals or TrafficIntervals()
        self._limit = trio.CapacityLimiter(self._intervals.at_once)
        self._due: dict[UUID, float] = {}
        self._being_asked: set[UUID] = set()
        self._refused: set[tuple[UUID, UUID]] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                keep_repeating, "traffic enforcement", self._intervals.enforce, self.enforce, self._alert
            )
            task_status.started()
            while True:
                for node_id in self._nodes_due():
                    self._being_asked.add(node_id)
                    nursery.start_soon(self._ask_and_go_on, node_id)
                await trio.sleep(self._intervals.look)

    async def ask(self, node_id: UUID) -> None:
        """Query a node's counters and store them. Raises what a query and the database raise."""
        result = await self._gateway.query(node_id, NodeTraffic(), timeout=self._intervals.patience)
        if not isinstance(result, TrafficResult):
            return
        ledger_id, readings, now = result.ledger_id, result.readings, self._clock()
        refused = await self._database.transact(lambda tx: store_readings(tx, node_id, ledger_id, readings, now=now))
        if refused.untimely:
            log.warning("traffic.untimely", node_id=str(node_id), machines=len(refused.untimely))
        if refused.beyond:
            some = [str(vm_id) for vm_id in sorted(refused.beyond)[:5]]
            log.warning("traffic.beyond_rate", node_id=str(node_id), machines=len(refused.beyond), some=some)
        self._point_out(node_id, sorted(refused.foreign))

    async def enforce(self) -> None:
        """Bring the sanctions of all machines up to date."""
        done = await enforce(self._database, self._clock())
        if done.sanctioned or done.lifted:
            log.info("traffic.enforced", sanctioned=done.sanctioned, lifted=done.lifted)

    def _nodes_due(self) -> list[UUID]:
        """Online nodes whose turn it is. The first turn of a new node is spread over the interval by its id."""
        now, online = trio.current_time(), self._gateway.online()
        interval = self._intervals.ask
        self._due = {
            node_id: self._due.get(node_id, now + interval * (node_id.int % 1000) / 1000) for node_id in online
        }
        due = [node_id for node_id, when in self._due.items() if when <= now and node_id not in self._being_asked]
        for node_id in due:
            self._due[node_id] = now + interval
        return due

    async def _ask_and_go_on(self, node_id: UUID) -> None:
        try:
            async with self._limit:
                await self.ask(node_id)
        except (NodeUnavailable, OperationFailed) as error:
            log.info("traffic.node_not_heard", node_id=str(node_id), error=str(error))
        except ServiceError as error:
            log.warning("traffic.not_recorded", node_id=str(node_id), error=error.message)
        except Exception:
            # A defect in handling one node's answer must not end the watch, or the controller.
            log.exception("traffic.ask_failed", node_id=str(node_id))
        finally:
            self._being_asked.discard(node_id)

    def _point_out(self, node_id: UUID, foreign: Sequence[UUID]) -> None:
        new = [vm_id for vm_id in foreign if (node_id, vm_id) not in self._refused]
        if not new:
            return
        if len(self._refused) + len(new) > _MOST_REFUSALS_KEPT:
            self._refused.clear()
        self._refused.update((node_id, vm_id) for vm_id in new)
        others = f" and {len(new) - 1} others" if len(new) > 1 else ""
        self._unauthorised_report(node_id, f"counted traffic of machine {new[0]}{others}, which is not placed on it")
