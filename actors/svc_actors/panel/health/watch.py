"""Runs all checks each minute. A status takes effect once it lasts, and a change is notified.

Invariants:
- a worse status takes effect at the second look in a row, a better one at the third: so a status that lasts only for a
  moment sends nothing;
- each time that a check becomes critical is one incident: one event `health.critical`, one alert that closes with it;
- the status in force is in the database, where a core that starts finds it; a change that could not be written is
  written later;
- a check that fails or hangs is `unknown`, and delays no other.

Rejected: alerts for warnings. For a high load or a certificate with a week left, the next morning is early enough;
warnings are shown on the page and among the events, and only critical statuses wake somebody.

Why: docs/decisions/0054-health-updates-licensing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from svc_actors.alerts import Severity, set_alert
from svc_actors.panel.health.checks import Check
from svc_actors.panel.health.records import (
    CheckName,
    Finding,
    HealthStatus,
    StatusChange,
    forget_old_events,
    read_statuses,
    write_check,
    write_event,
)
from svc_actors.panel.webhooks import WebhookEvent, emit
from svc_actors.store import Database, Transaction
from svc_common.errors import ServiceError
from svc_webhost.launcher import LauncherError

ROUND_SECONDS: Final = 60.0
WORSE_LOOKS: Final = 2
BETTER_LOOKS: Final = 3
# Seconds, a quarter of a round. Checks run concurrently, so a round takes no longer than this plus the time to write
# its results.
_LONGEST_LOOK: Final = 15.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.health")


@dataclass
class HealthWatch:
    """One per process."""

    database: Database
    checks: Mapping[CheckName, Check]
    _believed: dict[CheckName, HealthStatus] | None = None
    _otherwise: dict[CheckName, list[Finding]] = field(default_factory=dict)
    """The last consecutive findings of each check that are all worse than the status in force, or all better."""
    _untold: list[StatusChange] = field(default_factory=list)

    async def round(self) -> None:
        if self._believed is None:
            self._believed = await read_statuses(self.database)
        found: dict[CheckName, Finding] = {}
        async with trio.open_nursery() as nursery:
            for name, check in self.checks.items():
                nursery.start_soon(self._look, name, check, self._status(name), found)
        for name, finding in found.items():
            self._judge(name, finding)
        # The changes of this round, and those of earlier rounds whose transaction failed: the database itself may have
        # been the critical part. They are removed only once they are committed, so each is sent once.
        changes = list(self._untold)

        async def write(tx: Transaction) -> None:
            for name, finding in found.items():
                await write_check(tx, name, self._status(name), finding)
            for change in changes:
                await _tell(tx, change)
            await forget_old_events(tx)

        await self.database.transact(write)
        del self._untold[: len(changes)]

    def _status(self, name: CheckName) -> HealthStatus:
        assert self._believed is not None, "it was read"
        return self._believed.get(name, HealthStatus.OK)

    async def _look(self, name: CheckName, check: Check, before: HealthStatus, found: dict[CheckName, Finding]) -> None:
        try:
            with trio.fail_after(_LONGEST_LOOK):
                found[name] = await check(before)
        except trio.TooSlowError:
            found[name] = Finding(HealthStatus.UNKNOWN, f"The check took longer than {_LONGEST_LOOK:g} seconds.")
        except (ServiceError, LauncherError, OSError) as error:
            found[name] = Finding(HealthStatus.UNKNOWN, f"The check failed: {error}")

    def _judge(self, name: CheckName, finding: Finding) -> None:
        believed = self._status(name)
        if finding.status is believed:
            self._otherwise.pop(name, None)
            return
        # The ranks are equal if one status is `unknown` and the other `warning`: such a change counts as worse, so it
        # takes effect after two looks.
        worse = finding.status.rank >= believed.rank
        row = self._otherwise.get(name, [])
        if row and (row[-1].status.rank >= believed.rank) is not worse:
            row = []
        row = [*row, finding][-BETTER_LOOKS:]
        self._otherwise[name] = row
        if len(row) < (WORSE_LOOKS if worse else BETTER_LOOKS):
            return
        # Of the consecutive findings, the one closest to the former status counts: critical followed by warning is a
        # warning that has lasted. Reversed, so that of equal ones the latest gives the message.
        choose = min if worse else max
        settled = choose(reversed(row[-WORSE_LOOKS:] if worse else row), key=lambda each: each.status.rank)
        self._otherwise.pop(name)
        self._untold.append(StatusChange(name, believed, settled))
        assert self._believed is not None
        self._believed[name] = settled.status
        log.info("health.changed", check=name.value, before=believed.value, status=settled.status.value)


async def _tell(tx: Transaction, change: StatusChange) -> None:
    finding, critical = change.finding, change.finding.status is HealthStatus.CRITICAL
    await write_event(tx, change)
    await set_alert(tx, f"health:{change.check}", finding.message if critical else None, severity=Severity.CRITICAL)
    if critical:
        data = {"check": change.check.value, "before": change.before.value, "value": finding.value}
        await emit(tx, WebhookEvent.HEALTH_CRITICAL, data=data)
