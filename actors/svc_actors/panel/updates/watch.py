"""Looks for updates each day, unless they are off; security updates are installed in the automatic mode."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from svc_actors.panel.updates.records import UpdateMode, Wanted, read_look, read_mode
from svc_actors.panel.updates.work import LOOK, enqueue_install, enqueue_look, under_way
from svc_actors.store import Database, Transaction

ROUND_SECONDS: Final = 600.0
EVERY: Final = timedelta(hours=24)


async def check_daily(database: Database) -> None:
    """One round: queue the job that is due. A failed attempt counts, so the next one is a day later."""

    async def work(tx: Transaction) -> None:
        mode, look = await read_mode(tx), await read_look(tx)
        due = look is None or datetime.now(UTC) - look.tried_at >= EVERY
        queued = await tx.fetchval(
            "SELECT id FROM jobs WHERE kind = $1 AND status IN ('queued', 'running') LIMIT 1", LOOK
        )
        if mode is UpdateMode.OFF or not due or queued is not None or await under_way(tx) is not None:
            return
        if mode is UpdateMode.AUTOMATIC:
            await enqueue_install(tx, Wanted.SECURITY, daily=True)
        else:
            await enqueue_look(tx, daily=True)

    await database.transact(work)
