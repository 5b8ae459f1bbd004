"""Records the outcome of a trial, in the core that runs after the trial, and looks for a newer release each day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from svc_actors.alerts import set_alert
from svc_actors.panel.releases.own import OwnRelease
from svc_actors.panel.releases.records import RunState, last_run, read_look, write_outcome
from svc_actors.panel.releases.work import LOOK, enqueue_look, under_way
from svc_actors.panel.updates.records import UpdateMode, read_mode
from svc_actors.panel.webhooks import WebhookEvent, emit
from svc_actors.store import Database, Target, Transaction, audit, service_itself
from svc_actors.webhooks.payload import Scalar
from svc_webhost.releases.layout import Outcome

ROUND_SECONDS: Final = 2.0
DAILY_SECONDS: Final = 600.0
EVERY: Final = timedelta(hours=24)
ALERT: Final = "release:returned"

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.releases")


@dataclass(frozen=True)
class ReleaseWatch:
    """One per process. `offered`: whether the operator has configured a source of releases."""

    database: Database
    own: OwnRelease | None
    offered: bool

    async def withdraw_stale_order(self) -> None:
        """Withdraw an order of an earlier core that no program has taken. Call it before any job starts."""
        if self.own is not None and self.own.releases.trial() is None:
            self.own.releases.withdraw()

    async def round(self) -> None:
        own = self.own
        if own is None:
            return
        last = await last_run(self.database)
        if last is None or last.state is not RunState.TRIAL:
            return
        outcome = own.releases.outcome()
        if outcome is None or outcome.job != last.job_id:
            if own.releases.ordered() or own.releases.trial() is not None:
                return
            # There is no outcome and no order: the trial's files are gone, or no program has taken the order.
            kept = own.name == last.release
            reason = None if kept else "it was not tried: the program that switches releases did not start"
            outcome = Outcome(last.job_id, last.release, last.before, kept, reason)
        await self.database.transact(lambda tx: _written(tx, outcome))

    async def look_daily(self) -> None:
        own = self.own
        if own is None or not self.offered or not own.keys:
            return

        async def work(tx: Transaction) -> None:
            look = await read_look(tx)
            due = look is None or datetime.now(UTC) - look.tried_at >= EVERY
            queued = await tx.fetchval(
                "SELECT id FROM jobs WHERE kind = $1 AND status IN ('queued', 'running') LIMIT 1", LOOK
            )
            busy = queued is not None or await under_way(tx) is not None
            if due and not busy and await read_mode(tx) is not UpdateMode.OFF:
                await enqueue_look(tx, own, daily=True)

        await self.database.transact(work)


async def _written(tx: Transaction, outcome: Outcome) -> None:
    run = await write_outcome(
        tx, job_id=outcome.job, retained=outcome.kept, reason=outcome.reason, silent=outcome.silent
    )
    if run is None:
        return
    target = Target("release", run.release, run.version)
    details = {"job": run.job_id, "kept": outcome.kept, "reason": outcome.reason}
    await audit.record(tx, service_itself("release.tried"), target, details)
    if outcome.kept:
        await set_alert(tx, ALERT, None)
        counted: dict[str, Scalar] = {"security": 0, "failed": 0, "silent_sites": 0}
        data: dict[str, Scalar] = {"job_id": run.job_id, "packages": "svc-panel", **counted}
        await emit(tx, WebhookEvent.UPDATE_INSTALLED, data=data)
        log.info("release.kept", release=run.release)
    else:
        message = (
            f"The panel went back from release {run.version} to the one before: {outcome.reason}. The journal of the "
            "unit svc-panel-switch says more."
        )
        await set_alert(tx, ALERT, message)
        log.warning("release.returned", release=run.release, reason=outcome.reason)
