"""The results of backups, in the database: the alert that the last one failed, or that there has been none for long.

The program that takes a backup records its result. The service checks periodically how old the last one is, since
nothing is recorded when backups stop running.
"""

from __future__ import annotations

from typing import Final

from svc.service.controller.backup.take import BackupResult
from svc_actors.alerts import Severity, set_alert
from svc_actors.store import Database, Transaction

ALERT: Final = "controller-backup"
LOOK_SECONDS: Final = 300.0
_KEPT_DAYS: Final = 400
_SHOWN: Final = 500


async def record(database: Database, place: str, every_hours: float, ended: BackupResult | Exception) -> None:
    """Record the result of a backup, and open or close the alert."""
    taken = ended if isinstance(ended, BackupResult) else None

    async def work(tx: Transaction) -> None:
        await tx.execute(
            """INSERT INTO controller_backups (every_hours, place, archive, size_bytes, error)
               VALUES ($1, $2, $3, $4, $5)""",
            every_hours,
            place,
            taken.name if taken else None,
            taken.size if taken else None,
            None if taken else (str(ended) or type(ended).__name__)[:_SHOWN],
        )
        await tx.execute(
            "DELETE FROM controller_backups WHERE ended_at < now() - make_interval(days => $1)", _KEPT_DAYS
        )
        await _judge(tx)

    await database.transact(work)


async def look(database: Database) -> None:
    """Open or close the alert. If no backup was ever attempted, there is no alert: operators may choose to make no
    backups."""
    await database.transact(_judge)


async def _judge(tx: Transaction) -> None:
    last = await tx.fetchrow("SELECT * FROM controller_backups ORDER BY id DESC LIMIT 1")
    if last is None:
        return
    whole = await tx.fetchrow(
        """SELECT ended_at, ended_at < now() - make_interval(secs => $1::float8 * 7200) AS old
           FROM controller_backups WHERE error IS NULL ORDER BY id DESC LIMIT 1""",
        last["every_hours"],
    )
    since = (
        f"the last complete one is of {whole['ended_at']:%Y-%m-%d %H:%M} UTC" if whole else "there is no complete one"
    )
    message: str | None = None
    if last["error"] is not None:
        message = f"The last backup of the controller to {last['place']} failed, and {since}: {last['error']}"
    elif whole is not None and whole["old"]:
        message = f"The controller's backup is overdue: one is due every {last['every_hours']:g} h, and {since}."
    await set_alert(tx, ALERT, message, severity=Severity.CRITICAL)
